"""`holdfast sessions import`: import sessions of hermes-agent, or one that was exported.

A session that exists already stays as it is, so an import can be repeated. A session that cannot
be imported does not stop the others. Only history is imported: the user chooses the workspace, by
default a new directory for each session, and system messages are left out. Both are reported.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import anyio.to_thread
from msgspec.structs import replace

from holdfast.cli import output
from holdfast.cli.client.client import Client
from holdfast.cli.client.refusals import Exists
from holdfast.cli.exits import Code, Exit
from holdfast.cli.sessions import export, hermes
from holdfast.cli.sessions.hermes import NotHermes, Old
from holdfast.config.settings import Config

SILENT_S = 1.0  # before the first progress report
EVERY_S = 5.0  # between reports, if a line cannot be overwritten

_HERMES = ".hermes"


class Tally:
    """Counts of the results."""

    def __init__(self) -> None:
        self.imported = self.there = self.failed = self.damaged = self.left_out = 0

    @property
    def done(self) -> int:
        """Number of sessions processed."""
        return self.imported + self.there + self.failed

    def in_words(self) -> str:
        """Return all counts as one line."""
        counts = {
            "already here": self.there,
            "failed": self.failed,
            "damaged messages left out": self.damaged,
            "system messages left out": self.left_out,
        }
        more = (f", {count} {what}" for what, count in counts.items() if count)
        return f"{self.imported} imported{''.join(more)}"


class ImportProgress:
    """Progress on stderr, if the import takes longer than a second."""

    def __init__(self, of: int) -> None:
        self._of = of
        self._told = time.monotonic()
        self._over = output.is_clever()
        self._shown = False

    def tell(self, tally: Tally) -> None:
        """Print the progress, if it is due."""
        now = time.monotonic()
        pause = SILENT_S if self._over or not self._shown else EVERY_S
        if now - self._told < pause:
            return
        self._told, self._shown = now, True
        line = f"… {tally.done} of about {max(self._of, tally.done)} sessions"
        output.tell(f"{output.ERASE}{line}" if self._over else f"{line}\n")

    def clear(self) -> None:
        """Erase the progress line."""
        if self._over and self._shown:
            output.tell(output.ERASE)


async def bring_in(client: Client, args: argparse.Namespace) -> int:
    """Import all sessions, in the workspace that was given; return the exit code."""
    path = _place(client.config, args.path)
    found, count = await anyio.to_thread.run_sync(_sessions, path)
    tally, progress = Tally(), ImportProgress(count)
    while (one := await anyio.to_thread.run_sync(next, found, None)) is not None:
        said = await _one(client, args.workspace or "", one, tally)
        if args.json:
            print(output.as_json(said))
        elif reason := said["error"]:
            progress.clear()
            output.note(f"not imported: {said['session_id'] or path}: {reason}")
        elif told := _not_taken(said):
            progress.clear()
            output.note(f"{said['session_id']}: {told}")
        progress.tell(tally)
    progress.clear()
    if not tally.done:
        raise Exit(Code.FAILED, f"there are no sessions in {path}")
    if not args.json:
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
        give = "give the path: holdfast sessions import PATH"
        raise Exit(Code.FAILED, f"no sessions of hermes-agent in {path}; {give}")
    return path


def _sessions(path: Path) -> tuple[Iterator[Old | NotHermes], int]:
    """Return the sessions to import, and about how many they are."""
    if path.is_file() and path.suffix != ".db":
        ours = export.decode(path.read_bytes())
        if ours is not None:
            return iter([Old(export.back(ours), 0)]), 1
    return hermes.read(path), hermes.count(path)


async def _one(client: Client, where: str, one: Old | NotHermes, tally: Tally) -> dict[str, object]:
    """Import one session and return the result."""
    if isinstance(one, NotHermes):
        tally.failed += 1
        return {"session_id": "", "status": "failed", "error": str(one)}
    what = one.session
    said: dict[str, object] = {"session_id": what.session_id, "status": "imported", "error": ""}
    try:
        made = await client.import_session(replace(what, workspace=where or None))
    except Exists:
        tally.there += 1
        return said | {"status": "exists"}
    except Exit as refused:
        if refused.code != Code.FAILED:  # all others would fail the same way
            raise
        tally.failed += 1
        return said | {"status": "failed", "error": str(refused)}
    tally.imported += 1
    tally.damaged += one.damaged
    tally.left_out += made.left_out
    return said | {
        "messages": len(what.messages) - made.left_out,
        "damaged": one.damaged,
        "system_messages_left_out": made.left_out,
        "workspace": made.workspace,
        "workspace_in_file": what.workspace or "",
    }


def _not_taken(said: dict[str, object]) -> str:
    """Describe what the file asked for and did not get; empty if nothing."""
    told = []
    if left_out := said.get("system_messages_left_out"):
        told.append(f"{left_out} system messages left out: a file gives no instructions")
    named = said.get("workspace_in_file")
    if named and named != said["workspace"]:
        told.append(f"works in {said['workspace']}, not in {named}, which the file names")
    return "; ".join(told)
