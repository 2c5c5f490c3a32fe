"""What is to be done for a child is read off two sessions; its end is told to whoever waits."""

import re

import pytest
from msgspec.structs import replace

from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.material import fenced
from holdfast.core.messages import Proposal
from holdfast.core.run.call import CallParked, CallSettled, CallStarted, Outcome
from holdfast.core.run.child import Child, ChildBegun, ChildEnded
from holdfast.core.run.run import (
    ModelAnswered,
    Origin,
    Run,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPhase,
    RunQueued,
    RunStarted,
)
from holdfast.core.session import delegation, session
from holdfast.core.session.delegation import AT_ONCE, DEPTH, Create, End, Ending, LeaveChild, Tell
from holdfast.core.session.session import Session, SessionReset, SessionSuspended
from holdfast.core.types import (
    OPERATOR,
    CallId,
    Fact,
    InputId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)

KEY = SessionKey(OPERATOR, SessionId("s"))
RUN = RunId("run_" + "0123456789ab" + "c" * 20)
CALL = CallId("call")
CHILD = delegation.child_id(RUN, 1, CALL)
ORIGIN = Origin(platform="cli", late=True)
BEGUN = ChildBegun(
    run_id=RUN, call_id=CALL, child=CHILD, task="think", depth=2, origin=ORIGIN, name="thought"
)
SYNC, LATE = Child(BEGUN), Child(replace(BEGUN, background=True))

DONE = RunCompleted(run_id=CHILD, output="a thought", usage=Usage())
FAILED = RunFailed(run_id=CHILD, code="stuck", error="it is stuck", usage=Usage())
STOPPED = RunCancelled(run_id=CHILD, reason="enough", usage=Usage())
AFTER = RunQueued(run_id=RunId("run_after"), input_id=InputId("in_after"), origin=ORIGIN)


def fold(*facts: Fact) -> Session:
    now = Session(KEY, workspace="/w", platform="cli")
    for fact in facts:
        now = session.evolve(now, fact, 1.0)
    return now


def parent(child: Child = SYNC, *, parked: bool = True) -> Session:
    """A session whose run waits for `child`, or has called and not begun to wait."""
    waits = CallParked(run_id=RUN, call_id=CALL, reason="waits", child=CHILD)
    return fold(
        InputAdmitted(input_id=InputId("in"), run_id=RUN, text="go"),
        RunQueued(run_id=RUN, input_id=InputId("in"), origin=ORIGIN),
        RunStarted(run_id=RUN),
        InputPromoted(input_id=InputId("in"), run_id=RUN),
        ModelAnswered(run_id=RUN, turn=1, text="", calls=(Proposal(CALL, "delegate_task", "{}"),)),
        CallStarted(run_id=RUN, call_id=CALL, tool="delegate_task"),
        *((child.begun, waits) if parked else (child.begun,)),
    )


def idle(child: Child = LATE) -> Session:
    """A session whose run is over and has left `child`."""
    return fold(child.begun)


def test_a_child_is_a_run_like_any_other_named_by_the_call_that_wants_it() -> None:
    assert re.fullmatch("run_[0-9a-f]{32}", CHILD)
    assert CHILD[:16] == RUN[:16]
    others = {
        delegation.child_id(RUN, 2, CALL),
        delegation.child_id(RUN, 1, CallId("other")),
        delegation.child_id(RunId(RUN[:-1] + "d"), 1, CALL),
    }
    assert len({CHILD, *others}) == 4
    assert delegation.child_id(RUN, 1, CALL) == CHILD


@pytest.mark.parametrize("name", ["s", "x" * 255])
def test_a_child_s_session_is_its_own_with_a_valid_id(name: str) -> None:
    own = delegation.child_session(SessionKey(OPERATOR, SessionId(name)), CHILD)
    assert own.owner == OPERATOR
    assert re.fullmatch(r"[A-Za-z0-9_.:@+=~-]{1,255}", own.session_id)
    assert own.session_id.endswith(f"~{CHILD}") and own.session_id.startswith(name[0])
    deeper = delegation.child_session(own, delegation.child_id(CHILD, 1, CALL))
    assert deeper != own and len(deeper.session_id) <= 255


def test_a_childs_child_may_not_delegate_and_there_are_only_so_many_at_once() -> None:
    assert delegation.refusal(0, 0) == delegation.refusal(DEPTH - 1, AT_ONCE - 1) == ""
    assert "yourself" in delegation.refusal(DEPTH, 0)
    assert "Wait" in delegation.refusal(0, AT_ONCE)


def _run(stop_reason: str = "") -> Run:
    return Run(CHILD, InputId("in"), 0.0, 0.0, stop_reason=stop_reason)


OVER = Child(BEGUN, stop_reason="enough")
STEPS: dict[str, tuple[Child, Run | Ending | None, delegation.Step]] = {
    "it is not there": (SYNC, None, Create()),
    "it is not there and stopped": (OVER, None, Tell(STOPPED)),
    "it is at work": (SYNC, _run(), LeaveChild()),
    "it is at work and its parent is stopped": (OVER, _run(), End("enough")),
    "it is being stopped": (OVER, _run("enough"), LeaveChild()),
    "it has completed": (SYNC, DONE, Tell(DONE)),
    "it has failed": (LATE, FAILED, Tell(FAILED)),
    "it was stopped": (OVER, STOPPED, Tell(STOPPED)),
}


