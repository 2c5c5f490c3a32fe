"""The contract of a channel. A channel connects Holdfast to one chat platform, in both directions.

Incoming: a channel converts each update of the platform to an `Incoming` and passes it to `take`.
When `take` returns, Holdfast has stored the update. Only then may the channel confirm it to the
platform.

Outgoing: a channel sends one `Outgoing` as one message and returns the result: accepted (with the
platform's id), not now, never, or unknown.

A channel keeps no state that must survive a restart. Its position in the platform's stream of
updates (the cursor) is passed to `receive`, and is stored in the same transaction as each message.
The fields of `ChannelCapabilities` have no defaults, so every new channel must state each of them.

The module of a channel defines `CHANNEL`, by which Holdfast finds it, and a settings struct, to
which its table in the configuration is converted. Secrets are not settings: the channel asks for
them by the name of their environment variable.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from holdfast.core.address import Address
from holdfast.core.types import DeliveryId, Value


class ChannelCapabilities(Value):
    """The features that a channel supports."""

    late: bool  # can deliver after a run has ended
    answerable: bool  # users can answer a run's questions there
    edits: bool  # can change a message that it has sent
    buttons: bool
    threads: bool
    typing: bool
    attachments: bool
    alerts: bool  # can show a text only to the user who pressed a button
    max_length: int  # of one message, in the platform's own unit
    idempotent_send: bool  # the platform drops a second copy with the same id


class Incoming(Value):
    """One message, edit or button press of a user."""

    external_id: str  # the platform's id of the update; a repeated id is the same update
    cursor: str  # opaque; `receive(cursor)` continues after this update; empty: no stream
    address: Address  # the sender and the chat
    name: str  # the sender's display name, only for people to read
    text: str
    reply_to: str = ""  # id of the message it replies to; for a press: the message with the button
    message_id: str = ""  # its own id, to reply to; empty for a button press
    quoted: str = ""  # text of the message it replies to, or the quoted part of that text
    pressed: str = ""  # the data of the pressed button; then `text` is empty
    edited: bool = False  # it replaces the earlier text with the same message id
    forwarded: str = ""  # the source of the text if the sender forwarded it; untrusted too


class Button(Value):
    text: str
    data: str  # returned as `Incoming.pressed` when the user presses it; must be short


class Outgoing(Value):
    """One message to send. `text` is Markdown, one of the parts that `split` returned."""

    delivery_id: DeliveryId
    address: Address
    text: str
    reply_to: str = ""
    edit: str = ""  # id of the message to replace, if the channel supports edits
    buttons: tuple[tuple[Button, ...], ...] = ()
    repeated: bool = False  # it may have arrived before; the message must say so
    named_hosts: frozenset[str] = frozenset()  # hosts the user named; links to others are defanged


class Accepted(Value):
    """The platform accepted the message under this id."""

    message_id: str


class Later(Value):
    """The message was not delivered; try again later. A retry cannot create a duplicate."""

    reason: str
    after_s: float  # the delay the platform asked for, which is obeyed; 0: it named none


class SendRefused(Value):
    """The message cannot be delivered at all: blocked, no such chat, or too long."""

    reason: str


class Doubtful(Value):
    """The message may or may not have arrived."""

    reason: str


Sent = Accepted | Later | SendRefused | Doubtful

Take = Callable[[Incoming], Awaitable[str]]
"""Store an update durably, and return the alert text for the user who pressed a button.

The text is empty if the channel has no alerts. `Transient` means that nothing was stored and the
cursor did not move: the channel passes the same update again later, before the ones after it.
"""


class Hook(Value):
    """An HTTP request from a platform. It is untrusted until the channel has verified it."""

    headers: Mapping[str, str]  # header names are in lower case
    body: bytes


class HookAnswer(Value):
    """The HTTP response to the platform."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"


class Channel(Protocol):
    """A connection to one platform."""

    name: str
    capabilities: ChannelCapabilities
    trouble: str  # why it cannot receive now, for people to read; empty: no problem

    async def receive(self, cursor: str, take: Take) -> None:
        """Pass every update after `cursor` to `take`, in order, without end.

        Continues by itself after network errors and after a `take` that raised `Transient`.
        Raises `Misconfigured` if only the operator can fix the cause, e.g. a refused token.
        """

    def split(self, text: str) -> tuple[str, ...]:
        """Split Markdown into parts that `deliver` can send, in order; no parts: nothing visible.

        The same text always gives the same parts. If a cut falls into a code block, the block is
        closed in one part and reopened in the next.
        """

    async def deliver(self, message: Outgoing) -> Sent:
        """Send one message as one message; `SendRefused` if it is too long for that.

        Raises nothing but cancellation.
        """

    async def show_typing(self, address: Address) -> None:
        """Show the platform's typing indicator, if it has one. Never raises."""

    async def aclose(self) -> None:
        """Close all connections."""


@runtime_checkable
class Hears(Channel, Protocol):
    """A channel whose platform sends updates by HTTP. Its `receive` stores `take` and waits."""

    path: str  # below /hooks/; empty: its settings do not use a webhook

    async def hear(self, hook: Hook) -> HookAnswer:
        """Verify the request and pass it to `take`.

        Answers 2xx only after `take` has returned, and 503 while `receive` is not running.
        """


class Clock(Protocol):
    """The wall clock and the way to wait on it."""

    def now(self) -> float:
        """Seconds since the epoch."""

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""


Secret = Callable[[str], str]
"""Return the value of this environment variable; `Misconfigured` if it is not set."""


class ChannelKind(Value):
    """The description of a channel. Its module defines one, named `CHANNEL`."""

    name: str
    settings: type[Any]  # a frozen struct that refuses unknown keys
    secrets: tuple[str, ...]  # names of the environment variables that `create` asks for
    create: Callable[[Any, Secret, Clock], Channel]
