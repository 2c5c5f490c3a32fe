"""The session: one conversation, its queue of runs, and its recovery after an interruption.

A session's unfinished runs are driven one after the other, in the order they were queued.
A run that a restart, a shutdown or a crash cut leaves a *mark* (cause and time); a run that
completes clears it. A *suspended* session starts a new conversation with its next input: the
old transcript stays readable, the model no longer reads it, and the session's permissions end.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core import inbox
from holdfast.core.approval import approval
from holdfast.core.approval.approval import Approval, Grant, Level, PostureSeen, Standing
from holdfast.core.approval.rules import Permission
from holdfast.core.chat import chats
from holdfast.core.chat.chats import Chats
from holdfast.core.inbox import Input, InputAdmitted
from holdfast.core.life import lifecycle
from holdfast.core.machine import moved
from holdfast.core.messages import Message
from holdfast.core.run import call, child, context, process, run
from holdfast.core.run.run import Run, RunQueued
from holdfast.core.session.rewound import RewindPlanned, Rewound, SeedPoint
from holdfast.core.types import CallId, Fact, InputId, Owner, RequestId, RunId, SessionKey, Value
from holdfast.errors import IllegalTransition, Refused


class SessionStatus(StrEnum):
    OPEN = "open"
    SUSPENDED = "suspended"

    @property
    def final(self) -> bool:
        return False


class OnStart(StrEnum):
    """The policy at start for a run that was cut."""

    RESUME = "resume"
    WAIT = "wait"
    SUSPEND = "suspend"


class SessionOpened(Fact, tag="session.opened"):
    session_id: str
    workspace: str
    platform: str


class SessionSuspended(Fact, tag="session.suspended"):
    reason: str


class SessionReset(Fact, tag="session.reset"):
    """From here on the model reads a new conversation."""

    reason: str


class SessionReopened(Fact, tag="session.reopened"):
    """A user reopened a suspended session as it was."""

    by: Owner
    came: inbox.UpdateRef | None = None  # the chat message that asked for it, and nothing else


class ModelChosen(Fact, tag="session.model"):
    """From here on its runs ask this model; empty: the configured one."""

    model: str
    by: Owner


class SessionMarked(Fact, tag="session.marked"):
    """The operator marked the session as interrupted: the model is told when it goes on."""

    cause: run.CutCause
    reason: str


class MarkCleared(Fact, tag="session.mark_cleared"):
    """A user cleared the interruption mark."""

    by: Owner


class Undone(Fact, tag="session.undone"):
    """The last exchange was undone: the model no longer reads it."""

    by: Owner
    came: inbox.UpdateRef | None = None  # the chat message that asked for it


class SessionTitled(Fact, tag="session.titled"):
    """The session's new title for people; empty: none."""

    title: str
    by: Owner


class SessionSeeded(Fact, tag="session.seeded", omit_defaults=True):
    """The first messages of a session that is a fork or an import."""

    messages: tuple[Message, ...]
    source: str  # "fork of …", or where it was imported from
    began_at: float = 0.0  # the time of the first message; 0: the time of this record
    said_at: float = 0.0  # the time of the last message, likewise
    imported: bool = False  # it comes from a file, or is a fork of a session that does
    points: tuple[SeedPoint, ...] = ()  # of a fork: the points that it can go back to


_Own = SessionOpened | SessionSuspended | SessionReset | SessionReopened
_Kept = SessionMarked | MarkCleared | ModelChosen | Undone | SessionTitled | SessionSeeded
_Rewinds = RewindPlanned | Rewound
Event = _Own | _Kept | _Rewinds | lifecycle.Event  # the last only in the gateway's own session

P, S = SessionStatus.OPEN, SessionStatus.SUSPENDED

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[SessionStatus, type[_Own]], SessionStatus] = {
    (P, SessionOpened): P,
    (P, SessionSuspended): S,
    (P, SessionReset): P,
    (S, SessionSuspended): S,
    (S, SessionReset): P,
    (S, SessionReopened): P,
}


class Mark(Value):
    """The interruption mark: a run of this session was cut and none has completed since."""

    cause: run.CutCause
    reason: str
    at: float


class Session(msgspec.Struct, frozen=True):
    key: SessionKey
    workspace: str = ""
    platform: str = ""
    status: SessionStatus = SessionStatus.OPEN
    suspended_for: str = ""
    mark: Mark | None = None
    inputs: Mapping[InputId, Input] = {}  # not yet read
    runs: Mapping[RunId, Run] = {}  # unfinished, oldest first
    approvals: Mapping[RequestId, Approval] = {}  # pending, or granted and not yet used
    grants: tuple[Grant, ...] = ()  # from `session` answers
    standing: tuple[Permission, ...] = ()  # from `always` answers; only in the gateway's session
    posture: Level | None = None  # the last sandbox level; only in the gateway's session
    processes: process.Processes = {}  # background processes: running, or ended recently
    children: child.Children = {}  # child runs whose end was not reported yet
    cwd: str = ""  # where the next command starts; empty: in the workspace
    ended: Run | None = None  # the run that ended last
    model: str = ""  # chosen by a user; empty: the configured one
    title: str = ""  # for people
    rewinding: RewindPlanned | None = None  # files are being restored; no run starts meanwhile
    hosts: frozenset[str] = frozenset()  # network hosts that its users named
    chats: Chats = Chats()  # the state of all chats; only in the gateway's session


