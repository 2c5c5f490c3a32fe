"""The run: the agent's work on one input, from queued to its final answer.

Everything that can change a run's status is in this file, and this file has no effects:
`evolve` applies a fact, `next_step` decides what to do next. A run that starts, a run that
goes on after a crash and a run that waited three days for an approval take the same path,
because each is the fold of its facts in the journal.

*Interrupted* means that the gateway cut the run and it will continue. *Cancelled* (by a
person) and *failed* (the gateway gave up) are final. After a stop request a run can only
become cancelled or failed, and its open calls are settled first. A run *waits* when each of
its open calls waits, or may not start before one that waits. As soon as one call can go on,
the run is queued again.

A run begins with one unread input and may be given more (steering). It reads unread inputs
before each turn, and it never ends while one is unread.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import cached_property
from itertools import takewhile
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.address import Address
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputRefused, InputSuperseded
from holdfast.core.machine import moved
from holdfast.core.messages import Proposal
from holdfast.core.run import call as calls_machine
from holdfast.core.run.call import Call
from holdfast.core.run.context import ContextExceeded, HistoryCompacted
from holdfast.core.run.files import FileChanging
from holdfast.core.types import (
    CallId,
    Fact,
    InputId,
    Owner,
    RunId,
    SessionId,
    Usage,
    Value,
    kind_of,
)
from holdfast.errors import IllegalTransition


class RunPhase(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # every open call waits; occupies no task and does not count as running
    INTERRUPTED = "interrupted"  # cut by us; will be queued again
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @cached_property  # asked several times for every fact
    def final(self) -> bool:
        return self in _FINAL


LONG_WAIT_S = 10.0  # before the next attempt: chats are told of it
_FINAL = frozenset({RunPhase.COMPLETED, RunPhase.FAILED, RunPhase.CANCELLED})


class CutCause(StrEnum):
    """The cause of a cut. The values are a part of the API."""

    RESTART = "restart_timeout"
    SHUTDOWN = "shutdown_timeout"
    CRASH = "crash"
    TERMINAL = "terminal_closed"  # the terminal that embedded the engine was closed
    JOURNAL = "journal_unavailable"  # the journal could not be written for a while


ORDERLY = frozenset({CutCause.RESTART, CutCause.SHUTDOWN})  # the shutdown was requested


class Origin(Fact, omit_defaults=True):
    """The source of a run, and what is possible there. It belongs to the run, not the session."""

    platform: str = ""
    answerable: bool = True  # a user can answer questions there, now or later
    late: bool = False  # messages after the run's end can still be delivered
    address: Address | None = None  # the chat its answer goes to; None: the client reads it
    reply_to: str = ""  # the chat message that it answers
    works_for: Owner = Owner("")  # the user who sent the input; empty: the session's owner
    progress: bool = False  # its progress can be shown there


class Parent(Fact):
    """The call that started a child run."""

    session_id: SessionId
    run_id: RunId
    call_id: CallId
    background: bool  # no call waits: the child's end becomes a new input
    depth: int = 1  # the number of the child's ancestors


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
    """The run goes on. `cause` names the interruption; it is empty after a wait."""

    run_id: RunId
    cause: str = ""


class RunRequeued(Fact, tag="run.requeued"):
    run_id: RunId


class RunHeld(Fact, tag="run.held"):
    """The run is suspected of crashing the process: not driven until cleared, or until `until`."""

    run_id: RunId
    until: float


class RunIsolated(Fact, tag="run.isolated", omit_defaults=True):
    """Of all suspected runs only this one is driven; `alone` false ends that."""

    run_id: RunId
    alone: bool = True


class RunCleared(Fact, tag="run.cleared"):
    """The run's earlier cuts no longer count, and it is no longer held."""

    run_id: RunId


class Incomplete(StrEnum):
    """Why an answer is less than was asked for. The values are a part of the API."""

    CUT = "cut"  # it reached the model's limit of tokens
    EMPTY = "empty"  # no text and no call


class ModelAsked(Fact, tag="model.asked", omit_defaults=True):
    """A model is about to be asked, and may cost so much. Recorded only if the run has a budget."""

    run_id: RunId
    turn: int
    attempt: int  # from 1
    model: str
    reserved_usd: float = 0.0
    max_output: int = 0  # tokens


class ModelAnswered(Fact, tag="model.answered", omit_defaults=True):
    run_id: RunId
    turn: int
    text: str
    reasoning: str = ""
    calls: tuple[Proposal, ...] = ()
    usage: Usage = Usage()
    model: str = ""
    opaque: str = ""  # what only this model can read of its answer; it gets it back
    incomplete: Incomplete | None = None


