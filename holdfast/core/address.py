"""The address: where words come from, and which session they belong to for now.

A conversation has one key, and no two share one: what is not plain is escaped, an id that
is too long is hashed. Every key is a legal session id. Behind a key is one session at a
time: the first bears the key's own name, a fresh one gets a number. Old ones keep theirs,
stay readable, and can be brought back; nobody reaches one through another key.

A suspended session is always left behind; an idle one by policy, unless it has unfinished
work: what was accepted is not cut off from its history by the hour of the day.
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
    """Whose a session in a group is."""

    PER_USER = "per_user"
    SHARED = "shared"


class Sender(NamedTuple):
    """Who speaks, as the platform vouches for it."""

    platform: str
    user: str

    @property
    def owner(self) -> Owner:
        """Whose sessions these are. Never the operator: no name without a colon comes from here."""
        return Owner(f"{_quote(self.platform)}:{_quote(self.user)}")


class Address(Fact, omit_defaults=True):
    """Where something was said. Empty: the platform has no such thing there."""

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
        """The chat and thread, whoever speaks there."""
        return replace(self, user="")

    @property
    def key(self) -> Key:
        """Its name; no other address has the same. A thread without a name keeps its place."""
        parts = [self.platform, self.chat_type, self.chat]
        if self.thread or self.user:
            parts.append(self.thread)
        if self.user:
            parts.append(self.user)
        return Key(":".join((_HEAD, *map(_quote, parts))))


def read(key: str) -> Address | None:
    """The address of that key. None: it is no key, or holds an id too long to stand in one."""
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
    """What a session is kept for: a direct chat, a user's part of a group, or all of it."""
    per_user = address.chat_type is ChatType.GROUP and groups is Groups.PER_USER
    return address if per_user else address.place  # a direct chat is one user's anyway


def owner(address: Address, groups: Groups) -> Owner:
    """Whose the session is: the user's, or, where all speak in one, the chat's."""
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
    """Why a key got the session it has."""

    FIRST = "first"
    NEW = "new"  # somebody asked for a fresh one
    RESUMED = "resumed"  # somebody asked for an old one
    SUSPENDED = "suspended"
    IDLE = "idle"
    DAILY = "daily"

    @property
    def automatic(self) -> bool:
        """Nobody asked for it, so somebody is told."""
        return self in (Why.SUSPENDED, Why.IDLE, Why.DAILY)


class Never(Value):
    """A session goes on until somebody says otherwise."""


class Idle(Value):
    """Afresh after so many minutes without an input."""

    minutes: float


class Daily(Value):
    """Afresh with the first input after `hour` o'clock, local time."""

    hour: int
    utc_offset_s: float


Reset = Never | Idle | Daily

MINUTE_S, HOUR_S, DAY_S = 60.0, 3600.0, 86_400.0


def due(policy: Reset, last_input_at: float, now: float) -> Why | None:
    """Why the next input begins afresh, if it does. A clock that went back resets nothing."""
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
    """From here on `key` leads to that session."""

    key: Key
    session_id: SessionId
    reason: Why


class BusyModeChosen(Fact, tag="key.busy_mode"):
    """What a message does to a busy run here, by the word of somebody in the chat."""

    key: Key
    mode: Mode


Event = KeyBound | BusyModeChosen


class Bound(Value):
    session_id: SessionId
    reason: Why
    at: float


class Chat(Value):
    """What the facts say of one key: its sessions in the order they were current."""

    bound: tuple[Bound, ...] = ()
    mode: Mode | None = None  # None: nobody in the chat has chosen

    @property
    def sessions(self) -> tuple[SessionId, ...]:
        """All there have been, each once, the oldest first."""
        return tuple(dict.fromkeys(b.session_id for b in self.bound))


Chats = Mapping[Key, Chat]

_NEW_HERE = Chat()


def evolve(chats: Chats, event: Event, at: float) -> Chats:
    """What `event` means for its key."""
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
    """The session behind `key`; None before the first."""
    bound = chats.get(key, _NEW_HERE).bound
    return bound[-1].session_id if bound else None


def busy_mode(chats: Chats, key: Key, configured: Mode = Mode.INTERRUPT) -> Mode:
    """What a message does to a busy run there."""
    return chats.get(key, _NEW_HERE).mode or configured


class Condition(Value):
    """What is known of the session behind a key when the next input comes."""

    suspended: bool
    unfinished: bool  # a run of it is open, or one was cut and none has completed since
    last_input_at: float


def route(
    chats: Chats, key: Key, condition: Condition | None, policy: Reset, now: float
) -> KeyBound | None:
    """What must be said before the next input of `key`; None: it goes where the last one went.

    `condition` is that of the current session, None if it was bound and never opened.
    """
    if current(chats, key) is None:
        return begin(chats, key, Why.FIRST)
    if condition is None:
        return None
    if condition.suspended:
        return begin(chats, key, Why.SUSPENDED)
    used_at = max(condition.last_input_at, chats[key].bound[-1].at)  # to bring it back is to use it
    reason = None if condition.unfinished else due(policy, used_at, now)
    return None if reason is None else begin(chats, key, reason)


def begin(chats: Chats, key: Key, reason: Why) -> KeyBound:
    """A session behind `key` that nobody has used yet."""
    number = len(chats.get(key, _NEW_HERE).sessions) + 1
    name = key if number == 1 else f"{key}~~{number}"  # no key has a text like this
    return KeyBound(key=key, session_id=SessionId(name), reason=reason)


class NoSuchSession(Value):
    """There is nothing to bring back. The same words whether it is elsewhere or nowhere."""

    reason: str


def resume(chats: Chats, key: Key, wanted: SessionId | None) -> KeyBound | NoSuchSession:
    """Bring back an old session of `key`: the one named, or the one that was current before."""
    now = current(chats, key)
    bound = chats.get(key, _NEW_HERE).bound
    old = [b.session_id for b in bound if b.session_id != now]
    if not old or (wanted is not None and wanted not in old):
        return NoSuchSession("There is no such earlier session in this chat.")
    found = old[-1] if wanted is None else wanted
    return KeyBound(key=key, session_id=found, reason=Why.RESUMED)
