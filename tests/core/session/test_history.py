"""The transcript is what the model reads: whole, in the order it was read, with one note of a cut.

That it stays so for every prefix of every legal history is explored in test_session.py.
"""

import pytest

from holdfast.core.inbox import InputAdmitted, InputPromoted, InputRefused, InputSuperseded
from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.core.run.call import UNKNOWN_TEXT, CallSettled, CallStarted, Outcome
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.process import ProcessEnd, ProcessEnded, ProcessStarted
from holdfast.core.run.run import (
    CutCause,
    ModelAnswered,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunResumed,
)
from holdfast.core.session.history import MessagesLeftOut, Transcript
from holdfast.core.session.notes import RESULTS_NOTE, died_note, resume_note
from holdfast.core.session.rewound import Rewound, SeedPoint
from holdfast.core.session.session import (
    MarkCleared,
    SessionMarked,
    SessionReset,
    SessionSeeded,
    Undone,
)
from holdfast.core.types import (
    OPERATOR,
    CallId,
    Fact,
    InputId,
    ProcessId,
    RewindId,
    RunId,
    Usage,
)

A, B = RunId("a"), RunId("b")
C1, C2 = CallId("c1"), CallId("c2")


def transcript(*facts: Fact) -> Transcript:
    grown = Transcript()
    for fact in facts:
        grown.add(fact)
    return grown


def admitted(text: str, run_id: RunId = A, instructions: str = "") -> InputAdmitted:
    return InputAdmitted(
        input_id=InputId(text), run_id=run_id, text=text, instructions=instructions
    )


def promoted(text: str, run_id: RunId = A) -> InputPromoted:
    return InputPromoted(input_id=InputId(text), run_id=run_id)


def read(text: str, run_id: RunId = A) -> tuple[Fact, Fact]:
    return admitted(text, run_id), promoted(text, run_id)


def answered(text: str, *call_ids: CallId, run_id: RunId = A) -> ModelAnswered:
    wanted = tuple(Proposal(c, "t", "{}") for c in call_ids)
    return ModelAnswered(run_id=run_id, turn=1, text=text, calls=wanted)


def assistant(text: str, *call_ids: CallId) -> Assistant:
    return Assistant(text, tuple(Proposal(c, "t", "{}") for c in call_ids))


def settled(call_id: CallId, text: str = "done") -> CallSettled:
    return CallSettled(run_id=A, call_id=call_id, tool="t", outcome=Outcome.OK, text=text)


def completed(run_id: RunId = A) -> RunCompleted:
    return RunCompleted(run_id=run_id, output="", usage=Usage())


def failed(run_id: RunId = A) -> RunFailed:
    return RunFailed(run_id=run_id, code="c", error="e", usage=Usage())


def cancelled(run_id: RunId = A) -> RunCancelled:
    return RunCancelled(run_id=run_id, reason="stopped", usage=Usage())


def resumed(cause: str = "crash") -> RunResumed:
    return RunResumed(run_id=A, cause=cause)


def cut(run_id: RunId = A, cause: CutCause = CutCause.CRASH) -> RunInterrupted:
    return RunInterrupted(run_id=run_id, cause=cause, reason="why", cut_at=1.0)


BACK = (cut(), resumed())
NOTE = resume_note("crash")


def test_an_input_appears_where_it_was_read_not_where_it_arrived() -> None:
    grown = transcript(*read("first"), admitted("later", B), answered("yes"), promoted("later", B))
    assert grown.for_model() == [User("first"), assistant("yes"), User("later")]


@pytest.mark.parametrize("ending", [InputSuperseded, InputRefused])
def test_unread_inputs_are_not_in_the_transcript(
    ending: type[InputSuperseded] | type[InputRefused],
) -> None:
    gone = ending(input_id=InputId("never"), run_id=A, reason="stopped")
    assert transcript(admitted("never"), gone, gone).for_model() == []


def test_a_result_follows_its_call() -> None:
    grown = transcript(*read("go"), answered("", C1, C2), settled(C2, "two"), settled(C1, "one"))
    assert grown.for_model() == [
        User("go"),
        assistant("", C1, C2),
        ToolResult(C2, "two"),
        ToolResult(C1, "one"),
    ]
    assert grown.messages == grown.for_model()


