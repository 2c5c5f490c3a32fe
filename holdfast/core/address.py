"""The address of a chat message, and the session that it belongs to.

Each conversation has its own key: special characters are escaped, an id that is too long is
hashed. Every key is a valid session id. A key has one current session at a time. The first
session has the key as its id, later ones add a number. Old sessions stay readable and can be
resumed, but only through their own key.

A suspended session is always replaced by a new one. An idle session is replaced by policy, but
not while it has unfinished work, which must keep its history.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from typing import NamedTuple, NewType

from msgspec.structs import replace

from holdfast.core.inbox import Mode
from holdfast.core.types import Fact, Owner, SessionId, Value
from holdfast.errors import IllegalTransition

Key = NewType("Key", str)

PIECE = 48  # characters of one part of a key
_HEAD = "agent:main"
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.@+=-")
_ESCAPED = re.compile(rb"~([0-9A-F]{2})")


class ChatType(StrEnum):
    DIRECT = "dm"
    GROUP = "group"
    CHANNEL = "channel"  # posts come from the channel, not from a person


class Groups(StrEnum):
    """The owner of sessions in a group: each user, or the group."""

    PER_USER = "per_user"
    SHARED = "shared"


class Sender(NamedTuple):
    """The sender of a message, authenticated by the platform."""

    platform: str
    user: str

    @property
    def owner(self) -> Owner:
        """The owner of the sender's sessions. It has a colon, so it is never the operator."""
        return Owner(f"{_quote(self.platform)}:{_quote(self.user)}")


class Address(Fact, omit_defaults=True):
    """The place of a message. An empty field: the platform has none there."""

    platform: str
    chat_type: ChatType
    chat: str
    thread: str = ""
    user: str = ""

    @property
    def sender(self) -> Sender:
        return Sender(self.platform, self.user)

    @property
    def place(self) -> "Address":
        """The chat and thread, without the user."""
        return replace(self, user="")

    @property
    def key(self) -> Key:
        """The unique name of this address. An empty thread before a user keeps its position."""
        parts = [self.platform, self.chat_type, self.chat]
        if self.thread or self.user:
            parts.append(self.thread)
        if self.user:
            parts.append(self.user)
        return Key(":".join((_HEAD, *map(_quote, parts))))


def read(key: str) -> Address | None:
    """Return the address of `key`; None if it is not a key, or if it contains a hashed id."""
    head, _, rest = key.partition(f"{_HEAD}:")
    parts = rest.split(":")
    if head or not 3 <= len(parts) <= 5:
        return None
    try:
        platform, chat_type, chat, thread, user = map(_unquote, [*parts, "", ""][:5])
        address = Address(
            platform=platform, chat_type=ChatType(chat_type), chat=chat, thread=thread, user=user
        )
    except ValueError:
        return None
    return address if address.key == key else None


def conversation(address: Address, groups: Groups) -> Address:
    """Return the address that has a session: a direct chat, one user in a group, or the group."""
    per_user = address.chat_type is ChatType.GROUP and groups is Groups.PER_USER
    return address if per_user else address.place  # a direct chat has only one user


def owner(address: Address, groups: Groups) -> Owner:
    """Return the owner of the session: the user or, if the chat shares one session, the chat."""
    per_user = address.chat_type is ChatType.GROUP and groups is Groups.PER_USER
    if per_user or address.chat_type is ChatType.DIRECT:
        return address.sender.owner
    return Owner(":".join(map(_quote, (address.platform, address.chat_type, address.chat))))


def _quote(text: str) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    quoted = "".join(chr(b) if b in _PLAIN else f"~{b:02X}" for b in raw)
    return quoted if len(quoted) <= PIECE else f"~~{sha256(raw).hexdigest()[:40]}"


def _unquote(piece: str) -> str:
    raw = _ESCAPED.sub(lambda m: bytes.fromhex(m[1].decode()), piece.encode())
    return raw.decode("utf-8", "surrogatepass")


class Why(StrEnum):
    """The reason why a key got its current session."""

    FIRST = "first"
    NEW = "new"  # a user asked for a new one
    RESUMED = "resumed"  # a user asked for an old one
    SUSPENDED = "suspended"
    IDLE = "idle"
    DAILY = "daily"

    @property
    def automatic(self) -> bool:
        """Tell if no user asked for it, so that the chat has to be told."""
        return self in (Why.SUSPENDED, Why.IDLE, Why.DAILY)


class Never(Value):
    """A session goes on until a user asks for a new one."""


class Idle(Value):
    """A new session starts after so many minutes without an input."""

    minutes: float


