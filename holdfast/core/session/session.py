"""The session: one conversation, its queue of runs, and how it comes back.

A session's unfinished runs go one after the other, in the order they were queued.
A run that a restart, a shutdown or a crash cut leaves a *mark* (why and when); only
a run that completes clears it. A session that is *suspended* begins afresh with its
next input: the old transcript stays readable, the model no longer reads it, and what was
granted for the session is gone.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core import approval, call, chats, child, inbox, lifecycle, process, run
from holdfast.core.approval import Approval, Grant, Level, PostureSeen, Standing
from holdfast.core.chats import Chats
from holdfast.core.inbox import Input, InputAdmitted
from holdfast.core.messages import Message
from holdfast.core.rules import Permission
from holdfast.core.run import Run, RunQueued
from holdfast.core.suspects import Judgement, Verdict, judge
from holdfast.core.types import (
    CallId,
    Fact,
    InputId,
    Owner,
    RequestId,
    RunId,
    SessionKey,
    Value,
)
from holdfast.errors import IllegalTransition, Refused


class Status(StrEnum):
    OPEN = "open"
    SUSPENDED = "suspended"

    @property
    def final(self) -> bool:
        return False


class OnStart(StrEnum):
    """What to do at start with a run that was cut."""

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
    """From here on the model reads a fresh conversation."""

    reason: str


class SessionReopened(Fact, tag="session.reopened"):
    """Somebody brought a suspended session back as it was."""

    by: Owner
    came: inbox.Came | None = None  # the word from a chat that said so, if that is all it did


class ModelChosen(Fact, tag="session.model"):
    """From here on its runs ask this model; empty: the configured one."""

    model: str
    by: Owner


class SessionMarked(Fact, tag="session.marked"):
    """Somebody says that its work was cut: whoever goes on with it is told."""

    cause: run.Cause
    reason: str


class MarkCleared(Fact, tag="session.mark_cleared"):
    """Somebody says that there is nothing to go on with."""

    by: Owner


class Undone(Fact, tag="session.undone"):
    """The last exchange no longer counts: the model does not read it any more."""

    by: Owner
    came: inbox.Came | None = None  # the word from a chat that said so


class SessionTitled(Fact, tag="session.titled"):
    """What people call it from here on; empty: it has no name."""

    title: str
    by: Owner


class SessionSeeded(Fact, tag="session.seeded", omit_defaults=True):
    """What a session begins with that was said elsewhere: it is a fork, or was imported."""

    messages: tuple[Message, ...]
    source: str  # "fork of …", or where it was before
    began_at: float = 0.0  # when that was said, first and last; 0: as the journal has it
    said_at: float = 0.0


_Own = SessionOpened | SessionSuspended | SessionReset | SessionReopened
_Kept = SessionMarked | MarkCleared | ModelChosen | Undone | SessionTitled | SessionSeeded
Event = _Own | _Kept | lifecycle.Event  # the last in the session that keeps what is the gateway's

P, S = Status.OPEN, Status.SUSPENDED

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[Status, type[_Own]], Status] = {
    (P, SessionOpened): P,
    (P, SessionSuspended): S,
    (P, SessionReset): P,
    (S, SessionSuspended): S,
    (S, SessionReset): P,
    (S, SessionReopened): P,
}


class Mark(Value):
    """A run of this session was cut and none has completed since."""

    cause: run.Cause
    reason: str
    at: float


class Session(msgspec.Struct, frozen=True):
    key: SessionKey
    workspace: str = ""
    platform: str = ""
    status: Status = Status.OPEN
    suspended_for: str = ""
    mark: Mark | None = None
    inputs: Mapping[InputId, Input] = {}  # not yet read
    runs: Mapping[RunId, Run] = {}  # unfinished, in order
    approvals: Mapping[RequestId, Approval] = {}  # pending, or granted and not yet used
    grants: tuple[Grant, ...] = ()  # from `session` answers
    standing: tuple[Permission, ...] = ()  # from `always` answers, in the session that keeps them
    posture: Level | None = None  # at which work went on last, likewise
    processes: process.Processes = {}  # in the background; running, or ended not long ago
    children: child.Children = {}  # runs that its calls have begun, not told of yet
    cwd: str = ""  # where the next command starts; empty: at the workspace
    ended: Run | None = None  # the run that ended last
    model: str = ""  # that somebody chose for it
    title: str = ""  # what people call it
    hosts: frozenset[str] = frozenset()  # that its people named
    chats: Chats = Chats()  # all of them, in the session that keeps them


def evolve(session: Session, event: Fact, at: float) -> Session:
    """What `event` means for `session`, its inputs and its runs."""
    match event:
        case SessionOpened() | SessionSuspended() | SessionReset() | SessionReopened():
            return _evolve_own(session, event)
        case RunQueued():
            if event.run_id in session.runs:
                raise IllegalTransition(f"RunQueued for run {event.run_id}, which is open")
            runs = {**session.runs, event.run_id: run.queue(event, at)}
            return replace(session, runs=runs)
        case InputAdmitted():
            session = recall(session, event)
            session = replace(session, inputs={**session.inputs, event.input_id: Input(event)})
            known = event.run_id in session.runs
            return _evolve_run(session, event.run_id, event, at) if known else session
        case inbox.InputRefused() if event.run_id not in session.runs:
            return _evolve_input(session, event)  # it never got a run
        case inbox.InputPromoted() | inbox.InputSuperseded() | inbox.InputRefused():
            return _evolve_run(_evolve_input(session, event), event.run_id, event, at)
        case approval.ApprovalRequested():
            asked = {**session.approvals, event.request_id: Approval(event)}
            return replace(session, approvals=asked)
        case _ if isinstance(event, _APPROVAL_EVENTS):
            return _evolve_approval(session, event)
        case call.CallStarted() | call.CallSettled():
            return _evolve_run(_use_up(session, event.call_id), event.run_id, event, at)
        case _ if isinstance(event, _RUN_EVENTS):
            return _evolve_run(session, event.run_id, event, at)
        case _:
            return _evolve_kept(session, event, at)


def _evolve_kept(session: Session, event: Fact, at: float) -> Session:
    """What stays when the run that brought it has ended."""
    match event:
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
        case child.ChildBegun() | child.ChildEnded():
            return recall(session, event)
        case _ if isinstance(event, _CHAT_EVENTS):
            return replace(session, chats=chats.evolve(session.chats, event, at))
        case _ if isinstance(event, _PROCESS_EVENTS):
            return replace(session, processes=process.evolve(session.processes, event, at))
        case _:  # deltas, deliveries: they have machines of their own, or none
            return session


_RUN_EVENTS = run.Event.__args__
_APPROVAL_EVENTS = approval.Event.__args__
_PROCESS_EVENTS = process.Event.__args__
_CHAT_EVENTS = chats.Event.__args__


def _evolve_approval(session: Session, event: approval.Event) -> Session:
    before = session.approvals.get(event.request_id)
    if before is None:
        raise IllegalTransition(f"{type(event).__name__} for {event.request_id}, not pending")
    after = approval.evolve(before, event)
    approvals = {**session.approvals, event.request_id: after}
    if after.status is not approval.Status.GRANTED:
        del approvals[event.request_id]
    return replace(session, approvals=approvals)


def _use_up(session: Session, call_id: CallId) -> Session:
    """A grant is for one start of one call; whatever becomes of the call, it is gone."""
    kept = {k: a for k, a in session.approvals.items() if a.requested.call_id != call_id}
    return session if len(kept) == len(session.approvals) else replace(session, approvals=kept)


def _evolve_own(session: Session, event: _Own) -> Session:
    try:
        status = TRANSITIONS[session.status, type(event)]
    except KeyError:
        raise IllegalTransition(
            f"{type(event).__name__} while session {session.key.session_id} is {session.status}"
        ) from None
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


def _evolve_run(session: Session, run_id: RunId, event: run.Event, at: float) -> Session:
    before = session.runs.get(run_id)
    if before is None:
        raise IllegalTransition(f"{type(event).__name__} for run {run_id}, which is not open")
    after = run.evolve(before, event, at)
    session = recall(session, event)
    runs = dict(session.runs)
    if after.status.final:
        del runs[run_id]
        asked = {k: a for k, a in session.approvals.items() if a.requested.run_id != run_id}
        return replace(session, runs=runs, approvals=asked, ended=after)
    runs[run_id] = after
    return replace(session, runs=runs)


def recall(session: Session, event: Fact) -> Session:
    """What a fact of any run, also one that has ended, means for `session` itself."""
    if isinstance(event, call.CallSettled):
        return replace(session, cwd=event.cwd) if event.cwd else session
    if isinstance(event, run.RunInterrupted):
        return replace(session, mark=Mark(event.cause, event.reason, event.cut_at))
    if isinstance(event, run.RunCompleted):
        return replace(session, mark=None)
    if isinstance(event, child.EVENTS):
        return replace(session, children=child.evolve(session.children, event))
    if isinstance(event, InputAdmitted) and event.hosts:
        return replace(session, hosts=session.hosts | set(event.hosts))
    return session


def current(session: Session) -> Run | None:
    """The run whose turn it is: the first unfinished one."""
    return next(iter(session.runs.values()), None)


def admit(session: Session) -> tuple[Fact, ...]:
    """What must be said before the next input of `session`: suspended ones begin afresh."""
    if session.status is Status.SUSPENDED:
        return (SessionReset(reason="suspended"),)
    return ()


def go_on(session: Session) -> tuple[Fact, ...]:
    """What the user's next input does for a run that waits to be continued."""
    return tuple(
        run.RunRequeued(run_id=r.id)
        for r in session.runs.values()
        if r.status is run.Status.INTERRUPTED and not r.held_until
    )


