"""The timeline of a session: its points, and what it takes to go back to one."""

from typing import Any

import pytest

from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.messages import Assistant, User
from holdfast.core.run.files import ChangeKind, FileChanged
from holdfast.core.session import rewind
from holdfast.core.session.rewind import FileTotal, RewindPlan, SeenFile, Timeline
from holdfast.core.session.rewound import (
    FileResult,
    FileStep,
    RewindPlanned,
    RewindScope,
    Rewound,
)
from holdfast.core.session.session import (
    Session,
    SessionReset,
    SessionSeeded,
    SessionTitled,
    Undone,
    evolve,
)
from holdfast.core.types import (
    OPERATOR,
    CallId,
    Fact,
    InputId,
    Owner,
    RewindId,
    RunId,
    SessionId,
    SessionKey,
)
from holdfast.errors import Refused

A, B, C = RunId("a"), RunId("b"), RunId("c")
BOTH, FILES, TALK = RewindScope.BOTH, RewindScope.FILES, RewindScope.CONVERSATION
DONE = FileResult.RESTORED


def read(text: str, run_id: RunId, **fields: Any) -> tuple[Fact, ...]:
    """A run reads a message."""
    name = InputId(f"{run_id} {text}")
    return (
        InputAdmitted(input_id=name, run_id=run_id, text=text, **fields),
        InputPromoted(input_id=name, run_id=run_id),
    )


def changed(run_id: RunId, path: str, before: str, after: str, mode: int = 0o644) -> FileChanged:
    """A run changes a file."""
    return FileChanged(
        run_id=run_id,
        call_id=CallId("c"),
        path=path,
        kind=ChangeKind.REPLACED,
        added=2,
        removed=1,
        before=before,
        after=after,
        mode_before=mode if before else 0,
        mode_after=mode if after else 0,
    )


def rewound(point: RunId, *runs: RunId, redo: bool = False, **files: FileResult) -> Rewound:
    steps = tuple(FileStep(path=path, result=result) for path, result in files.items())
    by, name = OPERATOR, RewindId("r")
    return Rewound(rewind_id=name, point=point, by=by, runs=runs, files=steps, redo=redo)


def timeline(*facts: Fact) -> Timeline:
    line = Timeline()
    for at, fact in enumerate(facts):
        line.add(fact, float(at))
    return line


TWO = (
    *(*read("one", A), changed(A, "x", "", "1")),
    *(*read("two", B), changed(B, "x", "1", "2"), changed(B, "y", "", "1")),
)


def steps_of(plan: RewindPlan) -> dict[str, tuple[str, str]]:
    return {step.path: (step.was_blob, step.new_blob) for step in plan.files}


def refused(code: str) -> "pytest.RaisesExc[Refused]":
    return pytest.RaisesExc(Refused, check=lambda error: error.code == code)


def test_points_are_numbered_with_their_messages_and_files() -> None:
    line = timeline(*TWO, *read("more", B))
    one, two = line.points()
    assert (one.number, one.run_id, one.text, one.counts, one.at) == (1, A, "one", True, 1.0)
    assert (two.number, two.run_id, two.text) == (2, B, "two\n\nmore")
    assert (one.files, two.files) == (
        (FileTotal("x", 2, 1),),
        (FileTotal("x", 2, 1), FileTotal("y", 2, 1)),
    )
    assert line.text_of(B) == "two\n\nmore"
    assert line.text_of(C) == ""
    assert [change.path for change in line.changes()] == ["x", "x", "y"]


def test_going_back_takes_each_file_to_before_its_first_change_since() -> None:
    line = timeline(*TWO)
    plan = line.rewind(A, BOTH)
    assert (plan.runs, plan.paths, plan.torn) == ((A, B), ("x", "y"), frozenset())
    assert steps_of(plan) == {"x": ("2", ""), "y": ("1", "")}
    plan = line.rewind(B, BOTH)
    assert (plan.runs, steps_of(plan)) == ((B,), {"x": ("2", "1"), "y": ("1", "")})
    assert (line.rewind(B, FILES).runs, line.rewind(B, TALK).files) == ((), ())
    assert line.last_point(BOTH) == line.last_point(FILES) == B
    with refused("no_such_point"):
        line.rewind(C, BOTH)


def test_a_change_that_does_not_follow_from_the_last_was_torn_by_another_hand() -> None:
    line = timeline(*TWO, *read("three", C), changed(C, "x", "mine", "3"))
    assert line.rewind(B, BOTH).torn == {"x"}
    assert line.rewind(C, BOTH).torn == frozenset()


def test_what_is_rewound_does_not_count_and_counts_again_after_a_redo() -> None:
    line = timeline(*TWO, rewound(B, B, x=DONE, y=FileResult.CHANGED))
    assert line.undone == {B}
    assert [(p.run_id, p.counts) for p in line.points()] == [(A, True), (B, False)]
    assert [c.path for c in line.changes()] == ["x", "y"]
    assert line.last_point(BOTH) == A
    assert line.last_point(FILES) == B
    plan = line.redo()
    assert (plan.runs, plan.redo, plan.paths) == ((B,), True, ("x",))
    line.add(rewound(B, B, redo=True, x=DONE), 0.0)
    assert (line.undone, len(line.changes())) == (set(), 3)
    with refused("nothing_to_redo"):
        line.redo()


