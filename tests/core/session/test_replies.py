"""What a chat hears of a run: each thing once, under its own name, where the words came from."""

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.address import Address, ChatType
from holdfast.core.approval.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Choice,
)
from holdfast.core.chat.delivery import DeliveryQueued
from holdfast.core.inbox import InputAdmitted, InputPromoted, Mode
from holdfast.core.messages import Proposal
from holdfast.core.run.call import CallAsked, CallParked, CallSettled, CallStarted, Outcome
from holdfast.core.run.run import (
    Incomplete,
    ModelAnswered,
    ModelFailed,
    Origin,
    Parent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunPhase,
    RunQueued,
    RunResumed,
    RunStarted,
    StopAsked,
)
from holdfast.core.session.replies import (
    ANSWER,
    BUSY_MODEL,
    CAUSES,
    CUT_ANSWER,
    EMPTY_ANSWER,
    EXPIRED,
    GONE_S,
    GRANTED,
    NO_MODEL,
    PASSED_ON,
    SHOWN,
    SOME_ADDRESS,
    STEP,
    SUPERSEDED,
    UNREAD,
    WITHDRAWN,
    Answers,
    Chooses,
    QueuedReply,
    Split,
    is_unambiguous,
    mark,
    messages,
    parse_button,
    step,
)
from holdfast.core.session.replies import QUESTION as LONGEST
from holdfast.core.session.session import Session, evolve, stop
from holdfast.core.types import (
    OPERATOR,
    CallId,
    DeliveryId,
    Fact,
    InputId,
    RequestId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)

RUN, INPUT, CALL = RunId("run_" + "a" * 32), InputId("in"), CallId("call")
REQUEST = RequestId("apr_" + "b" * 24)
SAID = Address(platform="tg", chat_type=ChatType.GROUP, chat="7", thread="2", user="9")
ORIGIN = Origin(platform="tg", address=SAID, reply_to="5", progress=True)
PARENT = Parent(
    session_id=SessionId("p"), run_id=RunId("parent"), call_id=CALL, background=False, depth=1
)


def fold(*facts: Fact, session: Session | None = None) -> Session:
    session = session or Session(SessionKey(OPERATOR, SessionId("s")))
    for fact in facts:
        session = evolve(session, fact, 0.0)
    return session


def begun(origin: Origin = ORIGIN, parent: Parent | None = None) -> tuple[Fact, ...]:
    hosts = ("b.example", "a.example")
    return (
        InputAdmitted(input_id=INPUT, run_id=RUN, text="go", hosts=hosts),
        RunQueued(run_id=RUN, input_id=INPUT, origin=origin, parent=parent),
        RunStarted(run_id=RUN),
        InputPromoted(input_id=INPUT, run_id=RUN),
    )


def wants(*call_ids: CallId, turn: int = 1) -> ModelAnswered:
    calls = tuple(Proposal(c, "terminal", "{}") for c in call_ids)
    return ModelAnswered(run_id=RUN, turn=turn, text="hm", calls=calls)


def starts(preview: str = "", call_id: CallId = CALL, *, quiet: bool = False) -> CallStarted:
    return CallStarted(run_id=RUN, call_id=call_id, tool="terminal", preview=preview, quiet=quiet)


def settles(
    text: str = "done", outcome: Outcome = Outcome.OK, call_id: CallId = CALL
) -> CallSettled:
    return CallSettled(run_id=RUN, call_id=call_id, tool="terminal", outcome=outcome, text=text)


def parks(question: str, *options: str, call_id: CallId = CALL) -> CallParked:
    return CallParked(
        run_id=RUN, call_id=call_id, reason="waits", question=question, options=options
    )


def requested(command: str = "make", *choices: Choice) -> ApprovalRequested:
    return ApprovalRequested(
        run_id=RUN,
        call_id=CALL,
        request_id=REQUEST,
        command=command,
        description="It builds.",
        execution="e",
        choices=choices or (Choice.ONCE, Choice.SESSION, Choice.ALWAYS, Choice.DENY),
        expires_at=9.0,
    )


def completes(output: str) -> RunCompleted:
    return RunCompleted(run_id=RUN, output=output, usage=Usage())


