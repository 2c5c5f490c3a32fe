"""A message that may have arrived is never sent again without a word about it."""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from typing_extensions import override

from holdfast.core.delivery import (
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
    "a person says send": SendReleased(delivery_id=ID),
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
}


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: Status, fact: str) -> None:
    delivery = Delivery(ID, status)
    if (status.value, fact) in ALLOWED:
        assert evolve(delivery, FACTS[fact]).status.value == ALLOWED[status.value, fact]
    else:
        with pytest.raises(IllegalTransition, match=f"while delivery out is {status}"):
            evolve(delivery, FACTS[fact])
        assert delivery == Delivery(ID, status)


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
    delivery = Delivery(ID, Status(status), repeated=True)
    assert next_step(delivery, PLATFORMS[platform], now=0.0) == step


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_deferred_message_goes_out_when_it_is_due_and_unmarked(platform: str) -> None:
    delivery = Delivery(ID, Status.RETRY, due_at=60.0)
    assert next_step(delivery, PLATFORMS[platform], now=59.0) == WaitUntil(60.0)
    assert next_step(delivery, PLATFORMS[platform], now=60.0) == Send(marked=False)


def test_a_send_without_an_answer_marks_every_later_one() -> None:
    doubted = evolve(Delivery(ID, Status.SENDING), FACTS["no answer"])
    deferred = evolve(evolve(doubted, FACTS["we send"]), FACTS["not now"])
    assert next_step(deferred, PLATFORMS["resend"], now=60.0) == Send(marked=True)


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

    @precondition(lambda self: self.delivery.status is Status.HELD)
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
        assert again.attempts == sum(isinstance(f, SendStarted) for f in self.journal)

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
