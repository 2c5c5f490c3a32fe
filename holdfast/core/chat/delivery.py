"""The delivery: one message on its way out, and what is known about its arrival.

Sending is recorded before the platform is called and its answer after. What is
found sending after a crash is *ambiguous*: the platform may have it. Where the
platform has an idempotent send it is simply sent again; elsewhere the policy says
whether it goes out once more, marked as possibly repeated, or is held for a person.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.address import Address
from holdfast.core.types import DeliveryId, Fact, RunId, Value
from holdfast.errors import IllegalTransition


class Status(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    RETRY = "retry"  # the platform said no for now; due again at a time
    AMBIGUOUS = "ambiguous"  # the platform may or may not have it
    HELD = "held"  # waits for a person
    SENT = "sent"
    DEAD = "dead"  # given up, visibly

    @property
    def final(self) -> bool:
        return self in {Status.SENT, Status.DEAD}


class OnAmbiguous(StrEnum):
    RESEND_MARKED = "resend_marked"
    HOLD = "hold"


class DeliveryQueued(Fact, tag="delivery.queued", omit_defaults=True):
    """A message on its way to a chat, behind those before it there."""

    delivery_id: DeliveryId
    address: Address  # where; whoever spoke there does not matter
    text: str  # markdown
    of_run: RunId = RunId("")  # that it belongs to, if to one
    reply_to: str = ""  # the platform's name for the message it answers
    edits: DeliveryId = DeliveryId("")  # that it takes the place of
    buttons: tuple[tuple[str, str], ...] = ()  # what each says, and what a press of it means
    hosts: tuple[str, ...] = ()  # that the user named: other addresses are disarmed
    perishable: bool = False  # worth nothing after a restart
    verbatim: bool = False  # somebody judges what it shows: no address in it is disarmed


class SendStarted(Fact, tag="delivery.started"):
    delivery_id: DeliveryId


class SendAccepted(Fact, tag="delivery.sent"):
    delivery_id: DeliveryId
    external_id: str


class SendDeferred(Fact, tag="delivery.retry"):
    delivery_id: DeliveryId
    reason: str
    due_at: float


class SendDoubted(Fact, tag="delivery.ambiguous", omit_defaults=True):
    delivery_id: DeliveryId
    reason: str
    due_at: float = 0.0  # no copy before that


class SendHeld(Fact, tag="delivery.held"):
    delivery_id: DeliveryId
    reason: str


class SendReleased(Fact, tag="delivery.released"):
    """A person wants it sent again."""

    delivery_id: DeliveryId
    at: float = 0.0  # when; from here on its age counts


class SendAbandoned(Fact, tag="delivery.dead"):
    delivery_id: DeliveryId
    reason: str


Event = (
    SendStarted
    | SendAccepted
    | SendDeferred
    | SendDoubted
    | SendHeld
    | SendReleased
    | SendAbandoned
)

P, S, R, A, H, D = (
    Status.PENDING,
    Status.SENDING,
    Status.RETRY,
    Status.AMBIGUOUS,
    Status.HELD,
    Status.DEAD,
)

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[Status, type[Event]], Status] = {
    (P, SendStarted): S,
    (P, SendHeld): H,
    (P, SendAbandoned): D,
    (S, SendAccepted): Status.SENT,
    (S, SendDeferred): R,
    (S, SendDoubted): A,
    (S, SendAbandoned): D,
    (R, SendStarted): S,
    (R, SendHeld): H,
    (R, SendAbandoned): D,
    (A, SendStarted): S,
    (A, SendHeld): H,
    (A, SendAbandoned): D,
    (H, SendReleased): P,
    (H, SendAbandoned): D,
    (D, SendReleased): P,
}


class Delivery(msgspec.Struct, frozen=True):
    id: DeliveryId
    queued_at: float = 0.0
    status: Status = Status.PENDING
    attempts: int = 0
    repeated: bool = False  # the platform may already have a copy
    doubts: int = 0  # so often nobody knew whether it had arrived, since a person had a look
    due_at: float = 0.0
    external_id: str = ""  # the platform's name for it
    reason: str = ""  # of the last trouble


def evolve(delivery: Delivery, event: Event) -> Delivery:
    """What `event` means for `delivery`."""
    try:
        status = TRANSITIONS[delivery.status, type(event)]
    except KeyError:
        raise IllegalTransition(
            f"{type(event).__name__} while delivery {delivery.id} is {delivery.status}"
        ) from None
    match event:
        case SendStarted():
            return replace(delivery, status=status, attempts=delivery.attempts + 1)
        case SendAccepted(external_id=external_id):
            return replace(delivery, status=status, external_id=external_id, reason="")
        case SendDeferred(due_at=due_at, reason=reason):
            return replace(delivery, status=status, due_at=due_at, reason=reason)
        case SendDoubted(due_at=due_at, reason=reason):
            known = replace(delivery, status=status, due_at=due_at, reason=reason)
            return replace(known, repeated=True, doubts=delivery.doubts + 1)
        case SendReleased(at=at):
            return replace(delivery, status=status, attempts=0, doubts=0, queued_at=at)
        case _:  # SendHeld, SendAbandoned
            return replace(delivery, status=status, reason=event.reason)


class Send(Value):
    """Hand it to the platform; say so if it may be a repetition."""

    marked: bool


class Doubt(Value):
    """It was on its way when the process ended."""


class Hold(Value):
    """Leave it to a person."""


class WaitUntil(Value):
    due_at: float


class Rest(Value):
    """Nothing to do."""


Step = Send | Doubt | Hold | WaitUntil | Rest


class Policy(Value):
    idempotent: bool  # the platform drops a second copy by itself
    on_ambiguous: OnAmbiguous


def next_step(delivery: Delivery, policy: Policy, now: float) -> Step:
    """What to do now, when no send of it is in flight here. Total."""
    marked = delivery.repeated and not policy.idempotent
    match delivery.status:
        case Status.PENDING:
            return Send(marked)
        case Status.SENDING:
            return Doubt()
        case Status.RETRY | Status.AMBIGUOUS:
            if _is_for_a_person(delivery, policy, now):
                return Hold()
            return Send(marked) if now >= delivery.due_at else WaitUntil(delivery.due_at)
        case _:  # held, sent, dead
            return Rest()


GIVE_UP_S = 24 * 3600.0
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 300.0
DOUBTS = 8  # after so many no more copies, whether the platform or our own end left them


def _is_for_a_person(delivery: Delivery, policy: Policy, now: float) -> bool:
    """Whether it may have arrived, and another copy would help nobody."""
    if not delivery.doubts:
        return False
    if now - delivery.queued_at >= GIVE_UP_S:
        return True
    never = policy.on_ambiguous is OnAmbiguous.HOLD and delivery.status is Status.AMBIGUOUS
    return not policy.idempotent and (never or delivery.doubts >= DOUBTS)


def doubt(delivery: Delivery, reason: str, now: float) -> SendDoubted:
    """What to say when nobody knows whether the platform has it. Each time a copy waits longer."""
    backoff = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(delivery.doubts, 16))
    return SendDoubted(delivery_id=delivery.id, reason=reason, due_at=now + backoff)


def defer(
    delivery: Delivery, reason: str, after_s: float, jitter: float, now: float
) -> SendDeferred | SendAbandoned:
    """What to say when the platform would not have it now. `jitter` is in [0, 1)."""
    if now - delivery.queued_at >= GIVE_UP_S:
        return SendAbandoned(delivery_id=delivery.id, reason=f"gave up after a day: {reason}")
    backoff = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(delivery.attempts - 1, 16))
    wait_s = max(after_s, backoff * (0.5 + jitter / 2))
    return SendDeferred(delivery_id=delivery.id, reason=reason, due_at=now + wait_s)