def test_a_point_without_messages_and_files_is_gone() -> None:
    line = timeline(*TWO, rewound(B, B, x=DONE, y=DONE))
    assert [p.run_id for p in line.points()] == [A]
    line = timeline(*read("one", A), Undone(by=OPERATOR), Undone(by=OPERATOR))
    assert (line.points(), line.undone) == ((), {A})
    with refused("nothing_said"):
        line.last_point(BOTH)
    with refused("nothing_said"):
        timeline(*read("one", A)).last_point(FILES)


def test_another_message_ends_what_can_be_redone() -> None:
    line = timeline(*TWO, rewound(B, B, x=DONE, y=DONE), *read("three", C))
    with refused("nothing_to_redo"):
        line.redo()
    line.add(rewound(B, B, redo=True), 0.0)  # of a damaged journal
    assert [p.run_id for p in line.points()] == [A, B, C]


def test_a_new_conversation_has_no_points_of_the_old_one() -> None:
    assert timeline(*TWO, SessionReset(reason="suspended")).points() == ()
    line = timeline(*TWO, *read("own", C, history=(User("before"),)))
    assert [p.run_id for p in line.points()] == [C]
    line = timeline(*TWO[1:], SessionTitled(title="t", by=OPERATOR))
    assert [p.run_id for p in line.points()] == [B], "an input that was never admitted"


def test_a_fork_has_the_points_of_its_source() -> None:
    line = timeline(*TWO, *read("three", C), rewound(C, C))
    points = line.seed_points({A: 0, B: 2, C: 4})
    assert [(p.run_id, p.position, len(p.changes)) for p in points] == [(A, 0, 1), (B, 2, 2)]
    messages = (User("one"), Assistant("yes"), User("two"), Assistant("no"))
    seed = SessionSeeded(messages=messages, source="fork of s", points=points)
    fork = timeline(seed)
    assert [(p.run_id, p.text) for p in fork.points()] == [(A, "one"), (B, "two")]
    assert steps_of(fork.rewind(A, BOTH)) == {"x": ("2", ""), "y": ("1", "")}


def step(was: str, new: str, **fields: Any) -> FileStep:
    return FileStep(path="x", was_blob=was, new_blob=new, **fields)


@pytest.mark.parametrize(
    ("seen", "result"),
    [
        (SeenFile("2", 0o644), FileResult.PLANNED),
        (SeenFile("1", 0o600), FileResult.UNCHANGED),
        (SeenFile("mine", 0o644), FileResult.CHANGED),
        (SeenFile(), FileResult.CHANGED),
        (SeenFile(trouble="a directory"), FileResult.FAILED),
    ],
)
def test_a_file_is_judged_by_its_content(seen: SeenFile, result: FileResult) -> None:
    plan = RewindPlan(A, BOTH, (A,), (step("2", "1", new_mode=0o644),))
    (found,) = rewind.steps(plan, {"x": seen}, {"1"})
    assert (found.result, found.reason) == (result, seen.trouble)
    if result is FileResult.CHANGED:
        (forced,) = rewind.forced((found,))
        assert (forced.result, forced.was_blob) == (FileResult.PLANNED, seen.blob)


def test_a_torn_file_and_one_without_a_version_are_not_touched() -> None:
    plan = RewindPlan(A, BOTH, (A,), (step("2", "1"),), torn=frozenset({"x"}))
    assert rewind.steps(plan, {"x": SeenFile("2")}, {"1"})[0].result is FileResult.CHANGED
    assert rewind.steps(plan, {"x": SeenFile("2")}, ())[0].result is FileResult.GONE
    gone = step("2", "1", result=FileResult.GONE)
    assert rewind.forced((gone,)) == (gone,)


def test_a_step_of_the_mode_alone_compares_modes() -> None:
    plan = RewindPlan(A, BOTH, (A,), (step("1", "1", new_mode=0o600),))
    assert rewind.steps(plan, {"x": SeenFile("1", 0o644)}, {"1"})[0].result is FileResult.PLANNED
    assert rewind.steps(plan, {"x": SeenFile("1", 0o600)}, {"1"})[0].result is FileResult.UNCHANGED


@pytest.mark.promise("UNDO-03")
@pytest.mark.parametrize(
    ("new", "seen", "result"),
    [
        ("1", SeenFile("2"), FileResult.PLANNED),
        ("1", SeenFile("1"), FileResult.RESTORED),
        ("", SeenFile(), FileResult.DELETED),
        ("1", SeenFile("mine"), FileResult.CHANGED),
        ("1", SeenFile(trouble="a link"), FileResult.FAILED),
    ],
)
def test_after_a_crash_a_step_is_recognised_by_what_the_file_has(
    new: str, seen: SeenFile, result: FileResult
) -> None:
    assert rewind.judged(step("2", new), seen).result is result
    kept = step("2", new, result=FileResult.GONE)
    assert rewind.judged(kept, seen) is kept


def test_a_session_is_rewinding_from_the_plan_to_the_end() -> None:
    session = Session(SessionKey(Owner("me"), SessionId("s")))
    plan = RewindPlanned(rewind_id=RewindId("r"), point=A, by=OPERATOR)
    session = evolve(session, plan, 0.0)
    assert session.rewinding == plan
    assert evolve(session, rewound(A), 0.0).rewinding is None