class ModelFailed(Fact, tag="model.failed", omit_defaults=True):
    """An attempt at a turn failed; another one follows."""

    run_id: RunId
    turn: int
    attempt: int  # from 1
    model: str  # that was asked
    reason: str
    next_model: str  # that is asked next
    wait_s: float = 0.0  # after this time
    retry_after_s: float = 0.0  # that the server asked for
    cost_usd: float = 0.0  # that the attempt may have had
    status: int = 0  # HTTP status of a server that refused
    of: int = 0  # the number of attempts after which the run gives up


class MessageVoided(Fact, tag="message.void"):
    """The text streamed so far for `turn` is void: the model is asked again."""

    run_id: RunId
    turn: int
    reason: str


class StopAsked(Fact, tag="run.stop_asked"):
    run_id: RunId
    reason: str


class RunInterrupted(Fact, tag="run.interrupted"):
    run_id: RunId
    cause: CutCause
    reason: str
    cut_at: float


class RunCompleted(Fact, tag="run.completed", omit_defaults=True):
    run_id: RunId
    output: str
    usage: Usage
    incomplete: Incomplete | None = None


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
    | ModelAsked
    | ModelAnswered
    | ModelFailed
    | MessageVoided
    | ContextExceeded
    | HistoryCompacted
    | calls_machine.Event
    | StopAsked
    | RunInterrupted
    | RunCompleted
    | RunFailed
    | RunCancelled
)

Q, R, W, X = RunPhase.QUEUED, RunPhase.RUNNING, RunPhase.WAITING, RunPhase.INTERRUPTED

# The whole machine. docs/state-machines.md is drawn from this table. Two rules take precedence:
# a queued or running run becomes waiting when every open call waits; and a run completes only
# if that is its next step, and is cancelled only if no call and no input is open.
TRANSITIONS: dict[tuple[RunPhase, type[Event]], RunPhase] = {
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
    (Q, RunFailed): RunPhase.FAILED,
    (Q, RunCancelled): RunPhase.CANCELLED,
    (R, RunIsolated): R,
    (R, RunCleared): R,
    (R, InputAdmitted): R,
    (R, InputPromoted): R,
    (R, InputSuperseded): R,
    (R, InputRefused): R,
    (R, ModelAsked): R,
    (R, ModelAnswered): R,
    (R, ModelFailed): R,
    (R, MessageVoided): R,
    (R, ContextExceeded): R,
    (R, HistoryCompacted): R,
    (R, calls_machine.CallAsked): R,
    (R, calls_machine.CallCleared): R,
    (R, calls_machine.CallStarted): R,
    (R, FileChanging): R,
    (R, calls_machine.CallParked): R,
    (R, calls_machine.CallSettled): R,
    (R, StopAsked): R,
    (R, RunInterrupted): X,
    (R, RunCompleted): RunPhase.COMPLETED,
    (R, RunFailed): RunPhase.FAILED,
    (R, RunCancelled): RunPhase.CANCELLED,
    (W, RunCleared): W,
    (W, InputAdmitted): W,
    (W, InputSuperseded): W,
    (W, InputRefused): W,
    (W, calls_machine.CallCleared): Q,
    (W, calls_machine.CallSettled): Q,
    (W, StopAsked): W,
    (W, RunFailed): RunPhase.FAILED,
    (W, RunCancelled): RunPhase.CANCELLED,
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
    (X, RunFailed): RunPhase.FAILED,
    (X, RunCancelled): RunPhase.CANCELLED,
}
RULES = ((Q, "every open call waits", W), (R, "every open call waits", W))


# A msgspec struct, not a dataclass, because every fact copies it: 0.2 µs instead of 4.
class Run(msgspec.Struct, frozen=True):
    id: RunId
    input_id: InputId
    created_at: float
    updated_at: float
    model: str = ""
    status: RunPhase = RunPhase.QUEUED
    turn: int = 0  # model answers so far
    answered: bool = False  # the model's last answer has no calls: it is final
    output: str = ""  # the text of the model's last answer
    unread: tuple[InputId, ...] = ()
    calls: Mapping[CallId, Call] = {}  # the open ones, in order
    stop_reason: str = ""  # not empty: a stop was requested
    usage: Usage = Usage()
    driven: bool = False  # RunStarted has been recorded
    driven_at: float = 0.0  # when it was last started or resumed
    progressed: bool = False  # whether it got a result since then
    cut_by: str = ""  # the cause of an interruption after which it has not been resumed yet
    cuts: int = 0  # crashes in a row that look like a loop
    restarts: int = 0  # orderly shutdowns in a row that look like a loop
    held_until: float = 0.0  # not 0: not driven, because it is suspected of crashing the process
    isolated: bool = False  # no other suspected run is driven beside it
    exposed: bool = False  # it was isolated when a crash cut it
    last_event: str = "run.queued"
    origin: Origin = Origin()
    parent: Parent | None = None
    steps: int = 0  # the number of calls started, without the quiet ones
    attempts: int = 0  # at the next turn that failed
    retry_at: float = 0.0  # when the model is asked again; 0: at once, or none has failed
    waited: bool = False  # so long for it that a chat was told
    incomplete: Incomplete | None = None  # the model's last answer
    ask_next: str = ""  # the model to ask after these
    reserved_usd: float = 0.0  # for a request whose outcome is not recorded
    exceeded: bool = False  # the model refused the next turn's request as too long
    compacted: int = 0  # the turn before which the history was last compacted


