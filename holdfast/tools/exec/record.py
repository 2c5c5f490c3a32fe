"""The record of a command on disk: one folder per call.

The shim writes three files, so they are correct whatever happens to the gateway:

* `claim`: the call it belongs to; then one line each with pid and start time of the shim and of
  the command
* `output`: the spool
* `exit.json`: how the command ended

The gateway writes two files: `before.json`, the state of the workspace before the start, until
the workspace was checked after the end; and `notes.json`, the result of that check.

This module reads the record, and completes it (`settle`) if a shim died without writing one.
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
from holdfast.tools.exec import shim
from holdfast.tools.exec.shim import Identity
from holdfast.tools.sandbox.autorun import Before

CALLS = "calls"  # name of the folder in Holdfast's home
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # a later attempt may succeed

_PAUSES_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)  # between checks whether killed processes are gone


class ExitCause(StrEnum):
    """The reason why a command ended."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    KILLED = "killed"  # on request
    ORPHANED = "orphaned"  # its gateway ended
    MEMORY = "memory"
    LOST = "lost"  # the command and its shim are gone, without a record of the end


class Ended(Value):
    """The end of a command. `survivors` are the pids that could not be killed.

    `ended_late` are the pids that continued without their shim until they were found and killed.
    """

    exit_code: int | None
    signal: int | None
    cause: ExitCause
    duration_s: float
    output_bytes: int
    truncated: bool
    survivors: tuple[int, ...] = ()
    ended_late: tuple[int, ...] = ()


class Claim(Value):
    """The call that a folder belongs to."""

    call_id: str
    boot_id: str
    mark: str
    started_at: float
    detach: bool
    processes: tuple[Identity, ...] = ()  # the shim and the command; empty after a reboot
    label: str = ""  # free text of the caller, returned by `known`


class Known(Value):
    """A call that was claimed, and how it ended, if it has."""

    call_id: str
    label: str
    detach: bool
    started_at: float
    ended: Ended | None


class SpoolReader:
    """Reads a command's output by its offset in the stream of everything it wrote.

    If the spool cannot be read now, the output looks empty, but the known size never shrinks:
    read again later.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0  # at the last successful read

    def is_readable(self) -> bool:
        """Return whether the spool can be read now; False: no descriptors or memory are left."""
        try:
            self._path.open("rb", buffering=0).close()
        except OSError as error:
            return error.errno not in SCARCE
        return True

    def output(self, after: int, limit: int) -> tuple[bytes, int]:
        """Return at most `limit` bytes from `after`, and the offset behind them.

        Dropped output is skipped: then offset − length > `after`.
        """
        end, first = self.bounds()
        start = after if after < shim.HEAD else max(after, first)
        position, run = shim.place(start)
        data = self._pread(position, min(limit, run, end - start))
        # The shim may have overwritten a part of the ring while we were reading.
        late = max(0, self.bounds()[1] - start) if start >= shim.HEAD else 0
        return data[late:], start + max(late, len(data))

    def bounds(self) -> tuple[int, int]:
        """Return the number of bytes written, and the first offset that is kept after the head."""
        self._end = max(self._end, int.from_bytes(self._pread(0, shim.HEADER), "little"))
        return self._end, max(shim.HEAD, self._end - shim.RING + shim.CHUNK)

    def _pread(self, position: int, size: int) -> bytes:
        try:
            with self._path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), max(0, size), position)
        except OSError:
            return b""


class Folder:
    """The record of one call.

    A file that exists and cannot be read raises `OSError`. It never counts as missing, because
    then the caller would overwrite the true end with another one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spool = SpoolReader(path / "output")

    def is_claimed(self) -> bool:
        """Return whether the call was started, or was about to be."""
        return (self.path / "claim").exists()

    def claim(self) -> Claim | None:
        """Return the claim; None if there is none or it was not completely written."""
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
        """Return how it ended, if that is recorded."""
        try:
            return msgspec.json.decode((self.path / "exit.json").read_bytes(), type=Ended)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def known(self) -> Known | None:
        """Return what recovery needs to know; None if the call was not claimed."""
        if (claim := self.claim()) is None:
            return None
        return Known(claim.call_id, claim.label, claim.detach, claim.started_at, self.result())

    def record(self, ended: Ended) -> None:
        """Record how it ended, if its shim could not."""
        shim.put(str(self.path / "exit.json"), msgspec.json.encode(ended))

    def keep(self, before: Before) -> None:
        """Record the state of the workspace before the start."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        shim.put(str(self.path / "before.json"), before.encode())

    def leave(self) -> tuple[str, ...]:
        """Check once what the ended command left in the workspace, and return the notes.

        If this is interrupted, the next call repeats it with the same result.
        """
        try:
            kept = (self.path / "before.json").read_bytes()
        except FileNotFoundError:
            return self.notes()
        notes = tuple(Before.decode(kept).settle().notes())
        with suppress(OSError):  # no space: the caller writes the notes to the log too
            shim.put(str(self.path / "notes.json"), msgspec.json.encode(notes))
        (self.path / "before.json").unlink(missing_ok=True)
        return notes

    def notes(self) -> tuple[str, ...]:
        """Return the notes about what the command left in the workspace."""
        try:
            kept = (self.path / "notes.json").read_bytes()
            return msgspec.json.decode(kept, type=tuple[str, ...])
        except (OSError, msgspec.DecodeError):
            return ()

    def remove(self) -> None:
        """Remove the record. If this is interrupted, a result is left, or nothing that counts."""
        for name in ("output", "claim"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def lives(claim: Claim) -> bool:
    """Return whether its shim is still running."""
    return bool(claim.processes) and shim.identity(claim.processes[0][0]) == claim.processes[0]


def left(claim: Claim | None) -> set[int]:
    """Return its running processes without its shim. Raises `OSError` if /proc cannot be read."""
    if claim is None or not claim.processes:
        return set()
    os.close(os.open("/proc", os.O_RDONLY))  # without free descriptors, `find` would find nothing
    return shim.find(list(claim.processes), claim.mark) - {claim.processes[0][0]}


def strays(calls: Path) -> dict[str, set[int]]:
    """Return processes that continue without their shim, by call id. The next start kills them."""
    found: dict[str, set[int]] = {}
    alive = shim.processes()  # without zombies
    for path in calls.glob("*/"):
        folder = Folder(path)
        claim = folder.claim()
        if claim is None or not claim.processes or folder.result() is not None:
            continue
        pid, start = claim.processes[0]
        watched = pid in alive and alive[pid][1] == start
        if not watched and (pids := left(claim)):
            found[claim.call_id] = pids
    return found


async def settle(folder: Folder, clock: Callable[[], float], cause: ExitCause) -> Ended:
    """Complete the record of a call whose shim died: kill what is left, and record the end.

    Raises `OSError` if /proc cannot be read; repeating it gives the same result.
    """
    claim = folder.claim()
    found, struck, quiet = set[int](), set[int](), 0
    for pause_s in _PAUSES_S:
        found = await anyio.to_thread.run_sync(shim.strike, lambda: left(claim))
        struck |= found
        quiet = 0 if found else quiet + 1
        if quiet > 1:  # one look can miss a process in the middle of `execve`: it has no mark yet
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
        survivors=tuple(sorted(found)),
        ended_late=tuple(sorted(struck - found)),
    )
    with suppress(OSError):  # no space: the next sweep gets the same result
        folder.record(ended)
    return ended


def boot_id() -> str:
    """Return the kernel's id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