class Daily(Value):
    """A new session starts with the first input after `hour` o'clock, local time."""

    hour: int
    utc_offset_s: float


Reset = Never | Idle | Daily

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


def due(policy: Reset, last_input_at: float, now: float) -> Why | None:
    """Return why the next input starts a new session, or None. A clock set back resets nothing."""
    match policy:
        case Idle(minutes=minutes):
            return Why.IDLE if now - last_input_at >= minutes * MINUTE_S else None
        case Daily():
            return Why.DAILY if _day(policy, last_input_at) < _day(policy, now) else None
        case _:  # Never
            return None


def _day(policy: Daily, at: float) -> float:
    return (at + policy.utc_offset_s - policy.hour * HOUR_S) // DAY_S


class KeyBound(Fact, tag="key.bound"):
    """From here on `session_id` is the current session of `key`."""

    key: Key
    session_id: SessionId
    reason: Why


class BusyModeChosen(Fact, tag="key.busy_mode"):
    """A user in the chat chose what a message does to a busy run there."""

    key: Key
    mode: Mode


Event = KeyBound | BusyModeChosen


class Bound(Value):
    session_id: SessionId
    reason: Why
    at: float


class ChatSessions(Value):
    """The recorded state of one key: its sessions in the order they were current."""

    bound: tuple[Bound, ...] = ()
    mode: Mode | None = None  # None: not chosen in the chat

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        """All sessions of this key, each once, oldest first."""
        return tuple(dict.fromkeys(b.session_id for b in self.bound))


Chats = Mapping[Key, ChatSessions]

_NEW_HERE = ChatSessions()


def evolve(chats: Chats, event: Event, at: float) -> Chats:
    """Return `chats` after `event`."""
    chat = chats.get(event.key, _NEW_HERE)
    if isinstance(event, BusyModeChosen):
        return {**chats, event.key: replace(chat, mode=event.mode)}
    if (event.session_id in chat.sessions) is not (event.reason is Why.RESUMED):
        raise IllegalTransition(
            f"KeyBound ({event.reason}) of {event.key} to {event.session_id}, "
            f"while its sessions are {list(chat.sessions)}"
        )
    bound = (*chat.bound, Bound(event.session_id, event.reason, at))
    return {**chats, event.key: replace(chat, bound=bound)}


def current(chats: Chats, key: Key) -> SessionId | None:
    """Return the current session of `key`; None before the first."""
    bound = chats.get(key, _NEW_HERE).bound
    return bound[-1].session_id if bound else None


def busy_mode(chats: Chats, key: Key, configured: Mode = Mode.INTERRUPT) -> Mode:
    """Return what a message does to a busy run there."""
    return chats.get(key, _NEW_HERE).mode or configured


class Condition(Value):
    """The state of a key's current session when the next input arrives."""

    suspended: bool
    unfinished: bool  # a run of it is open, or one was cut and none has completed since
    last_input_at: float


def route(
    chats: Chats, key: Key, condition: Condition | None, policy: Reset, now: float
) -> KeyBound | None:
    """Return the fact that gives `key` another session before its next input; None: it keeps it.

    `condition` is the state of the current session; None: it was bound but never opened.
    """
    if current(chats, key) is None:
        return begin(chats, key, Why.FIRST)
    if condition is None:
        return None
    if condition.suspended:
        return begin(chats, key, Why.SUSPENDED)
    used_at = max(condition.last_input_at, chats[key].bound[-1].at)  # resuming it is using it
    reason = None if condition.unfinished else due(policy, used_at, now)
    return None if reason is None else begin(chats, key, reason)


def begin(chats: Chats, key: Key, reason: Why) -> KeyBound:
    """Give `key` a new session."""
    number = len(chats.get(key, _NEW_HERE).sessions) + 1
    name = key if number == 1 else f"{key}~~{number}"  # `~~` occurs only before a hash in keys
    return KeyBound(key=key, session_id=SessionId(name), reason=reason)


class NoSuchSession(Value):
    """There is nothing to resume. The text does not reveal if the session exists elsewhere."""

    reason: str


def resume(chats: Chats, key: Key, wanted: SessionId | None) -> KeyBound | NoSuchSession:
    """Resume an old session of `key`: the one named, or the one that was current before."""
    now = current(chats, key)
    bound = chats.get(key, _NEW_HERE).bound
    old = [b.session_id for b in bound if b.session_id != now]
    if not old or (wanted is not None and wanted not in old):
        return NoSuchSession("There is no such earlier session in this chat.")
    found = old[-1] if wanted is None else wanted
    return KeyBound(key=key, session_id=found, reason=Why.RESUMED)
