"""Draw changed files: one line for each, and a few lines of the diff below it."""

from collections.abc import Callable, Iterable, Sequence

from holdfast.api.schema.changes import FileDiffObject
from holdfast.api.schema.events import Event
from holdfast.cli.tui.style import Style, cut
from holdfast.core.run.files import ChangeKind
from holdfast.core.text.escape import VISIBLE, reveal

SHOWN = 8  # lines of the diffs of one call
_KINDS: dict[str, str] = {
    ChangeKind.CREATED: "new file ",
    ChangeKind.REPLACED: "replaced ",
    ChangeKind.PATCHED: "",
    ChangeKind.DELETED: "deleted ",
}
_INDENT = "  "


def summary(style: Style, change: Event | FileDiffObject) -> str:
    """Draw what was done to a file in one line: `+12 −3 calc.py`."""
    counts = []
    if change.added:
        counts.append(style.good(f"+{change.added}"))
    if change.removed:
        counts.append(style.bad(f"−{change.removed}"))
    if change.binary:
        counts.append("binary")
    kind = _KINDS.get(change.kind, "")
    named: dict[str, Callable[[str], str]] = {
        ChangeKind.CREATED: style.good,
        ChangeKind.DELETED: style.bad,
    }
    said = named.get(change.kind, style.bold)(f"{kind}{reveal(change.path)}")
    return " ".join([*counts, said])


def below_call(style: Style, width: int, diffs: Sequence[FileDiffObject]) -> list[str]:
    """Draw the changes of a call: every file, and the first lines of their diffs."""
    rows: list[str] = []
    room = SHOWN
    for diff in diffs:
        rows.append(cut(_INDENT + summary(style, diff), width))
        lines = [line for line in _body(diff.diff) if line.startswith(("+", "-"))]
        shown, room = lines[:room], max(room - len(lines), 0)
        rows += [cut(_INDENT * 2 + diff_line(style, line), width) for line in shown]
        if hidden := len(lines) - len(shown):
            rows.append(style.dim(f"{_INDENT * 2}… {hidden} more: Ctrl-O shows all"))
    return rows


def whole(style: Style, diffs: Iterable[FileDiffObject]) -> list[str]:
    """Draw the complete diffs."""
    rows: list[str] = []
    for diff in diffs:
        rows += ["", summary(style, diff)]
        rows += [diff_line(style, line) for line in diff.diff.removesuffix("\n").split("\n")]
        if diff.pruned:
            rows.append(style.dim("a version is no longer kept, so there is no diff"))
        if diff.cut:
            rows.append(style.dim("… the rest is too long"))
    return rows


def diff_line(style: Style, line: str) -> str:
    """Colour one line of a diff."""
    said = line.expandtabs(4).translate(VISIBLE)
    if line.startswith(("+++", "---", "diff ", "index ")):
        return style.bold(said)
    if line.startswith("@@"):
        return style.mine(said)
    paint = {"+": style.good, "-": style.bad}.get(line[:1])
    return paint(said) if paint else said


def _body(diff: str) -> list[str]:
    """Return the lines of the hunks, without the heads."""
    lines, body = list[str](), False
    for line in diff.split("\n"):
        if line.startswith("@@"):
            body = True
        elif line.startswith("diff "):
            body = False
        elif body:
            lines.append(line)
    return lines
