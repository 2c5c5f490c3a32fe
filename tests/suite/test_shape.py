"""`make shape`: each check of the code base's shape can fail."""

from pathlib import Path

import pytest

from scripts import shape

CONTRACTS: list[dict[str, object]] = [{"layers": ["app | cli", "core"]}]


def values(root: Path, files: dict[str, str]) -> dict[str, shape.Figure]:
    """The figures of a product with these files."""
    for name, text in {"__init__": "", "core": "def f(): pass\n", **files}.items():
        path = root / "holdfast" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {one.name: one for one in shape.figures(root, [*CONTRACTS])}


def test_a_small_tree_passes_no_limit(tmp_path: Path) -> None:
    assert not any(one.is_passed for one in values(tmp_path, {}).values())


@pytest.mark.parametrize(
    ("figure", "files"),
    [
        ("longest function", {"cli": "def f():\n" + "    x = 1\n" * shape.LONGEST_FUNCTION}),
        ("largest file", {"app": "x = 1\n" * (shape.LARGEST_FILE + 1)}),
        (
            "largest fan-out",
            {
                **{f"cli/m{n}": "" for n in range(shape.LARGEST_FAN_OUT + 1)},
                "core": "def f():\n"
                + "".join(
                    f"    import holdfast.cli.m{n}\n" for n in range(shape.LARGEST_FAN_OUT + 1)
                ),
            },
        ),
        (
            "class names used twice",
            {
                name: "".join(f"class C{n}: pass\n" for n in range(shape.TWICE_NAMED + 1))
                for name in ("app", "cli")
            },
        ),
        ("import cycles", {"app": "from holdfast import cli\n", "cli": "import holdfast.app\n"}),
        ("modules outside any contract", {"stray": ""}),
    ],
)
def test_a_tree_over_a_limit_fails(figure: str, files: dict[str, str], tmp_path: Path) -> None:
    assert values(tmp_path, files)[figure].is_passed


def test_code_is_counted_without_comments_docstrings_and_empty_lines(tmp_path: Path) -> None:
    text = '"""About\nit."""\n\n# why\nx = """a\nb"""\n\n\ndef f():\n    """Do."""\n    return x\n'
    values(tmp_path, {"app": text})
    [module] = [m for m in shape.modules(tmp_path) if m.name == "holdfast.app"]
    assert (module.lines, module.code) == (11, 4)


def test_an_import_inside_a_function_makes_no_cycle(tmp_path: Path) -> None:
    files = {"app": "def f():\n    from holdfast import cli\n", "cli": "import holdfast.app\n"}
    assert values(tmp_path, files)["import cycles"].value == 0