def queue(event: RunQueued, at: float) -> Run:
    """Return the run that `event` creates."""
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
    """Return `run` after `event`."""
    status = moved(TRANSITIONS, run.status, event, "run", run.id)
    if status.final:
        _check_end(run, event)
    run = replace(run, status=status, updated_at=at, last_event=kind_of(type(event)))
    if (apply := _APPLY.get(type(event))) is not None:
        run = apply(run, event, at)
    if run.calls and run.status in (Q, R) and not movable(run):
        return replace(run, status=W, isolated=False)
    return run


def _check_end(run: Run, event: Event) -> None:
    """Refuse an end that leaves work undone. Failing is always allowed."""
    if type(event) is RunCompleted and not isinstance(next_step(run), Complete):
        raise IllegalTransition(f"RunCompleted while run {run.id} has more to do")
    if type(event) is RunCancelled and (run.calls or run.unread):
        raise IllegalTransition(f"RunCancelled while run {run.id} has calls or inputs open")


def _drive(run: Run, event: RunStarted | RunResumed, at: float) -> Run:
    return replace(run, driven=True, driven_at=at, progressed=False, cut_by="")


def _admit(run: Run, event: InputAdmitted, at: float) -> Run:
    origin = replace(run.origin, reply_to=event.reply_to or run.origin.reply_to)
    unread = (*_unread_but(run, event.input_id), event.input_id)
    return replace(run, unread=unread, origin=origin)


def _read(run: Run, event: InputPromoted, at: float) -> Run:
    return replace(run, unread=_unread_but(run, event.input_id), answered=False)


def _drop(run: Run, event: InputSuperseded | InputRefused, at: float) -> Run:
    return replace(run, unread=_unread_but(run, event.input_id))


def _stop(run: Run, event: StopAsked, at: float) -> Run:
    return replace(run, stop_reason=run.stop_reason or event.reason or "stopped")


def _unread_but(run: Run, input_id: InputId) -> tuple[InputId, ...]:
    return tuple(i for i in run.unread if i != input_id)


def _reserve(run: Run, event: ModelAsked, at: float) -> Run:
    # A reservation that still stands is of a request that a crash cut: it may have cost that.
    spent = run.usage + Usage(cost_usd=run.reserved_usd)
    return replace(run, usage=spent, reserved_usd=event.reserved_usd)


def _answered(run: Run, event: ModelAnswered, at: float) -> Run:
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
        attempts=0,
        retry_at=0.0,
        waited=False,
        incomplete=event.incomplete,
        ask_next="",
        reserved_usd=0.0,
    )


def _fail_attempt(run: Run, event: ModelFailed, at: float) -> Run:
    return replace(
        run,
        attempts=event.attempt,
        retry_at=at + event.wait_s if event.wait_s else 0.0,
        waited=run.waited or event.wait_s >= LONG_WAIT_S,
        ask_next=event.next_model,
        usage=run.usage + Usage(cost_usd=event.cost_usd),
        reserved_usd=0.0,
    )


def _exceed(run: Run, event: ContextExceeded, at: float) -> Run:
    return replace(run, exceeded=True)


def _compact(run: Run, event: HistoryCompacted, at: float) -> Run:
    # Notes that cost something were reserved; a reservation of another request stays.
    reserved = 0.0 if event.usage.cost_usd else run.reserved_usd
    return replace(
        run,
        exceeded=False,
        compacted=run.turn + 1,
        usage=run.usage + event.usage,
        reserved_usd=reserved,
    )


