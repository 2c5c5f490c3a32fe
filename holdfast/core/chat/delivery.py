"""The delivery: one outgoing message, and what is known about its arrival.

The start of a send is recorded before the platform is called, its result after. A delivery that
is found in the middle of sending after a crash is *ambiguous*: the platform may have it. If the
platform's send is idempotent, it is sent again. Otherwise the policy decides if it is sent again,
marked as possibly repeated, or held for the operator. A platform that accepts nothing is retried
for days, with growing waits.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.address import Address
from holdfast.core.machine import moved
from holdfast.core.types import DeliveryId, Fact, RunId, Value


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    SENDING = "sending"
    RETRY = "retry"  # the platform refused it for now; it is due again at a set time
    AMBIGUOUS = "ambiguous"  # the platform may or may not have it
    HELD = "held"  # waits for the operator
    SENT = "sent"
    DEAD = "dead"  # given up, visibly

    @property
    def final(self) -> bool:
        return self in {DeliveryStatus.SENT, DeliveryStatus.DEAD}


class OnAmbiguous(StrEnum):
    RESEND_MARKED = "resend_marked"
    HOLD = "hold"


class DeliveryQueued(Fact, tag="delivery.queued", omit_defaults=True):
    """A message to a chat, queued behind the earlier ones there."""

    delivery_id: DeliveryId
    address: Address  # the chat and thread, without a user
    text: str  # markdown
    of_run: RunId = RunId("")  # the run it belongs to; empty: none
    reply_to: str = ""  # the platform's id of the message it answers
    edits: DeliveryId = DeliveryId("")  # the message that it replaces
    buttons: tuple[tuple[str, str], ...] = ()  # label and data of each
    hosts: tuple[str, ...] = ()  # hosts the user named: links to others are made inactive
    perishable: bool = False  # not sent after a restart
    verbatim: bool = False  # the user has to judge this text: its links are not changed


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
    due_at: float = 0.0  # not sent again before that


class SendHeld(Fact, tag="delivery.held"):
    delivery_id: DeliveryId
    reason: str


class SendReleased(Fact, tag="delivery.released"):
    """The operator wants it sent again."""

    delivery_id: DeliveryId
    at: float = 0.0  # its age is counted from here


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

P, S, R, A, H, _SENT, D = DeliveryStatus

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[DeliveryStatus, type[Event]], DeliveryStatus] = {
    (P, SendStarted): S,
    (P, SendHeld): H,
    (P, SendAbandoned): D,
    (S, SendAccepted): _SENT,
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
    status: DeliveryStatus = DeliveryStatus.PENDING
    attempts: int = 0
    repeated: bool = False  # the platform may already have a copy
    doubts: int = 0  # how often it became ambiguous since the operator last released it
    due_at: float = 0.0
    external_id: str = ""  # the platform's id
    reason: str = ""  # of the last failure


def evolve(delivery: Delivery, event: Event) -> Delivery:
    """Return `delivery` after `event`."""
    status = moved(TRANSITIONS, delivery.status, event, "delivery", delivery.id)
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
    """Send it; `marked`: tell the reader that it may be a repetition."""

    marked: bool


class DoubtDelivery(Value):
    """Record that it is ambiguous: it was being sent when the process ended."""


class Hold(Value):
    """Leave it to the operator."""


class AbandonDelivery(Value):
    """Give up after days of attempts, and record it."""


class WaitUntil(Value):
    due_at: float


class DeliveryRests(Value):
    """Nothing to do."""


Step = Send | DoubtDelivery | Hold | AbandonDelivery | WaitUntil | DeliveryRests


class DeliveryPolicy(Value):
    idempotent: bool  # the platform drops a second copy
    on_ambiguous: OnAmbiguous


def next_step(delivery: Delivery, policy: DeliveryPolicy, now: float) -> Step:
    """Return what to do with a delivery that is not being sent in this process. Total."""
    marked = delivery.repeated and not policy.idempotent
    match delivery.status:
        case DeliveryStatus.PENDING:
            return Send(marked)
        case DeliveryStatus.SENDING:
            return DoubtDelivery()
        case DeliveryStatus.RETRY | DeliveryStatus.AMBIGUOUS:
            if _must_hold(delivery, policy):
                return Hold()
            if _is_too_old(delivery, now):
                return AbandonDelivery()
            return Send(marked) if now >= delivery.due_at else WaitUntil(delivery.due_at)
        case _:  # held, sent, dead
            return DeliveryRests()


GIVE_UP_S = 3 * 24 * 3600.0
LEAST_TRIES = 20  # before giving up: a gateway that was down for days has not tried
LATE_S = 3600.0  # after so long the operator is told
FIRST_RETRY_S, LONGEST_RETRY_S = 1.0, 300.0
LONGEST_DOUBT_S = 900.0  # longer, because each attempt may send one more copy


def _must_hold(delivery: Delivery, policy: DeliveryPolicy) -> bool:
    """Tell if it may have arrived and the operator wants no second copy."""
    held = policy.on_ambiguous is OnAmbiguous.HOLD and not policy.idempotent
    return held and delivery.status is DeliveryStatus.AMBIGUOUS


def _is_too_old(delivery: Delivery, now: float) -> bool:
    return delivery.attempts >= LEAST_TRIES and now - delivery.queued_at >= GIVE_UP_S


def is_late(delivery: Delivery, now: float) -> bool:
    """Tell if it has waited so long that the operator has to be told."""
    return now - delivery.queued_at >= LATE_S


def doubt(delivery: Delivery, reason: str, jitter: float, now: float) -> SendDoubted:
    """Return the fact that the platform may have it. Waits grow. `jitter` is in [0, 1)."""
    wait_s = _backoff(delivery.doubts, LONGEST_DOUBT_S, jitter)
    return SendDoubted(delivery_id=delivery.id, reason=reason, due_at=now + wait_s)


def cut(delivery: Delivery, reason: str, now: float) -> SendDoubted:
    """Return the fact that the process ended while it was being sent.

    The first copy after that is sent at once; if the gateway dies each time, the waits grow.
    """
    wait_s = _backoff(delivery.doubts - 1, LONGEST_DOUBT_S, 1.0) if delivery.doubts else 0.0
    return SendDoubted(delivery_id=delivery.id, reason=reason, due_at=now + wait_s)


def defer(
    delivery: Delivery, reason: str, after_s: float, jitter: float, now: float
) -> SendDeferred | SendAbandoned:
    """Return the fact that the platform refused it for now, or that it is given up.

    `after_s` is the wait that the platform asks for, which is used unchanged; 0: none.
    """
    if _is_too_old(delivery, now):
        return SendAbandoned(delivery_id=delivery.id, reason=gave_up(reason))
    wait_s = after_s or _backoff(delivery.attempts - 1, LONGEST_RETRY_S, jitter)
    return SendDeferred(delivery_id=delivery.id, reason=reason, due_at=now + wait_s)


def gave_up(reason: str) -> str:
    """Return the reason of a message that is given up."""
    return f"gave up after 3 days: {reason}"


def _backoff(before: int, longest_s: float, jitter: float) -> float:
    """Return a wait that doubles each time, up to a limit, less up to a half by jitter."""
    return min(longest_s, FIRST_RETRY_S * 2.0 ** min(before, 16)) * (0.5 + jitter / 2)
