"""The background process: it outlives its call, and the session is told when it ends.

A process is *running* as soon as its call has a result, and *ended* once its end is recorded.
If it ended while the gateway was down, the next start finds out how. If the run asked to be
notified, and messages after the run's end can be delivered, the end of the process becomes a
new input of the session. So do output lines that match the watched patterns, a few at a time.

A port of the session's network can be published on this machine's loopback, as a grant that
belongs to a running process: it ends with the process at the latest.
"""

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from holdfast.core.material import fenced
from holdfast.core.run.run import Origin
from holdfast.core.types import CallId, Fact, Owner, ProcessId, RunId, Value
from holdfast.errors import IllegalTransition


def id_for(run_id: RunId, turn: int, call_id: CallId) -> ProcessId:
    """Return the id of a call's process, always the same one.

    The turn is a part of it because some models number their calls from 1 in every turn.
    """
    return ProcessId(f"proc_{sha256(f'{run_id}/{turn}/{call_id}'.encode()).hexdigest()[:12]}")


class ProcessStatus(StrEnum):
    RUNNING = "running"
    ENDED = "ended"

    @property
    def final(self) -> bool:
        return self is ProcessStatus.ENDED


class ProcessEnd(StrEnum):
    """The cause of a process's end."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    KILLED = "killed"  # on request
    MEMORY = "memory"
    RESTART = "restart"  # the gateway it belonged to has ended
    LOST = "lost"  # it is gone, and there is no record of how it ended


# These facts have no `run_id`: they belong to the session and may come after the run's end.
class ProcessStarted(Fact, tag="process.started", omit_defaults=True):
    process_id: ProcessId
    started_by: RunId
    call_id: CallId
    command: str
    notify: bool = False
    watch: tuple[str, ...] = ()
    detach: bool = False
    origin: Origin = Origin()


class ProcessMatched(Fact, tag="process.matched"):
    """Output lines that match a watched pattern, up to `offset` in the output."""

    process_id: ProcessId
    offset: int
    lines: str


class ProcessEnded(Fact, tag="process.ended", omit_defaults=True):
    process_id: ProcessId
    cause: ProcessEnd
    exit_code: int | None = None
    signal: int | None = None
    duration_s: float = 0.0
    output_bytes: int = 0
    tail: str = ""  # the end of its output


class PortPublished(Fact, tag="port.published"):
    """A port that the process listens on can be reached on this machine, at `host_port`."""

    process_id: ProcessId
    port: int
    host_port: int
    by: Owner  # who granted it


class PortClosed(Fact, tag="port.closed"):
    """A published port is closed, although its process runs."""

    process_id: ProcessId
    port: int
    reason: str


Event = ProcessStarted | ProcessMatched | ProcessEnded | PortPublished | PortClosed

R = ProcessStatus.RUNNING

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[ProcessStatus, type[Event]], ProcessStatus] = {
    (R, ProcessMatched): R,
    (R, PortPublished): R,
    (R, PortClosed): R,
    (R, ProcessEnded): ProcessStatus.ENDED,
}


class BackgroundProcess(msgspec.Struct, frozen=True):
    started: ProcessStarted
    started_at: float
    status: ProcessStatus = ProcessStatus.RUNNING
    matches: int = 0  # the number of messages about matching lines
    matched_at: float = 0.0
    offset: int = 0
    ended: ProcessEnded | None = None
    ports: Mapping[int, int] = {}  # published: the port in the session's network, and on the host

    @property
    def id(self) -> ProcessId:
        return self.started.process_id


Processes = Mapping[ProcessId, BackgroundProcess]

KEEP_ENDED = 16


def evolve(processes: Processes, event: Event, at: float) -> Processes:
    """Return a session's processes after `event`. Of the ended ones, only the last are kept."""
    before = processes.get(event.process_id)
    if isinstance(event, ProcessStarted):
        if before is not None:
            raise IllegalTransition(f"ProcessStarted for {event.process_id}, which exists already")
        return _bounded({**processes, event.process_id: BackgroundProcess(event, at)})
    if before is None or (before.status, type(event)) not in TRANSITIONS:
        status = "not known" if before is None else before.status
        raise IllegalTransition(f"{type(event).__name__} while {event.process_id} is {status}")
    if isinstance(event, ProcessEnded):
        after = replace(before, status=ProcessStatus.ENDED, ended=event, ports={})
    elif isinstance(event, PortPublished):
        after = replace(before, ports={**before.ports, event.port: event.host_port})
    elif isinstance(event, PortClosed):
        left = {port: at for port, at in before.ports.items() if port != event.port}
        after = replace(before, ports=left)
    else:
        after = replace(before, matches=before.matches + 1, matched_at=at, offset=event.offset)
    others = {k: p for k, p in processes.items() if k != event.process_id or not after.status.final}
    return {**others, event.process_id: after}  # in the order they ended


