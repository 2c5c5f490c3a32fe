"""Notices: what the gateway says of itself in chats, of its own accord.

Before it goes down, every chat whose run will be cut is warned once; with nothing at work
nobody is. A warning is worth nothing later, so it perishes with the process. After it is back,
whoever asked for the restart in a chat is told, and nobody else; if nobody in a chat did, the
home is. A restart is answered where it was asked for. A gateway that keeps dying does not say each time that it is back.
"""

from collections.abc import Sequence

from holdfast.core.address import Address
from holdfast.core.chats import Chats, Returned
from holdfast.core.delivery import DeliveryQueued
from holdfast.core.lifecycle import Reason, Recorded
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
QUIET_S = 60.0  # a gateway that died within this time of its start has said it already


def warnings(
    busy: Sequence[Address], reason: Reason, chats: Chats, name: str
) -> tuple[DeliveryQueued, ...]:
    """Whom to warn before the way down. `busy`: where runs are at work; `name`: of this end."""
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
    """What to say after the start, and to whom. `before`: what was known of the gateway then."""
    if chats.waits is not None:
        return (Returned(), _back(chats.waits.address, chats.waits.reply_to, name))
    died_young = not before.orderly and now - before.booted_at < QUIET_S
    if chats.home is None or before.booted_at == 0 or died_young:
        return ()
    return (_back(chats.home, "", name),)


def _back(place: Address, reply_to: str, name: str) -> DeliveryQueued:
    return DeliveryQueued(
        delivery_id=DeliveryId(f"back_{name}"), address=place.place, text=BACK, reply_to=reply_to
    )
