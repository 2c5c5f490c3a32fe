"""The chats: what holds for all of them, in a session of its own that no door can name.

Which session is behind which key, who was let in, what became of updates that are no input,
where the gateway speaks when nobody asked, and who waits to hear that it is back.
"""

import msgspec
from msgspec.structs import replace

from holdfast.core import access, address
from holdfast.core.address import Address
from holdfast.core.inbox import Came
from holdfast.core.types import Fact, Owner


class UpdateTaken(Fact, tag="chat.taken"):
    """An update that was no input is dealt with: its cursor moves, and it is never taken again."""

    came: Came


class HomeChosen(Fact, tag="chat.home"):
    """Where the gateway speaks when nobody asked it anything."""

    address: Address
    by: Owner


class RestartAsked(Fact, tag="chat.restart_asked"):
    """Somebody in a chat wants the gateway restarted, and is to hear when it is back."""

    address: Address
    reply_to: str
    by: Owner


class Returned(Fact, tag="chat.returned"):
    """Whoever was to hear that the gateway is back has been told."""


_Own = UpdateTaken | HomeChosen | RestartAsked | Returned
Event = _Own | address.Event | access.Event


class Chats(msgspec.Struct, frozen=True):
    """What the facts say of all chats."""

    keys: address.Chats = {}
    members: access.Members = access.Members()
    home: Address | None = None
    waits: RestartAsked | None = None  # to hear that the gateway is back


_KEYS = address.Event.__args__
_MEMBERS = access.Event.__args__
EVENTS: tuple[type[Fact], ...] = (*_Own.__args__, *_KEYS, *_MEMBERS)
KEPT: tuple[type[Fact], ...] = tuple(e for e in EVENTS if e is not UpdateTaken)  # that are folded


def evolve(chats: Chats, event: Event, at: float) -> Chats:
    """What `event` means for the chats."""
    match event:
        case address.KeyBound() | address.BusyModeChosen():
            return replace(chats, keys=address.evolve(chats.keys, event, at))
        case HomeChosen():
            return replace(chats, home=event.address)
        case RestartAsked():
            return replace(chats, waits=event)
        case Returned():
            return replace(chats, waits=None)
        case UpdateTaken():
            return chats
        case _:
            return replace(chats, members=access.evolve(chats.members, event, at))
