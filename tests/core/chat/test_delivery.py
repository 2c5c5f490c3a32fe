"""A message that may have arrived is never sent again without a word about it."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from typing_extensions import override

from holdfast.core.chat.delivery import (
    GIVE_UP_S,
    LATE_S,
    LEAST_TRIES,
    LONGEST_DOUBT_S,
    LONGEST_RETRY_S,
    AbandonDelivery,
    Delivery,
    DeliveryPolicy,
    DeliveryRests,
    DeliveryStatus,
    DoubtDelivery,
    Event,
    Hold,
    OnAmbiguous,
    Send,
    SendAbandoned,
    SendAccepted,
    SendDeferred,
    SendDoubted,
    SendHeld,
    SendReleased,
    SendStarted,
    Step,
    WaitUntil,
    cut,
    defer,
    doubt,
    evolve,
    gave_up,
    is_late,
    next_step,
)
from holdfast.core.types import DeliveryId
from holdfast.errors import IllegalTransition

ID = DeliveryId("out")
FACTS: dict[str, Event] = {
    "we send": SendStarted(delivery_id=ID),
    "it has it": SendAccepted(delivery_id=ID, external_id="42"),
    "not now": SendDeferred(delivery_id=ID, reason="busy", due_at=60.0),
    "no answer": SendDoubted(delivery_id=ID, reason="cut"),
    "a person must look": SendHeld(delivery_id=ID, reason="ambiguous"),
    "a person says send": SendReleased(delivery_id=ID, at=500.0),
    "we give up": SendAbandoned(delivery_id=ID, reason="blocked"),
}
ALLOWED = {
    ("pending", "we send"): "sending",
    ("pending", "a person must look"): "held",
    ("pending", "we give up"): "dead",
    ("sending", "it has it"): "sent",
    ("sending", "not now"): "retry",
    ("sending", "no answer"): "ambiguous",
    ("sending", "we give up"): "dead",
    ("retry", "we send"): "sending",
    ("retry", "a person must look"): "held",
    ("retry", "we give up"): "dead",
    ("ambiguous", "we send"): "sending",
    ("ambiguous", "a person must look"): "held",
    ("ambiguous", "we give up"): "dead",
    ("held", "a person says send"): "pending",
    ("held", "we give up"): "dead",
    ("dead", "a person says send"): "pending",
}


@pytest.mark.parametrize("status", DeliveryStatus)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: DeliveryStatus, fact: str) -> None:
    delivery = Delivery(ID, status=status)
    if (status.value, fact) in ALLOWED:
        assert evolve(delivery, FACTS[fact]).status.value == ALLOWED[status.value, fact]
    else:
        with pytest.raises(IllegalTransition, match=f"while delivery out is {status}"):
            evolve(delivery, FACTS[fact])
        assert delivery == Delivery(ID, status=status)


@pytest.mark.parametrize("status", DeliveryStatus)
def test_every_unfinished_delivery_can_be_given_up(status: DeliveryStatus) -> None:
    assert ((status.value, "we give up") in ALLOWED) is not status.final


PLATFORMS = {
    "drops copies": DeliveryPolicy(idempotent=True, on_ambiguous=OnAmbiguous.HOLD),
    "resend": DeliveryPolicy(idempotent=False, on_ambiguous=OnAmbiguous.RESEND_MARKED),
    "hold": DeliveryPolicy(idempotent=False, on_ambiguous=OnAmbiguous.HOLD),
}


@pytest.mark.parametrize(
    ("status", "platform", "step"),
    [
        ("pending", "drops copies", Send(marked=False)),
        ("pending", "resend", Send(marked=True)),
        ("pending", "hold", Send(marked=True)),
        ("sending", "drops copies", DoubtDelivery()),
        ("sending", "resend", DoubtDelivery()),
        ("sending", "hold", DoubtDelivery()),
        ("ambiguous", "drops copies", Send(marked=False)),
        ("ambiguous", "resend", Send(marked=True)),
        ("ambiguous", "hold", Hold()),
        ("held", "resend", DeliveryRests()),
        ("sent", "resend", DeliveryRests()),
        ("dead", "resend", DeliveryRests()),
    ],
)
def test_an_ambiguous_delivery_is_marked_held_or_left_to_the_platform(
    status: str, platform: str, step: Step
) -> None:
    delivery = Delivery(ID, status=DeliveryStatus(status), repeated=True, doubts=1)
    assert next_step(delivery, PLATFORMS[platform], now=0.0) == step


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_deferred_message_goes_out_when_it_is_due_and_unmarked(platform: str) -> None:
    delivery = Delivery(ID, status=DeliveryStatus.RETRY, due_at=60.0)
    assert next_step(delivery, PLATFORMS[platform], now=59.0) == WaitUntil(60.0)
    assert next_step(delivery, PLATFORMS[platform], now=60.0) == Send(marked=False)


def test_a_send_without_an_answer_marks_every_later_one() -> None:
    doubted = evolve(Delivery(ID, status=DeliveryStatus.SENDING), FACTS["no answer"])
    deferred = evolve(evolve(doubted, FACTS["we send"]), FACTS["not now"])
    assert next_step(deferred, PLATFORMS["resend"], now=60.0) == Send(marked=True)


TOLD = Delivery(ID, 100.0, DeliveryStatus.SENDING, 3, True, 1, 50.0, "41", "before")


@pytest.mark.parametrize(
    ("fact", "delivery"),
    [
        ("it has it", Delivery(ID, 100.0, DeliveryStatus.SENT, 3, True, 1, 50.0, "42", "")),
        ("not now", Delivery(ID, 100.0, DeliveryStatus.RETRY, 3, True, 1, 60.0, "41", "busy")),
        ("no answer", Delivery(ID, 100.0, DeliveryStatus.AMBIGUOUS, 3, True, 2, 0.0, "41", "cut")),
        ("we give up", Delivery(ID, 100.0, DeliveryStatus.DEAD, 3, True, 1, 50.0, "41", "blocked")),
    ],
)
def test_an_answer_of_the_platform_changes_only_its_own_fields(
    fact: str, delivery: Delivery
) -> None:
    assert evolve(TOLD, FACTS[fact]) == delivery


def test_every_send_counts_and_the_reason_of_a_hold_is_kept() -> None:
    pending = Delivery(ID, 100.0, DeliveryStatus.PENDING, 3, reason="before")
    assert evolve(pending, FACTS["we send"]) == Delivery(
        ID, 100.0, DeliveryStatus.SENDING, 4, reason="before"
    )
    held = evolve(pending, FACTS["a person must look"])
    assert held == Delivery(ID, 100.0, DeliveryStatus.HELD, 3, reason="ambiguous")


@pytest.mark.parametrize("status", [DeliveryStatus.HELD, DeliveryStatus.DEAD])
def test_a_resent_delivery_is_new_except_that_it_may_have_arrived(status: DeliveryStatus) -> None:
    old = Delivery(ID, 100.0, status, 9, repeated=True, doubts=8, reason="blocked")
    assert evolve(old, FACTS["a person says send"]) == Delivery(
        ID, 500.0, DeliveryStatus.PENDING, 0, repeated=True, reason="blocked"
    )


@pytest.mark.parametrize("status", [DeliveryStatus.AMBIGUOUS, DeliveryStatus.RETRY])
@pytest.mark.parametrize(("platform", "marked"), [("resend", True), ("drops copies", False)])
def test_an_ambiguous_delivery_is_sent_again_however_often_it_was_ambiguous(
    status: DeliveryStatus, platform: str, marked: bool
) -> None:
    often = Delivery(ID, status=status, attempts=500, repeated=True, doubts=500)
    assert next_step(often, PLATFORMS[platform], now=GIVE_UP_S - 1) == Send(marked=marked)
    assert next_step(often, PLATFORMS[platform], now=GIVE_UP_S) == AbandonDelivery()


def test_only_what_was_tried_is_too_old() -> None:
    """A gateway that was down for days has an old message, and has not tried it yet."""
    old = Delivery(
        ID, status=DeliveryStatus.AMBIGUOUS, attempts=LEAST_TRIES - 1, repeated=True, doubts=1
    )
    assert next_step(old, PLATFORMS["resend"], now=10 * GIVE_UP_S) == Send(marked=True)
    assert isinstance(defer(old, "busy", 0.0, 0.0, now=10 * GIVE_UP_S), SendDeferred)


def test_a_copy_waits_longer_each_time() -> None:
    waits = []
    for doubts in (0, 1, 2, 40):
        sending = Delivery(ID, status=DeliveryStatus.SENDING, doubts=doubts)
        said = doubt(sending, "no answer", jitter=1.0, now=100.0)
        then = evolve(sending, said)
        assert next_step(then, PLATFORMS["drops copies"], 100.0) == WaitUntil(said.due_at)
        waits.append(said.due_at - 100.0)
        assert doubt(sending, "no answer", jitter=0.0, now=100.0).due_at == 100.0 + waits[-1] / 2
    assert waits == [1.0, 2.0, 4.0, LONGEST_DOUBT_S]


def test_after_a_crash_a_copy_goes_at_once_and_after_another_it_waits() -> None:
    sending = Delivery(ID, status=DeliveryStatus.SENDING)
    waits = [cut(replace(sending, doubts=n), "cut", now=100.0).due_at - 100.0 for n in (0, 1, 2, 3)]
    assert waits == [0.0, 1.0, 2.0, 4.0]


def test_the_operator_is_told_of_what_waits_for_an_hour() -> None:
    assert [is_late(Delivery(ID, 100.0), 100.0 + s) for s in (LATE_S - 1, LATE_S)] == [False, True]


def _wait(attempts: int, after_s: float = 0.0, jitter: float = 0.0) -> float:
    """How long it waits after that many attempts."""
    delivery = Delivery(ID, 100.0, DeliveryStatus.SENDING, attempts)
    said = defer(delivery, "busy", after_s, jitter, now=1_000.0)
    assert isinstance(said, SendDeferred)
    assert (said.delivery_id, said.reason) == (ID, "busy")
    assert evolve(delivery, said).due_at == said.due_at
    return said.due_at - 1_000.0


def test_each_refusal_doubles_the_wait_up_to_a_bound() -> None:
    assert [_wait(n, jitter=0.0) for n in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert _wait(2, jitter=0.5) == 1.5
    assert _wait(50, jitter=0.0) == _wait(10_000, jitter=0.0) == LONGEST_RETRY_S / 2


@given(attempts=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_it_never_comes_again_at_once(attempts: int, jitter: float) -> None:
    assert 0.5 - 1e-6 <= _wait(attempts, 0.0, jitter) <= LONGEST_RETRY_S + 1e-6


@given(attempts=st.integers(1, 10_000), after_s=st.floats(0.01, 10_000))
def test_a_wait_that_the_platform_asks_for_is_obeyed(attempts: int, after_s: float) -> None:
    assert _wait(attempts, after_s) == pytest.approx(after_s)


@pytest.mark.parametrize(("age_s", "over"), [(GIVE_UP_S - 1, False), (GIVE_UP_S, True)])
def test_after_days_it_is_given_up_with_the_reason(age_s: float, over: bool) -> None:
    delivery = Delivery(ID, 100.0, DeliveryStatus.SENDING, 400)
    said = defer(delivery, "busy", 1.0, 0.5, now=100.0 + age_s)
    assert isinstance(said, SendAbandoned) is over
    assert said.reason == (gave_up("busy") if over else "busy")


def test_the_days_count_from_when_a_person_wanted_it_sent() -> None:
    dead = Delivery(ID, 0.0, DeliveryStatus.DEAD, 400)
    again = evolve(evolve(dead, SendReleased(delivery_id=ID, at=GIVE_UP_S)), FACTS["we send"])
    assert isinstance(defer(again, "busy", 0.0, 0.0, now=GIVE_UP_S + 60), SendDeferred)


class Post(RuleBasedStateMachine):
    """One message, a moody platform that may lose its answers, crashes, and a person."""

    @initialize(platform=st.sampled_from(sorted(PLATFORMS)))
    def choose(self, platform: str) -> None:
        self.policy = PLATFORMS[platform]
        self.journal: list[Event] = []
        self.delivery = Delivery(ID)
        self.now = 0.0
        self.copies = 0  # what the platform holds
        self.unmarked = 0
        self.marked = False

    def record(self, fact: Event) -> None:
        self.delivery = evolve(self.delivery, fact)
        self.journal.append(fact)

    @precondition(lambda self: self.delivery.status is not DeliveryStatus.SENDING)
    @rule()
    def the_outbox_looks(self) -> None:
        match next_step(self.delivery, self.policy, self.now):
            case Send(marked=marked):
                self.marked = marked
                self.record(FACTS["we send"])
            case Hold():
                self.record(FACTS["a person must look"])
            case AbandonDelivery():
                self.record(FACTS["we give up"])
            case WaitUntil(due_at=due_at):
                assert due_at > self.now
                self.now = due_at
            case DoubtDelivery() | DeliveryRests():
                assert self.delivery.status in (
                    DeliveryStatus.HELD,
                    DeliveryStatus.SENT,
                    DeliveryStatus.DEAD,
                )

    def arrive(self) -> None:
        if not (self.policy.idempotent and self.copies):
            self.copies += 1
            self.unmarked += not self.marked

    @precondition(lambda self: self.delivery.status is DeliveryStatus.SENDING)
    @rule(answer=st.sampled_from(["it has it", "not now", "we give up"]))
    def the_platform_answers(self, answer: str) -> None:
        if answer == "it has it":
            self.arrive()
        self.record(FACTS[answer])

    @precondition(lambda self: self.delivery.status is DeliveryStatus.SENDING)
    @rule(arrived=st.booleans())
    def the_process_ends_while_sending(self, arrived: bool) -> None:
        if arrived:
            self.arrive()
        assert next_step(self.delivery, self.policy, self.now) == DoubtDelivery()
        self.record(FACTS["no answer"])

    @precondition(lambda self: self.delivery.status in (DeliveryStatus.HELD, DeliveryStatus.DEAD))
    @rule()
    def a_person_wants_it_sent(self) -> None:
        self.record(FACTS["a person says send"])

    @invariant()
    def no_copy_but_the_first_goes_out_unmarked(self) -> None:
        assert getattr(self, "unmarked", 0) <= 1

    @invariant()
    def the_journal_tells_the_same_story(self) -> None:
        again = Delivery(ID)
        for fact in getattr(self, "journal", []):
            again = evolve(again, fact)
        assert again == getattr(self, "delivery", again)
        attempts = 0
        for fact in getattr(self, "journal", []):
            attempts = 0 if isinstance(fact, SendReleased) else attempts
            attempts += isinstance(fact, SendStarted)
        assert again.attempts == attempts

    @override
    def teardown(self) -> None:
        """Never stuck: with a platform that answers, it arrives or a person is asked."""
        for _ in range(4):
            if self.delivery.status is DeliveryStatus.SENDING:
                self.record(FACTS["it has it"])
            elif self.delivery.status not in (
                DeliveryStatus.HELD,
                DeliveryStatus.SENT,
                DeliveryStatus.DEAD,
            ):
                self.the_outbox_looks()
        assert self.delivery.status in (
            DeliveryStatus.HELD,
            DeliveryStatus.SENT,
            DeliveryStatus.DEAD,
        )


TestPost = Post.TestCase
TestPost.settings = settings(max_examples=100, phases=set(Phase) - {Phase.explain}, deadline=None)