def test_a_call_without_a_result_is_shown_as_unknown_until_the_result_is_there() -> None:
    grown = transcript(*read("go"), answered("", C1))
    assert grown.for_model()[-1] == ToolResult(C1, UNKNOWN_TEXT)
    grown.add(settled(C1, "it worked"))
    assert grown.for_model()[-1] == ToolResult(C1, "it worked")


@pytest.mark.parametrize("ending", [completed(), failed(), cancelled()])
def test_a_run_that_ended_leaves_no_call_open(ending: Fact) -> None:
    grown = transcript(*read("go"), answered("", C1), ending, settled(C1), *read("next", B))
    assert grown.messages == [
        User("go"),
        assistant("", C1),
        ToolResult(C1, UNKNOWN_TEXT),
        User("next"),
    ]


@pytest.mark.parametrize("ending", [failed(B), cancelled(B)])
def test_the_end_of_a_run_in_the_queue_does_not_touch_the_run_at_work(ending: Fact) -> None:
    grown = transcript(*read("go"), answered("", C1), *BACK, ending, settled(C1, "it worked"))
    assert grown.messages[-1] == ToolResult(C1, "it worked")
    assert grown.for_model()[-1] == User(resume_note("crash"))


def test_other_facts_change_nothing() -> None:
    grown = transcript(*read("go"), CallStarted(run_id=A, call_id=C1, tool="t"))
    assert grown.for_model() == [User("go")]


@pytest.mark.promise("BACK-09")
def test_without_new_input_the_note_is_a_message_of_its_own() -> None:
    grown = transcript(*read("go"), answered("", C1), settled(C1), *BACK)
    assert grown.for_model()[-2:] == [ToolResult(C1, "done"), User(resume_note("crash"))]


@pytest.mark.promise("BACK-06")
def test_the_note_comes_before_the_input_in_the_same_message() -> None:
    grown = transcript(*read("go"), *BACK, *BACK)
    assert grown.for_model() == [User(f"{resume_note('crash')}\n\ngo")]
    assert grown.messages == [User("go")]  # a note is told, never remembered


@pytest.mark.promise("BACK-06")
def test_the_note_is_shown_once() -> None:
    grown = transcript(*read("go"), *BACK, answered("on it", C1), settled(C1))
    assert grown.for_model() == grown.messages


def test_a_wait_between_the_cut_and_the_next_turn_does_not_swallow_the_note() -> None:
    grown = transcript(*read("go"), answered("", C1), *BACK, settled(C1), resumed(cause=""))
    assert grown.for_model()[-1] == User(resume_note("crash"))


@pytest.mark.promise("BACK-06")
def test_there_is_no_note_after_a_wait_or_in_an_empty_conversation() -> None:
    assert transcript(*read("go"), resumed(cause="")).for_model() == [User("go")]
    grown = transcript(admitted("go"), *BACK, promoted("go"))
    assert grown.for_model() == [User("go")]


@pytest.mark.promise("BACK-06")
@pytest.mark.parametrize("ending", [failed(), cancelled()])
@pytest.mark.parametrize("between", [(), (resumed(),), (resumed(), answered("hm"))])
def test_a_run_that_starts_while_the_mark_stands_tells_of_the_cut_too(
    ending: Fact, between: tuple[Fact, ...]
) -> None:
    grown = transcript(*read("go"), cut(), *between, ending, *read("next", B))
    assert grown.for_model()[-1] == User(f"{NOTE}\n\nnext")
    assert str(grown.for_model()).count("[System note:") == 1
    again = transcript(*read("go"), cut(), *between, ending, *read("next", B), answered("yes"))
    assert again.for_model() == again.messages, "once"


@pytest.mark.promise("BACK-06", "BACK-04")
def test_after_a_completed_run_there_is_no_note() -> None:
    grown = transcript(*read("go"), *BACK, answered("yes"), completed(), *read("next", B))
    assert grown.for_model() == [User("go"), assistant("yes"), User("next")]


