"""A short list above the input line, of which the user chooses one entry with the arrow keys."""

from collections.abc import Sequence

from holdfast.cli.tui.style import Style, cut
from holdfast.core.types import Value

ROWS = 8
HELP = "↑ ↓ choose · Enter shows all of it · Esc leaves"


class ListedCall(Value):
    """An entry: the id of the call, and its line."""

    key: str
    line: str


class Chooser:
    """The entries, oldest first, and the position of the mark: on the last one at first."""

    def __init__(self, entries: Sequence[ListedCall]) -> None:
        self._entries = entries
        self._at = len(entries) - 1

    def move(self, by: int) -> None:
        """Move the mark."""
        self._at = max(0, min(self._at + by, len(self._entries) - 1))

    @property
    def chosen(self) -> str:
        """The key of the marked entry."""
        return self._entries[self._at].key

    def lines(self, style: Style, columns: int) -> list[str]:
        """Draw the entries around the mark."""
        first = max(0, min(self._at - ROWS // 2, len(self._entries) - ROWS))
        rows = []
        for number, one in enumerate(self._entries[first : first + ROWS], first):
            mark = style.mine("▸") if number == self._at else " "
            rows.append(cut(f"{mark} {one.line}", columns))
        return [*rows, style.dim(cut(HELP, columns))]