def _bounded(processes: dict[ProcessId, BackgroundProcess]) -> dict[ProcessId, BackgroundProcess]:
    ended = [p.id for p in processes.values() if p.status.final]
    for process_id in ended[:-KEEP_ENDED]:
        del processes[process_id]
    return processes


def left_running(processes: Processes, run_id: RunId) -> tuple[ProcessId, ...]:
    """Return the processes that a run left running, without those approved to go on (detach)."""
    return tuple(
        p.id
        for p in processes.values()
        if p.started.started_by == run_id and not p.status.final and not p.started.detach
    )


class Notice(Value):
    """The notifications a process can give, and why others are not possible."""

    notify: bool
    watch: tuple[str, ...]
    unsupported: str


def notice(origin: Origin, *, notify: bool, watch: tuple[str, ...]) -> Notice:
    """Return which of `notify` and `watch` are possible for a run with this `origin`."""
    if origin.late or not (notify or watch):
        return Notice(notify, watch, "")
    requested = " and ".join(
        name
        for name, wanted in (("notify_on_complete", notify), ("watch_patterns", watch))
        if wanted
    )
    return Notice(
        notify=False,
        watch=(),
        unsupported=(
            f"{requested} is not possible here: nothing can be delivered after this run has ended "
            f"({origin.platform or 'this connection'}). The process runs; check it with the "
            "process tool, action poll or wait."
        ),
    )


LOWEST_PORT = 1024  # lower ones need privileges that no command has
MOST_PORTS = 8  # of one process


def may_publish(process: BackgroundProcess, port: int, host_port: int) -> str:
    """Return why the port cannot be published; empty if it can."""
    if process.status.final:
        return f"{process.id} has ended"
    if any(not LOWEST_PORT <= number <= 65535 for number in (port, host_port or port)):
        return f"a port is a number from {LOWEST_PORT} to 65535"
    if len({*process.ports, port}) > MOST_PORTS:
        return f"{process.id} has {MOST_PORTS} published ports already, the maximum"
    return ""


WATCH_EVERY_S = 10.0
WATCH_MOST = 20


def may_notify(process: BackgroundProcess, now: float) -> bool:
    """Tell if a message about matching lines may be sent now; both rate and total are limited."""
    return process.matches < WATCH_MOST and now - process.matched_at >= WATCH_EVERY_S


def matched_text(process: BackgroundProcess, lines: str) -> str:
    """Return the text of the input about matching lines."""
    last = process.matches + 1 >= WATCH_MOST
    more = "\n(This was the last such message; use the process tool.)" if last else ""
    head = f"[Background process {process.id} wrote lines that match a watched pattern.]"
    return f"{head}\n{_material(process, lines)}{more}"


def ended_text(process: BackgroundProcess, ended: ProcessEnded) -> str:
    """Return the text of the input about the end of a process."""
    head = f"[Background process {process.id} has ended: {describe_end(ended)}.]"
    wrote = f"The end of its output:\n{ended.tail}" if ended.tail else "It wrote nothing."
    return f"{head}\n{_material(process, wrote)}"


def _material(process: BackgroundProcess, wrote: str) -> str:
    """Mark the command and its output as material: neither was written by the user."""
    command = process.started.command
    return fenced(f"background process {process.id}", f"Command: {command}\n{wrote}")


def describe_end(ended: ProcessEnded) -> str:
    """Describe how a process ended, for people and models."""
    match ended.cause:
        case ProcessEnd.EXITED if ended.signal is not None:
            return f"killed by signal {ended.signal}"
        case ProcessEnd.EXITED if ended.exit_code is not None:
            return f"exit code {ended.exit_code}"
        case ProcessEnd.TIMEOUT:
            return "killed: time limit reached"
        case ProcessEnd.KILLED:
            return "killed on request"
        case ProcessEnd.MEMORY:
            return "killed: memory"
        case ProcessEnd.RESTART:
            return "killed by the restart of the gateway"
        case _:
            return "lost: it is gone, and there is no record of how it ended"
