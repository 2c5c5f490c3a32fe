"""What was typed before, in this terminal and others: one JSON string a line, oldest first.

Several terminals write to the file at once. A line is one write at its end, so none mixes with
another, and nobody waits for a lock. What makes the file shorter puts a new one in its place;
a line is not lost by that: whoever writes looks afterwards whether their file is still the one
of that name, and writes again if not; and what came to the old file until it was replaced is
taken over. A line may stand there twice thereby. Only one process shortens it at a time.

Known secrets are taken out, what begins with a space is not kept, and what cannot be written
is not kept either: a history is a convenience, and no reason for a prompt to fail.
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

    `whole` gives what a text stands for in the file, where it means something only here: the
    labels of what was pasted are words to everybody else.
    """

    def __init__(
        self, path: Path, redactor: Redactor, whole: Callable[[str], str] = lambda text: text
    ) -> None:
        super().__init__()
        self._path = path
        self._redactor = redactor
        self._whole = whole

    async def load(self) -> AsyncGenerator[str, None]:  # type: ignore[explicit-override]  # 3.12
        """All that was typed, latest first. The file is read in a thread, once."""
        if not self._loaded:
            kept = await to_thread.run_sync(read, self._path, abandon_on_cancel=True)
            self._take(kept)
        for text in tuple(self._loaded_strings):
            yield text

    def load_history_strings(self) -> Iterable[str]:  # type: ignore[explicit-override]  # 3.12
        """What the file holds, latest first."""
        return reversed(read(self._path))

    def append_string(self, string: str) -> None:  # type: ignore[explicit-override]  # 3.12
        """Keep it, unless it is not to be kept or was just typed before."""
        text = self._redactor.clean(string)
        if not text.strip() or string.startswith(" ") or self._loaded_strings[:1] == [text]:
            return
        self._loaded_strings.insert(0, text)
        self.store_string(string)

    def store_string(self, string: str) -> None:  # type: ignore[explicit-override]  # 3.12
        """Write it down, if that can be done."""
        text = self._redactor.clean(self._whole(string))
        if len(text) <= LONGEST:
            with suppress(OSError):
                append(self._path, [text])

    def _take(self, kept: list[str]) -> None:
        """The file has been read, with or without what was typed meanwhile."""
        if self._loaded:  # by another that asked at the same time
            return
        typed = Counter(self._loaded_strings)
        for text in reversed(kept):
            if typed[text]:
                typed[text] -= 1
            else:
                self._loaded_strings.append(text)
        self._loaded = True


def append(path: Path, texts: Iterable[str]) -> None:
    """Put `texts` at the end, in one write."""
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
    """What is kept, oldest first, the same twice in a row once. Makes the file shorter if need be."""
    try:
        with _opened(path) as file:
            data = _content(file)
            if data.count(b"\n") > MOST:
                _shorten(path, file)
    except OSError:  # none yet, or none that may be read
        return []
    return _texts(data)[-MOST:]


def _shorten(path: Path, file: int) -> None:
    """Put the last lines in the place of `file`, which has that path, and what comes meanwhile."""
    with suppress(OSError):  # another does it, or it cannot be done: then it stays as it is
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_still(path, file):
            return
        data = _content(file)
        ended = data.rfind(b"\n") + 1  # of what is behind it, more may come
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
    """Whether `file` is what is found at `path`."""
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
    # What a terminal sends need not be UTF-8, and comes as half characters where it is not.
    return msgspec.json.encode(text.encode("utf-8", "replace").decode()) + b"\n"


def _texts(data: bytes) -> list[str]:
    return [text for text, _ in groupby(_decoded(data))]


def _decoded(data: bytes) -> Iterator[str]:
    for line in data.split(b"\n"):
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # damaged
            yield msgspec.json.decode(line, type=str)