@pytest.mark.promise("BACK-06")
@pytest.mark.parametrize(
    "last",
    [
        (),
        (answered("yes"),),
        (answered("", C1), settled(C1)),
        (answered("", C1),),
    ],
)
def test_the_note_is_shown_whatever_the_transcript_ends_with(last: tuple[Fact, ...]) -> None:
    grown = transcript(*read("go"), *last, cut(), cancelled(), *read("next", B))
    assert grown.for_model()[-1] == User(f"{NOTE}\n\nnext")
    assert str(grown.for_model()).count("[System note:") == 1


@pytest.mark.promise("BACK-06")
@pytest.mark.parametrize("last", [(answered("", C1), settled(C1)), (answered("", C1),)])
def test_without_a_mark_a_transcript_that_ends_with_tool_results_gets_a_shorter_note(
    last: tuple[Fact, ...],
) -> None:
    grown = transcript(*read("go"), *last, cancelled(), *read("next", B))
    told = grown.for_model()[-1]
    assert told == User(f"{RESULTS_NOTE}\n\nnext")
    assert RESULTS_NOTE.startswith("[System note:") and "tool result" in RESULTS_NOTE
    assert len(RESULTS_NOTE) < len(NOTE)
    grown.add(answered("I see", run_id=B))
    assert grown.for_model() == grown.messages


def test_an_input_that_joins_a_run_after_tool_results_gets_no_note() -> None:
    grown = transcript(*read("go"), answered("", C1), settled(C1), *read("also"))
    assert grown.for_model()[-1] == User("also")


@pytest.mark.promise("BACK-06")
def test_the_note_comes_before_the_first_of_several_inputs() -> None:
    two = (admitted("one", B), admitted("two", B), promoted("one", B), promoted("two", B))
    grown = transcript(*read("go"), cut(), failed(), *two)
    assert grown.for_model()[-2:] == [User(f"{NOTE}\n\none"), User("two")]


@pytest.mark.promise("BACK-06")
def test_an_input_after_the_cut_has_the_note() -> None:
    grown = transcript(*read("go"), answered("", C1), settled(C1), *BACK, *read("stop that"))
    assert grown.for_model()[-1] == User(f"{NOTE}\n\nstop that")


@pytest.mark.promise("BACK-06")
def test_a_reset_session_has_nothing_to_resume() -> None:
    reset = SessionReset(reason="suspended")
    assert transcript(*read("go"), cut(), failed(), reset, *read("new", B)).for_model() == [
        User("new")
    ]


@pytest.mark.promise("BACK-12")
def test_a_mark_set_or_dropped_by_hand_counts_like_any_other() -> None:
    marked = SessionMarked(cause=CutCause.RESTART, reason="by hand")
    grown = transcript(*read("go"), answered("yes"), completed(), marked, *read("next", B))
    assert grown.for_model()[-1] == User(f"{resume_note('restart_timeout')}\n\nnext")
    dropped = MarkCleared(by=OPERATOR)
    grown = transcript(*read("go"), cut(), dropped, resumed(), *read("next", B))
    assert grown.for_model() == [User("go"), User("next")]


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("restart_timeout", "gateway restart"),
        ("shutdown_timeout", "gateway shutdown"),
        ("crash", "gateway interruption"),
        ("terminal_closed", "gateway shutdown"),
        ("journal_unavailable", "gateway interruption"),
        ("a cause of a later version", "gateway interruption"),
    ],
)
@pytest.mark.promise("BACK-06")
def test_the_note_names_the_cause_and_says_that_the_history_is_intact(
    cause: str, words: str
) -> None:
    note = resume_note(cause)
    assert note.startswith("[System note:")
    assert words in note and "intact" in note and "tool results" in note


def with_history(*messages: Message) -> tuple[Fact, ...]:
    own = InputAdmitted(input_id=InputId("own"), run_id=A, text="own", history=messages)
    return own, promoted("own")


def test_a_client_s_history_replaces_the_conversation() -> None:
    grown = transcript(*read("old"), answered("", C1), *with_history(System("be brief")))
    assert grown.for_model() == [System("be brief"), User("own")]
    assert transcript(*read("old"), *with_history()).for_model() == [User("own")]