CANCELLED = RunCancelled(run_id=RUN, reason="stopped", usage=Usage())
FAILED = RunFailed(run_id=RUN, code="c", error="The model is away.", usage=Usage())


def whole(platform: str, text: str) -> Sequence[str]:
    assert platform == "tg"
    return (text,)


def tens(platform: str, text: str) -> Sequence[str]:
    return [text[at : at + 10] for at in range(0, len(text), 10)]


def told(before: Session, *facts: Fact, split: Split = whole) -> list[DeliveryQueued]:
    return list(messages(before, fold(*facts, session=before), facts, split))


def only(queued: list[DeliveryQueued]) -> DeliveryQueued:
    (one,) = queued
    return one


AT_WORK = fold(*begun())
ANSWERED = fold(ModelAnswered(run_id=RUN, turn=1, text="yes"), session=AT_WORK)
STARTED = fold(wants(CALL), starts("make"), session=AT_WORK)
ASKED = fold(
    wants(CALL),
    CallAsked(run_id=RUN, call_id=CALL, request_id=REQUEST),
    requested(),
    session=AT_WORK,
)
QUESTION = fold(wants(CALL), starts(), parks("Which?", "red", "blue"), session=AT_WORK)


def test_the_answer_goes_to_the_chat_of_the_message_as_a_reply() -> None:
    assert only(told(ANSWERED, completes("yes"))) == DeliveryQueued(
        delivery_id=DeliveryId(f"out_{RUN}"),
        address=SAID.place,
        text="yes",
        of_run=RUN,
        reply_to="5",
        hosts=("a.example", "b.example"),
    )


def test_an_empty_answer_is_reported_as_done() -> None:
    assert only(told(ANSWERED, completes(" \n"))).text == EMPTY_ANSWER


@pytest.mark.promise("SAY-03")
def test_an_answer_that_was_cut_says_so() -> None:
    cut = replace(completes("half of"), incomplete=Incomplete.CUT)
    assert only(told(ANSWERED, cut)).text == f"half of\n\n{CUT_ANSWER}"


def fails(attempt: int, wait_s: float, status: int = 0) -> ModelFailed:
    return ModelFailed(
        run_id=RUN,
        turn=1,
        attempt=attempt,
        model="a/b",
        reason="a/b at http://10.0.0.1 answered 429",
        next_model="a/b",
        wait_s=wait_s,
        status=status,
        of=12,
    )


@pytest.mark.promise("SAY-01")
def test_a_chat_is_told_once_of_a_long_wait_for_the_model() -> None:
    at = fold(*begun())
    assert told(at, fails(1, 2.0, 429)) == []
    said = only(told(at, fails(2, 30.0, 429))).text
    assert said == BUSY_MODEL.format(status=429, attempt="attempt 3 of 12", wait=30)
    assert "10.0.0.1" not in said
    waiting = fold(fails(2, 30.0, 429), session=at)
    assert told(waiting, fails(3, 60.0, 429)) == []
    over = fold(wants(CALL), starts(), settles(), session=waiting)
    again = replace(fails(1, 30.0), turn=2, of=0)
    assert only(told(over, again)).text == NO_MODEL.format(attempt="attempt 2", wait=30)
    assert told(fold(*begun(parent=PARENT)), fails(1, 30.0)) == []


def test_a_run_that_failed_says_why() -> None:
    failed = only(told(AT_WORK, FAILED))
    assert failed.text == "This did not work: The model is away."
    assert (failed.delivery_id, failed.reply_to) == (f"out_{RUN}", "5")


def test_a_failed_run_reports_what_happens_to_unread_messages() -> None:
    words = InputAdmitted(input_id=InputId("more"), run_id=RUN, text="and this", mode=Mode.STEER)
    unread = fold(words, session=AT_WORK)
    failed = only(told(unread, FAILED))
    assert failed.text == f"This did not work: The model is away.{PASSED_ON}"
    stuck = only(told(unread, replace(FAILED, code="stuck")))
    assert stuck.text == f"This did not work: The model is away.{UNREAD}"
    assert only(told(fold(*begun()[:2]), FAILED)).text.endswith(UNREAD)


