"""What the model reads of a long conversation: short enough, paired, and with what matters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.core.run.call import CallSettled, Outcome
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.run import ModelAnswered, RunCompleted
from holdfast.core.session import compaction
from holdfast.core.session.compaction import Measured, Window
from holdfast.core.session.history import Transcript
from holdfast.core.session.session import SessionReset, Undone
from holdfast.core.types import OPERATOR, CallId, InputId, RunId, Usage

WINDOW = Window(4_000)


def exchange(number: int, size: int = 100, calls: int = 0) -> list[Message]:
    """A request, so many calls with their results, and an answer."""
    ids = [CallId(f"call_{number}_{n}") for n in range(calls)]
    asked: list[Message] = [User(f"request {number} " + "x" * size)]
    if ids:
        asked.append(Assistant("", tuple(Proposal(i, "read_file", '{"path": "a"}') for i in ids)))
        asked += [ToolResult(i, "y" * size) for i in ids]
    return [*asked, Assistant(f"answer {number}")]


def compact(
    messages: list[Message], done: HistoryCompacted | None = None, window: Window = WINDOW
) -> HistoryCompacted | None:
    plan = compaction.plan(messages, done, window, 1.0)
    if plan is None:
        return None
    notes = compaction.by_rule(
        messages[done.upto if done else 0 : plan.upto],
        compaction.notes_of(done),
        compaction.most_of_summary(window, 1.0),
    )
    summary = compaction.introduce(messages, plan.upto, notes, window, 1.0) if plan.upto else ""
    return HistoryCompacted(
        upto=plan.upto,
        summary=summary,
        reason="full",
        shortened=plan.shortened,
        limit=plan.limit,
    )


def paired(messages: list[Message]) -> bool:
    """Whether each result follows its call, and each call has its result."""
    waiting: set[CallId] = set()
    for message in messages:
        if isinstance(message, ToolResult):
            if message.call_id not in waiting:
                return False
            waiting.remove(message.call_id)
        elif waiting:
            return False
        elif isinstance(message, Assistant):
            waiting = {call.call_id for call in message.calls}
    return not waiting


@pytest.mark.promise("CTX-01")
@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 3)), min_size=1, max_size=30),
    st.integers(2_000, 60_000),
)
def test_a_compacted_history_fits_and_keeps_calls_with_their_results(
    exchanges: list[tuple[int, int]], size: int
) -> None:
    window, done = Window(size), None
    messages: list[Message] = []
    for number, (length, calls) in enumerate(exchanges):
        messages += exchange(number, length, calls)
        seen = compaction.view(messages, done)
        if compaction.is_full(compaction.estimate_all(seen), window):
            done = compact(messages, done, window) or done
            seen = compaction.view(messages, done)
            longest = max(map(compaction.estimate, messages))
            if longest < size // 8:
                assert not compaction.is_full(compaction.estimate_all(seen), window)
        assert paired(seen)
        assert "request 0" in seen[0].text
        assert any(f"request {number} " in m.text for m in seen), "the current request is read"


def test_nothing_is_compacted_twice_for_the_same_messages() -> None:
    messages = [m for n in range(40) for m in exchange(n, 900)]
    done = compact(messages)
    assert done is not None
    assert compact(messages, done) is None


@pytest.mark.promise("CTX-01")
def test_the_first_and_the_current_request_stay_word_for_word() -> None:
    ids = [CallId(f"c{n}") for n in range(60)]
    messages: list[Message] = [User("the first"), Assistant("done"), User("the current one")]
    for call_id in ids:
        messages += [Assistant("", (Proposal(call_id, "t", "{}"),)), ToolResult(call_id, "z" * 400)]
    done = compact(messages)
    assert done is not None
    seen = compaction.view(messages, done)
    assert "The first request:\nthe first" in seen[0].text
    assert seen[0].text.endswith("The request you are working on:\nthe current one")
    assert paired(seen)


def test_a_long_result_is_shortened_and_says_how_to_read_it_again() -> None:
    result = ToolResult(CallId("c"), "a" * 5_000 + "b" * 5_000)
    short = compaction.shorten(result, 400)
    assert short.text.startswith("a" * 300 + "\n[… 9,600 characters left out.")
    assert short.text.endswith("b" * 100)
    assert "`recall`" in short.text and ": c]" in short.text
    assert compaction.shorten(User("a" * 5_000), 400) == User("a" * 5_000)
    assert compaction.shorten(ToolResult(CallId("c"), "a" * 410), 400).text == "a" * 410


def test_only_long_results_of_a_short_conversation_are_shortened() -> None:
    messages = exchange(1, 20_000, 3)
    messages[0] = User("look at these")
    done = compact(messages)
    assert done is not None
    assert (done.upto, done.summary, done.shortened) == (0, "", len(messages))
    seen = compaction.view(messages, done)
    assert len(seen) == len(messages)
    assert compaction.estimate_all(seen) < WINDOW.size


def test_a_conversation_that_begins_with_an_answer_has_no_first_request() -> None:
    messages: list[Message] = [Assistant("hello"), User("go"), Assistant("done")]
    summary = compaction.introduce(messages, 1, "notes", WINDOW, 1.0)
    assert "The first request" not in summary and summary.endswith("notes")


def test_notes_by_rule_say_what_was_asked_done_and_answered() -> None:
    messages: list[Message] = [
        System("be kind"),
        User("make it\n blue", (Image("image/png", b""),)),
        User("", (Image("image/png", b""),)),
        Assistant(
            "",
            (
                Proposal(CallId("1"), "write_file", '{"content": "x", "path": "a.css"}'),
                Proposal(CallId("2"), "terminal", '{"command": "make test"}'),
                Proposal(CallId("3"), "odd", "not json"),
                Proposal(CallId("4"), "empty", ""),
                Proposal(CallId("5"), "none", "{}"),
                Proposal(CallId("6"), "list", "[1]"),
            ),
        ),
        ToolResult(CallId("1"), "ok"),
        Assistant("It is blue."),
    ]
    assert compaction.by_rule(messages, "- Before.", 10_000).splitlines() == [
        "- Before.",
        "- The user: make it blue",
        "- Used write_file: a.css",
        "- Used terminal: make test",
        "- Used odd: not json",
        "- Used empty",
        "- Used none",
        "- Used list: [1]",
        "- Answered: It is blue.",
    ]


def test_notes_by_rule_that_are_too_long_lose_their_middle() -> None:
    messages = [m for n in range(200) for m in exchange(n, 300)]
    notes = compaction.by_rule(messages, "", 2_000)
    assert len(notes) <= 2_000
    assert notes.startswith("- The user: request 0 ")
    assert notes.endswith("- Answered: answer 199")
    again = compaction.by_rule(exchange(200), notes, 2_000)
    assert again.count("[…]") == 1


def test_a_summary_reads_everything_except_long_results() -> None:
    messages: list[Message] = [
        System("be kind"),
        User("look", (Image("image/png", b""),)),
        Assistant("I look.", (Proposal(CallId("1"), "read_file", "{}"),)),
        ToolResult(CallId("1"), "r" * 100),
        Assistant("", ()),
    ]
    assert list(compaction.rendered(messages, 10)) == [
        "INSTRUCTION: be kind",
        "USER: look [1 images]",
        "ASSISTANT: I look.",
        "ASSISTANT CALLS read_file: {}",
        "RESULT: rrrrrrrrr…",
    ]
    parts = compaction.in_parts(iter(["a" * 30, "b" * 30, "c" * 90]), 70)
    assert parts == ["a" * 30 + "\n\n" + "b" * 30, "c" * 69 + "…"]
    assert compaction.in_parts(iter([]), 70) == []


def test_tokens_are_estimated_and_corrected_by_the_models_own_count() -> None:
    assert compaction.tokens("word " * 80) == 101
    assert compaction.tokens("漢" * 100) > 100
    assert compaction.estimate(User("", (Image("image/png", b""),))) > compaction.PER_IMAGE
    assert compaction.scale(None, 10) == 1.0
    assert compaction.scale(Measured(2_000, 900), 99) == 2.0
    assert compaction.scale(Measured(9_000_000, 900), 99) == 4.0
    assert not compaction.is_full(10**9, Window(0)), "a window of unknown size is never full"


class Told:
    """A transcript, and the facts of exchanges."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.number = 0

    def exchange(self, text: str, tokens: int = 0) -> None:
        self.number += 1
        run_id, input_id = RunId(f"run_{self.number}"), InputId(f"in_{self.number}")
        usage = Usage(tokens, 5)
        for fact in (
            InputAdmitted(input_id=input_id, run_id=run_id, text=text),
            InputPromoted(input_id=input_id, run_id=run_id),
            ModelAnswered(run_id=run_id, turn=1, text="noted", usage=usage),
            RunCompleted(run_id=run_id, output="noted", usage=usage),
        ):
            self.transcript.add(fact)

    def compact(self, upto: int) -> None:
        self.transcript.add(HistoryCompacted(upto=upto, summary="notes", reason="asked"))