def mark(session: Session | None) -> tuple[Fact, ...]:
    """What it takes to mark a session by hand. A mark that stands stays as it is."""
    known = _known(session)
    if known.status is Status.SUSPENDED:
        raise Refused(
            "session_suspended", "It is suspended: its next message starts afresh. Nothing changed."
        )
    if known.mark is not None:
        return ()
    return (SessionMarked(cause=run.Cause.RESTART, reason="Marked by the operator"),)


def clear_mark(session: Session | None, by: Owner) -> tuple[Fact, ...]:
    """What it takes to drop the mark of a session, with its reason and its time."""
    if _known(session).mark is None:
        raise Refused("session_not_marked", "It has no mark. Nothing changed.")
    return (MarkCleared(by=by),)


def _known(session: Session | None) -> Session:
    if session is None:
        raise Refused("session_not_found", "There is no such session. Nothing changed.")
    return session


def stop(session: Session, run_id: RunId, reason: str) -> tuple[Fact, ...]:
    """What it takes to stop an open run. One that has not begun ends here and now."""
    found = session.runs[run_id]
    asked = run.StopAsked(run_id=run_id, reason=reason)
    if found.driven:
        return (asked,)
    cancelled = run.RunCancelled(run_id=run_id, reason=reason, usage=found.usage)
    return (asked, *give_up(found, reason), cancelled)