# Every fact passes here. A table, because `match` on structs asks each class in turn: 16 µs a fact.
def evolve(session: Session, event: Fact, at: float) -> Session:
    """Return `session` after `event`, with its inputs and runs."""
    evolve_one = _EVOLVE.get(type(event))
    return session if evolve_one is None else evolve_one(session, event, at)


def _queue(session: Session, event: RunQueued, at: float) -> Session:
    if event.run_id in session.runs:
        raise IllegalTransition(f"RunQueued for run {event.run_id}, which is open")
    return replace(session, runs={**session.runs, event.run_id: run.queue(event, at)})


def _admit_input(session: Session, event: InputAdmitted, at: float) -> Session:
    session = evolve_lasting(session, event)
    session = replace(session, inputs={**session.inputs, event.input_id: Input(event)})
    return _evolve_run(session, event, at) if event.run_id in session.runs else session


def _refuse_input(session: Session, event: inbox.InputRefused, at: float) -> Session:
    if event.run_id not in session.runs:
        return _evolve_input(session, event)  # it never got a run
    return _read_input(session, event, at)


def _read_input(session: Session, event: inbox.Event, at: float) -> Session:
    return _evolve_run(_evolve_input(session, event), event, at)


def _compact(session: Session, event: context.HistoryCompacted, at: float) -> Session:
    return _evolve_run(session, event, at) if event.run_id else session


def _move_call(session: Session, event: call.CallStarted | call.CallSettled, at: float) -> Session:
    return _evolve_run(_use_up(session, event.call_id), event, at)


def _evolve_kept(session: Session, event: Fact, at: float) -> Session:
    """Apply a fact about the session itself, independent of any run."""
    match event:
        case approval.ApprovalRequested(request_id=request_id):
            return replace(session, approvals={**session.approvals, request_id: Approval(event)})
        case Grant():
            valid = (g for g in session.grants if g.expires_at > at)
            return replace(session, grants=(*valid, event))
        case Standing():
            others = tuple(p for p in session.standing if p != event.permission)
            kept = () if event.revoked else (event.permission,)
            return replace(session, standing=(*others, *kept))
        case PostureSeen(level=level):
            return replace(session, posture=level)
        case SessionMarked():
            return replace(session, mark=Mark(event.cause, event.reason, at))
        case MarkCleared():
            return replace(session, mark=None)
        case ModelChosen(model=model):
            return replace(session, model=model)
        case SessionTitled(title=title):
            return replace(session, title=title)
        case RewindPlanned():
            return replace(session, rewinding=event)
        case Rewound():
            return replace(session, rewinding=None)
        case _:  # ChildBegun, ChildEnded
            return evolve_lasting(session, event)


def _evolve_chats(session: Session, event: chats.Event, at: float) -> Session:
    return replace(session, chats=chats.evolve(session.chats, event, at))


def _evolve_processes(session: Session, event: process.Event, at: float) -> Session:
    return replace(session, processes=process.evolve(session.processes, event, at))


def _evolve_approval(session: Session, event: approval.Event, at: float) -> Session:
    before = session.approvals.get(event.request_id)
    if before is None:
        raise IllegalTransition(f"{type(event).__name__} for {event.request_id}, not pending")
    after = approval.evolve(before, event)
    approvals = {**session.approvals, event.request_id: after}
    if after.status is not approval.ApprovalStatus.GRANTED:
        del approvals[event.request_id]
    return replace(session, approvals=approvals)


def _use_up(session: Session, call_id: CallId) -> Session:
    """Drop a call's grant: it is for one start only, whatever the call's outcome."""
    kept = {k: a for k, a in session.approvals.items() if a.requested.call_id != call_id}
    return session if len(kept) == len(session.approvals) else replace(session, approvals=kept)


def _evolve_own(session: Session, event: _Own, at: float) -> Session:
    status = moved(TRANSITIONS, session.status, event, "session", session.key.session_id)
    match event:
        case SessionOpened():
            return replace(session, workspace=event.workspace, platform=event.platform)
        case SessionSuspended():
            reason = session.suspended_for or event.reason
            return replace(session, status=status, suspended_for=reason)
        case SessionReopened():
            return replace(session, status=status, suspended_for="")
        case _:  # SessionReset
            return replace(session, status=status, suspended_for="", mark=None, grants=(), cwd="")


def _evolve_input(session: Session, event: inbox.Event) -> Session:
    entry = session.inputs.get(event.input_id)
    if entry is None:
        raise IllegalTransition(f"{type(event).__name__} for input {event.input_id}, not waiting")
    inbox.evolve(entry, event)
    inputs = dict(session.inputs)
    del inputs[event.input_id]
    return replace(session, inputs=inputs)