def test_the_models_count_holds_until_the_messages_change() -> None:
    it = Told()
    it.exchange("a" * 400, tokens=500)
    assert 500 < it.transcript.used(50) < 700
    it.exchange("b" * 400)
    grown = it.transcript.used(50)
    assert grown > 700
    it.compact(2)
    assert it.transcript.used(50) < grown
    filling = it.transcript.filling(8_000, 50)
    assert (filling.hidden, filling.count, filling.measured) == (2, 3, False)
    assert filling.summary and filling.messages and not filling.results
    it.exchange("c" * 400, tokens=700)
    assert it.transcript.filling(0, 50).measured


@pytest.mark.promise("CTX-01")
def test_the_model_reads_notes_and_people_read_everything() -> None:
    it = Told()
    for number in range(4):
        it.exchange(f"request {number}")
    it.compact(4)
    seen = it.transcript.for_model()
    assert [m.text for m in seen] == ["notes", "request 2", "noted", "request 3", "noted"]
    assert len(it.transcript.whole()) == 8
    it.exchange("request 4")
    assert len(it.transcript.for_model()) == 7


def test_undoing_what_notes_stand_for_brings_the_messages_back() -> None:
    it = Told()
    for number in range(3):
        it.exchange(f"request {number}")
    it.compact(2)
    it.compact(4)
    it.transcript.add(Undone(by=OPERATOR))
    assert [m.text for m in it.transcript.for_model()] == ["notes"]
    it.transcript.add(Undone(by=OPERATOR))
    assert [m.text for m in it.transcript.for_model()] == ["notes"]
    it.transcript.add(Undone(by=OPERATOR))
    assert it.transcript.for_model() == []
    assert it.transcript.compacted is None


def test_notes_end_with_the_conversation_they_are_about() -> None:
    it = Told()
    it.exchange("request 0")
    it.compact(2)
    it.transcript.add(SessionReset(reason="suspended"))
    assert it.transcript.compacted is None
    it.compact(2)
    assert it.transcript.compacted is None, "they are about messages that are gone"


def test_the_result_of_an_earlier_call_can_be_read_again() -> None:
    it, run_id, call = Told(), RunId("run_9"), CallId("c")
    it.transcript.add(InputAdmitted(input_id=InputId("in_9"), run_id=run_id, text="go"))
    it.transcript.add(InputPromoted(input_id=InputId("in_9"), run_id=run_id))
    asked = (Proposal(call, "t", "{}"),)
    it.transcript.add(ModelAnswered(run_id=run_id, turn=1, text="", calls=asked))
    assert it.transcript.result_of(call) is None
    ok = CallSettled(run_id=run_id, call_id=call, tool="t", outcome=Outcome.OK, text="whole")
    it.transcript.add(ok)
    assert it.transcript.result_of(call) == "whole"
