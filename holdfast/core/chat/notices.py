"""Notices: messages that the gateway sends to chats by itself.

Before a shutdown, every chat with an active run is warned once; if no run is active, no chat is.
A warning is useless later, so it is not sent after a restart. When the gateway is back, only the
chat that asked for the restart is told or, if no chat did, the home chat. A gateway that dies
shortly after every start does not announce each start.

When a platform refuses the gateway's requests, or messages cannot be delivered, the home chat is
told once a day for each platform and kind of trouble: the id of such a notice contains these, and
the journal accepts each id once.
"""

from collections.abc import Sequence
from enum import StrEnum

from holdfast.core.address import Address
from holdfast.core.chat.chats import Chats, Returned
from holdfast.core.chat.delivery import DeliveryQueued
from holdfast.core.life.lifecycle import Reason, Recorded
from holdfast.core.types import DeliveryId, Fact

RESTARTING = "⚠️ Gateway restarting. Your task is interrupted; I will try to resume it afterwards."
SHUTTING_DOWN = (
    "⚠️ Gateway shutting down. Your task will be interrupted; it goes on when the gateway is back."
)
OTHERS_RESTARTING = (
    "⚠️ Gateway restarting. Tasks in other chats are interrupted; "
    "I will try to resume them afterwards."
)
OTHERS_SHUTTING_DOWN = (
    "⚠️ Gateway shutting down. Tasks in other chats are interrupted and go on when it is back."
)
BACK = "♻️ Gateway is back."
BACK_RESTORED = (
    "⚠️ Gateway is back, with a journal from a backup. Its unfinished tasks were ended, and messages "
    "that may have been sent already are held. Permissions and users are as they were in the backup."
)
NOT_RECEIVING = "receives no messages"
QUIET_S = 60.0  # if the gateway died so soon after its last start, it is not announced again


def warnings(
    busy: Sequence[Address], reason: Reason, chats: Chats, name: str
) -> tuple[DeliveryQueued, ...]:
    """Return the warnings before a shutdown. `busy`: chats with active runs; `name`: its id."""
    if not busy:
        return ()
    asked = chats.waits if reason is Reason.RESTART else None
    restart = reason is Reason.RESTART
    places = dict.fromkeys((a.place for a in busy), RESTARTING if restart else SHUTTING_DOWN)
    if asked is None and chats.home is not None:
        places.setdefault(chats.home.place, OTHERS_RESTARTING if restart else OTHERS_SHUTTING_DOWN)
    return tuple(
        DeliveryQueued(
            delivery_id=DeliveryId(f"warn_{name}.{at}"),
            address=place,
            text=text,
            reply_to=asked.reply_to if asked and asked.address.place == place else "",
            perishable=True,
        )
        for at, (place, text) in enumerate(places.items())
    )


def returned(chats: Chats, before: Recorded, now: float, name: str) -> tuple[Fact, ...]:
    """Return the notices after a start. `before`: the recorded state before this start."""
    if before.restored_at > before.booted_at:
        over: tuple[Fact, ...] = () if chats.waits is None else (Returned(),)
        notice = () if chats.home is None else (_back(chats.home, "", name, BACK_RESTORED),)
        return (*over, *notice)
    if chats.waits is not None:
        return (Returned(), _back(chats.waits.address, chats.waits.reply_to, name))
    died_young = not before.orderly and now - before.booted_at < QUIET_S
    if chats.home is None or before.booted_at == 0 or died_young:
        return ()
    return (_back(chats.home, "", name),)


def _back(place: Address, reply_to: str, name: str, text: str = BACK) -> DeliveryQueued:
    return DeliveryQueued(
        delivery_id=DeliveryId(f"back_{name}"), address=place.place, text=text, reply_to=reply_to
    )


class Trouble(StrEnum):
    """The state of messages that were not delivered."""

    LATE = "late"  # still being retried
    HELD = "held"
    GIVEN_UP = "given_up"


_DESCRIPTIONS = {
    Trouble.LATE: "could not be delivered for an hour and are being retried",
    Trouble.HELD: "are held, because they may have arrived already",
    Trouble.GIVEN_UP: "were given up after three days",
}
_DAY_S = 86_400.0
_UNDELIVERED = "undelivered_"


def unheard(channel: str, reason: str, home: Address | None, now: float) -> DeliveryQueued | None:
    """Return the notice to the home chat that a platform refuses a channel; None: no home chat."""
    if home is None:
        return None
    return DeliveryQueued(
        delivery_id=DeliveryId(f"unheard_{channel}_{int(now // _DAY_S)}"),
        address=home.place,
        text=f"⚠️ {channel} {NOT_RECEIVING}: {reason}. The gateway keeps trying; "
        "see `holdfast channels`.",
    )


def undelivered(
    queued: DeliveryQueued, trouble: Trouble, reason: str, home: Address | None, now: float
) -> DeliveryQueued | None:
    """Return the notice to the home chat about `queued`, or None. The same id means the same day."""
    if home is None or queued.delivery_id.startswith(_UNDELIVERED):
        return None
    platform = queued.address.platform
    return DeliveryQueued(
        delivery_id=DeliveryId(f"{_UNDELIVERED}{trouble}_{platform}_{int(now // _DAY_S)}"),
        address=home.place,
        text=f"⚠️ Messages on {platform} {_DESCRIPTIONS[trouble]} ({reason}). "
        "See `holdfast outbox`.",
    )
