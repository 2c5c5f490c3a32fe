"""What is written down about a command that was started: one folder for each call.

`claim` says whose it is, then, a line each, pid and start time of its shim and of the command.
`output` is the spool. `exit.json` says how it ended. The shim writes them, so that they are
right whatever becomes of the gateway; this is how the gateway reads them.
"""

import os
import shutil
from enum import StrEnum
from pathlib import Path

import msgspec
import msgspec.structs

from holdfast.core.types import Value
from holdfast.tools import shim
from holdfast.tools.shim import Identity


class Cause(StrEnum):
    """Why it is over."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    KILLED = "killed"
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


class Spool:
    """What a command has written, by offset in the stream of all it ever wrote."""

    def __init__(self, path: Path) -> None:
        self._path = path

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
        end = int.from_bytes(self._pread(0, shim.HEADER), "little")
        return end, max(shim.HEAD, end - shim.RING + shim.CHUNK)

    def _pread(self, position: int, size: int) -> bytes:
        try:
            with self._path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), max(0, size), position)
        except FileNotFoundError:
            return b""


class Folder:
    """All that is written down about one call."""

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
        except FileNotFoundError:
            return None
        if not lines:
            return None
        claim = msgspec.json.decode(lines[0], type=Claim)
        if claim.boot_id != boot_id():
            return claim
        pairs = (line.split() for line in lines[1:])
        known = tuple((int(pid), int(start)) for pid, start in pairs)
        return msgspec.structs.replace(claim, processes=known)

    def result(self) -> Ended | None:
        """How it ended, if that is known."""
        try:
            return msgspec.json.decode((self.path / "exit.json").read_bytes(), type=Ended)
        except FileNotFoundError:
            return None

    def record(self, ended: Ended) -> None:
        """Write down how it ended, when its shim could not."""
        shim.put(str(self.path / "exit.json"), msgspec.json.encode(ended))

    def remove(self) -> None:
        """Remove it. Cut short, it leaves a result, or nothing that counts."""
        for name in ("output", "claim"):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)


def boot_id() -> str:
    """Which start of the machine this is."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
