"""Delegation: the next step for a child run, and the effect of its end on its parent.

The next step follows from the two sessions alone, the parent's and the child's. So it does not
matter when or how often it is computed: a child is created once and its end is reported once.
"""

from hashlib import sha256

from holdfast.core.inbox import InputAdmitted
from holdfast.core.material import fenced
from holdfast.core.run import run
from holdfast.core.run.call import CallSettled, Outcome
from holdfast.core.run.call import CallStatus as Called
from holdfast.core.run.child import Child, ChildEnded
from holdfast.core.session import session
from holdfast.core.session.session import Session, SessionOpened
from holdfast.core.types import CallId, Fact, InputId, RunId, SessionId, SessionKey, Usage, Value

DEPTH = 2  # ancestors that a run may have
AT_ONCE = 8  # open children of one run
RESULT = 64 * 1024  # characters of a child's answer that its parent gets
_NAME = 255  # characters of a session id
_TIME = len("run_") + 12  # the beginning of a run id: the time when it was made

INSTRUCTIONS = (
    "You work on a task that another run of yours has given you. Your last answer is the result, "
    "and the only thing that run sees: make it complete. The user does not see this conversation."
)

NO_OUTPUT_TEXT = "(The task completed without an answer.)"
STOPPED_TEXT = "The task was stopped before it was complete"
TOO_MANY = f"This run has {AT_ONCE} open tasks, the maximum. Wait until one has ended."
TOO_DEEP = "Your task was delegated twice already: do this part yourself."

Ending = run.RunCompleted | run.RunFailed | run.RunCancelled


def child_id(run_id: RunId, turn: int, call_id: CallId) -> RunId:
    """Return the id of the run that a call starts. It sorts next to its parent's id."""
    known = sha256(f"{run_id}/{turn}/{call_id}".encode("utf-8", "surrogatepass")).hexdigest()
    return RunId(run_id[:_TIME] + known[:20])


def child_session(parent: SessionKey, child: RunId) -> SessionKey:
    """Return the key of a child's own session, named after both."""
    room = _NAME - len(child) - 1
    return SessionKey(parent.owner, SessionId(f"{parent.session_id[:room]}~{child}"))


def refusal(depth: int, children: int) -> str:
    """Return why a run at `depth` with `children` open ones may not start another; empty: it may."""
    if depth >= DEPTH:
        return TOO_DEEP
    if children >= AT_ONCE:
        return TOO_MANY
    return ""


class Create(Value):
    """Create the child: it was requested and does not exist yet."""


class End(Value):
    """Stop the child: its parent has ended."""

    reason: str


class Tell(Value):
    """Report in the parent's session how the child ended."""

    ending: Ending


class LeaveChild(Value):
    """Do nothing: the child is running, or is being stopped."""


Step = Create | End | Tell | LeaveChild


def next_step(child: Child, found: run.Run | Ending | None) -> Step:
    """Return what to do for `child` now; `found` is its state in its own session. Total."""
    match found:
        case run.RunCompleted() | run.RunFailed() | run.RunCancelled():
            return Tell(found)
        case None if child.stop_reason:
            return Tell(
                run.RunCancelled(run_id=child.begun.child, reason=child.stop_reason, usage=Usage())
            )
        case None:
            return Create()
        case run.Run() if child.stop_reason and not found.stop_reason:
            return End(child.stop_reason)
        case _:
            return LeaveChild()


def opened(parent: Session, child: Child) -> SessionOpened:
    """Open the session of a child, in its parent's workspace."""
    key = child_session(parent.key, child.begun.child)
    return SessionOpened(
        session_id=key.session_id, workspace=parent.workspace, platform=parent.platform
    )


def created(parent: Session, child: Child, model: str) -> tuple[Fact, ...]:
    """Return the facts that create a child: its input and its run."""
    begun = child.begun
    input_id = InputId(f"in_{begun.child[-24:]}")
    return (
        InputAdmitted(
            input_id=input_id, run_id=begun.child, text=begun.task, instructions=INSTRUCTIONS
        ),
        run.RunQueued(
            run_id=begun.child,
            input_id=input_id,
            model=parent.model or model,
            origin=begun.origin,
            parent=run.Parent(
                session_id=parent.key.session_id,
                run_id=begun.run_id,
                call_id=begun.call_id,
                background=begun.background,
                depth=begun.depth,
            ),
        ),
    )


def reported(
    parent: Session, child: Child, ending: Ending, after: run.RunQueued
) -> tuple[Fact, ...]:
    """Return the facts that report a child's end in its parent's session.

    `after` is the run that reads the report if no call waits for it. The end of a child whose
    parent was stopped is recorded, but no run reads of it.
    """
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
        report = InputAdmitted(
            input_id=after.input_id,
            run_id=after.run_id,
            text=ended_text(child, ending),
            metadata={"task_id": begun.child},
        )
        # A chat's suspended session stays suspended: the chat's next message opens a new one.
        first = () if begun.origin.address is not None else session.admit(parent)
        return (*first, ended, report, after)
    waiting = found.calls.get(begun.call_id) if found else None
    if waiting is None or waiting.status is not Called.PARKED:
        return (ended,)
    settled = CallSettled(
        run_id=begun.run_id,
        call_id=begun.call_id,
        tool=waiting.proposal.tool,
        outcome=Outcome.OK if isinstance(ending, run.RunCompleted) else Outcome.FAILED,
        text=_result(child, ending),
    )
    return (ended, settled)


_STATUS: dict[type[Ending], run.RunPhase] = {
    run.RunCompleted: run.RunPhase.COMPLETED,
    run.RunFailed: run.RunPhase.FAILED,
    run.RunCancelled: run.RunPhase.CANCELLED,
}


def ended_text(child: Child, ending: Ending) -> str:
    """Return the text of the input about a child's end, if no call waits for it."""
    begun = child.begun
    source = f"task {begun.child} {begun.name}".strip()
    head = f"[Task {begun.child} has ended: {_STATUS[type(ending)]}]"
    return f"{head}\n{fenced(source, _result(child, ending))}"


def _result(child: Child, ending: Ending) -> str:
    text = _outcome_text(ending)
    if (more := len(text) - RESULT) > 0:
        text = f"{text[:RESULT]}\n[cut: {more} more characters]"
    return f"[Note: {child.begun.note}]\n\n{text}" if child.begun.note else text


def _outcome_text(ending: Ending) -> str:
    match ending:
        case run.RunCompleted(output=output):
            return output if output.strip() else NO_OUTPUT_TEXT
        case run.RunFailed(error=error):
            return f"The task failed: {error}"
        case _:
            return f"{STOPPED_TEXT}: {ending.reason}"