def _call_moved(run: Run, event: calls_machine.Event, at: float) -> Run:
    call = run.calls.get(event.call_id)
    if call is None:
        raise IllegalTransition(
            f"{type(event).__name__} for call {event.call_id}, which is not open in run {run.id}"
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


def movable(run: Run) -> tuple[Call, ...]:
    """Return the open calls that may go on, in order; one with `holds` stops all after it."""
    calls = takewhile(lambda call: not call.holds, run.calls.values())
    return tuple(call for call in calls if not call.status.waiting)


QUICK_CUT_S = 60.0
CUTS_UNTIL_STUCK = 3


def _cut(run: Run, event: RunInterrupted, at: float) -> Run:
    cuts, restarts = run.cuts, run.restarts
    if event.cause is CutCause.CRASH or event.cause in ORDERLY:  # a run cannot cause the others
        if made_progress(run, event.cut_at):
            cuts = restarts = 0
        elif event.cause is CutCause.CRASH:
            cuts += 1
        elif run.progressed or _at_work(run):
            restarts += 1  # a run that only waited for the model cannot have requested a restart
    calls = {k: calls_machine.cut(c) for k, c in run.calls.items()}
    run = replace(run, calls=calls, cut_by=event.cause, cuts=cuts, restarts=restarts)
    return replace(run, isolated=False, exposed=run.isolated and event.cause is CutCause.CRASH)


def _suspected(run: Run, event: RunRequeued | RunHeld | RunIsolated | RunCleared, at: float) -> Run:
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


# The others change the status only.
_APPLY: dict[type[Event], Callable[[Run, Any, float], Run]] = {
    RunStarted: _drive,
    RunResumed: _drive,
    InputAdmitted: _admit,
    InputPromoted: _read,
    InputSuperseded: _drop,
    InputRefused: _drop,
    ModelAsked: _reserve,
    ModelAnswered: _answered,
    ModelFailed: _fail_attempt,
    ContextExceeded: _exceed,
    HistoryCompacted: _compact,
    **dict.fromkeys(calls_machine.Event.__args__, _call_moved),
    StopAsked: _stop,
    RunInterrupted: _cut,
    **dict.fromkeys((RunRequeued, RunHeld, RunIsolated, RunCleared), _suspected),
}


def _at_work(run: Run) -> bool:
    return any(c.status is calls_machine.CallStatus.STARTED for c in run.calls.values())


def made_progress(run: Run, now: float) -> bool:
    """Tell if the run has been driven for long enough, and with a result, to exclude a loop."""
    return now - run.driven_at > QUICK_CUT_S and run.progressed


def stuck(run: Run) -> bool:
    """Tell if the run was cut so often in a row without progress that it is probably a loop."""
    count = run.restarts if run.cut_by in ORDERLY else run.cuts
    return count >= CUTS_UNTIL_STUCK


class StartRun(Value):
    """Record that the run has started, and promote its inputs: the first turn includes them."""

    inputs: tuple[InputId, ...]


class Resume(Value):
    """Record that the run goes on, and the cause of its interruption."""

    cause: str


class Read(Value):
    """Promote the unread inputs, so that the next turn includes them."""

    inputs: tuple[InputId, ...]


class Compact(Value):
    """Shorten what the model reads: it refused the request of this turn as too long."""

    turn: int


class CallModel(Value):
    turn: int


class SettleCalls(Value):
    calls: tuple[Call, ...]


class AbortCalls(Value):
    calls: tuple[Call, ...]


class Complete(Value):
    output: str
    incomplete: Incomplete | None = None


class Cancel(Value):
    reason: str


class Rest(Value):
    """Nothing to do until another fact is appended."""


Step = (
    StartRun
    | Resume
    | Read
    | Compact
    | CallModel
    | SettleCalls
    | AbortCalls
    | Complete
    | Cancel
    | Rest
)


def next_step(run: Run) -> Step:
    """Return what to do now. Total: every run has exactly one next step."""
    if run.status.final:
        return Rest()
    if run.stop_reason:
        return AbortCalls(tuple(run.calls.values())) if run.calls else Cancel(run.stop_reason)
    match run.status:
        case RunPhase.QUEUED:
            return Resume(run.cut_by) if run.driven else StartRun(run.unread)
        case RunPhase.RUNNING:
            return _next_in_turn(run)
        case _:
            return Rest()


def _next_in_turn(run: Run) -> Step:
    if run.calls:
        return SettleCalls(movable(run))
    if run.unread:
        return Read(run.unread)
    if run.answered:
        return Complete(run.output, run.incomplete)
    return Compact(run.turn + 1) if run.exceeded else CallModel(run.turn + 1)


def may_compact(run: Run) -> bool:
    """Tell if compacting may still help the next turn: it is tried once for each."""
    return run.compacted <= run.turn


def end_with(run: Run, answer: ModelAnswered) -> tuple[RunCompleted, ...]:
    """Return the end that can be recorded with the model's answer; none if there is more to do."""
    if answer.calls or run.unread or run.stop_reason:
        return ()
    usage = run.usage + answer.usage
    return (
        RunCompleted(run_id=run.id, output=answer.text, usage=usage, incomplete=answer.incomplete),
    )