def test_a_client_s_history_is_repaired_like_our_own() -> None:
    mended = transcript(
        *with_history(
            ToolResult(C2, "nobody asked"),
            assistant("", C1, C2),
            ToolResult(C1, "one"),
            User("and?"),
            assistant("", C1),
        )
    )
    assert mended.for_model() == [
        assistant("", C1, C2),
        ToolResult(C1, "one"),
        ToolResult(C2, UNKNOWN_TEXT),
        User("and?"),
        assistant("", C1),
        ToolResult(C1, UNKNOWN_TEXT),
        User(f"{RESULTS_NOTE}\n\nown"),
    ]
    assert mended.messages[-1] == User("own")


def test_a_reset_keeps_unread_inputs() -> None:
    reset = SessionReset(reason="suspended")
    grown = transcript(*read("old"), answered("", C1), *BACK, admitted("new", B), reset)
    assert grown.for_model() == []
    grown.add(promoted("new", B))
    grown.add(settled(C1))  # of a run that no longer counts
    assert grown.for_model() == [User("new")]


def test_instructions_last_as_long_as_their_run() -> None:
    grown = transcript(admitted("go", A, "be kind"), admitted("more", B), completed(B))
    assert grown.instructions == {A: "be kind"}
    grown.add(completed(A))
    assert grown.instructions == {}


def test_messages_that_the_model_no_longer_reads_stay_readable() -> None:
    grown = transcript(
        *read("before"), answered("yes", C1), SessionReset(reason="suspended"), *read("after")
    )
    assert grown.for_model() == [User("after")]
    assert grown.whole() == (
        User("before"),
        assistant("yes", C1),
        ToolResult(C1, UNKNOWN_TEXT),
        User("after"),
    )


def test_messages_repeated_in_a_client_s_history_are_kept_once() -> None:
    grown, told = Transcript(), list[Message]()
    for n in range(20):
        own = InputAdmitted(
            input_id=InputId(f"in {n}"), run_id=A, text=f"ask {n}", history=tuple(told)
        )
        last: tuple[Fact, ...] = (answered("", C1), settled(C1), answered(f"say {n}"), completed())
        for fact in (own, InputPromoted(input_id=own.input_id, run_id=A), *last):
            grown.add(fact)
        told += [User(f"ask {n}"), assistant(f"say {n}")]  # it does not know of our calls
    assert len(grown.whole()) == 20 * 4
    assert {m for m in told if grown.whole().count(m) != 1} == set()


def test_messages_before_the_callers_history_stay_readable() -> None:
    yes = User("yes")
    grown = transcript(
        *with_history(User("a"), yes, User("b"), yes), *with_history(User("b"), yes, User("own"))
    )
    assert grown.whole() == (User("a"), yes, User("b"), yes, User("own"), User("own"))


UNDONE = Undone(by=OPERATOR)
FIRST = (*read("one"), answered("yes"), completed())
SECOND = (*read("two", B), answered("", C1, run_id=B), settled(C1), answered("no", run_id=B))
TWO: list[Message] = [User("two"), assistant("", C1), ToolResult(C1, "done"), assistant("no")]


@pytest.mark.promise("UNDO-05")
def test_an_exchange_taken_back_is_read_neither_by_the_model_nor_by_people() -> None:
    grown = transcript(*FIRST, *SECOND, completed(B), UNDONE)
    assert grown.for_model() == [User("one"), assistant("yes")]
    assert grown.whole() == (User("one"), assistant("yes"))


def test_taking_back_twice_takes_back_two_and_more_than_all_nothing() -> None:
    grown = transcript(*FIRST, *SECOND, completed(B), UNDONE, UNDONE)
    assert (grown.for_model(), grown.whole()) == ([], ())
    grown.add(UNDONE)
    assert (grown.for_model(), grown.last_input(), grown.whole()) == ([], "", ())
    assert transcript(UNDONE).whole() == ()


def rewound(*runs: RunId, redo: bool = False) -> Rewound:
    """The exchanges of these runs do not count, or count again."""
    return Rewound(rewind_id=RewindId("r"), point=A, by=OPERATOR, runs=runs, redo=redo)


THIRD = (*read("three", RunId("c")), answered("hm"), completed(RunId("c")))
ALL = (User("one"), assistant("yes"), *TWO, User("three"), assistant("hm"))


