"""Stop and restart of the gateway process on the operator's request.

A stop is recorded before the process ends, so that the next boot respects it. If a supervisor
ends the process, the request is announced first and the supervisor's signal follows.

For a restart, systemd is asked to restart the unit, which it does at once, whatever the unit's
restart settings are. launchd starts a process again that exits with 75. Without a supervisor, a
detached successor is started at once, and waits until this process releases the home. systemd is
asked to stop the unit, too, because it might restart a process that just exits.
"""

import os
import re
import sqlite3
import subprocess  # noqa: TID251  another of ourselves, and no tool's process
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread
from msgspec import field

from holdfast.config import process as configuration
from holdfast.config.process import Supervision
from holdfast.config.settings import Config
from holdfast.core.intents import Principal
from holdfast.core.life.lifecycle import Event, Reason, Recorded, Supervisor, Wanted, remember
from holdfast.core.types import Part
from holdfast.engine.life.gateway_state import KEY
from holdfast.errors import Misconfigured, Refused
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite.reader import SqliteReader

JOURNAL = "journal.db"
LOG = "log/gateway.log"  # below the home: the output of a detached gateway
LOG_BYTES = 10_000_000  # a longer one is renamed when the next gateway starts
MANAGER_S = 5.0

EVENTS = Event.__args__
# Older systems have only the hierarchy `name=systemd`.
_UNIT = re.compile(
    r"^\d+:(?:name=systemd)?:(?P<path>/(?:.*/)?(?P<unit>[^/]+\.service))$", re.MULTILINE
)


class KeepsWanted(Protocol):
    """Keeps what the operator wants of the gateway."""

    async def want(self, by: Principal, wanted: Wanted) -> None: ...

    async def recorded(self, by: Principal) -> Recorded: ...


class GatewayControl(Part):
    """The operator's control over this process."""

    _life: KeepsWanted
    _watched: Supervision
    _succeed: Callable[[], None]
    check: Callable[[], Awaitable[None]]  # refuses if the next process would not start
    _ending: anyio.Event = field(default_factory=anyio.Event)
    _succeeded: bool = False
    reason: Reason = Reason.SIGNAL  # the reason of the next shutdown

    async def ended(self) -> Reason:
        """Wait until a shutdown is requested, and return its reason."""
        await self._ending.wait()
        return self.reason

    async def recorded(self, by: Principal) -> Recorded:
        """Return the recorded state of the gateway."""
        return await self._life.recorded(by)

    async def announce(self, by: Principal, reason: Reason) -> None:
        """Record why the supervisor is about to end this process. Durable when this returns."""
        stops = reason is Reason.STOP
        await self._life.want(by, Wanted.STOPPED if stops else Wanted.RUNNING)
        self.reason = reason

    async def stop(self, by: Principal) -> None:
        """Stop, and stay stopped after a boot."""
        await self.announce(by, Reason.STOP)
        if await self._does("stop"):
            return
        self._ending.set()

    async def restart(self, by: Principal) -> None:
        """Restart; refused, without any effect, if the next process would not start."""
        await self.check()
        await self.announce(by, Reason.RESTART)
        if await self._does("restart"):
            return
        if self._watched.by is Supervisor.NONE and not self._succeeded:
            self._succeeded = True  # the request may be repeated during the shutdown
            self._succeed()
        self._ending.set()  # launchd goes by the exit code

    async def _does(self, verb: str) -> bool:
        """Ask systemd, and tell if it will do it; then its signal follows."""
        return self._watched.by is Supervisor.SYSTEMD and await _ask_systemd(verb, self._watched)


async def check_successor(config: Config) -> None:
    """Refuse if a new process would find the configuration wrong."""
    try:
        await anyio.to_thread.run_sync(configuration.again, config)
    except Misconfigured as error:
        raise Refused(
            "misconfigured",
            f"Not restarted, because the new process would not start: {error}: {error.hint}",
        ) from None


async def recorded(home: Path) -> Recorded | None:
    """Read the recorded state of the gateway, also while it is running; None: nothing yet."""
    if not (home / JOURNAL).exists():  # reading must not create files
        return None
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
    """Ask systemd to `verb` the unit of which this is the main process; tell if it will."""
    try:
        unit = own_unit(await anyio.Path("/proc/self/cgroup").read_text(), watched)
        if not unit:
            return False
        show = ("systemctl", "show", "--property=MainPID", "--value", *unit)
        with anyio.fail_after(MANAGER_S):
            main = await anyio.run_process(show, check=False)
            if main.stdout.strip() != str(os.getpid()).encode():
                return False  # the unit of another process, of which this is a child
            done = await anyio.run_process(("systemctl", "--no-block", verb, *unit), check=False)
    except (OSError, TimeoutError):
        return False
    return done.returncode == 0


def own_unit(cgroup: str, watched: Supervision) -> tuple[str, ...]:
    """Return the systemctl arguments for the unit in this /proc/self/cgroup; empty: no unit."""
    found = _UNIT.search(cgroup)
    if found is None or found["unit"].startswith("user@"):
        return ()
    of_user = watched.of_user or "/user@" in found["path"]
    return (*(("--user",) if of_user else ()), found["unit"])


def detach(config: Config, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a detached `holdfast` with these arguments: no terminal, its output in the log."""
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


# -P: import no modules from the working directory.
COMMAND = (sys.executable, "-P", "-m", "holdfast")


def log_file(home: Path) -> Path:
    """Return the log file of a detached gateway; one that is too long is renamed first."""
    path = home / LOG
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path
