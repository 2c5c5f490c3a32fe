"""Draws docs/state-machines.md from the transition tables of holdfast/core.

`--check` fails if the drawing and the tables disagree; without it the drawing is made anew.
"""

import argparse
import inspect
import sys
from collections import defaultdict
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.core import approval, call, delivery, inbox, lifecycle, run, session

ROOT = Path(__file__).parent.parent
DRAWING = ROOT / "docs" / "state-machines.md"
MACHINES = (inbox, session, run, call, approval, delivery, lifecycle)
HEAD = """\
# The state machines

Drawn from the transition tables in `holdfast/core/` by `make diagrams`; `make check` fails if they disagree.
The words are the heads of those files. What is not drawn is illegal: it raises `IllegalTransition` and changes nothing.
"""


def draw(machine: ModuleType) -> str:
    """One machine: what its file says it is, and its table as a diagram."""
    name = machine.__name__.rpartition(".")[2]
    summary, _, theory = inspect.cleandoc(machine.__doc__ or "").partition("\n\n")
    edges: Mapping[tuple[str, str], list[str]] = _edges(machine.TRANSITIONS)
    lines = [
        f"    [*] --> {next(iter(machine.Status))}",
        *(f"    {was} --> {now}: {', '.join(causes)}" for (was, now), causes in edges.items()),
        *(f"    {status} --> [*]" for status in machine.Status if status.final),
    ]
    diagram = "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```"])
    source = f"[holdfast/core/{name}.py](../holdfast/core/{name}.py)"
    return f"\n## {summary}\n\n{theory}\n\n{diagram}\n\n{source}\n"


def _edges(table: Mapping[tuple[Enum, Any], Enum]) -> Mapping[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (was, cause), now in table.items():
        word = cause.value if isinstance(cause, Enum) else cause.__name__
        found[str(was.value), str(now.value)].append(word)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="draw the state machines")
    parser.add_argument("--check", action="store_true", help="fail if the drawing is out of date")
    arguments = parser.parse_args()
    drawing = HEAD + "".join(map(draw, MACHINES))
    if not arguments.check:
        DRAWING.write_text(drawing)
    elif not DRAWING.exists() or DRAWING.read_text() != drawing:
        print("docs/state-machines.md is out of date: make diagrams")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