def test_a_rewind_takes_back_what_is_behind_its_point_and_a_redo_brings_it_back() -> None:
    grown = transcript(*FIRST, *SECOND, completed(B), *THIRD)
    assert grown.whole() == ALL
    grown.add(rewound(B, RunId("c")))
    assert (grown.whole(), grown.last_input()) == (ALL[:2], "one")
    grown.add(rewound(A))
    assert (grown.whole(), grown.last_input()) == ((), "")
    grown.add(rewound(A, redo=True))
    grown.add(rewound(B, RunId("c"), redo=True))
    assert (grown.whole(), tuple(grown.for_model()), grown.last_input()) == (ALL, ALL, "three")


def test_after_another_message_nothing_is_brought_back() -> None:
    grown = transcript(*FIRST, *SECOND, completed(B), rewound(B), *THIRD)
    grown.add(rewound(B, redo=True))
    assert grown.whole() == (*ALL[:2], *ALL[-2:])


def test_a_rewind_takes_back_a_compaction_of_what_is_behind_it_and_a_redo_brings_it_back() -> None:
    grown = transcript(*FIRST, *SECOND, completed(B))
    before = HistoryCompacted(upto=2, summary="notes", reason="asked")
    after = HistoryCompacted(upto=5, summary="more notes", reason="asked")
    for fact in (before, after, rewound(B)):
        grown.add(fact)
    assert grown.compacted == before
    grown.add(rewound(B, redo=True))
    assert grown.compacted == after


def test_an_excerpt_does_not_know_what_to_take_back_or_bring_back_before_it() -> None:
    grown = transcript(*FIRST, *SECOND, completed(B), *THIRD)
    grown.add(HistoryCompacted(upto=6, summary="notes", reason="asked"))
    assert grown.positions() == {A: 0, B: 2, RunId("c"): 6}
    for fact in (rewound(A, B, RunId("c")), rewound(A, redo=True)):
        excerpt = Transcript.restored(grown.excerpt(()))
        with pytest.raises(MessagesLeftOut):
            excerpt.add(fact)
    excerpt = Transcript.restored(grown.excerpt(()))
    for fact in (rewound(RunId("c")), rewound(RunId("c"), redo=True)):
        excerpt.add(fact)
        grown.add(fact)
        assert excerpt.for_model() == grown.for_model()


def test_an_exchange_without_an_end_is_taken_back_with_its_open_calls() -> None:
    grown = transcript(*FIRST, *read("two", B), answered("", C1, run_id=B), UNDONE, settled(C1))
    assert grown.for_model() == [User("one"), assistant("yes")]
    assert grown.whole() == (User("one"), assistant("yes"))


def test_messages_before_a_reset_are_not_undone() -> None:
    reset = SessionReset(reason="suspended")
    grown = transcript(*FIRST, reset, UNDONE)
    assert (grown.last_input(), grown.whole()) == ("", (User("one"), assistant("yes")))
    grown = transcript(*FIRST, reset, *SECOND, completed(B), UNDONE)
    assert grown.for_model() == []
    assert grown.whole() == (User("one"), assistant("yes"))


def test_a_history_of_the_callers_stays_when_what_it_came_with_is_taken_back() -> None:
    before = User("before")
    grown = transcript(*FIRST, *with_history(before), answered("yes"), completed(), UNDONE, UNDONE)
    assert grown.for_model() == [before]
    assert grown.whole() == (
        User("one"),
        assistant("yes"),
        before,
    )


def test_the_last_input_has_all_inputs_of_the_run_that_read_last() -> None:
    assert transcript().last_input() == ""
    assert transcript(admitted("not read")).last_input() == ""
    grown = transcript(*FIRST)
    assert grown.last_input() == "one"
    for fact in (*read("two", B), *read("and three", B), answered("", C1), settled(C1)):
        grown.add(fact)
    assert grown.last_input() == "two\n\nand three"
    for fact in (*read("four", B), answered("no"), completed(B)):
        grown.add(fact)
    assert grown.last_input() == "two\n\nand three\n\nfour"
    grown.add(UNDONE)
    assert grown.last_input() == "one"


PNG = Image("image/png", b"png")
GIF = Image("image/gif", b"gif")


def shown(text: str, *images: Image, run_id: RunId = A) -> tuple[Fact, Fact]:
    words = InputAdmitted(input_id=InputId(text), run_id=run_id, text=text, images=images)
    return words, promoted(text, run_id)


