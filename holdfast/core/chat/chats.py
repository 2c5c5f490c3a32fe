"""The state that all chats share, kept in an internal session that no client can address.

It has the current session of each chat, the paired users, the updates that were handled without
becoming an input, the home chat, and the chat to notify after a restart.
"""

import msgspec
from msgspec.structs import replace

from holdfast.core import address
from holdfast.core.address import Address
from holdfast.core.chat import access
from holdfast.core.inbox import UpdateRef
from holdfast.core.types import Fact, Owner


class UpdateTaken(Fact, tag="chat.taken"):
    """An update that is not an input was handled: the cursor moves, and it is not handled again."""

    came: UpdateRef


class HomeChosen(Fact, tag="chat.home"):
    """The home chat was chosen: the gateway sends its own notices there."""

    address: Address
    by: Owner


class RestartAsked(Fact, tag="chat.restart_asked"):
    """A user in a chat asked for a restart and is to be told when the gateway is back."""

    address: Address
    reply_to: str
    by: Owner


class Returned(Fact, tag="chat.returned"):
    """The chat that asked for the restart was told that the gateway is back."""


_Own = UpdateTaken | HomeChosen | RestartAsked | Returned
Event = _Own | address.Event | access.Event


class Chats(msgspec.Struct, frozen=True):
    """The recorded state of all chats."""

    keys: address.Chats = {}
    members: access.Members = access.Members()
    home: Address | None = None
    waits: RestartAsked | None = None  # the request to notify when the gateway is back


_KEYS = address.Event.__args__
_MEMBERS = access.Event.__args__
EVENTS: tuple[type[Fact], ...] = (*_Own.__args__, *_KEYS, *_MEMBERS)
KEPT: tuple[type[Fact], ...] = tuple(e for e in EVENTS if e is not UpdateTaken)  # change the state


def evolve(chats: Chats, event: Event, at: float) -> Chats:
    """Return `chats` after `event`."""
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
