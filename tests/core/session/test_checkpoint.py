"""Checkpoints: what goes on from one is what would have gone on without it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields

from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.messages import Image, Message, Proposal, User
from holdfast.core.run.call import CallSettled, Outcome
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.run import ModelAnswered, RunCompleted, RunQueued
from holdfast.core.session import checkpoint, compaction
from holdfast.core.session.compaction import Window
from holdfast.core.session.history import Excerpt, MessagesLeftOut, Transcript
from holdfast.core.session.session import Session, SessionReset, Undone, evolve
from holdfast.core.types import (
    OPERATOR,
    CallId,
    Fact,
    InputId,
    Owner,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)

SESSION = Session(SessionKey(Owner("me"), SessionId("s")))
WINDOW = Window(2_000)


def begun(number: int, text: str = "", history: tuple[Message, ...] | None = None) -> list[Fact]:
    run_id, input_id = RunId(f"run_{number}"), InputId(f"in_{number}")
    said = text or f"request {number}"
    return [
        InputAdmitted(input_id=input_id, run_id=run_id, text=said, history=history),
        InputPromoted(input_id=input_id, run_id=run_id),
    ]


def called(number: int, turn: int, size: int) -> list[Fact]:
    """A turn of the run: a call and its result."""
    run_id, call_id = RunId(f"run_{number}"), CallId(f"call_{number}_{turn}")
    calls = (Proposal(call_id, "t", "{}"),)
    return [
        ModelAnswered(run_id=run_id, turn=turn, text="", calls=calls, usage=Usage(900, 5)),
        CallSettled(run_id=run_id, call_id=call_id, tool="t", outcome=Outcome.OK, text="z" * size),
    ]


def answered(number: int) -> list[Fact]:
    run_id = RunId(f"run_{number}")
    return [
        ModelAnswered(run_id=run_id, turn=9, text=f"answer {number}", usage=Usage(800, 5)),
        RunCompleted(run_id=run_id, output="", usage=Usage()),
    ]


def exchange(number: int, calls: int = 0, size: int = 300) -> list[Fact]:
    turns = [fact for turn in range(calls) for fact in called(number, turn, size)]
    return [*begun(number), *turns, *answered(number)]


def compacted(transcript: Transcript) -> HistoryCompacted | None:
    """The fact that the engine would record now."""
    messages, done = transcript.messages, transcript.compacted
    plan = compaction.plan(messages, done, WINDOW, 1.0)
    if plan is None:
        return None
    before = done.upto if done else 0
    notes = compaction.by_rule(messages[before : plan.upto], compaction.notes_of(done), 600)
    made = HistoryCompacted(
        upto=plan.upto,
        summary=compaction.introduce(messages, plan.upto, notes, WINDOW, 1.0),
        reason="full",
        shortened=plan.shortened,
        limit=plan.limit,
    )
    return compaction.moved(made, transcript.left_out)


def again(transcript: Transcript, *unfinished: str) -> Transcript:
    """What a checkpoint makes of it."""
    session = SESSION
    for name in unfinished:
        queued = RunQueued(run_id=RunId(name), input_id=InputId(name), model="m")
        session = evolve(session, queued, 1.0)
    data = checkpoint.encode(session, transcript)
    assert data is not None
    found = checkpoint.decode(data)
    assert found is not None and found.session == session
    return Transcript.restored(found.excerpt)


def read(transcript: Transcript) -> object:
    """All that the engine reads of it for the model."""
    return (
        transcript.for_model("m"),
        transcript.used(50),
        transcript.filling(2_000, 50),
        transcript.instructions,
        transcript.imported,
        compacted(transcript),
    )


ONE = st.one_of(
    st.tuples(st.just("exchange"), st.integers(1, 4), st.integers(300, 3_000)),
    st.tuples(st.just("exchange"), st.integers(0, 4), st.integers(0, 3_000)),
    st.tuples(st.just("compact"), st.just(0), st.just(0)),
    st.tuples(st.just("compact"), st.just(0), st.just(0)),
    st.tuples(st.just("undo"), st.just(0), st.just(0)),
    st.tuples(st.just("reset"), st.just(0), st.just(0)),
    st.tuples(st.just("history"), st.just(0), st.just(0)),
)


def facts_of(step: tuple[str, int, int], number: int, transcript: Transcript) -> list[Fact]:
    match step:
        case ("exchange", calls, size):
            return exchange(number, calls, size)
        case ("compact", _, _):
            made = compacted(transcript)
            return [] if made is None else [made]
        case ("undo", _, _):
            return [Undone(by=OPERATOR)]
        case ("reset", _, _):
            return [SessionReset(reason="suspended")]
        case _:
            return [*begun(number, history=(User("sent"),)), *answered(number)]


@pytest.mark.promise("CTX-06")
@settings(max_examples=200, deadline=None)
@given(st.lists(ONE, min_size=8, max_size=25))
def test_the_model_reads_the_same_with_a_checkpoint_as_without(
    steps: list[tuple[str, int, int]],
) -> None:
    whole = Transcript()
    facts: list[Fact] = []
    others: list[Transcript] = []  # each went on from a checkpoint, and may from several
    for number, step in enumerate(steps):
        for fact in facts_of(step, number, whole):
            facts.append(fact)
            whole.add(fact)
            for other in tuple(others):
                try:
                    other.add(fact)
                except MessagesLeftOut:
                    assert isinstance(fact, Undone)
                    others.remove(other)
            if isinstance(fact, HistoryCompacted):
                others += [again(other) for other in others[-2:]]
                others.append(again(whole))
        for other in others:
            assert read(other) == read(whole)


def test_a_checkpoint_keeps_no_more_than_the_model_reads() -> None:
    whole = Transcript()
    for number in range(50):
        for fact in exchange(number, calls=2):
            whole.add(fact)
        if (made := compacted(whole)) is not None:
            whole.add(made)
    short = again(whole)
    assert len(short.messages) < 30 < len(whole.messages)
    assert short.left_out == len(whole.messages) - len(short.messages)
    assert short.added == []


def test_the_middle_of_a_run_can_be_gone_on_with() -> None:
    whole = Transcript()
    for fact in [*exchange(0), *begun(1, "the task")]:
        whole.add(fact)
    for turn in range(30):
        for fact in called(1, turn, 900):
            whole.add(fact)
    made = compacted(whole)
    assert made is not None
    whole.add(made)
    other = again(whole, "run_1")
    assert "The request you are working on:\nthe task" in other.for_model()[0].text
    steer: list[Fact] = [
        InputAdmitted(input_id=InputId("left"), run_id=RunId("run_1"), text="left"),
        InputPromoted(input_id=InputId("left"), run_id=RunId("run_1")),
    ]
    for fact in [*steer, *called(1, 30, 900), *answered(1), *exchange(2)]:
        whole.add(fact)
        other.add(fact)
        assert read(other) == read(whole)


def test_undo_of_what_was_left_out_needs_the_whole_transcript() -> None:
    whole = Transcript()
    for number in range(40):
        for fact in exchange(number, calls=1):
            whole.add(fact)
    made = compacted(whole)
    assert made is not None
    whole.add(made)
    other = again(whole)
    undone = 0
    with pytest.raises(MessagesLeftOut):
        while True:
            other.add(Undone(by=OPERATOR))
            whole.add(Undone(by=OPERATOR))
            assert read(other) == read(whole)
            undone += 1
    assert undone > 1


def test_an_excerpt_has_all_that_a_transcript_knows_but_what_people_read() -> None:
    known = {name.removeprefix("_") for name in vars(Transcript())}
    for_people = {"past", "undone", "taken"}
    derived = {"added", "estimate", "compactions"}
    assert known - for_people - derived <= {field.name for field in fields(Excerpt)}


def test_data_of_another_version_or_with_a_fault_is_not_read() -> None:
    data = checkpoint.encode(SESSION, Transcript())
    assert data is not None and checkpoint.decode(data) is not None
    assert checkpoint.decode(b"\0" + data[1:]) is None
    assert checkpoint.decode(data[:-1]) is None


def test_a_checkpoint_that_is_too_big_is_not_made() -> None:
    whole = Transcript()
    picture = Image("image/png", b"x" * checkpoint.MOST)
    seen = InputAdmitted(input_id=InputId("i"), run_id=RunId("r"), text="look", images=(picture,))
    whole.add(seen)
    assert checkpoint.encode(SESSION, whole) is None


def test_runs_that_ended_after_a_checkpoint_leave_it_with_their_inputs() -> None:
    session = SESSION
    for name in ("a", "b"):
        run_id, input_id = RunId(name), InputId(name)
        session = evolve(session, RunQueued(run_id=run_id, input_id=input_id, model="m"), 1.0)
        session = evolve(session, InputAdmitted(input_id=input_id, run_id=run_id, text="go"), 1.0)
    both = frozenset({RunId("a"), RunId("b")})
    assert checkpoint.with_runs(session, both) is session
    left = checkpoint.with_runs(session, frozenset({RunId("b")}))
    assert set(left.runs) == {"b"} and set(left.inputs) == {"b"}