@pytest.mark.promise("CHAT-04")
@pytest.mark.parametrize("code", CAUSES)
def test_details_for_the_operator_are_not_shown_in_a_chat(code: str) -> None:
    error = "http://10.0.0.7:8080 says: bad key sk-1 (traceback)"
    ended = RunFailed(run_id=RUN, code=code, error=error, usage=Usage())
    said = only(told(AT_WORK, ended)).text
    assert said.startswith(CAUSES[code]) and RUN in said
    assert "10.0.0.7" not in said and "sk-1" not in said


@pytest.mark.promise("CHAT-04")
@pytest.mark.parametrize("at", ["http://10.0.0.7:8080/v1", "10.0.0.7:8080", "localhost:8080"])
def test_a_failure_without_a_text_of_its_own_shows_no_address(at: str) -> None:
    ended = RunFailed(run_id=RUN, code="new", error=f"({at}) is away: {at}", usage=Usage())
    said = only(told(AT_WORK, ended)).text
    assert said == f"This did not work: ({SOME_ADDRESS}) is away: {SOME_ADDRESS}"


def test_a_very_long_answer_is_cut_and_says_so() -> None:
    long = fold(ModelAnswered(run_id=RUN, turn=1, text="x" * (SHOWN + 7)), session=AT_WORK)
    said = only(told(long, completes("x" * (SHOWN + 7)))).text
    assert said.startswith("x" * SHOWN + "\n\n(") and " 7 " in said
    whole_ = only(told(long, completes("x" * (SHOWN + 7))))  # the same facts, the same words
    assert whole_.text == said


MORE = tuple(
    InputAdmitted(input_id=InputId(f"in{n}"), run_id=RUN, text="more", mode=Mode.STEER)
    for n in (1, 2)
)


@pytest.mark.promise("CHAT-04")
def test_a_finished_answer_is_shown_before_the_run_reads_more() -> None:
    steered = fold(*MORE, session=ANSWERED)
    reads = [InputPromoted(input_id=more.input_id, run_id=RUN) for more in MORE]
    said = only(told(steered, *reads))
    assert (said.delivery_id, said.text) == (f"out_{RUN}.t1", "yes")
    assert told(fold(*MORE, session=AT_WORK), *reads) == []  # it has not answered yet
    silent = fold(ModelAnswered(run_id=RUN, turn=1, text=" "), *MORE, session=AT_WORK)
    assert told(silent, *reads) == []


def test_a_run_that_was_stopped_says_nothing() -> None:
    stopped = fold(StopAsked(run_id=RUN, reason=SUPERSEDED), session=AT_WORK)
    assert told(stopped, CANCELLED) == []
    queued = fold(*begun()[:2])
    assert told(queued, *stop(queued, RUN, "enough")) == []
    assert told(fold(), *begun()[:2], *stop(queued, RUN, "enough")) == []


def test_a_long_answer_replies_with_its_first_part_and_has_its_name_on_the_last() -> None:
    parts = told(ANSWERED, completes("0123456789abcdefghijX"), split=tens)
    assert [(p.delivery_id, p.text, p.reply_to) for p in parts] == [
        (f"out_{RUN}.1", "0123456789", "5"),
        (f"out_{RUN}.2", "abcdefghij", ""),
        (f"out_{RUN}", "X", ""),
    ]


def test_a_text_that_the_platform_does_not_split_is_sent_as_it_is() -> None:
    nothing = messages(ANSWERED, fold(), (completes("yes"),), lambda platform, text: ())
    assert only(list(nothing)).text == "yes"


def test_buttons_are_on_the_last_part() -> None:
    before = fold(wants(CALL), starts(), session=AT_WORK)
    parts = told(before, parks("0123456789?", "red"), split=tens)
    assert [p.buttons for p in parts] == [(), (("red", f"q:{RUN}:{mark(CALL)}:0"),)]
    assert {p.reply_to for p in parts} == {""}


@pytest.mark.parametrize(
    "facts",
    [
        (wants(CALL), starts()),
        (wants(CALL), starts(), parks("Which?")),
        (requested(),),
        (FAILED,),
        (ModelAnswered(run_id=RUN, turn=1, text="yes"), completes("yes")),
    ],
)
def test_a_run_that_works_for_no_chat_says_nothing_in_one(facts: tuple[Fact, ...]) -> None:
    assert told(fold(*begun(Origin(platform="cli", progress=True))), *facts) == []
    session, said = AT_WORK, list[DeliveryQueued]()
    for fact in facts:
        said += told(session, fact)
        session = fold(fact, session=session)
    assert said != []


