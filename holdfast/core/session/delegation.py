"""Delegation: what is to be done for a child, and what its end means for whoever began it.

What is still to be done is read off the two sessions, the parent's and the child's own, so it
does not matter who looks, when, or how often: a child is made once, and told of once.
"""

from hashlib import sha256

from holdfast.core import session
from holdfast.core.call import CallSettled, Outcome
from holdfast.core.call import Status as Called
from holdfast.core.child import Child, ChildEnded
from holdfast.core.inbox import InputAdmitted
from holdfast.core.run import (
    Parent,
    Run,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunQueued,
    Status,
)
from holdfast.core.session import Session, SessionOpened
from holdfast.core.types import CallId, Fact, InputId, RunId, SessionId, SessionKey, Usage, Value

DEPTH = 2  # runs that a run may work for, one for the other
AT_ONCE = 8  # open children of one run
RESULT = 64 * 1024  # characters of an answer that its parent is shown
_NAME = 255  # characters of a session's id
_TIME = len("run_") + 12  # of a run id, which begins with when it was made

INSTRUCTIONS = (
    "You work on a task that another run of yours has given you. Your last answer is its result, "
    "and all that it sees of you: make it complete. The user does not read along."
)

Ending = RunCompleted | RunFailed | RunCancelled


def name(run_id: RunId, turn: int, call_id: CallId) -> RunId:
    """The run that a call begins. It lists beside its parent."""
    known = sha256(f"{run_id}/{turn}/{call_id}".encode("utf-8", "surrogatepass")).hexdigest()
    return RunId(run_id[:_TIME] + known[:20])


def session_of(parent: SessionKey, child: RunId) -> SessionKey:
    """The session that a child works in: its own, and named after both."""
    room = _NAME - len(child) - 1
    return SessionKey(parent.owner, SessionId(f"{parent.session_id[:room]}~{child}"))


def refusal(depth: int, children: int) -> str:
    """Why a run at that depth, with so many open children, may not begin one; empty: it may."""
    if depth >= DEPTH:
        return "You work on a task that was delegated twice already: do this one yourself."
    if children >= AT_ONCE:
        return f"{AT_ONCE} tasks of this run are not done yet, the most there may be. Wait for one."
    return ""


class Create(Value):
    """Make it: it is wanted, and there is none yet."""


class End(Value):
    """Stop it: whoever began it is over."""

    reason: str


class Tell(Value):
    """Say in its parent's session how it ended."""

    ending: Ending


class Leave(Value):
    """It is at work, or on its way out."""


Step = Create | End | Tell | Leave


def next_step(child: Child, found: Run | Ending | None) -> Step:
    """What to do for `child` now; `found` is what its own session says of it. Total."""
    match found:
        case RunCompleted() | RunFailed() | RunCancelled():
            return Tell(found)
        case None if child.stop_reason:
            return Tell(
                RunCancelled(run_id=child.begun.child, reason=child.stop_reason, usage=Usage())
            )
        case None:
            return Create()
        case Run() if child.stop_reason and not found.stop_reason:
            return End(child.stop_reason)
        case _:
            return Leave()


def opened(parent: Session, child: Child) -> SessionOpened:
    """The session of a child: it works where its parent does."""
    key = session_of(parent.key, child.begun.child)
    return SessionOpened(
        session_id=key.session_id, workspace=parent.workspace, platform=parent.platform
    )


def made(parent: Session, child: Child, model: str) -> tuple[Fact, ...]:
    """The child's input and its run."""
    begun = child.begun
    input_id = InputId(f"in_{begun.child[-24:]}")
    return (
        InputAdmitted(
            input_id=input_id, run_id=begun.child, text=begun.task, instructions=INSTRUCTIONS
        ),
        RunQueued(
            run_id=begun.child,
            input_id=input_id,
            model=parent.model or model,
            origin=begun.origin,
            parent=Parent(
                session_id=parent.key.session_id,
                run_id=begun.run_id,
                call_id=begun.call_id,
                background=begun.background,
                depth=begun.depth,
            ),
        ),
    )


def told(parent: Session, child: Child, ending: Ending, after: RunQueued) -> tuple[Fact, ...]:
    """What the end of a child means for its parent's session; `after` is the run it gets if it
    gets one. Nobody hears of a child whose parent was stopped."""
    begun = child.begun
    found = parent.runs.get(begun.run_id)
    ended = ChildEnded(
        child=begun.child,
        call_id=begun.call_id,
        status=_STATUS[type(ending)],
        name=begun.name,
        background=begun.background,
        run_id=None if found is None else found.id,
    )
    if child.stop_reason:
        return (ended,)
    if begun.background:
        words = InputAdmitted(
            input_id=after.input_id,
            run_id=after.run_id,
            text=ended_text(child, ending),
            metadata={"task_id": begun.child},
        )
        # A chat's suspended session stays so: its next words go to a fresh one.
        first = () if begun.origin.address is not None else session.admit(parent)
        return (*first, ended, words, after)
    waiting = found.calls.get(begun.call_id) if found else None
    if waiting is None or waiting.status is not Called.PARKED:
        return (ended,)
    settled = CallSettled(
        run_id=begun.run_id,
        call_id=begun.call_id,
        tool=waiting.proposal.tool,
        outcome=Outcome.OK if isinstance(ending, RunCompleted) else Outcome.FAILED,
        text=_result(child, ending),
    )
    return (ended, settled)


_STATUS: dict[type[Ending], Status] = {
    RunCompleted: Status.COMPLETED,
    RunFailed: Status.FAILED,
    RunCancelled: Status.CANCELLED,
}


def ended_text(child: Child, ending: Ending) -> str:
    """The input that the end of a child is where no call waits for it."""
    begun = child.begun
    what = f'{begun.child} "{begun.name}"' if begun.name else begun.child
    return f"[Task {what} has ended: {_STATUS[type(ending)]}]\n{_result(child, ending)}"


def _result(child: Child, ending: Ending) -> str:
    text = _last_words(ending)
    if (more := len(text) - RESULT) > 0:
        text = f"{text[:RESULT]}\n[cut: {more} more characters]"
    return f"[Note: {child.begun.note}]\n\n{text}" if child.begun.note else text


def _last_words(ending: Ending) -> str:
    match ending:
        case RunCompleted(output=output):
            return output if output.strip() else "(It has ended without a word.)"
        case RunFailed(error=error):
            return f"The task failed: {error}"
        case _:
            return f"The task was stopped before it was done: {ending.reason}"