def found_cut(
    session: Session, cut_at: float, cause: run.Cause = run.Cause.CRASH
) -> tuple[tuple[Run, run.RunInterrupted | None], ...]:
    """Its unfinished runs now that whoever drove them is gone, each with what is to be said."""
    found: list[tuple[Run, run.RunInterrupted | None]] = []
    for one in session.runs.values():
        if one.status is not run.Status.RUNNING:
            found.append((one, None))
            continue
        reason = _WITHOUT_WARNING[cause]
        cut = run.RunInterrupted(run_id=one.id, cause=cause, reason=reason, cut_at=cut_at)
        found.append((run.evolve(one, cut, cut_at), cut))
    return tuple(found)


def recover(
    session: Session,
    policy: OnStart,
    cut_at: float,
    cause: run.Cause = run.Cause.CRASH,
    judgement: Judgement | None = None,
) -> tuple[Fact, ...]:
    """What it means for `session` that whoever drove it is gone.

    `cut_at` is the last sign of life in its stream. Runs found running were cut by
    `cause`; those found interrupted were marked before they were cut. Idempotent: once
    its facts are recorded, it has nothing more to say about the same cut. Without a
    `judgement` over all sessions, this one is judged as if there were no other.
    """
    facts: list[Fact] = []
    all_found = found_cut(session, cut_at, cause)
    if judgement is None:
        judgement = judge([r for r, _ in all_found], [r.id for r, cut in all_found if cut], cut_at)
    for found, cut in all_found:
        said = () if cut is None else (cut,)
        verdict = judgement.verdicts.get(found.id, Verdict.GO_ON)
        if judgement.solved and verdict is not Verdict.GIVE_UP and _is_counted(found):
            cleared = run.RunCleared(run_id=found.id)
            said, found = (*said, cleared), run.evolve(found, cleared, cut_at)
        facts += (*said, *_under(verdict, found, judgement.hold_until))
        if found.status is run.Status.INTERRUPTED and verdict is not Verdict.HOLD:
            facts += _after_cut(found, policy, verdict)
    given_up = sum(isinstance(f, run.RunFailed) for f in facts)
    if 0 < given_up < len(session.runs):  # the next message is here already
        facts.append(SessionReset(reason="suspended"))
    return tuple(facts)