def test_other_facts_queue_no_messages() -> None:
    assert told(fold(), *begun()) == []
    assert told(AT_WORK, wants(CALL)) == []
    assert told(STARTED, settles()) == []
    assert told(STARTED, parks("")) == []  # it waits for a child


# How far it is.


def test_the_first_step_is_shown_and_the_message_says_how_it_ended() -> None:
    before = fold(wants(CALL), session=AT_WORK)
    shown = only(told(before, starts("make\n  all")))
    assert (shown.delivery_id, shown.text) == (f"pro_{RUN}", "Working: terminal: make all")
    assert (shown.reply_to, shown.buttons) == ("", ())
    done = fold(settles(), ModelAnswered(run_id=RUN, turn=2, text="yes"), session=STARTED)
    change, answer = told(done, completes("yes"))
    assert change == DeliveryQueued(
        delivery_id=DeliveryId(f"pro_{RUN}.end"),
        address=SAID.place,
        text="Done after 1 step.",
        of_run=RUN,
        edits=shown.delivery_id,
    )
    assert answer.delivery_id == f"out_{RUN}"


def test_only_the_first_step_makes_a_message() -> None:
    more = fold(settles(), wants(OTHER := CallId("other"), turn=2), session=STARTED)
    assert told(more, starts("make", OTHER)) == []
    twice = fold(starts("make", OTHER), settles(call_id=OTHER), session=more)
    change, _ = told(twice, FAILED)
    assert change.text == "Given up after 2 steps."


def test_a_call_that_shows_itself_is_no_step() -> None:
    before = fold(wants(CALL, OTHER := CallId("other")), session=AT_WORK)
    assert told(before, starts("Which?", quiet=True)) == []
    asked = fold(starts("Which?", quiet=True), session=before)
    first = only(told(asked, starts("make", OTHER)))
    assert (first.delivery_id, first.text) == (f"pro_{RUN}", "Working: terminal: make")
    alone = fold(settles(), settles(call_id=OTHER), session=asked)
    assert [m.delivery_id for m in told(alone, FAILED)] == [f"out_{RUN}"]


def test_a_stop_ends_the_message_that_shows_how_far_it_is() -> None:
    stopped = fold(StopAsked(run_id=RUN, reason="enough"), settles(), session=STARTED)
    change = only(told(stopped, CANCELLED))
    assert (change.edits, change.text) == (f"pro_{RUN}", "Stopped after 1 step.")


def test_without_progress_no_step_is_shown() -> None:
    plain = Origin(platform="tg", address=SAID)
    before = fold(*begun(plain), wants(CALL))
    assert told(before, starts()) == []
    done = fold(starts(), settles(), ModelAnswered(run_id=RUN, turn=2, text=""), session=before)
    assert [m.delivery_id for m in told(done, completes("yes"))] == [f"out_{RUN}"]


def test_a_step_is_one_short_line() -> None:
    assert step(starts()) == "terminal"
    assert step(starts(" a \n b\t c ")) == "terminal: a b c"
    assert step(starts("x" * STEP)) == "terminal: " + "x" * STEP
    assert step(starts("x" * (STEP + 1))) == "terminal: " + "x" * STEP + "…"


# Children.


@pytest.mark.parametrize("ending", [completes("yes"), FAILED, CANCELLED])
def test_a_child_says_nothing_of_its_work_nor_of_its_end(ending: Fact) -> None:
    child = fold(*begun(parent=PARENT), wants(CALL))
    assert told(child, starts()) == []
    done = fold(starts(), settles(), ModelAnswered(run_id=RUN, turn=2, text="yes"), session=child)
    assert told(done, ending) == []


def test_a_child_asks_like_any_run() -> None:
    child = fold(*begun(parent=PARENT), wants(CALL))
    assert only(told(child, requested())).delivery_id == f"ask_{REQUEST}"
    child = fold(starts(), session=child)
    asked = only(told(child, parks("Which?")))
    assert asked.text == "Which?"
    child = fold(parks("Which?"), session=child)
    assert only(told(child, settles("red"))).edits == asked.delivery_id


# Approvals.