def test_images_are_read_with_their_message() -> None:
    grown = transcript(*shown("look", PNG, GIF), answered("I see"), *shown("", PNG))
    said = [User("look", (PNG, GIF)), Assistant("I see"), User("", (PNG,))]
    assert grown.for_model() == said
    assert grown.whole() == tuple(said)


def test_the_note_of_a_cut_leaves_pictures_where_they_are() -> None:
    grown = transcript(*read("before"), answered("yes"), *shown("look", PNG), cut(), resumed())
    note = resume_note("crash")
    assert grown.for_model()[-1] == User(f"{note}\n\nlook", (PNG,))
    assert grown.messages[-1] == User("look", (PNG,))


def test_the_last_images_are_those_of_the_last_inputs() -> None:
    assert transcript().last_images() == ()
    grown = transcript(*shown("one", GIF), answered("1"), completed())
    for fact in (*shown("two", PNG, run_id=B), *shown("", GIF, run_id=B)):
        grown.add(fact)
    assert (grown.last_input(), grown.last_images()) == ("two", (PNG, GIF))
    grown.add(Undone(by=OPERATOR))
    assert (grown.last_input(), grown.last_images()) == ("one", (GIF,))


def seeded(*messages: Message) -> SessionSeeded:
    return SessionSeeded(messages=messages, source="fork of s")


SEED = seeded(User("before"), assistant("", C1), ToolResult(C1, "done"), assistant("said"))


def test_the_seed_of_a_session_is_read_by_the_model_and_shown_to_people() -> None:
    grown = transcript(SEED, *read("next"))
    assert grown.for_model() == [*SEED.messages, User("next")]
    assert grown.whole() == (*SEED.messages, User("next"))


def test_seeded_messages_are_repaired_like_a_client_s_history() -> None:
    grown = transcript(seeded(ToolResult(C2, "nobody asked"), assistant("", C1)), settled(C1))
    closed = (assistant("", C1), ToolResult(C1, UNKNOWN_TEXT))
    assert grown.whole() == closed
    for fact in read("next"):
        grown.add(fact)
    assert grown.for_model() == [*closed, User(f"{RESULTS_NOTE}\n\nnext")]


def test_a_seed_without_points_is_never_undone() -> None:
    grown = transcript(SEED, *FIRST, UNDONE, UNDONE)
    assert (grown.for_model(), grown.last_input()) == (list(SEED.messages), "")
    grown.add(SessionReset(reason="suspended"))
    assert grown.for_model() == []
    assert grown.whole() == SEED.messages


def test_a_seed_with_points_is_undone_like_what_it_comes_from() -> None:
    points = (SeedPoint(run_id=A, position=0), SeedPoint(run_id=B, position=2))
    messages = (User("one"), assistant("yes"), *TWO)
    seed = SessionSeeded(messages=messages, source="fork of s", points=points)
    grown = transcript(seed)
    assert grown.last_input() == "two"
    grown.add(rewound(B))
    assert grown.whole() == messages[:2]
    grown.add(UNDONE)
    assert grown.whole() == ()


def test_another_session_may_begin_with_what_is_read_now_without_a_note_or_an_open_call() -> None:
    grown = transcript(*FIRST, *read("two", B), answered("", C1, C2, run_id=B), settled(C1))
    open_call = ToolResult(C2, UNKNOWN_TEXT)
    assert grown.without_note() == [*grown.messages, open_call] == grown.for_model()
    noted = transcript(*read("go"), cut(), failed(), *read("next", B))
    assert noted.for_model()[-1] == User(f"{NOTE}\n\nnext")
    assert noted.without_note() == [User("go"), User("next")]
    assert transcript(*FIRST, *SECOND, completed(B), UNDONE).without_note() == [
        User("one"),
        assistant("yes"),
    ]


def test_settled_has_the_messages_before_a_run_s_own() -> None:
    grown = transcript(SEED, *FIRST, admitted("two", B))
    said = (*SEED.messages, User("one"), assistant("yes"))
    assert grown.settled(B) == grown.whole() == said
    for fact in (promoted("two", B), answered("", C1, run_id=B), settled(C1), *read("more", B)):
        grown.add(fact)
    assert grown.settled(B) == said
    assert len(grown.whole()) == len(said) + 4


