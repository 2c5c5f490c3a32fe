"""`holdfast sessions import`: sessions from elsewhere, each as a session here; again does no harm.

One that is here already stays as it is. One that cannot be brought in keeps none of the others
out. A workspace comes along where it is one here, and one that nobody would have to insist on;
else the session works in a directory of its own.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
import msgspec
from msgspec.structs import replace

from holdfast.cli import export, hermes, workspace
from holdfast.cli.client import Client, connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.hermes import Old, Unreadable
from holdfast.cli.screen import ERASE, Plain, is_clever
from holdfast.cli.wire import Exists
from holdfast.config import Config

SILENT_S = 1.0  # before anybody is told how far it is
EVERY_S = 5.0  # and then where a line cannot be written over

_HERMES = ".hermes"


class Tally:
    """What became of them."""

    def __init__(self) -> None:
        self.imported = 0
        self.there = 0
        self.failed = 0
        self.damaged = 0

    @property
    def done(self) -> int:
        """How many have been looked at."""
        return self.imported + self.there + self.failed

    def in_words(self) -> str:
        """All of it, in short."""
        words = [f"{self.imported} imported"]
        if self.there:
            words.append(f"{self.there} here already")
        if self.failed:
            words.append(f"{self.failed} could not be")
        if self.damaged:
            words.append(f"{self.damaged} damaged messages left out")
        return ", ".join(words)


class Progress:
    """How far it is, on stderr, where it takes longer than one wonders."""

    def __init__(self, of: int) -> None:
        self._of = of
        self._begun = self._told = _now()
        self._over = is_clever()
        self._shown = False

    def tell(self, tally: Tally) -> None:
        """Say how far it is, if it is time to."""
        now = _now()
        pause = SILENT_S if self._over or not self._shown else EVERY_S
        if now - self._told < pause:
            return
        self._told, self._shown = now, True
        line = f"… {tally.done} of about {max(self._of, tally.done)} sessions"
        print(
            f"{ERASE}{line}" if self._over else line,
            end="" if self._over else "\n",
            file=sys.stderr,
            flush=True,
        )

    def clear(self) -> None:
        """Make room for something else."""
        if self._over and self._shown:
            print(ERASE, end="", file=sys.stderr, flush=True)


async def bring_in(config: Config, given: str | None, as_json: bool) -> int:  # noqa: FBT001  the flag as it was given
    """Import what is there; the exit code."""
    path = _place(config, given)
    found, count = await anyio.to_thread.run_sync(_sessions, path)
    tally, progress = Tally(), Progress(count)
    async with connect(config, Plain().note) as client:
        while (one := await anyio.to_thread.run_sync(next, found, None)) is not None:
            said = await _one(client, config, one, tally)
            if as_json:
                print(msgspec.json.encode(said).decode())
            elif reason := said["error"]:
                progress.clear()
                Plain().note(f"not imported: {said['session_id'] or path}: {reason}")
            progress.tell(tally)
    progress.clear()
    if not tally.done:
        raise Exit(Code.FAILED, f"there are no sessions in {path}")
    if not as_json:
        print(f"{tally.in_words()}; see them: holdfast sessions")
    return Code.FAILED if tally.failed else Code.OK


def _place(config: Config, given: str | None) -> Path:
    if given is not None:
        path = Path(given).expanduser()
        if not path.exists():
            raise Exit(Code.FAILED, f"{path} does not exist")
        return path
    path = config.user_home / _HERMES
    if not hermes.is_home(path):
        raise Exit(
            Code.FAILED,
            f"there is nothing of hermes-agent's in {path}; say where: "
            "holdfast sessions import PATH",
        )
    return path


def _sessions(path: Path) -> tuple[Iterator[Old | Unreadable], int]:
    """What is to be brought in, and about how many that is."""
    if path.is_file() and path.suffix != ".db":
        ours = export.decode(path.read_bytes())
        if ours is not None:
            return iter([Old(export.back(ours), 0)]), 1
    return hermes.read(path), hermes.count(path)


async def _one(
    client: Client, config: Config, one: Old | Unreadable, tally: Tally
) -> dict[str, object]:
    """Bring one in; what became of it."""
    if isinstance(one, Unreadable):
        tally.failed += 1
        return {"session_id": "", "status": "failed", "error": str(one)}
    what = one.session
    said: dict[str, object] = {"session_id": what.session_id, "status": "imported", "error": ""}
    try:
        where = workspace.unasked(config, what.workspace)
        await client.import_session(replace(what, workspace=where))
    except Exists:
        tally.there += 1
        return said | {"status": "exists"}
    except Exit as refused:
        if refused.code != Code.FAILED:  # it will be the same with all others
            raise
        tally.failed += 1
        return said | {"status": "failed", "error": str(refused)}
    tally.imported += 1
    tally.damaged += one.damaged
    return said | {"messages": len(what.messages), "damaged": one.damaged}


def _now() -> float:
    return time.monotonic()