def test_an_approval_is_asked_for_with_buttons_for_what_it_offers() -> None:
    asked = only(told(fold(wants(CALL), session=AT_WORK), requested("make all")))
    assert asked == DeliveryQueued(
        delivery_id=DeliveryId(f"ask_{REQUEST}"),
        address=SAID.place,
        text="**May this run?**\n```\nmake all\n```\n```\nIt builds.\n```",
        of_run=RUN,
        reply_to="5",
        buttons=(
            ("Allow once", f"a:{REQUEST}:once"),
            ("Allow in this session", f"a:{REQUEST}:session"),
            ("Deny", f"a:{REQUEST}:deny"),
        ),
        hosts=("a.example", "b.example"),
        verbatim=True,
    )
    less = only(told(AT_WORK, requested("make", Choice.ONCE, Choice.DENY)))
    assert [label for label, _ in less.buttons] == ["Allow once", "Deny"]


@given(st.text("`x\n ", max_size=30))
def test_nothing_in_a_command_ends_the_fence_it_is_shown_in(command: str) -> None:
    asked = only(told(AT_WORK, requested(command)))
    fence = asked.text.splitlines()[1]
    assert re.fullmatch("`{3,}", fence)
    assert fence not in command
    assert asked.text.count(f"{fence}\n{command}\n{fence}\n") == 1


def granted(choice: Choice) -> ApprovalGranted:
    return ApprovalGranted(run_id=RUN, request_id=REQUEST, choice=choice, by=OPERATOR)


@pytest.mark.parametrize(
    ("end", "word"),
    [
        (granted(Choice.ONCE), GRANTED[Choice.ONCE]),
        (granted(Choice.SESSION), GRANTED[Choice.SESSION]),
        (granted(Choice.ALWAYS), GRANTED[Choice.ALWAYS]),
        (ApprovalDenied(run_id=RUN, request_id=REQUEST, by=OPERATOR), "Denied"),
        (ApprovalExpired(run_id=RUN, request_id=REQUEST), EXPIRED),
        (ApprovalWithdrawn(run_id=RUN, request_id=REQUEST, reason="over"), WITHDRAWN),
    ],
)
def test_the_result_of_an_approval_replaces_the_question(end: Fact, word: str) -> None:
    assert only(told(ASKED, end)) == DeliveryQueued(
        delivery_id=DeliveryId(f"ask_{REQUEST}.end"),
        address=SAID.place,
        text=f"{word}: make",
        of_run=RUN,
        edits=DeliveryId(f"ask_{REQUEST}"),
    )


def test_a_long_command_is_shown_again_in_a_short_line() -> None:
    asked = fold(wants(CALL), requested("echo \n" + "x" * 200), session=AT_WORK)
    text = only(told(asked, granted(Choice.ONCE))).text
    assert text.startswith("Allowed once: echo xxx") and text.endswith("x…")
    assert len(text) == STEP + 1


def test_an_approval_that_was_asked_for_and_over_at_once_is_not_ended_twice() -> None:
    expired = ApprovalExpired(run_id=RUN, request_id=REQUEST)
    asked = told(AT_WORK, requested(), expired)
    assert [m.delivery_id for m in asked] == [f"ask_{REQUEST}"]


# Questions.


def test_a_question_has_a_button_for_each_option() -> None:
    before = fold(wants(CALL), starts(), session=AT_WORK)
    asked = only(told(before, parks("Which?", "red", "blue")))
    named = f"{RUN}:{mark(CALL)}"
    assert asked == DeliveryQueued(
        delivery_id=DeliveryId(f"ask_{RUN}.{mark(CALL)}"),
        address=SAID.place,
        text="Which?",
        of_run=RUN,
        buttons=(("red", f"q:{named}:0"), ("blue", f"q:{named}:1")),
        hosts=("a.example", "b.example"),
    )
    assert only(told(before, parks("Which?"))).buttons == ()


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (settles("blue"), "Which?\n\n→ blue"),
        (settles("Not run: stopped.", Outcome.ABORTED), "No longer asked."),
        (settles("It failed.", Outcome.FAILED), "No longer asked."),
        (settles("x" * ANSWER), "Which?\n\n→ " + "x" * ANSWER),
        (settles("x" * (ANSWER + 1)), "Which?\n\n→ " + "x" * ANSWER + "…"),
    ],
)
def test_the_result_of_a_question_replaces_it(end: Fact, text: str) -> None:
    change = only(told(QUESTION, end))
    assert (change.text, change.buttons, change.reply_to) == (text, (), "")
    assert change.edits == f"ask_{RUN}.{mark(CALL)}"
    assert change.delivery_id == f"ask_{RUN}.{mark(CALL)}.end"
    assert change.hosts == ("a.example", "b.example")