_WITHOUT_WARNING = {
    run.Cause.CRASH: "The gateway ended without warning",
    run.Cause.JOURNAL: "The journal could not be written",
}


def _is_counted(found: Run) -> bool:
    return bool(found.cuts or found.held_until)


def _under(verdict: Verdict, found: Run, until: float) -> tuple[Fact, ...]:
    """What a verdict says that leaves the run as it is otherwise."""
    match verdict:
        case Verdict.HOLD:
            return (run.RunHeld(run_id=found.id, until=until),)
        case Verdict.ISOLATE if not found.isolated:
            return (run.RunIsolated(run_id=found.id),)
        case _:
            return ()


def _after_cut(cut: Run, policy: OnStart, verdict: Verdict) -> tuple[Fact, ...]:
    if cut.stop_reason:  # somebody gave it up before we could
        return (run.RunRequeued(run_id=cut.id),)
    if cut.held_until:
        return ()
    if verdict is Verdict.GIVE_UP:
        times = cut.restarts if cut.cut_by in run.ORDERLY else cut.cuts
        return _quarantine(
            cut,
            "stuck",
            f"This run was cut {times} times in a row without getting anywhere and was "
            "given up. The session's next message starts afresh; its history stays readable.",
        )
    if policy is OnStart.RESUME:
        return (run.RunRequeued(run_id=cut.id),)
    if policy is OnStart.SUSPEND and cut.cut_by == run.Cause.CRASH:
        return _quarantine(
            cut,
            "suspended",
            "A crash cut this run and recovery.on_start is 'suspend'. The session's next "
            "message starts afresh; its history stays readable.",
        )
    return ()


def _quarantine(cut: Run, code: str, error: str) -> tuple[Fact, ...]:
    return (
        *give_up(cut, code),
        run.RunFailed(run_id=cut.id, code=code, error=error, usage=cut.usage),
        SessionSuspended(reason=code),
    )


def give_up(ending: Run, reason: str) -> tuple[Fact, ...]:
    """What becomes of the inputs that a run will not read any more."""
    return tuple(
        inbox.InputSuperseded(input_id=i, run_id=ending.id, reason=reason) for i in ending.unread
    )
