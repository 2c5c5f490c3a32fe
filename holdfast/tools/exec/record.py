"""What is written down about a command that was started: one folder for each call.

`claim` says whose it is, then, a line each, pid and start time of its shim and of the command.
`output` is the spool. `exit.json` says how it ended. The shim writes them, so that they are
right whatever becomes of the gateway; this is how the gateway reads them, and settles what a
shim has left without a word.
"""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import msgspec.structs

from holdfast.core.types import Value
from holdfast.tools import shim
from holdfast.tools.shim import Identity

SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # another look may go better

_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)  # between looks at what should be dead


class Cause(StrEnum):
    """Why it is over."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    KILLED = "killed"  # on request
    ORPHANED = "orphaned"  # the gateway it belonged to is gone
    MEMORY = "memory"
    LOST = "lost"  # it and its shim are gone without a record


class Ended(Value):
    """How it ended. `survivors` are the pids that could not be killed."""

    exit_code: int | None
    signal: int | None
    cause: Cause
    duration_s: float
    output_bytes: int
    truncated: bool
    survivors: tuple[int, ...] = ()


class Claim(Value):
    """Whose a folder is."""

    call_id: str
    boot_id: str
    mark: str
    started_at: float
    detach: bool
    processes: tuple[Identity, ...] = ()  # its shim, the command; if they are of this boot
    label: str = ""  # whatever whoever started it wants to find again


class Known(Value):
    """A call that was claimed, and how it ended if it has."""

    call_id: str
    label: str
    detach: bool
    started_at: float
    ended: Ended | None


class Spool:
    """What a command has written, by offset in the stream of all it ever wrote.

    What cannot be read now is not there now, and no offset goes back for that: look again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0  # when somebody last could look

    def is_readable(self) -> bool:
        """Whether a look says all there is; False: there are no descriptors for it now."""
        try:
            self._path.open("rb", buffering=0).close()
        except OSError as error:
            return error.errno not in SCARCE
        return True

    def output(self, after: int, limit: int) -> tuple[bytes, int]:
        """At most `limit` bytes from `after` on, and the offset behind them.

        What has been dropped is skipped: then offset − length > `after`.
        """
        end, first = self.bounds()
        start = after if after < shim.HEAD else max(after, first)
        position, run = shim.place(start)
        data = self._pread(position, min(limit, run, end - start))
        # What was read from the ring may have been overwritten meanwhile.
        late = max(0, self.bounds()[1] - start) if start >= shim.HEAD else 0
        return data[late:], start + max(late, len(data))

    def tail(self, limit: int) -> bytes:
        """The last bytes, at most `limit` of them."""
        end, first = self.bounds()
        at, pieces = max(0, end - limit, first if end > shim.KEPT else 0), []
        while at < end:
            piece, at = self.output(at, end - at)
            if not piece:
                break
            pieces.append(piece)
        return b"".join(pieces)

    def bounds(self) -> tuple[int, int]:
        """How much was written, and where that begins which follows the head."""
        self._end = max(self._end, int.from_bytes(self._pread(0, shim.HEADER), "little"))
        return self._end, max(shim.HEAD, self._end - shim.RING + shim.CHUNK)

    def _pread(self, position: int, size: int) -> bytes:
        try:
            with self._path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), max(0, size), position)
        except OSError:
            return b""


class Folder:
    """All that is written down about one call. What is there and cannot be read is an `OSError`.

    Never nothing: whoever took it for that would write down another end over the true one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spool = Spool(path / "output")

    def is_claimed(self) -> bool:
        """Whether it was ever started, or was about to be."""
        return (self.path / "claim").exists()

    def claim(self) -> Claim | None:
        """Whose it is; None if nobody got as far as saying so."""
        try:
            *lines, _ = (self.path / "claim").read_bytes().split(b"\n")
            claim = msgspec.json.decode(lines[0], type=Claim)
        except (FileNotFoundError, IndexError, msgspec.DecodeError):
            return None
        if claim.boot_id != boot_id():
            return claim
        pairs = (line.split() for line in lines[1:])
        known = tuple((int(pid), int(start)) for pid, start in pairs)
        return msgspec.structs.replace(claim, processes=known)

    def result(self) -> Ended | None:
        """How it ended, if that is known."""
        try:
            return msgspec.json.decode((self.path / "exit.json").read_bytes(), type=Ended)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def known(self) -> Known | None:
        """What recovery has to know of it; None if nobody has claimed it."""
        if (claim := self.claim()) is None:
            return None
        return Known(claim.call_id, claim.label, claim.detach, claim.started_at, self.result())

    def record(self, ended: Ended) -> None:
        """Write down how it ended, when its shim could not."""
        shim.put(str(self.path / "exit.json"), msgspec.json.encode(ended))

    def remove(self) -> None:
        """Remove it. Cut short, it leaves a result, or nothing that counts."""
        for name in ("output", "claim"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def lives(claim: Claim) -> bool:
    """Whether its shim is still there."""
    return bool(claim.processes) and shim.identity(claim.processes[0][0]) == claim.processes[0]


def left(claim: Claim | None) -> set[int]:
    """Who is left of it, but for its shim. Raises `OSError` if nobody can look."""
    if claim is None or not claim.processes:
        return set()
    os.close(os.open("/proc", os.O_RDONLY))  # a look without descriptors finds nobody
    return shim.find(list(claim.processes), claim.mark) - {claim.processes[0][0]}


async def settle(folder: Folder, clock: Callable[[], float], cause: Cause) -> Ended:
    """Its shim is gone without a word: end what is left of it, and write that down.

    Raises `OSError` if nobody can look; the next try comes to the same result.
    """
    claim = folder.claim()
    found, quiet = set[int](), 0
    for pause_s in _PAUSES_S:
        found = await anyio.to_thread.run_sync(shim.strike, lambda: left(claim))
        quiet = 0 if found else quiet + 1
        if quiet > 1:  # one look may miss who just becomes another program: it has no mark yet
            break
        await anyio.sleep(pause_s)
    end, _ = folder.spool.bounds()
    ended = Ended(
        None,
        None,
        cause,
        max(0.0, clock() - claim.started_at) if claim else 0.0,
        end,
        end > shim.KEPT,
        tuple(sorted(found)),
    )
    with suppress(OSError):  # no space: the next sweep comes to the same result
        folder.record(ended)
    return ended


def boot_id() -> str:
    """Which start of the machine this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
