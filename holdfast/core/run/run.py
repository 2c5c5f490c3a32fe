"""The run: one agent's work on one input, from queued to its last word.

Everything that can change a run's status is in this file, and nothing in this file
does anything: `evolve` says what a fact means, `next_step` says what to do about
it. A run that starts, a run that goes on after a crash and a run that waited three
days for an approval take the same path, because all of them are a folded journal.

*Interrupted* is by us and will continue; *cancelled* is by a person, *failed* means
that we gave up: both are final. After a stop was asked for only cancelled or failed
may follow, and open calls are settled first. A run *waits* when every call it has
open waits; as soon as one can move, it is queued again and wants a place.

A run begins with one unread input and may be given more (steering). Before each
turn it reads what is unread; it never ends while something is.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core import call as calls_machine
from holdfast.core.address import Address
from holdfast.core.call import Call
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputRefused, InputSuperseded
from holdfast.core.messages import Proposal
from holdfast.core.types import (
    CallId,
    Fact,
    InputId,
    Owner,
    RunId,
    SessionId,
    Usage,
    Value,
    kind,
)
from holdfast.errors import IllegalTransition


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # every open call waits; holds no task and no place
    INTERRUPTED = "interrupted"  # cut by us; will be queued again
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in _FINAL


_FINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


class Cause(StrEnum):
    """What cut a run. The words are part of the contract."""

    RESTART = "restart_timeout"
    SHUTDOWN = "shutdown_timeout"
    CRASH = "crash"
    TERMINAL = "terminal_closed"  # the terminal that embedded the engine has left
    JOURNAL = "journal_unavailable"  # nothing could be written down for a while


ORDERLY = frozenset({Cause.RESTART, Cause.SHUTDOWN})  # somebody asked for the end


class Origin(Fact, omit_defaults=True):
    """For whom a run works, and what it may count on there. Bound to the run, not its session."""

    platform: str = ""
    answerable: bool = True  # somebody can be asked, now or later
    late: bool = False  # what comes after its end still reaches somebody
    address: Address | None = None  # the chat its answer goes to; None: whoever asked reads it
    reply_to: str = ""  # the message there that it answers
    works_for: Owner = Owner("")  # whose words it was given; empty: the session's owner's
    progress: bool = False  # how far it is can be shown there


class Parent(Fact):
    """The call that waits for a run, or began it: its child."""

    session_id: SessionId
    run_id: RunId
    call_id: CallId
    background: bool  # nobody waits: its end is told as a new input
    depth: int = 1  # how many runs its child works for, one for the other


class RunQueued(Fact, tag="run.queued", omit_defaults=True):
    run_id: RunId
    input_id: InputId
    model: str = ""
    origin: Origin = Origin()
    parent: Parent | None = None


class RunStarted(Fact, tag="run.started", omit_defaults=True):
    run_id: RunId
    sandbox: str = ""  # how well its commands are confined


class RunResumed(Fact, tag="run.resumed", omit_defaults=True):
    """It goes on. `cause` names the interruption; empty after a wait."""

    run_id: RunId
    cause: str = ""


class RunRequeued(Fact, tag="run.requeued"):
    run_id: RunId


class RunHeld(Fact, tag="run.held"):
    """It may be what ends the process: it is not driven until that is known, or `until`."""

    run_id: RunId
    until: float


class RunIsolated(Fact, tag="run.isolated", omit_defaults=True):
    """Of all that may be what ends the process, only this one is driven; or no longer only it."""

    run_id: RunId
    alone: bool = True


class RunCleared(Fact, tag="run.cleared"):
    """Its earlier cuts do not count any more, and it is not held for them."""

    run_id: RunId


class ModelAnswered(Fact, tag="model.answered", omit_defaults=True):
    run_id: RunId
    turn: int
    text: str
    reasoning: str = ""
    calls: tuple[Proposal, ...] = ()
    usage: Usage = Usage()
    model: str = ""


class MessageVoided(Fact, tag="message.void"):
    """The text streamed for `turn` so far does not count: the model is asked again."""

    run_id: RunId
    turn: int
    reason: str


class StopAsked(Fact, tag="run.stop_asked"):
    run_id: RunId
    reason: str


class RunInterrupted(Fact, tag="run.interrupted"):
    run_id: RunId
    cause: Cause
    reason: str
    cut_at: float


class RunCompleted(Fact, tag="run.completed"):
    run_id: RunId
    output: str
    usage: Usage


class RunFailed(Fact, tag="run.failed"):
    run_id: RunId
    code: str
    error: str
    usage: Usage


class RunCancelled(Fact, tag="run.cancelled"):
    run_id: RunId
    reason: str
    usage: Usage


Event = (
    RunStarted
    | RunResumed
    | RunRequeued
    | RunHeld
    | RunIsolated
    | RunCleared
    | InputAdmitted
    | InputPromoted
    | InputSuperseded
    | InputRefused
    | ModelAnswered
    | MessageVoided
    | calls_machine.Event
    | StopAsked
    | RunInterrupted
    | RunCompleted
    | RunFailed
    | RunCancelled
)

Q, R, W, X = Status.QUEUED, Status.RUNNING, Status.WAITING, Status.INTERRUPTED

# The whole machine. docs/state-machines.md is drawn from this table. Two rules stand
# above it: a run that is queued or running while every open call waits is waiting; and
# a run completes only when that is its next step, and is cancelled with nothing open.
TRANSITIONS: dict[tuple[Status, type[Event]], Status] = {
    (Q, RunStarted): R,
    (Q, RunResumed): R,
    (Q, RunHeld): X,
    (Q, RunIsolated): Q,
    (Q, RunCleared): Q,
    (Q, InputAdmitted): Q,
    (Q, InputSuperseded): Q,
    (Q, InputRefused): Q,
    (Q, calls_machine.CallCleared): Q,
    (Q, calls_machine.CallSettled): Q,
    (Q, StopAsked): Q,
    (Q, RunFailed): Status.FAILED,
    (Q, RunCancelled): Status.CANCELLED,
    (R, RunIsolated): R,
    (R, RunCleared): R,
    (R, InputAdmitted): R,
    (R, InputPromoted): R,
    (R, InputSuperseded): R,
    (R, InputRefused): R,
    (R, ModelAnswered): R,
    (R, MessageVoided): R,
    (R, calls_machine.CallAsked): R,
    (R, calls_machine.CallCleared): R,
    (R, calls_machine.CallStarted): R,
    (R, calls_machine.CallParked): R,
    (R, calls_machine.CallSettled): R,
    (R, StopAsked): R,
    (R, RunInterrupted): X,
    (R, RunCompleted): Status.COMPLETED,
    (R, RunFailed): Status.FAILED,
    (R, RunCancelled): Status.CANCELLED,
    (W, RunCleared): W,
    (W, InputAdmitted): W,
    (W, InputSuperseded): W,
    (W, InputRefused): W,
    (W, calls_machine.CallCleared): Q,
    (W, calls_machine.CallSettled): Q,
    (W, StopAsked): W,
    (W, RunFailed): Status.FAILED,
    (W, RunCancelled): Status.CANCELLED,
    (X, RunRequeued): Q,
    (X, RunHeld): X,
    (X, RunIsolated): X,
    (X, RunCleared): X,
    (X, InputAdmitted): X,
    (X, InputSuperseded): X,
    (X, InputRefused): X,
    (X, calls_machine.CallCleared): X,
    (X, calls_machine.CallSettled): X,
    (X, StopAsked): X,
    (X, RunFailed): Status.FAILED,
    (X, RunCancelled): Status.CANCELLED,
}
RULES = ((Q, "every open call waits", W), (R, "every open call waits", W))


# A struct, not a dataclass, because every fact replaces it: 0.2 µs instead of 4.
class Run(msgspec.Struct, frozen=True):
    id: RunId
    input_id: InputId
    created_at: float
    updated_at: float
    model: str = ""
    status: Status = Status.QUEUED
    turn: int = 0  # model answers so far
    answered: bool = False  # the model has said its last word: an answer without calls
    output: str = ""  # what it said last
    unread: tuple[InputId, ...] = ()
    calls: Mapping[CallId, Call] = {}  # open ones, in order
    stop_reason: str = ""  # not empty: a stop was asked for
    usage: Usage = Usage()
    driven: bool = False  # RunStarted has been recorded
    driven_at: float = 0.0  # when it last began to be driven
    progressed: bool = False  # since then
    cut_by: str = ""  # the cause of the interruption it has not come back from
    cuts: int = 0  # crashes in a row that look like a loop
    restarts: int = 0  # orderly ends in a row that do
    held_until: float = 0.0  # not 0: it is not driven, because it may be what ends the process
    isolated: bool = False  # none of the others that may be is driven with it
    exposed: bool = False  # it was isolated when a crash cut it
    last_event: str = "run.queued"
    origin: Origin = Origin()
    parent: Parent | None = None
    steps: int = 0  # calls that were begun, but for quiet ones


def queue(event: RunQueued, at: float) -> Run:
    """The run that `event` makes."""
    return Run(
        event.run_id,
        event.input_id,
        at,
        at,
        event.model,
        unread=(event.input_id,),
        origin=event.origin,
        parent=event.parent,
    )


def evolve(run: Run, event: Event, at: float) -> Run:
    """What `event` means for `run`."""
    try:
        status = TRANSITIONS[run.status, type(event)]
    except KeyError:
        raise IllegalTransition(
            f"{type(event).__name__} while run {run.id} is {run.status}"
        ) from None
    _check_end(run, event)
    run = replace(run, status=status, updated_at=at, last_event=kind(event))
    run = _apply(run, event, at)
    if run.calls and run.status in (Q, R) and _waits(run):
        return replace(run, status=W, isolated=False)
    return run


def _check_end(run: Run, event: Event) -> None:
    """Only failing is always possible; otherwise a run keeps its word before it ends."""
    match event:
        case RunCompleted() if not isinstance(next_step(run), Complete):
            raise IllegalTransition(f"RunCompleted while run {run.id} has more to do")
        case RunCancelled() if run.calls or run.unread:
            raise IllegalTransition(f"RunCancelled while run {run.id} has calls or inputs open")
        case _:
            pass


def _apply(run: Run, event: Event, at: float) -> Run:
    match event:
        case RunStarted() | RunResumed():
            return replace(run, driven=True, driven_at=at, progressed=False, cut_by="")
        case InputAdmitted():
            origin = replace(run.origin, reply_to=event.reply_to or run.origin.reply_to)
            unread = (*_unread_but(run, event.input_id), event.input_id)
            return replace(run, unread=unread, origin=origin)
        case InputPromoted():
            return replace(run, unread=_unread_but(run, event.input_id), answered=False)
        case InputSuperseded() | InputRefused():
            return replace(run, unread=_unread_but(run, event.input_id))
        case ModelAnswered():
            return _answered(run, event)
        case (
            calls_machine.CallAsked()
            | calls_machine.CallCleared()
            | calls_machine.CallStarted()
            | calls_machine.CallParked()
            | calls_machine.CallSettled()
        ):
            return _call_moved(run, event)
        case StopAsked():
            return replace(run, stop_reason=run.stop_reason or event.reason or "stopped")
        case RunInterrupted():
            return _cut(run, event)
        case RunRequeued() | RunHeld() | RunIsolated() | RunCleared():
            return _suspected(run, event)
        case _:  # they change the status only
            return run


def _unread_but(run: Run, input_id: InputId) -> tuple[InputId, ...]:
    return tuple(i for i in run.unread if i != input_id)


def _answered(run: Run, event: ModelAnswered) -> Run:
    if run.calls:
        raise IllegalTransition(f"ModelAnswered while run {run.id} has calls open")
    return replace(
        run,
        turn=event.turn,
        answered=not event.calls,
        output=event.text,
        calls={p.call_id: Call(p) for p in event.calls},
        usage=run.usage + event.usage,
        model=event.model or run.model,
        progressed=True,
    )


def _call_moved(run: Run, event: calls_machine.Event) -> Run:
    call = run.calls.get(event.call_id)
    if call is None:
        raise IllegalTransition(
            f"{type(event).__name__} for call {event.call_id}, which run {run.id} has not open"
        )
    call = calls_machine.evolve(call, event)
    moved = dict(run.calls)
    if call.status.final:
        del moved[event.call_id]
    else:
        moved[event.call_id] = call
    steps = run.steps + (isinstance(event, calls_machine.CallStarted) and not event.quiet)
    progressed = run.progressed or _is_progress(event)
    return replace(run, calls=moved, steps=steps, progressed=progressed)


def _is_progress(event: calls_machine.Event) -> bool:
    return (
        isinstance(event, calls_machine.CallSettled)
        and event.outcome is not calls_machine.Outcome.UNKNOWN
    )


def _waits(run: Run) -> bool:
    return all(c.status.waiting for c in run.calls.values())


QUICK_CUT_S = 60.0
CUTS_UNTIL_STUCK = 3


def _cut(run: Run, event: RunInterrupted) -> Run:
    cuts, restarts = run.cuts, run.restarts
    if event.cause is Cause.CRASH or event.cause in ORDERLY:  # others are not the run's doing
        if gets_on(run, event.cut_at):
            cuts = restarts = 0
        elif event.cause is Cause.CRASH:
            cuts += 1
        elif run.progressed or _at_work(run):
            restarts += 1  # one that only waited for the model has asked nobody for a restart
    calls = {k: calls_machine.cut(c) for k, c in run.calls.items()}
    run = replace(run, calls=calls, cut_by=event.cause, cuts=cuts, restarts=restarts)
    return replace(run, isolated=False, exposed=run.isolated and event.cause is Cause.CRASH)


def _suspected(run: Run, event: RunRequeued | RunHeld | RunIsolated | RunCleared) -> Run:
    match event:
        case RunRequeued():
            return replace(run, held_until=0.0)
        case RunHeld(until=until):
            return replace(run, held_until=until, isolated=False, exposed=False)
        case RunIsolated(alone=alone):
            return replace(run, isolated=alone, exposed=False)
        case _:  # RunCleared
            run = replace(run, cuts=0, restarts=0, held_until=0.0)
            return replace(run, isolated=False, exposed=False)


def _at_work(run: Run) -> bool:
    return any(c.status is calls_machine.Status.STARTED for c in run.calls.values())


def gets_on(run: Run, now: float) -> bool:
    """Whether it has been driven for so long, and got so far, that a cut would be no loop."""
    return now - run.driven_at > QUICK_CUT_S and run.progressed


def stuck(run: Run) -> bool:
    """Cut so often in a row, so soon or so fruitlessly, that going on may only loop."""
    count = run.restarts if run.cut_by in ORDERLY else run.cuts
    return count >= CUTS_UNTIL_STUCK


class Start(Value):
    """Say that the run has begun."""


class Resume(Value):
    """Say that the run goes on, and after what."""

    cause: str


class Read(Value):
    """Promote the unread inputs, so that the next turn sees them."""

    inputs: tuple[InputId, ...]


class CallModel(Value):
    turn: int


class SettleCalls(Value):
    calls: tuple[Call, ...]


class AbortCalls(Value):
    calls: tuple[Call, ...]


class Complete(Value):
    output: str


class Cancel(Value):
    reason: str


class Rest(Value):
    """Nothing to do until somebody appends another fact."""


Step = Start | Resume | Read | CallModel | SettleCalls | AbortCalls | Complete | Cancel | Rest


def next_step(run: Run) -> Step:
    """What to do now. Total: every run has exactly one next step."""
    if run.status.final:
        return Rest()
    if run.stop_reason:
        return AbortCalls(tuple(run.calls.values())) if run.calls else Cancel(run.stop_reason)
    match run.status:
        case Status.QUEUED:
            return Resume(run.cut_by) if run.driven else Start()
        case Status.RUNNING:
            return _next_in_turn(run)
        case _:
            return Rest()


def _next_in_turn(run: Run) -> Step:
    if run.calls:
        return SettleCalls(tuple(c for c in run.calls.values() if not c.status.waiting))
    if run.unread:
        return Read(run.unread)
    if run.answered:
        return Complete(run.output)
    return CallModel(run.turn + 1)