@pytest.mark.parametrize("case", STEPS)
def test_there_is_exactly_one_next_step(case: str) -> None:
    child, found, step = STEPS[case]
    assert delegation.next_step(child, found) == step


def test_a_child_has_its_parent_s_workspace_and_only_its_task() -> None:
    now = replace(parent(), model="chosen/one")
    opened = delegation.opened(now, SYNC)
    assert (opened.workspace, opened.platform) == ("/w", "cli")
    assert opened.session_id == delegation.child_session(KEY, CHILD).session_id
    words, queued = delegation.created(now, SYNC, "default/one")
    assert isinstance(words, InputAdmitted) and isinstance(queued, RunQueued)
    assert (words.text, words.instructions) == ("think", delegation.INSTRUCTIONS)
    assert (words.input_id, words.run_id) == (queued.input_id, CHILD)
    assert (queued.origin, queued.model) == (ORIGIN, "chosen/one")
    assert queued.parent is not None
    assert (queued.parent.run_id, queued.parent.call_id, queued.parent.depth) == (RUN, CALL, 2)
    (_, plain) = delegation.created(parent(), SYNC, "default/one")
    assert isinstance(plain, RunQueued) and plain.model == "default/one"


RESULTS: dict[str, tuple[Ending, Outcome, RunPhase, str]] = {
    "completed": (DONE, Outcome.OK, RunPhase.COMPLETED, "a thought"),
    "silent": (
        replace(DONE, output=" "),
        Outcome.OK,
        RunPhase.COMPLETED,
        delegation.NO_OUTPUT_TEXT,
    ),
    "failed": (FAILED, Outcome.FAILED, RunPhase.FAILED, "The task failed: it is stuck"),
    "stopped": (STOPPED, Outcome.FAILED, RunPhase.CANCELLED, "The task was stopped before"),
}


@pytest.mark.parametrize("case", RESULTS)
def test_the_call_that_waits_gets_the_end_as_its_result(case: str) -> None:
    ending, outcome, status, text = RESULTS[case]
    ended, settled = delegation.reported(parent(), SYNC, ending, AFTER)
    assert ended == ChildEnded(child=CHILD, call_id=CALL, status=status, name="thought", run_id=RUN)
    assert isinstance(settled, CallSettled)
    assert (settled.tool, settled.outcome) == ("delegate_task", outcome)
    assert settled.text.startswith(text)
    now = session.evolve(session.evolve(parent(), ended, 2.0), settled, 2.0)
    assert not now.children and not now.runs[RUN].calls


def test_a_long_answer_is_cut_and_a_note_stands_before_it() -> None:
    long = replace(DONE, output="x" * (delegation.RESULT + 3))
    noted = Child(replace(BEGUN, note="it was waited for"))
    _, settled = delegation.reported(parent(noted), noted, long, AFTER)
    assert isinstance(settled, CallSettled)
    assert settled.text.startswith("[Note: it was waited for]\n\nxxx")
    assert settled.text.endswith("x\n[cut: 3 more characters]")


@pytest.mark.promise("LATE-07")
def test_the_end_of_a_background_task_is_a_new_input_also_of_an_idle_session() -> None:
    ended, words, queued = delegation.reported(idle(), LATE, DONE, AFTER)
    assert isinstance(ended, ChildEnded) and ended.run_id is None
    assert isinstance(words, InputAdmitted) and queued is AFTER
    told = fenced(f"task {CHILD} thought", "a thought")
    assert words.text == f"[Task {CHILD} has ended: completed]\n{told}"
    assert words.metadata == {"task_id": CHILD}
    nameless = Child(replace(LATE.begun, name=""))
    _, words, _ = delegation.reported(idle(nameless), nameless, FAILED, AFTER)
    assert isinstance(words, InputAdmitted)
    assert words.text.startswith(f"[Task {CHILD} has ended: failed]\n")
    assert "\nThe task failed" in words.text


def test_the_end_of_a_background_child_resets_a_suspended_session() -> None:
    suspended = session.evolve(idle(), SessionSuspended(reason="stuck"), 2.0)
    first, *_ = delegation.reported(suspended, LATE, DONE, AFTER)
    assert isinstance(first, SessionReset)


@pytest.mark.parametrize(
    ("now", "child"),
    [
        (parent(), OVER),
        (idle(), Child(LATE.begun, stop_reason="enough")),
        (parent(parked=False), SYNC),
        (idle(SYNC), SYNC),
        (session.evolve(parent(), CallSettled(
            run_id=RUN, call_id=CALL, tool="t", outcome=Outcome.ABORTED, text="no"
        ), 2.0), SYNC),
    ],
    ids=["stopped", "stopped long after", "never waited", "parent gone", "call settled"],
)  # fmt: skip
def test_the_end_of_a_child_without_a_waiting_call_is_only_recorded(
    now: Session, child: Child
) -> None:
    (only,) = delegation.reported(now, child, DONE, AFTER)
    assert isinstance(only, ChildEnded)