def test_a_long_question_is_cut_once_it_is_answered() -> None:
    asked = fold(wants(CALL), starts(), parks("y" * (LONGEST + 1)), session=AT_WORK)
    assert only(told(asked, settles("no"))).text == "y" * LONGEST + "…\n\n→ no"


# Buttons.


@given(st.text() | st.lists(st.text(":aq0x", max_size=5)).map(":".join))
def test_any_button_data_is_parsed_or_ignored(data: str) -> None:
    assert isinstance(parse_button(data), Answers | Chooses | None)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "a:apr_1",
        "a:apr_1:maybe",
        "a:apr_1:once:more",
        "b:apr_1:once",
        "q:run_1:mark:",
        "q:run_1:mark:-1",
        "q:run_1:mark:one",
        "q:run_1:mark:²",
        "q:run_1:mark:1\n",
        "q:run_1:mark:" + "9" * 5000,  # more digits than int() takes
        "q:run_1:1",
    ],
)
def test_unknown_button_data_means_nothing(data: str) -> None:
    assert parse_button(data) is None


def said(
    name: str, text: str = "", at: float = 0.0, edits: str = "", run_id: RunId = RUN
) -> QueuedReply:
    queued = DeliveryQueued(
        delivery_id=DeliveryId(name),
        address=SAID.place,
        text=text,
        of_run=run_id,
        edits=DeliveryId(edits),
    )
    return QueuedReply(queued, at)


@pytest.mark.parametrize(
    ("newest_first", "plain"),
    [
        ([], False),
        (["ask_apr_1"], True),
        (["ask_apr_1", "ask_apr_1.1", "out_run_0"], True),  # in two parts, below an answer
        (["out_run_0", "ask_apr_1"], False),
        (["ask_run_0.12345678", "ask_apr_1"], False),
        (["ask_apr_1", "ask_run_0.12345678"], False),  # what else is asked is not over
        (["ask_apr_1", "ask_apr_2"], False),
    ],
)
def test_an_answer_is_unambiguous_for_the_last_and_only_question(
    newest_first: list[str], plain: bool
) -> None:
    assert is_unambiguous(RequestId("apr_1"), [said(name) for name in newest_first], 100.0) is plain


def test_an_answer_is_unambiguous_if_only_command_replies_follow_the_question() -> None:
    answer = said("cmd_1", run_id=RunId(""))
    progress = said("pro_1.end", edits="pro_1")
    assert is_unambiguous(RequestId("apr_1"), [answer, progress, said("ask_apr_1")], 100.0)


@pytest.mark.parametrize(
    ("text", "seconds", "plain"),
    [
        (f"{WITHDRAWN}: connect to a.org", 1.0, False),
        (f"{EXPIRED}: x", 1.0, False),
        (f"{WITHDRAWN}: connect to a.org", GONE_S, True),
        ("Allowed once: x", 1.0, True),
    ],
)
def test_an_answer_is_ambiguous_shortly_after_another_question_ended(
    text: str, seconds: float, plain: bool
) -> None:
    gone = said("ask_apr_0.end", text, at=100.0 - seconds, edits="ask_apr_0")
    there = [said("ask_apr_1", at=99.9), gone, said("ask_apr_0")]
    assert is_unambiguous(RequestId("apr_1"), there, 100.0) is plain


@given(
    st.binary(min_size=12, max_size=12).map(lambda b: RequestId(f"apr_{b.hex()}")),
    st.sets(st.sampled_from(Choice), min_size=1),
)
def test_a_press_means_what_the_button_of_an_approval_was_made_for(
    request_id: RequestId, choices: set[Choice]
) -> None:
    asked = ApprovalRequested(
        run_id=RUN,
        call_id=CALL,
        request_id=request_id,
        command="c",
        description="d",
        execution="e",
        choices=tuple(choices),
        expires_at=1.0,
    )
    carried = [data for _, data in only(told(AT_WORK, asked)).buttons]
    assert [parse_button(data) for data in carried] == [
        Answers(request_id, choice)
        for choice in (Choice.ONCE, Choice.SESSION, Choice.DENY)
        if choice in choices
    ]
    assert all(len(data.encode()) <= 64 for data in carried)


