"""The delivery: one message on its way out, and what is known about its arrival.

Sending is recorded before the platform is called and its answer after. What is
found sending after a crash is *ambiguous*: the platform may have it. Where the
platform has an idempotent send it is simply sent again; elsewhere the policy says
whether it goes out once more, marked as possibly repeated, or is held for a person.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.types import DeliveryId, Fact, Value
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


class SendStarted(Fact, tag="delivery.started"):
    delivery_id: DeliveryId


class SendAccepted(Fact, tag="delivery.sent"):
    delivery_id: DeliveryId
    external_id: str


class SendDeferred(Fact, tag="delivery.retry"):
    delivery_id: DeliveryId
    reason: str
    due_at: float


class SendDoubted(Fact, tag="delivery.ambiguous"):
    delivery_id: DeliveryId
    reason: str


class SendHeld(Fact, tag="delivery.held"):
    delivery_id: DeliveryId
    reason: str


class SendReleased(Fact, tag="delivery.released"):
    """A person wants it sent again."""

    delivery_id: DeliveryId


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
}


class Delivery(msgspec.Struct, frozen=True):
    id: DeliveryId
    status: Status = Status.PENDING
    attempts: int = 0
    repeated: bool = False  # the platform may already have a copy
    due_at: float = 0.0


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
        case SendDeferred(due_at=due_at):
            return replace(delivery, status=status, due_at=due_at)
        case SendDoubted():
            return replace(delivery, status=status, repeated=True)
        case _:
            return replace(delivery, status=status)


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
        case Status.RETRY:
            return Send(marked) if now >= delivery.due_at else WaitUntil(delivery.due_at)
        case Status.SENDING:
            return Doubt()
        case Status.AMBIGUOUS:
            hold = not policy.idempotent and policy.on_ambiguous is OnAmbiguous.HOLD
            return Hold() if hold else Send(marked)
        case _:  # held, sent, dead
            return Rest()
