"""The background process: it outlives its call, and its end is told to the session.

A process is *running* from its call's result on and *ended* once that is written down; what
became of one that nobody watched (the gateway was gone) is found out at the next start. If
its run asked for it and late words reach somebody, the end is a new input of the session,
and so are lines that match what was asked for, a few at a time.
"""

from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from holdfast.core.run import Origin
from holdfast.core.types import CallId, Fact, ProcessId, RunId, Value
from holdfast.errors import IllegalTransition


def name(run_id: RunId, turn: int, call_id: CallId) -> ProcessId:
    """What the process of a call is called: always the same. Some models count calls per turn."""
    return ProcessId(f"proc_{sha256(f'{run_id}/{turn}/{call_id}'.encode()).hexdigest()[:12]}")


class Status(StrEnum):
    RUNNING = "running"
    ENDED = "ended"

    @property
    def final(self) -> bool:
        return self is Status.ENDED


class Cause(StrEnum):
    """Why a process is over."""

    EXITED = "exited"
    TIMEOUT = "timeout"
    KILLED = "killed"  # on request
    MEMORY = "memory"
    RESTART = "restart"  # the gateway it belonged to has ended
    LOST = "lost"  # it is gone, and nobody wrote down how


# None of these has a `run_id`: they are the session's, and come after the run's end too.
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
    """Lines it wrote that somebody waits for, up to `offset` of its output."""

    process_id: ProcessId
    offset: int
    lines: str


class ProcessEnded(Fact, tag="process.ended", omit_defaults=True):
    process_id: ProcessId
    cause: Cause
    exit_code: int | None = None
    signal: int | None = None
    duration_s: float = 0.0
    output_bytes: int = 0
    tail: str = ""  # the last of its output


Event = ProcessStarted | ProcessMatched | ProcessEnded

R = Status.RUNNING

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[Status, type[ProcessMatched] | type[ProcessEnded]], Status] = {
    (R, ProcessMatched): R,
    (R, ProcessEnded): Status.ENDED,
}


class Process(msgspec.Struct, frozen=True):
    started: ProcessStarted
    started_at: float
    status: Status = Status.RUNNING
    matches: int = 0  # how often somebody was told of lines
    matched_at: float = 0.0
    offset: int = 0
    ended: ProcessEnded | None = None

    @property
    def id(self) -> ProcessId:
        return self.started.process_id


Processes = Mapping[ProcessId, Process]

KEEP_ENDED = 16


def evolve(processes: Processes, event: Event, at: float) -> Processes:
    """What `event` means for a session's processes. Of the ended only the last are kept."""
    before = processes.get(event.process_id)
    if isinstance(event, ProcessStarted):
        if before is not None:
            raise IllegalTransition(f"ProcessStarted for {event.process_id}, which was started")
        return _bounded({**processes, event.process_id: Process(event, at)})
    if before is None or (before.status, type(event)) not in TRANSITIONS:
        status = "not known" if before is None else before.status
        raise IllegalTransition(f"{type(event).__name__} while {event.process_id} is {status}")
    if isinstance(event, ProcessEnded):
        after = replace(before, status=Status.ENDED, ended=event)
    else:
        told = before.matches + 1
        after = replace(before, matches=told, matched_at=at, offset=event.offset)
    others = {k: p for k, p in processes.items() if k != event.process_id or not after.status.final}
    return {**others, event.process_id: after}  # in the order they ended


def _bounded(processes: dict[ProcessId, Process]) -> dict[ProcessId, Process]:
    ended = [p.id for p in processes.values() if p.status.final]
    for process_id in ended[:-KEEP_ENDED]:
        del processes[process_id]
    return processes


def left_by(processes: Processes, run_id: RunId) -> tuple[ProcessId, ...]:
    """What a run has left running, but for what was granted to live on."""
    return tuple(
        p.id
        for p in processes.values()
        if p.started.started_by == run_id and not p.status.final and not p.started.detach
    )


class Notice(Value):
    """What a process may tell later, and what it may not and why."""

    notify: bool
    watch: tuple[str, ...]
    unsupported: str


def notice(origin: Origin, *, notify: bool, watch: tuple[str, ...]) -> Notice:
    """What of `notify` and `watch` can be kept where the run works for `origin`."""
    if origin.late or not (notify or watch):
        return Notice(notify, watch, "")
    asked = " and ".join(
        name
        for name, wanted in (("notify_on_complete", notify), ("watch_patterns", watch))
        if wanted
    )
    return Notice(
        notify=False,
        watch=(),
        unsupported=(
            f"{asked} is not possible here: nothing can be delivered after this run has ended "
            f"({origin.platform or 'this door'}). The process runs all the same; look at it with "
            "the process tool, action poll or wait."
        ),
    )


WATCH_EVERY_S = 10.0
WATCH_MOST = 20


def may_tell(process: Process, now: float) -> bool:
    """Whether lines that match may be told now: not too often, and not for ever."""
    return process.matches < WATCH_MOST and now - process.matched_at >= WATCH_EVERY_S


def matched_text(process: Process, lines: str) -> str:
    """The input that lines are which somebody waits for."""
    last = process.matches + 1 >= WATCH_MOST
    more = "\n(This was the last such message; use the process tool.)" if last else ""
    return (
        f"[Background process {process.id} wrote lines that match what is watched for. "
        f"Command: {process.started.command}]\n{lines}{more}"
    )


def ended_text(process: Process, ended: ProcessEnded) -> str:
    """The input that the end of a process is."""
    output = f"\nThe end of its output:\n{ended.tail}" if ended.tail else "\nIt wrote nothing."
    return (
        f"[Background process {process.id} has ended: {how(ended)}. "
        f"Command: {process.started.command}]{output}"
    )


def how(ended: ProcessEnded) -> str:
    """How it ended, for people and models."""
    match ended.cause:
        case Cause.EXITED if ended.signal is not None:
            return f"killed by signal {ended.signal}"
        case Cause.EXITED if ended.exit_code is not None:
            return f"exit code {ended.exit_code}"
        case Cause.TIMEOUT:
            return "killed: it ran out of time"
        case Cause.KILLED:
            return "killed on request"
        case Cause.MEMORY:
            return "killed: memory"
        case Cause.RESTART:
            return "killed by the restart of the gateway"
        case _:
            return "lost: it is gone, and nobody knows how it ended"
