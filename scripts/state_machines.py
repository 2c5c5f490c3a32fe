"""Draws docs/state-machines.md from the transition tables of the core.

`python -m scripts.state_machines` writes it; with `--check` it only says whether the
file is what it would write, and returns 1 if not.
"""

import argparse
import sys
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import ModuleType

from holdfast.core import inbox
from holdfast.core.approval import approval
from holdfast.core.chat import access, delivery
from holdfast.core.life import lifecycle
from holdfast.core.run import call, process, run
from holdfast.core.session import session
from holdfast.core.types import Fact, kind

TARGET = Path(__file__).parent.parent / "docs" / "state-machines.md"
MACHINES: tuple[ModuleType, ...] = (
    inbox,
    session,
    run,
    call,
    approval,
    process,
    delivery,
    access,
    lifecycle,
)

HEAD = """# The state machines

Drawn from the transition tables in `holdfast/core` by `python -m scripts.state_machines`; do not
edit. What a table does not allow raises `IllegalTransition` and changes nothing. Facts that leave
the status as it is are in the table of each machine, not in its picture.
"""

Table = Mapping[tuple[StrEnum, type[Fact] | StrEnum], StrEnum]
Row = tuple[StrEnum, str, StrEnum]


def draw() -> str:
    """The whole document."""
    return "\n".join([HEAD, *map(_section, MACHINES)])


def _section(machine: ModuleType) -> str:
    noun = machine.__name__.rpartition(".")[2]
    first_paragraph = (machine.__doc__ or "").partition("\n\n")[0].replace("\n", " ").strip()
    table: Table = machine.TRANSITIONS
    rows = [(before, _name(fact), after) for (before, fact), after in table.items()]
    rows += getattr(machine, "RULES", ())  # what stands above the table
    return "\n".join(
        [
            f"## {noun.capitalize()}",
            "",
            first_paragraph,
            "",
            *_diagram(rows, type(rows[0][0])),
            "",
            "| while | this happens | then |",
            "|---|---|---|",
            *(f"| {before} | {what} | {after} |" for before, what, after in rows),
            "",
        ]
    )


def _diagram(rows: list[Row], statuses: type[StrEnum]) -> list[str]:
    arrows: dict[tuple[StrEnum, StrEnum], list[str]] = {}
    for before, what, after in rows:
        if before is not after:
            arrows.setdefault((before, after), []).append(what)
    sources = {before for before, _, _ in rows}
    return [
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {next(iter(statuses))}",
        *(f"    {a} --> {b}: {'<br/>'.join(names)}" for (a, b), names in arrows.items()),
        *(f"    {s} --> [*]" for s in statuses if s not in sources),
        "```",
    ]


def _name(fact: type[Fact] | StrEnum) -> str:
    return fact.value if isinstance(fact, StrEnum) else kind(fact)


def main(argv: list[str]) -> int:
    """Write the document, or check it."""
    parser = argparse.ArgumentParser(description="Draw docs/state-machines.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if out of date")
    drawn = draw()
    if not parser.parse_args(argv).check:
        TARGET.write_text(drawn, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == drawn:
        return 0
    print(
        "docs/state-machines.md is out of date: run `python -m scripts.state_machines`",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
