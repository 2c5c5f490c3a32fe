"""What a chat hears of a run: each thing once, under its own name, where the words came from."""

import re
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.address import Address, ChatType
from holdfast.core.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Choice,
)
from holdfast.core.call import CallAsked, CallParked, CallSettled, CallStarted, Outcome
from holdfast.core.delivery import DeliveryQueued
from holdfast.core.inbox import InputAdmitted, InputPromoted, Mode
from holdfast.core.messages import Proposal
from holdfast.core.replies import (
    ANSWER,
    PASSED_ON,
    STEP,
    SUPERSEDED,
    UNREAD,
    Answers,
    Chooses,
    Split,
    mark,
    messages,
    read_press,
    step,
)
from holdfast.core.replies import (
    QUESTION as LONGEST,
)
from holdfast.core.run import (
    ModelAnswered,
    Origin,
    Parent,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunQueued,
    RunResumed,
    RunStarted,
    Status,
    StopAsked,
)
from holdfast.core.session import Session, evolve, stop
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


def test_the_answer_goes_where_the_words_came_from_and_replies_to_them() -> None:
    assert only(told(ANSWERED, completes("yes"))) == DeliveryQueued(
        delivery_id=DeliveryId(f"out_{RUN}"),
        address=SAID.place,
        text="yes",
        of_run=RUN,
        reply_to="5",
        hosts=("a.example", "b.example"),
    )


def test_a_run_without_a_word_says_that_it_is_done() -> None:
    assert only(told(ANSWERED, completes(" \n"))).text == "(Done; there is nothing to say.)"


def test_a_run_that_failed_says_why() -> None:
    failed = only(told(AT_WORK, FAILED))
    assert failed.text == "This did not work: The model is away."
    assert (failed.delivery_id, failed.reply_to) == (f"out_{RUN}", "5")


def test_a_run_that_failed_with_words_unread_says_what_becomes_of_them() -> None:
    words = InputAdmitted(input_id=InputId("more"), run_id=RUN, text="and this", mode=Mode.STEER)
    unread = fold(words, session=AT_WORK)
    failed = only(told(unread, FAILED))
    assert failed.text == f"This did not work: The model is away.{PASSED_ON}"
    stuck = only(told(unread, replace(FAILED, code="stuck")))
    assert stuck.text == f"This did not work: The model is away.{UNREAD}"
    assert only(told(fold(*begun()[:2]), FAILED)).text.endswith(UNREAD)


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


def test_what_no_platform_would_split_is_sent_as_it_is() -> None:
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


def test_facts_that_nobody_is_told_of_queue_nothing() -> None:
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


def test_where_it_cannot_be_shown_it_is_not() -> None:
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
        (granted(Choice.ONCE), "Allowed once"),
        (granted(Choice.SESSION), "Allowed in this session"),
        (granted(Choice.ALWAYS), "Allowed for good"),
        (ApprovalDenied(run_id=RUN, request_id=REQUEST, by=OPERATOR), "Denied"),
        (ApprovalExpired(run_id=RUN, request_id=REQUEST), "Denied: nobody answered in time"),
        (ApprovalWithdrawn(run_id=RUN, request_id=REQUEST, reason="over"), "No longer needed"),
    ],
)
def test_what_became_of_an_approval_takes_the_place_of_the_question(end: Fact, word: str) -> None:
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
def test_what_became_of_a_question_takes_its_place(end: Fact, text: str) -> None:
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
def test_whatever_is_pressed_is_read_or_is_none_of_ours(data: str) -> None:
    assert isinstance(read_press(data), Answers | Chooses | None)


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
def test_what_no_button_of_ours_carries_means_nothing(data: str) -> None:
    assert read_press(data) is None


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
    assert [read_press(data) for data in carried] == [
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
    assert [read_press(data) for _, data in buttons] == [
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
        if session.runs and session.runs[RUN].status is Status.QUEUED:  # it has waited
            session = fold(RunResumed(run_id=RUN), session=session)

    for turn in range(1, data.draw(st.integers(1, 4))):
        ids = [CallId(f"call-{turn}-{n}") for n in range(data.draw(st.integers(1, 3)))]
        record(wants(*ids, turn=turn))
        for call_id in ids:
            _live(record, call_id, data)
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
