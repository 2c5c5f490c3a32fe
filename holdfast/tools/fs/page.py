"""A page of text for the model: limited in size, with notes about what is missing."""

MAX_TEXT = 32 * 1024  # bytes sent to the model
ROOM = MAX_TEXT - 512  # the rest is for the notes at the end
SNIFF = 8 * 1024  # bytes that are checked for NUL, which marks a binary file


class Page:
    """Collects lines for the model until the page is full."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._room = ROOM

    def add(self, line: str) -> bool:
        """Add `line` if there is room for it; return whether there was."""
        size = len(line.encode(errors="replace")) + 1
        if size > self._room:
            return False
        self._room -= size
        self.lines.append(line)
        return True

    def text(self, *notes: str) -> str:
        return "\n".join([*self.lines, *(f"[{note}]" for note in notes if note)])


def cut(text: str, size: int) -> str:
    """Return as much of `text` as fits in `size` bytes."""
    return text.encode(errors="replace")[:size].decode(errors="ignore")
