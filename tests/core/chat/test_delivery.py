"""A message that may have arrived is never sent again without a word about it."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from typing_extensions import override

from holdfast.core.delivery import (
    DOUBTS,
    GIVE_UP_S,
    LONGEST_RETRY_S,
    Delivery,
    Doubt,
    Event,
    Hold,
    OnAmbiguous,
    Policy,
    Rest,
    Send,
    SendAbandoned,
    SendAccepted,
    SendDeferred,
    SendDoubted,
    SendHeld,
    SendReleased,
    SendStarted,
    Status,
    Step,
    WaitUntil,
    defer,
    doubt,
    evolve,
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


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: Status, fact: str) -> None:
    delivery = Delivery(ID, status=status)
    if (status.value, fact) in ALLOWED:
        assert evolve(delivery, FACTS[fact]).status.value == ALLOWED[status.value, fact]
    else:
        with pytest.raises(IllegalTransition, match=f"while delivery out is {status}"):
            evolve(delivery, FACTS[fact])
        assert delivery == Delivery(ID, status=status)


@pytest.mark.parametrize("status", Status)
def test_whatever_is_not_over_can_be_given_up(status: Status) -> None:
    assert ((status.value, "we give up") in ALLOWED) is not status.final


PLATFORMS = {
    "drops copies": Policy(idempotent=True, on_ambiguous=OnAmbiguous.HOLD),
    "resend": Policy(idempotent=False, on_ambiguous=OnAmbiguous.RESEND_MARKED),
    "hold": Policy(idempotent=False, on_ambiguous=OnAmbiguous.HOLD),
}


@pytest.mark.parametrize(
    ("status", "platform", "step"),
    [
        ("pending", "drops copies", Send(marked=False)),
        ("pending", "resend", Send(marked=True)),
        ("pending", "hold", Send(marked=True)),
        ("sending", "drops copies", Doubt()),
        ("sending", "resend", Doubt()),
        ("sending", "hold", Doubt()),
        ("ambiguous", "drops copies", Send(marked=False)),
        ("ambiguous", "resend", Send(marked=True)),
        ("ambiguous", "hold", Hold()),
        ("held", "resend", Rest()),
        ("sent", "resend", Rest()),
        ("dead", "resend", Rest()),
    ],
)
def test_what_may_have_arrived_is_marked_held_or_left_to_the_platform(
    status: str, platform: str, step: Step
) -> None:
    delivery = Delivery(ID, status=Status(status), repeated=True, doubts=1)
    assert next_step(delivery, PLATFORMS[platform], now=0.0) == step


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_deferred_message_goes_out_when_it_is_due_and_unmarked(platform: str) -> None:
    delivery = Delivery(ID, status=Status.RETRY, due_at=60.0)
    assert next_step(delivery, PLATFORMS[platform], now=59.0) == WaitUntil(60.0)
    assert next_step(delivery, PLATFORMS[platform], now=60.0) == Send(marked=False)


def test_a_send_without_an_answer_marks_every_later_one() -> None:
    doubted = evolve(Delivery(ID, status=Status.SENDING), FACTS["no answer"])
    deferred = evolve(evolve(doubted, FACTS["we send"]), FACTS["not now"])
    assert next_step(deferred, PLATFORMS["resend"], now=60.0) == Send(marked=True)


TOLD = Delivery(ID, 100.0, Status.SENDING, 3, True, 1, 50.0, "41", "before")


@pytest.mark.parametrize(
    ("fact", "delivery"),
    [
        ("it has it", Delivery(ID, 100.0, Status.SENT, 3, True, 1, 50.0, "42", "")),
        ("not now", Delivery(ID, 100.0, Status.RETRY, 3, True, 1, 60.0, "41", "busy")),
        ("no answer", Delivery(ID, 100.0, Status.AMBIGUOUS, 3, True, 2, 0.0, "41", "cut")),
        ("we give up", Delivery(ID, 100.0, Status.DEAD, 3, True, 1, 50.0, "41", "blocked")),
    ],
)
def test_what_the_platform_says_is_kept_and_nothing_else_changes(
    fact: str, delivery: Delivery
) -> None:
    assert evolve(TOLD, FACTS[fact]) == delivery


def test_every_send_counts_and_the_reason_of_a_hold_is_kept() -> None:
    pending = Delivery(ID, 100.0, Status.PENDING, 3, reason="before")
    assert evolve(pending, FACTS["we send"]) == Delivery(
        ID, 100.0, Status.SENDING, 4, reason="before"
    )
    held = evolve(pending, FACTS["a person must look"])
    assert held == Delivery(ID, 100.0, Status.HELD, 3, reason="ambiguous")


@pytest.mark.parametrize("status", [Status.HELD, Status.DEAD])
def test_what_a_person_wants_sent_is_as_new_but_for_the_doubt(status: Status) -> None:
    old = Delivery(ID, 100.0, status, 9, repeated=True, doubts=DOUBTS, reason="blocked")
    assert evolve(old, FACTS["a person says send"]) == Delivery(
        ID, 500.0, Status.PENDING, 0, repeated=True, reason="blocked"
    )


@pytest.mark.parametrize("status", [Status.AMBIGUOUS, Status.RETRY])
def test_there_is_an_end_to_copies_however_often_the_gateway_died(status: Status) -> None:
    often = Delivery(ID, status=status, repeated=True, doubts=DOUBTS - 1)
    assert next_step(often, PLATFORMS["resend"], now=0.0) == Send(marked=True)
    too_often = replace(often, doubts=DOUBTS)
    assert next_step(too_often, PLATFORMS["resend"], now=0.0) == Hold()
    assert next_step(too_often, PLATFORMS["drops copies"], now=0.0) == Send(marked=False)
    assert next_step(too_often, PLATFORMS["drops copies"], now=GIVE_UP_S) == Hold()


def test_a_copy_waits_longer_each_time() -> None:
    waits = []
    for doubts in (0, 1, 2, 40):
        said = doubt(Delivery(ID, status=Status.SENDING, doubts=doubts), "no answer", now=100.0)
        then = evolve(Delivery(ID, status=Status.SENDING, doubts=doubts), said)
        assert next_step(then, PLATFORMS["drops copies"], 100.0) == WaitUntil(said.due_at)
        waits.append(said.due_at - 100.0)
    assert waits == [1.0, 2.0, 4.0, 300.0]


def _wait(attempts: int, after_s: float = 0.0, jitter: float = 0.0) -> float:
    """How long it waits after that many attempts."""
    delivery = Delivery(ID, 100.0, Status.SENDING, attempts)
    said = defer(delivery, "busy", after_s, jitter, now=1_000.0)
    assert isinstance(said, SendDeferred)
    assert (said.delivery_id, said.reason) == (ID, "busy")
    assert evolve(delivery, said).due_at == said.due_at
    return said.due_at - 1_000.0


def test_each_refusal_doubles_the_wait_up_to_a_bound() -> None:
    assert [_wait(n, jitter=0.0) for n in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]
    assert _wait(2, jitter=0.5) == 1.5
    assert _wait(50, jitter=0.0) == _wait(10_000, jitter=0.0) == LONGEST_RETRY_S / 2


@given(
    attempts=st.integers(1, 10_000),
    jitter=st.floats(0, 1, exclude_max=True),
    after_s=st.floats(0, 10_000),
)
def test_it_never_comes_sooner_than_the_platform_asked_nor_at_once(
    attempts: int, jitter: float, after_s: float
) -> None:
    wait_s = _wait(attempts, after_s, jitter)
    assert wait_s >= max(0.5, after_s) - 1e-6
    assert wait_s <= max(after_s, LONGEST_RETRY_S) + 1e-6


@pytest.mark.parametrize(("age_s", "over"), [(GIVE_UP_S - 1, False), (GIVE_UP_S, True)])
def test_after_a_day_it_is_given_up_with_the_reason(age_s: float, over: bool) -> None:
    delivery = Delivery(ID, 100.0, Status.SENDING, 400)
    said = defer(delivery, "busy", 1.0, 0.5, now=100.0 + age_s)
    assert isinstance(said, SendAbandoned) is over
    assert said.reason == ("gave up after a day: busy" if over else "busy")


def test_a_day_counts_from_when_a_person_wanted_it_sent() -> None:
    dead = Delivery(ID, 0.0, Status.DEAD, 400)
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

    @precondition(lambda self: self.delivery.status is not Status.SENDING)
    @rule()
    def the_outbox_looks(self) -> None:
        match next_step(self.delivery, self.policy, self.now):
            case Send(marked=marked):
                self.marked = marked
                self.record(FACTS["we send"])
            case Hold():
                self.record(FACTS["a person must look"])
            case WaitUntil(due_at=due_at):
                assert due_at > self.now
                self.now = due_at
            case Doubt() | Rest():
                assert self.delivery.status in (Status.HELD, Status.SENT, Status.DEAD)

    def arrive(self) -> None:
        if not (self.policy.idempotent and self.copies):
            self.copies += 1
            self.unmarked += not self.marked

    @precondition(lambda self: self.delivery.status is Status.SENDING)
    @rule(answer=st.sampled_from(["it has it", "not now", "we give up"]))
    def the_platform_answers(self, answer: str) -> None:
        if answer == "it has it":
            self.arrive()
        self.record(FACTS[answer])

    @precondition(lambda self: self.delivery.status is Status.SENDING)
    @rule(arrived=st.booleans())
    def the_process_ends_while_sending(self, arrived: bool) -> None:
        if arrived:
            self.arrive()
        assert next_step(self.delivery, self.policy, self.now) == Doubt()
        self.record(FACTS["no answer"])

    @precondition(lambda self: self.delivery.status in (Status.HELD, Status.DEAD))
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
            if self.delivery.status is Status.SENDING:
                self.record(FACTS["it has it"])
            elif self.delivery.status not in (Status.HELD, Status.SENT, Status.DEAD):
                self.the_outbox_looks()
        assert self.delivery.status in (Status.HELD, Status.SENT, Status.DEAD)


TestPost = Post.TestCase
TestPost.settings = settings(max_examples=100, phases=set(Phase) - {Phase.explain}, deadline=None)
