"""The operator's word to the process itself: stop, restart, start; and how that is done.

A stop is written down before anything ends: whoever boots the machine next will find it.
Where a supervisor does the ending, the word is announced first and its signal follows.

A restart comes back by itself: systemd is asked for one, which happens at once whatever the
unit says of restarts; launchd starts again what ends with 75; and where nobody supervises, a
successor is started right away, detached, and waits for the home until we are gone. systemd
is asked to stop us too: it would start again whatever just ends.
"""

import os
import re
import sqlite3
import subprocess  # noqa: TID251  another of ourselves, and no tool's process
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from holdfast import config as configuration
from holdfast.config import Config, Supervision
from holdfast.core.intents import Principal
from holdfast.core.lifecycle import Event, Reason, Recorded, Supervisor, Wanted, remember
from holdfast.engine.service import Service
from holdfast.engine.standing import KEY
from holdfast.errors import Misconfigured, Refused
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite_reader import SqliteReader

JOURNAL = "journal.db"
LOG = "log/gateway.log"  # below the home: what a detached gateway says
LOG_BYTES = 10_000_000  # a longer one is set aside when the next gateway begins
MANAGER_S = 5.0

EVENTS = Event.__args__
# Older systems know only the hierarchy that systemd names after itself.
_UNIT = re.compile(
    r"^\d+:(?:name=systemd)?:(?P<path>/(?:.*/)?(?P<unit>[^/]+\.service))$", re.MULTILINE
)


class Control:
    """What the operator's door may ask of this process."""

    def __init__(
        self,
        service: Service,
        watched: Supervision,
        succeed: Callable[[], None],
        check: Callable[[], Awaitable[None]],
    ) -> None:
        self.check = check  # refuses, if the next one would not start
        self._service = service
        self._watched = watched
        self._succeed = succeed
        self._ending = anyio.Event()
        self._succeeded = False
        self.reason = Reason.SIGNAL  # what the next end means

    async def ended(self) -> Reason:
        """Return, with the reason, once an end was asked for."""
        await self._ending.wait()
        return self.reason

    async def recorded(self, by: Principal) -> Recorded:
        """What is wanted of the gateway, and what it has said of itself."""
        return await self._service.recorded(by)

    async def announce(self, by: Principal, reason: Reason) -> None:
        """The supervisor is about to end us, and this is why. Durable when this returns."""
        stops = reason is Reason.STOP
        await self._service.want(by, Wanted.STOPPED if stops else Wanted.RUNNING)
        self.reason = reason

    async def stop(self, by: Principal) -> None:
        """End, and stay down."""
        await self.announce(by, Reason.STOP)
        if await self._does("stop"):
            return
        self._ending.set()

    async def restart(self, by: Principal) -> None:
        """End, and come back; refused, with nothing done, if it would not."""
        await self.check()
        await self.announce(by, Reason.RESTART)
        if await self._does("restart"):
            return
        if self._watched.by is Supervisor.NONE and not self._succeeded:
            self._succeeded = True  # on the way down somebody may ask again
            self._succeed()
        self._ending.set()  # to launchd, the exit code says it

    async def _does(self, verb: str) -> bool:
        """Whether systemd will do it: then its signal follows."""
        return self._watched.by is Supervisor.SYSTEMD and await _ask_systemd(verb, self._watched)


async def check_successor(config: Config) -> None:
    """Refuse, if whoever came after us would find the configuration wrong."""
    try:
        await anyio.to_thread.run_sync(configuration.again, config)
    except Misconfigured as error:
        raise Refused(
            "misconfigured", f"Not restarted, it would not come back: {error}: {error.hint}"
        ) from None


async def recorded(home: Path) -> Recorded | None:
    """What the journal says of the gateway, read past whoever has it open; None: nothing yet."""
    try:
        reader = SqliteReader(home / JOURNAL, Blobs(home))
    except sqlite3.Error:
        return None
    try:
        known, row = Recorded(), await reader.head(KEY)
        records = await reader.facts(row.stream, EVENTS, ()) if row is not None else ()
        for record in records:
            if isinstance(record.fact, Event):
                known = remember(known, record.fact, record.at)
        return known if records else None
    finally:
        reader.close_readers()


async def _ask_systemd(verb: str, watched: Supervision) -> bool:
    """Have systemd `verb` the unit whose main process we are; whether it will."""
    try:
        unit = own_unit(await anyio.Path("/proc/self/cgroup").read_text(), watched)
        if not unit:
            return False
        show = ("systemctl", "show", "--property=MainPID", "--value", *unit)
        with anyio.fail_after(MANAGER_S):
            main = await anyio.run_process(show, check=False)
            if main.stdout.strip() != str(os.getpid()).encode():
                return False  # somebody else's, whose child we are
            done = await anyio.run_process(("systemctl", "--no-block", verb, *unit), check=False)
    except (OSError, TimeoutError):
        return False
    return done.returncode == 0


def own_unit(cgroup: str, watched: Supervision) -> tuple[str, ...]:
    """What names to systemctl the unit whose process has this /proc/self/cgroup; or nothing."""
    found = _UNIT.search(cgroup)
    if found is None or found["unit"].startswith("user@"):
        return ()
    of_user = watched.of_user or "/user@" in found["path"]
    return (*(("--user",) if of_user else ()), found["unit"])


def detach(config: Config, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start `holdfast` with these arguments on its own: no terminal, its words in the log."""
    path = log_file(config.home)
    environment = {**configuration.environment(config), "HOLDFAST_HOME": str(config.home)}
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            cwd=config.home,
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


# -P: what lies in the working directory is no part of us.
COMMAND = (sys.executable, "-P", "-m", "holdfast")


def log_file(home: Path) -> Path:
    """Where a detached gateway's words go; one that has grown long is set aside first."""
    path = home / LOG
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path
