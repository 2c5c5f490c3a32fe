"""The table promise → kept or owed → tests → passed, from docs/ and a recorded test run.

Fails on an id that the sheets do not know, on a promise called kept that no passing test
shows, and on one that a failing test denies. Where a test was skipped because a package
is not installed, the promise counts as not shown here: that fails only with --strict.
"""

import argparse
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHEETS = (ROOT / "docs" / "promises.md", ROOT / "docs" / "faults.md")
STATES = ("kept", "owed")

_ROW = re.compile(r"^\| ([A-Z]+-\d+) \|(?:.*)\| *(\S*) *\|$", re.MULTILINE)


def read_sheets(sheets: Iterable[Path]) -> dict[str, str]:
    """Id → state, in the sheets' order."""
    found: dict[str, str] = {}
    for sheet in sheets:
        for promise, state in _ROW.findall(sheet.read_text()):
            if state not in STATES:
                raise SystemExit(f"{sheet.name}: {promise} must be kept or owed, not {state!r}")
            if promise in found:
                raise SystemExit(f"{sheet.name}: {promise} stands twice")
            found[promise] = state
    return found


def tally(tests: Iterable[Mapping[str, object]]) -> dict[str, Counter[str]]:
    """Id → how many of its tests passed, failed and were skipped."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for test in tests:
        ids = test["ids"]
        assert isinstance(ids, list)
        for promise in ids:
            found[promise][str(test["outcome"])] += 1
    return found


def verdict(state: str, outcomes: Counter[str], *, strict: bool) -> str:
    """What to say of one promise; begins with `!` if it may not stay so."""
    if outcomes["failed"]:
        return "! a test of it fails"
    if state == "owed" or outcomes["passed"]:
        return ""
    if outcomes["skipped"]:
        return "! skipped" if strict else "not shown here: skipped"
    return "! kept, but no test shows it"


def table(
    states: Mapping[str, str], outcomes: Mapping[str, Counter[str]], *, strict: bool
) -> tuple[list[str], bool]:
    """The lines to print, and whether everything is as it is called."""
    lines = [f"{'promise':9} {'state':5} {'tests':>5} {'passed':>6}"]
    good = True
    for promise, state in states.items():
        seen = outcomes.get(promise, Counter())
        word = verdict(state, seen, strict=strict)
        good = good and not word.startswith("!")
        lines.append(f"{promise:9} {state:5} {seen.total():5} {seen['passed']:6}  {word}".rstrip())
    for promise in sorted(outcomes.keys() - states.keys()):
        good = False
        lines.append(f"{promise:9} {'':5} {outcomes[promise].total():5} {'':6}  ! unknown id")
    kept = sum(state == "kept" for state in states.values())
    lines.append(f"{kept} of {len(states)} kept, the rest owed")
    return lines, good


def main() -> int:
    parser = argparse.ArgumentParser(description="print which promise is kept and who shows it")
    parser.add_argument(
        "results", type=Path, nargs="+", help="files that pytest --promises-json wrote"
    )
    parser.add_argument("--strict", action="store_true", help="a skipped test shows nothing")
    arguments = parser.parse_args()
    tests = [json.loads(results.read_text())["tests"] for results in arguments.results]
    outcomes = tally(chain.from_iterable(tests))
    lines, good = table(read_sheets(SHEETS), outcomes, strict=arguments.strict)
    print("\n".join(lines))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
