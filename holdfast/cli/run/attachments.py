"""Attachments of a message at a terminal: pictures, and text too long for the input line.

A terminal passes a dropped file as its path, quoted as for a shell, or as a file:// URL. So text
that consists only of paths of pictures attaches them. Within other text, a picture is attached by
an @ before its path. An attachment is a label in the input line, and is removed with the label.

A problem is reported before anything is sent; core/images.py decides which pictures are accepted.
"""

import re
import shlex
import stat
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.cli.exits import Code, Exit
from holdfast.core import images
from holdfast.core.images import PICTURE_BYTES
from holdfast.core.messages import Image
from holdfast.core.types import Value
from holdfast.errors import Refused

_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".webp"})
_LONGEST = 16 * 1024  # characters of dropped paths
_MENTION = re.compile(r"""(?<!\S)@(?:"([^"\n]+)"|'([^'\n]+)'|((?:\\.|[^\s\\])+))""")
_ROOM = 64 * 1024  # bytes of a request besides its text and pictures


class BadAttachment(Exit):
    """A file cannot be attached; the line says why."""

    def __init__(self, line: str) -> None:
        super().__init__(Code.USAGE, line)


class Attachment(Value):
    """A picture and its file name."""

    number: int
    name: str
    image: Image

    @property
    def label(self) -> str:
        """The label in the input line."""
        name = "".join(c if c.isprintable() and c not in "[]" else "_" for c in self.name)
        return f"[image {self.number} · {name}]"


class Pasted(Value):
    """A pasted text."""

    number: int
    text: str

    @property
    def label(self) -> str:
        """The label in the input line."""
        lines = self.text.strip("\n").count("\n") + 1
        size = f"{lines} lines" if lines > 1 else f"{len(self.text)} characters"
        return f"[pasted text {self.number} · {size}]"


def read(path: Path, number: int = 1) -> Attachment:
    """Read the picture at `path`. Raises `BadAttachment`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe might block
            raise BadAttachment(f"{path} is not a file")
        with path.open("rb") as file:
            data = file.read(PICTURE_BYTES + 1)
    except OSError as error:
        raise BadAttachment(f"{path} cannot be read: {error.strerror}") from None
    try:
        return Attachment(number, path.name, images.picture(data, path.name))
    except Refused as refused:
        raise BadAttachment(str(refused).removesuffix(".")) from None


def dropped(text: str) -> list[Path]:
    """Return the pictures in a dropped `text`, if it consists only of their paths."""
    text = text.strip()
    if not text or len(text) > _LONGEST:
        return []
    for names in ([text], _shell_words(text), text.split()):
        paths = [_path(name) for name in names]
        if names and all(p.is_absolute() and _is_picture(p) for p in paths):
            return list(dict.fromkeys(paths))
    return []


def mentioned(text: str, cwd: Path) -> list[Path]:
    """Return the pictures that `text` names: @shot.png, @"my shot.png", @my\\ shot.png."""
    found: list[Path] = []
    for quoted, single, bare in _MENTION.findall(text):
        name = quoted or single or re.sub(r"\\(.)", r"\1", bare)
        candidates = (name, name.rstrip(".,;:!?)"))
        paths = (cwd / _path(candidate) for candidate in candidates)
        found += [p for p in paths if _is_picture(p)][:1]
    return list(dict.fromkeys(found))


def check(attached: Sequence[Attachment], words: str, limit: int) -> None:
    """Raise `BadAttachment` if they are too many or too large for a request of `limit` bytes."""
    try:
        images.check_count(len(attached))
    except Refused as refused:
        raise BadAttachment(str(refused).removesuffix(".")) from None
    encoded = sum(-(-len(one.image.data) // 3) * 4 for one in attached)
    if encoded and encoded + len(words.encode(errors="replace")) + _ROOM > limit:
        raise BadAttachment(
            f"that is too much for one request of {limit >> 20} MB (limits.body_mb): "
            "attach fewer or smaller pictures"
        )


def _shell_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unclosed quote
        return []


def _path(name: str) -> Path:
    """Return the path in `name`, as a shell or a desktop writes it."""
    if name.startswith("file://"):
        url = urlsplit(name)
        local = url.netloc in ("", "localhost")
        return Path(unquote(url.path)) if local else Path(name)
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~name without such a user
        return Path(name)


def _is_picture(path: Path) -> bool:
    try:
        return path.suffix.lower() in _SUFFIXES and path.is_file()
    except (OSError, ValueError):  # a name that no file can have
        return False