def test_settled_has_nothing_that_was_taken_back() -> None:
    third = read("three", RunId("c"))
    grown = transcript(*FIRST, *SECOND, completed(B), UNDONE, *third)
    assert grown.settled(RunId("c")) == ALL[:2]
    for fact in (*read("four", RunId("d")), UNDONE):
        grown.add(fact)
    assert (grown.settled(RunId("c")), grown.whole()) == (ALL[:2], (*ALL[:2], User("three")))
    grown = transcript(*FIRST, SessionReset(reason="suspended"), *third)
    assert grown.settled(RunId("c")) == (User("one"), assistant("yes"))


def test_a_transcript_knows_that_it_was_imported_until_it_begins_again() -> None:
    it = Transcript()
    it.add(SessionSeeded(messages=(User("hi"),), source="export", imported=True))
    assert it.imported
    it.add(SessionReset(reason="suspended"))
    assert not it.imported


@pytest.mark.promise("MODEL-05")
def test_what_only_one_model_can_read_goes_back_to_that_model_and_to_no_other() -> None:
    signed = ModelAnswered(run_id=A, turn=1, text="yes", model="a/big", opaque='{"signature":"x"}')
    grown = transcript(admitted("first"), promoted("first"), signed)
    assert grown.for_model("a/big")[-1] == Assistant("yes", (), '{"signature":"x"}', "a/big")
    assert grown.for_model("a/small")[-1] == Assistant("yes")
    assert grown.for_model()[-1] == Assistant("yes")


P = ProcessId("proc_1")
DIED = died_note([f"{P} (npm run dev)"])


def server(*, notify: bool = False, detach: bool = False) -> ProcessStarted:
    command = "npm  run\ndev"
    return ProcessStarted(
        process_id=P, started_by=A, call_id=C1, command=command, notify=notify, detach=detach
    )


def ended(cause: ProcessEnd = ProcessEnd.RESTART) -> ProcessEnded:
    return ProcessEnded(process_id=P, cause=cause)


def last_text(it: Transcript) -> str:
    message = it.for_model()[-1]
    assert isinstance(message, User)
    return message.text


@pytest.mark.promise("PROC-02")
def test_the_next_run_is_told_which_process_died_with_the_gateway() -> None:
    began = transcript(*read("start it"), answered("yes"), server(), completed())
    began.add(ended())
    for fact in read("and now?", B):
        began.add(fact)
    assert last_text(began) == f"{DIED}\n\nand now?"
    began.add(answered("again", C2, run_id=B))
    began.add(settled(C2))
    assert began.for_model()[-1] == ToolResult(C2, "done")


@pytest.mark.promise("PROC-02")
def test_a_run_that_goes_on_is_told_what_died_before_its_end_is_known() -> None:
    it = transcript(*read("start it"), answered("", C1), server(), settled(C1), cut(), resumed())
    assert last_text(it) == f"{resume_note('crash')}\n{DIED}"
    it.add(ended())
    it.add(answered("again"))
    assert it.for_model()[-1] == assistant("again")


def test_a_death_that_a_request_under_way_cannot_have_told_is_told_in_the_next_one() -> None:
    it = transcript(*read("start it"), answered("", C1), server(), settled(C1), ended())
    it.add(answered("", C2))  # it was asked before the process died
    it.add(settled(C2))
    assert last_text(it) == DIED


@pytest.mark.parametrize(
    "facts",
    [
        (server(notify=True), ended()),  # a message tells it
        (server(), ended(ProcessEnd.EXITED)),
        (server(), ended(ProcessEnd.KILLED)),
        (server(detach=True),),
        (server(), ended(), SessionReset(reason="new")),
    ],
)
def test_nothing_else_of_a_process_becomes_a_note(facts: tuple[Fact, ...]) -> None:
    it = transcript(*read("start it"), answered("yes"), completed(), *facts, *read("more", B))
    assert last_text(it) == "more"


def test_what_died_is_in_an_excerpt() -> None:
    it = transcript(*read("start it"), answered("yes"), server(), completed())
    again = Transcript.restored(it.excerpt(()))
    again.add(ended())
    third = Transcript.restored(again.excerpt(()))
    for fact in read("more", B):
        third.add(fact)
    assert last_text(third) == f"{DIED}\n\nmore"