@given(st.text(min_size=1), st.lists(st.text(min_size=1, max_size=60), max_size=6))
def test_a_press_means_the_option_the_button_of_a_question_was_made_for(
    call_id: str, options: list[str]
) -> None:
    called = CallId(call_id)
    before = fold(wants(called), starts(call_id=called), session=AT_WORK)
    buttons = only(told(before, parks("Which?", *options, call_id=called))).buttons
    assert [label for label, _ in buttons] == options
    assert [parse_button(data) for _, data in buttons] == [
        Chooses(RUN, mark(called), at) for at in range(len(options))
    ]
    assert all(len(data.encode()) <= 64 for _, data in buttons)


def test_a_call_has_a_mark_whatever_its_model_calls_it() -> None:
    assert re.fullmatch("[0-9a-f]{8}", mark(CallId("\udc80:x")))
    assert mark(CallId("a")) != mark(CallId("b"))


@given(st.data())
def test_no_two_messages_of_a_run_have_one_name_and_every_change_is_of_one_of_them(
    data: st.DataObject,
) -> None:
    session, queued = AT_WORK, list[DeliveryQueued]()

    def record(*facts: Fact) -> None:
        nonlocal session
        queued.extend(told(session, *facts, split=data.draw(st.sampled_from([whole, tens]))))
        session = fold(*facts, session=session)
        if session.runs and session.runs[RUN].status is RunPhase.QUEUED:  # it has waited
            session = fold(RunResumed(run_id=RUN), session=session)

    for turn in range(1, data.draw(st.integers(1, 4))):
        ids = [CallId(f"call-{turn}-{n}") for n in range(data.draw(st.integers(1, 3)))]
        record(wants(*ids, turn=turn))
        for call_id in ids:
            _live(record, call_id, data)
        if data.draw(st.booleans()):  # it has answered, and is given more
            more = InputAdmitted(
                input_id=InputId(f"in{turn}"), run_id=RUN, text="", mode=Mode.STEER
            )
            record(ModelAnswered(run_id=RUN, turn=10 + turn, text="So far."))
            record(more)
            record(InputPromoted(input_id=more.input_id, run_id=RUN))
    stopped = data.draw(st.booleans())
    if stopped:
        record(StopAsked(run_id=RUN, reason="enough"))
        record(CANCELLED)
    else:
        record(ModelAnswered(run_id=RUN, turn=9, text="It is done now."))
        record(completes("It is done now."))
    names = [m.delivery_id for m in queued]
    assert len(set(names)) == len(names)
    for at, message in enumerate(queued):
        assert message.edits == "" or message.edits in names[:at]
        assert message.address == SAID.place and message.of_run == RUN
        assert message.edits == "" or not message.buttons
    pressable = {m.delivery_id for m in queued if m.buttons}
    assert pressable <= {m.edits for m in queued}
    assert stopped or f"out_{RUN}" in names


def _live(record: Callable[..., None], call_id: CallId, data: st.DataObject) -> None:
    """One call from its wish to its result, as any can go."""
    request_id = RequestId(f"apr_{call_id}")
    if data.draw(st.booleans()):
        record(
            CallAsked(run_id=RUN, call_id=call_id, request_id=request_id),
            ApprovalRequested(
                run_id=RUN,
                call_id=call_id,
                request_id=request_id,
                command="make",
                description="",
                execution="e",
                choices=(Choice.ONCE, Choice.DENY),
                expires_at=9.0,
            ),
        )
        denied = ApprovalDenied(run_id=RUN, request_id=request_id, by=OPERATOR)
        record(denied, settles("no", Outcome.DENIED, call_id))
        return
    record(starts("make", call_id))
    if data.draw(st.booleans()):
        record(parks("Which of all of them?", "red", call_id=call_id))
    record(settles("red", call_id=call_id))