def _evolve_run(session: Session, event: run.Event, at: float) -> Session:
    run_id = event.run_id
    before = session.runs.get(run_id)
    if before is None:
        raise IllegalTransition(f"{type(event).__name__} for run {run_id}, which is not open")
    after = run.evolve(before, event, at)
    session = evolve_lasting(session, event)
    runs = dict(session.runs)
    if after.status.final:
        del runs[run_id]
        asked = {k: a for k, a in session.approvals.items() if a.requested.run_id != run_id}
        return replace(session, runs=runs, approvals=asked, ended=after)
    runs[run_id] = after
    return replace(session, runs=runs)


def evolve_lasting(session: Session, event: Fact) -> Session:
    """Apply what a fact changes beyond its run: directory, mark, children and hosts.

    The run itself may have ended already; loading a session applies old facts in this way.
    """
    if type(event) not in _RECALLED:
        return session
    match event:
        case InputAdmitted(hosts=hosts):
            return replace(session, hosts=session.hosts | set(hosts)) if hosts else session
        case call.CallSettled(cwd=cwd):
            return replace(session, cwd=cwd) if cwd else session
        case run.RunInterrupted():
            return replace(session, mark=Mark(event.cause, event.reason, event.cut_at))
        case run.RunCompleted():
            return replace(session, mark=None) if session.mark is not None else session
        case _:
            return replace(session, children=child.evolve(session.children, event))


_KEPT_FACTS: tuple[type[Fact], ...] = (
    *(Grant, Standing, PostureSeen, child.ChildBegun, child.ChildEnded),
    *(SessionMarked, MarkCleared, ModelChosen, SessionTitled, approval.ApprovalRequested),
    *(RewindPlanned, Rewound),
)
# Deltas and deliveries are not here: they have machines of their own, or none.
_EVOLVE: dict[type[Fact], Callable[[Session, Any, float], Session]] = {
    **dict.fromkeys(run.Event.__args__, _evolve_run),
    **dict.fromkeys(approval.Event.__args__, _evolve_approval),
    **dict.fromkeys(process.Event.__args__, _evolve_processes),
    **dict.fromkeys(chats.Event.__args__, _evolve_chats),
    **dict.fromkeys(_Own.__args__, _evolve_own),
    RunQueued: _queue,
    InputAdmitted: _admit_input,
    **dict.fromkeys((inbox.InputPromoted, inbox.InputSuperseded), _read_input),
    inbox.InputRefused: _refuse_input,
    context.HistoryCompacted: _compact,
    **dict.fromkeys((call.CallStarted, call.CallSettled), _move_call),
    **dict.fromkeys(_KEPT_FACTS, _evolve_kept),
}
_RECALLED: frozenset[type[Fact]] = frozenset(
    {InputAdmitted, call.CallSettled, run.RunInterrupted, run.RunCompleted, *child.EVENTS}
)


def current(session: Session) -> Run | None:
    """Return the run to drive: the first unfinished one."""
    return next(iter(session.runs.values()), None)


def admit(session: Session) -> tuple[Fact, ...]:
    """Return the facts to append before the next input: a suspended session is reset."""
    if session.status is SessionStatus.SUSPENDED:
        return (SessionReset(reason="suspended"),)
    return ()


def requeue_interrupted(session: Session) -> tuple[Fact, ...]:
    """Return the facts that requeue interrupted runs, as the user's next input does."""
    return tuple(
        run.RunRequeued(run_id=r.id)
        for r in session.runs.values()
        if r.status is run.RunPhase.INTERRUPTED and not r.held_until
    )


def mark(session: Session | None) -> tuple[Fact, ...]:
    """Return the facts that mark a session by hand. An existing mark does not change."""
    known = _known(session)
    if known.status is SessionStatus.SUSPENDED:
        raise Refused(
            "session_suspended",
            "The session is suspended: its next message starts a new conversation. "
            "Nothing changed.",
        )
    if known.mark is not None:
        return ()
    return (SessionMarked(cause=run.CutCause.RESTART, reason="Marked by the operator"),)


def clear_mark(session: Session | None, by: Owner) -> tuple[Fact, ...]:
    """Return the facts that clear a session's interruption mark."""
    if _known(session).mark is None:
        raise Refused("session_not_marked", "The session has no mark. Nothing changed.")
    return (MarkCleared(by=by),)


def _known(session: Session | None) -> Session:
    if session is None:
        raise Refused("session_not_found", "There is no such session. Nothing changed.")
    return session


def stop(session: Session, run_id: RunId, reason: str) -> tuple[Fact, ...]:
    """Return the facts that stop an open run. A run that has not started ends at once."""
    found = session.runs[run_id]
    asked = run.StopAsked(run_id=run_id, reason=reason)
    if found.driven:
        return (asked,)
    ended = run.RunCancelled(run_id=run_id, reason=reason, usage=found.usage)
    return (asked, *give_up(found, reason), ended)


def give_up(ending: Run, reason: str) -> tuple[Fact, ...]:
    """Return the facts that close the inputs which an ending run will not read."""
    return tuple(
        inbox.InputSuperseded(input_id=i, run_id=ending.id, reason=reason) for i in ending.unread
    )
