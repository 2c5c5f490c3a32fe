"""The contract of a channel: one way in and out, one file.

A channel turns what a platform says into `Incoming` and hands it on; only when that returns is
it ours, and only then may the platform be told so. It carries `Outgoing` to the platform and
says how that went: accepted under which id, not now, never, or nobody knows. It keeps no state
that matters: where it was in the platform's stream of updates is given to it at the start and
moves with each message, in the transaction that stores the message. What it can do stands in
fields without defaults: a new channel says so itself.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.core.address import Address
from holdfast.core.types import DeliveryId, Value


class Capabilities(Value):
    """What a channel can do."""

    late: bool  # deliver after a run has ended
    answerable: bool  # a question of a run can be answered there
    edits: bool  # change what was sent
    buttons: bool
    threads: bool
    typing: bool
    attachments: bool
    max_length: int  # of one message, in the platform's own measure
    idempotent_send: bool  # a second copy under the same id is dropped by the platform


class Incoming(Value):
    """One thing somebody said or did."""

    external_id: str  # the platform's name for it: the same again is the same thing
    cursor: str  # where the platform's stream stands once this has been taken; empty: no stream
    address: Address  # who, where
    name: str  # how the sender is called there; for people only
    text: str
    reply_to: str = ""  # the message it answers
    message_id: str = ""  # its own, to reply to
    pressed: str = ""  # the data of a button, instead of text
    edited: bool = False  # it replaces what was said under the same message id


class Button(Value):
    text: str
    data: str  # comes back as `Incoming.pressed`; short


class Outgoing(Value):
    """One message on its way. `text` is markdown as the model wrote it, already within bounds."""

    delivery_id: DeliveryId
    address: Address
    text: str
    reply_to: str = ""
    edit: str = ""  # the message it replaces, where the channel can edit
    buttons: tuple[tuple[Button, ...], ...] = ()
    repeated: bool = False  # it may have arrived before: say so in it
    named_hosts: frozenset[str] = frozenset()  # that the user named; other addresses are defanged


class Accepted(Value):
    """The platform has it, under this id."""

    message_id: str


class Later(Value):
    """Not now: it surely has not arrived."""

    reason: str
    after_s: float


class Refused(Value):
    """Never: blocked, no such chat, too long."""

    reason: str


class Doubtful(Value):
    """It may or may not have arrived."""

    reason: str


Sent = Accepted | Later | Refused | Doubtful

Take = Callable[[Incoming], Awaitable[None]]  # returns when it is ours, durably


class Channel(Protocol):
    """One platform."""

    name: str
    capabilities: Capabilities

    async def receive(self, cursor: str, take: Take) -> None:
        """Hand on what comes after `cursor`, in order, for ever. Goes on by itself after trouble."""
        ...

    async def deliver(self, message: Outgoing) -> Sent:
        """Carry one message. Never raises but for cancellation."""
        ...

    async def show_typing(self, address: Address) -> None:
        """Say that something is being done, where the platform can; never raises."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
