"""Pasted text: short text stays as it is, long text is shown as a label in the input line.

Only a label exactly as it was made here is known. When the message is sent, the text replaces its
label, once, even if the label is there several times; labels in the text itself are not replaced.
Any other text that looks like a label stays as it is. Nothing is forgotten while the terminal is
open, so a line from the history, or a waiting one, still has its text.

An edit removes a label completely or not at all (`mended`), so no text is lost.

If a terminal pastes the paths of pictures, the pictures are attached (cli/run/attachments.py).
"""

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from msgspec.structs import replace

from holdfast.cli.run import attachments
from holdfast.cli.run.attachments import Attachment, BadAttachment, Pasted
from holdfast.cli.tui.input.files import quoted
from holdfast.core.types import Value

LINES = 8
CHARACTERS = 1000
REMEMBERED = 4000  # characters of one pasted text that the history keeps

_LABEL = re.compile(r"\[(?:pasted text|image) \d+ · [^\[\]\n]*\]")
_DROPPED: dict[int, int | str | None] = dict.fromkeys((*range(32), *range(0x7F, 0xA0)))
_DROPPED |= {ord("\n"): "\n", ord("\t"): "\t"} | dict.fromkeys(range(0xD800, 0xE000), "�")


class _Picture(Value):
    """A picture and its path."""

    attachment: Attachment
    path: Path


class Pastes:
    """All pasted text and pictures, by label. `say` gets the reason why a picture is refused."""

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self._say = say
        self._texts: dict[str, Pasted] = {}
        self._pictures: dict[str, _Picture] = {}
        self._text_numbers = count(1)
        self._picture_numbers = count(1)

    def paste(self, data: str, into: str = "") -> str:
        """Return what to insert for `data`; `into` is the present text of the line."""
        text = clean(data)
        if paths := attachments.dropped(text):
            try:
                return " ".join([self._picture(path, into) for path in paths])
            except BadAttachment as why:
                self._say(str(why))
        return self._text(text, into) if is_large(text) else text

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the begin and the end of each label in `text`."""
        return (found.span() for found in _LABEL.finditer(text) if self._knows(found[0]))

    def mended(self, before: str, after: str, cursor: int) -> tuple[str, int]:
        """Correct an edit of the line; return the text and the cursor.

        The edit turned `before` into `after` and left the cursor at its place. If it removed a
        part of a label, the rest is removed too; text inserted into a label moves behind it; if
        it only changed letters of a label, it is undone.
        """
        spans = list(self.spans(before))
        if len(before) == len(after):
            return (before if self._garbles(before, after, spans) else after), cursor
        begin = cursor - max(len(after) - len(before), 0)
        end = begin + max(len(before) - len(after), 0)
        new = after[max(begin, 0) : cursor]
        if begin < 0 or before[:begin] + new + before[end:] != after:
            return after, cursor  # the whole line was replaced: not typed
        for first, last in spans:
            if first < begin == end < last:
                begin = end = last
            elif first < end and begin < last:
                begin, end = min(begin, first), max(end, last)
        return before[:begin] + new + before[end:], begin + len(new)

    def _garbles(self, before: str, after: str, spans: list[tuple[int, int]]) -> bool:
        changed = [
            at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new
        ]
        return any(
            first <= changed[0] and changed[-1] < last and not self._knows(after[first:last])
            for first, last in spans
            if changed
        )

    def expand(self, text: str) -> str:
        """Replace the first of each label in `text` by its pasted text."""
        left = dict(self._texts)
        return _LABEL.sub(lambda m: left.pop(m[0]).text if m[0] in left else m[0], text)

    def fold(self, text: str) -> str:
        """Replace pasted text in `text` by its labels; `expand` reverses it."""
        for label, one in sorted(self._texts.items(), key=lambda item: -len(item[1].text)):
            if label not in text:
                text = text.replace(one.text, label, 1)
        return text

    def take(self, text: str, workspace: Path | None = None) -> tuple[str, list[Attachment]]:
        """Return the message for `text`: its text, and its pictures in order.

        With a workspace, pictures mentioned with an @ are included, except those in pasted text.
        Raises `BadAttachment` if one of them cannot be sent.
        """
        labels = dict.fromkeys(m[0] for m in _LABEL.finditer(text) if m[0] in self._pictures)
        pictures = [self._pictures[label] for label in labels]
        taken = [picture.attachment for picture in pictures]
        if workspace is not None:
            known = {picture.path for picture in pictures}
            paths = (p for p in attachments.mentioned(text, workspace) if p not in known)
            taken += [attachments.read(p, n) for n, p in enumerate(paths, len(taken) + 1)]
        return self.expand(text), taken

    def remembered(self, text: str) -> str:
        """Return `text` for the history, without labels."""
        return _LABEL.sub(lambda found: self._meaning(found[0]), text)

    def _meaning(self, label: str) -> str:
        if label in self._pictures:
            path = str(self._pictures[label].path)
            return f"@{quoted(path) or path}"
        if label not in self._texts:
            return label
        text = self._texts[label].text
        return text if len(text) <= REMEMBERED else f"{label[:-1]}, not kept]"

    def _knows(self, label: str) -> bool:
        return label in self._texts or label in self._pictures

    def _text(self, text: str, into: str) -> str:
        while (made := Pasted(next(self._text_numbers), text)).label in into:
            pass  # the line already contains such a text: it is not a label
        self._texts[made.label] = made
        return made.label

    def _picture(self, path: Path, into: str) -> str:
        made = attachments.read(path)
        while (made := replace(made, number=next(self._picture_numbers))).label in into:
            pass
        self._pictures[made.label] = _Picture(made, path)
        return made.label


def clean(data: str) -> str:
    """Return `data` as text with one kind of line end and nothing that steers a terminal."""
    return data.replace("\r\n", "\n").replace("\r", "\n").translate(_DROPPED)


def is_large(text: str) -> bool:
    """Tell whether pasted text is shown as a label."""
    return text.strip("\n").count("\n") >= LINES or len(text) > CHARACTERS
