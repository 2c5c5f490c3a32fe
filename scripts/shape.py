"""Print the shape of the code base, and fail where a limit is passed.

The table: files and lines per folder, code lines of the product, the largest fan-out, class names
used twice, the longest function, the largest file, import cycles, modules outside any contract.
"""

import argparse
import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

LONGEST_FUNCTION = 60  # lines, from `def` to the last one
LARGEST_FILE = 500  # lines
LARGEST_FAN_OUT = 20  # modules of ours that one module imports
TWICE_NAMED = 9  # class names that the product uses more than once
CYCLES = 0
OUTSIDE = 0  # modules in no import contract

# Larger files, and why they are.
LARGE = {
    "holdfast/tools/exec/shim.py": "runs standalone beside a command, so it imports nothing of ours",
    "holdfast/core/run/run.py": "one state machine, whose last check asks for the next step",
}
# Longer functions, and why they are.
LONG: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class Module:
    """One module of the product."""

    name: str
    path: str
    lines: int
    code: int
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value, its limit, and the place that has it."""

    name: str
    value: int
    limit: int
    where: str = ""

    @property
    def is_passed(self) -> bool:
        return self.value > self.limit


def modules(root: Path) -> list[Module]:
    """Every module below `root`/holdfast."""
    found = []
    for path in sorted((root / "holdfast").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text("utf-8")
        tree = ast.parse(text)
        lines = len(text.splitlines())
        found.append(
            Module(name, path.relative_to(root).as_posix(), lines, code_lines(text, tree), tree)
        )
    return found


def code_lines(text: str, tree: ast.Module) -> int:
    """Count the lines that are neither empty, a comment nor part of a docstring."""
    documented: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as first, *_]:
                    documented.update(range(first.lineno, (first.end_lineno or 0) + 1))
                case _:
                    pass
    return sum(
        1
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in documented
    )


def imports(module: Module, names: frozenset[str], *, lazy: bool) -> frozenset[str]:
    """The modules in `names` that a module imports; those within functions only if `lazy`."""
    found: set[str] = set()
    for node in _statements(module.tree, lazy=lazy):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in names else node.module)
    return frozenset(found & names) - {module.name}


def _statements(node: ast.AST, *, lazy: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        yield child
        yield from _statements(child, lazy=lazy)


def cycles(graph: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules that import each other (Tarjan's strongly connected components)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in number:
            visit(name)
    return found


def functions(module: Module) -> Iterator[tuple[int, str]]:
    """Each function's length in lines, and its place."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            yield length, f"{module.path} {node.name}"


def classes(found: list[Module]) -> list[str]:
    """Class names that are defined more than once; private ones are a module's own business."""
    count = Counter(
        node.name
        for module in found
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, times in count.items() if times > 1)


def outside(found: list[Module], contracts: list[Mapping[str, object]]) -> list[str]:
    """Modules that no layer of an import contract holds."""
    inside: set[str] = set()
    for contract in contracts:
        layers = contract.get("layers")
        for layer in layers if isinstance(layers, list) else []:
            inside.update(part.strip() for part in str(layer).split("|"))
    return [m.name for m in found if "." in m.name and m.name.split(".")[1] not in inside]


def figures(root: Path, contracts: list[Mapping[str, object]]) -> list[Figure]:
    """Everything that has a limit."""
    found = modules(root)
    names = frozenset(m.name for m in found)
    graph = {m.name: imports(m, names, lazy=True) for m in found}
    longest = max(f for m in found for f in functions(m) if f[1] not in LONG)
    largest = max((m.lines, m.path) for m in found if m.path not in LARGE)
    widest = max((len(used), name) for name, used in graph.items())
    at_import = {m.name: imports(m, names, lazy=False) for m in found}
    circles = cycles(at_import)
    twice = classes(found)
    loose = outside(found, contracts)
    return [
        Figure("longest function", longest[0], LONGEST_FUNCTION, longest[1]),
        Figure("largest file", largest[0], LARGEST_FILE, largest[1]),
        Figure("largest fan-out", widest[0], LARGEST_FAN_OUT, widest[1]),
        Figure("class names used twice", len(twice), TWICE_NAMED, " ".join(twice)),
        Figure("import cycles", len(circles), CYCLES, "; ".join(" ".join(c) for c in circles)),
        Figure("modules outside any contract", len(loose), OUTSIDE, " ".join(loose)),
    ]


def folders(root: Path) -> Iterator[tuple[str, int, int, int]]:
    """Each folder of the product with its files, lines and code lines; below it a second level."""
    count: dict[str, list[int]] = {}
    for module in modules(root):
        parts = Path(module.path).parent.parts[:3]
        sums = count.setdefault("/".join(parts), [0, 0, 0])
        for at, value in enumerate((1, module.lines, module.code)):
            sums[at] += value
    for folder, (files, lines, code) in sorted(count.items()):
        yield folder, files, lines, code


def main() -> int:
    parser = argparse.ArgumentParser(description="print the shape of the code base")
    parser.add_argument("--check", action="store_true", help="print only passed limits")
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    measured = figures(ROOT, contracts)
    if not parser.parse_args().check:
        _print(measured)
    failed = [one for one in measured if one.is_passed]
    for one in failed:
        print(f"shape: {one.name} is {one.value}, over the limit of {one.limit}: {one.where[:300]}")
    return 1 if failed else 0


def _print(measured: list[Figure]) -> None:
    rows = list(folders(ROOT))
    product = ("product", sum(r[1] for r in rows), sum(r[2] for r in rows), sum(r[3] for r in rows))
    print(f"{'folder':32}{'files':>7}{'lines':>9}{'code':>9}")
    for folder, files, lines, code in (*rows, product):
        print(f"{folder:32}{files:7,}{lines:9,}{code:9,}")
    print()
    for one in measured:
        print(f"{one.name:32}{one.value:7,}  of {one.limit:<5,} {one.where[:100]}".rstrip())
    for place, why in (*LARGE.items(), *LONG.items()):
        print(f"exception: {place} {why}")


if __name__ == "__main__":
    sys.exit(main())
