"""The input history of all terminals: one JSON string per line, oldest first.

Several terminals write to the file at once. A line is one write at the end of the file, so lines do
not mix, and no lock is needed. To shorten the file, a process puts a new file in its place. No line
is lost: a writer checks afterwards whether its file still has that name, and writes again if not;
and lines that were added to the old file meanwhile are copied. So a line may be there twice. Only
one process shortens the file at a time.

Known secrets are removed, and lines that begin with a space are not kept. If the file cannot be
written, nothing is kept: the prompt must not fail because of its history.
"""

import fcntl
import os
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from pathlib import Path

import msgspec
from anyio import to_thread
from prompt_toolkit.history import History

from holdfast.core.redaction import Redactor

FILE = "history.jsonl"
KEPT = 2_000
MOST = 4_000  # lines, before it is made shorter
LONGEST = 20_000  # characters of one line

_TRIES = 8  # the file is replaced once in a while, never all the time
_PIECE = 1 << 20


class InputHistory(History):
    """The history of the input line, kept in `path`.

    `whole` converts a text for the file: it replaces the labels of pasted text, which only this
    terminal knows.
    """

    def __init__(
        self, path: Path, redactor: Redactor, whole: Callable[[str], str] = lambda text: text
    ) -> None:
        super().__init__()
        self._path = path
        self._redactor = redactor
        self._whole = whole

    async def load(self) -> AsyncGenerator[str, None]:  # type: ignore[explicit-override]  # 3.12
        """Yield all lines, latest first. The file is read in a thread, once."""
        if not self._loaded:
            kept = await to_thread.run_sync(read, self._path, abandon_on_cancel=True)
            self._take(kept)
        for text in tuple(self._loaded_strings):
            yield text

    def load_history_strings(self) -> Iterable[str]:  # type: ignore[explicit-override]  # 3.12
        """Return the lines of the file, latest first."""
        return reversed(read(self._path))

    def append_string(self, string: str) -> None:  # type: ignore[explicit-override]  # 3.12
        """Keep a line, unless it begins with a space or repeats the last one."""
        text = self._redactor.clean(string)
        if not text.strip() or string.startswith(" ") or self._loaded_strings[:1] == [text]:
            return
        self._loaded_strings.insert(0, text)
        self.store_string(string)

    def store_string(self, string: str) -> None:  # type: ignore[explicit-override]  # 3.12
        """Write a line to the file, if possible."""
        text = self._redactor.clean(self._whole(string))
        if len(text) <= LONGEST:
            with suppress(OSError):
                append(self._path, [text])

    def _take(self, kept: list[str]) -> None:
        """Take the lines of the file, which may contain lines typed meanwhile."""
        if self._loaded:  # by a concurrent call
            return
        typed = Counter(self._loaded_strings)
        for text in reversed(kept):
            if typed[text]:
                typed[text] -= 1
            else:
                self._loaded_strings.append(text)
        self._loaded = True


def append(path: Path, texts: Iterable[str]) -> None:
    """Append `texts` in one write."""
    data = b"".join(map(_line, texts))
    for _ in range(_TRIES):
        with _opened(path, os.O_APPEND | os.O_CREAT) as file:
            os.fchmod(file, 0o600)
            size = os.fstat(file).st_size
            torn = size > 0 and os.pread(file, 1, size - 1) != b"\n"
            os.write(file, b"\n" * torn + data)
            if _is_still(path, file):
                return


def read(path: Path) -> list[str]:
    """Return the lines, oldest first, without repeats in a row. Shorten the file if it is long."""
    try:
        with _opened(path) as file:
            data = _content(file)
            if data.count(b"\n") > MOST:
                _shorten(path, file)
    except OSError:  # none yet, or none that may be read
        return []
    return _texts(data)[-MOST:]


def _shorten(path: Path, file: int) -> None:
    """Replace `file`, which has that path, by one with its last lines and those added meanwhile."""
    with suppress(OSError):  # another process does it, or it fails: the file stays as it is
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still(path, file):
            return
        data = _content(file)
        ended = data.rfind(b"\n") + 1  # the rest may be incomplete
        _replace(path, b"".join(map(_line, _texts(data[:ended])[-KEPT:])))
        if late := _texts(_content(file, ended)):
            append(path, late)


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with _opened(temporary, os.O_CREAT | os.O_EXCL) as file:
            with os.fdopen(file, "wb", closefd=False) as whole:
                whole.write(data)
            os.fsync(file)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    file = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _is_still(path: Path, file: int) -> bool:
    """Tell whether `file` is the file at `path`."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(file))
    except FileNotFoundError:
        return False


def _content(file: int, begin: int = 0) -> bytes:
    pieces: list[bytes] = []
    while piece := os.pread(file, _PIECE, begin):
        pieces.append(piece)
        begin += len(piece)
    return b"".join(pieces)


def _line(text: str) -> bytes:
    # Input that is not UTF-8 comes as lone surrogates.
    return msgspec.json.encode(text.encode("utf-8", "replace").decode()) + b"\n"


def _texts(data: bytes) -> list[str]:
    return [text for text, _ in groupby(_decoded(data))]


def _decoded(data: bytes) -> Iterator[str]:
    for line in data.split(b"\n"):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # damaged
            yield msgspec.json.decode(line, type=str)
