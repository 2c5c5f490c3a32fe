"""The figures, what they are held against, and how they are printed."""

import operator
from collections.abc import Sequence

import msgspec


class Target(msgspec.Struct, frozen=True):
    """What a figure must come to: of the floor's (`times`) or in its own unit."""

    sign: str
    limit: float
    times: bool = False
    scale: str = ""  # about what that comes to on the machine the target was set on

    @property
    def text(self) -> str:
        scale = f" (scale {self.sign} {self.scale})" if self.scale else ""
        return f"{self.sign} {self.limit:g}{' ×' if self.times else ''}{scale}"

    def met(self, value: float | None, ratio: float | None) -> bool | None:
        """Unknown if there is nothing to compare."""
        measured = ratio if self.times else value
        if measured is None:
            return None
        compare = operator.ge if self.sign == "≥" else operator.le
        return bool(compare(measured, self.limit))


TARGETS = {
    "runs/s, 32 at a time": Target("≥", 0.60, times=True, scale="400"),
    "CPU ms per run, 32 at a time": Target("≤", 1.65, times=True, scale="2"),
    "completion ms p50, 1 at a time": Target("≤", 2.0, times=True, scale="6"),
    "500 streams of 5 s, lag ms p99": Target("≤", 100),
    "1000 streams of 5 s, lag ms p99": Target("≤", 200),
    "1000 streams of 5 s, s until all finished": Target("≤", 8),
    "500 streams of 2 s, lag ms p99": Target("≤", 100),
    "1000 streams of 2 s, lag ms p99": Target("≤", 200),
    "1000 streams of 2 s, s until all finished": Target("≤", 5),
    "ready ms": Target("≤", 350),
    "idle RSS MB": Target("≤", 60),
    "--version ms (floor: python -c pass)": Target("≤", 3, times=True),
    "prompt ms (floor: python -c pass)": Target("≤", 500),
    "--help ms (floor: python -c pass)": Target("≤", 6, times=True),
    "one shot ms (floor: python -c pass)": Target("≤", 600),
    "100 killed runs, ms from start to all finished": Target("≤", 2000),
    "turn 200 against turn 1": Target("≤", 1.3),
    "turn 1,000 against turn 2, CPU": Target("≤", 1.3),
    "turn 5,000 against turn 2, CPU": Target("≤", 1.3),
    "sandboxed true, ms p50 over a bare one": Target("≤", 60),
    "stop to tree dead, ms p50": Target("≤", 300),
    "stop to tree dead, ms worst": Target("≤", 3000),
    "first command in 50,000 files, ms over one without snapshot": Target("≤", 3000),
    "command in 50,000 files, ms p50 over one without snapshot": Target("≤", 150),
    "command that edits one of 50,000 files, the same": Target("≤", 150),
    "100 runs waiting for approval, MB": Target("≤", 10),
    "100 runs waiting for approval, tasks": Target("≤", 0),
    "yes for 20 s, MB": Target("≤", 20),
}


class Figure(msgspec.Struct, frozen=True):
    """One row: the floor's figure, Holdfast's, and how they compare."""

    name: str
    floor: float | None
    holdfast: float | None
    ratio: float | None
    target: str
    ok: bool | None


def figure(name: str, values: dict[str, float]) -> Figure:
    """A row from what was measured, by contestant."""
    floor, holdfast = values.get("floor"), values.get("holdfast")
    ratio = holdfast / floor if floor and holdfast is not None else None
    target = TARGETS.get(name)
    ok = target.met(holdfast, ratio) if target else None
    return Figure(name, floor, holdfast, ratio, target.text if target else "", ok)


def table(figures: Sequence[Figure]) -> str:
    """All rows, aligned."""
    heads = ("", "floor", "holdfast", "ratio", "target", "")
    verdicts = {True: "ok", False: "MISSED", None: ""}
    rows = [
        (f.name, show(f.floor), show(f.holdfast), show(f.ratio), f.target, verdicts[f.ok])
        for f in figures
    ]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if n in (0, 5) else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (heads, *rows)
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


def show(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
