"""The contract of a channel: one way in and out, one file.

A channel turns what a platform says into `Incoming` and hands it on; only when that returns is
it ours, and only then may the platform be told so. It carries `Outgoing` to the platform, one
message each, and says how that went: accepted under which id, not now, never, or nobody knows.
It keeps no state that matters: where it was in the platform's stream of updates is given to it
at the start and moves with each message, in the transaction that stores the message. What it can
do stands in fields without defaults: a new channel says so itself.

Its file has `Settings`, which a table of the configuration is converted to, and `CHANNEL`, by
which it is found. Secrets are no settings: it asks for them by their name in the environment.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, runtime_checkable

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
    cursor: str  # opaque: what `receive` is given to go on after this one; empty: no stream
    address: Address  # who, where
    name: str  # how the sender is called there; for people only
    text: str
    reply_to: str = ""  # the message it answers; of a press: the one whose button was pressed
    message_id: str = ""  # its own, to reply to; a press has none
    quoted: str = ""  # what stands in the message it answers, or the piece of it that is quoted
    pressed: str = ""  # the data of a button, instead of text
    edited: bool = False  # it replaces what was said under the same message id


class Button(Value):
    text: str
    data: str  # comes back as `Incoming.pressed`; short


class Outgoing(Value):
    """One message on its way. `text` is markdown as the model wrote it: one part of `split`."""

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
    """Not now: sending it again cannot double it."""

    reason: str
    after_s: float


class Refused(Value):
    """Never: blocked, no such chat, too long."""

    reason: str


class Doubtful(Value):
    """It may or may not have arrived."""

    reason: str


Sent = Accepted | Later | Refused | Doubtful

# Returns when it is ours, durably. Raises `Transient` when it is not taken: the cursor has not
# moved, and the same is handed on again later, before what came after it.
Take = Callable[[Incoming], Awaitable[None]]


class Hook(Value):
    """A request that a platform made to us. Nothing in it is believed before it is checked."""

    headers: Mapping[str, str]  # names in lower case
    body: bytes


class HookAnswer(Value):
    """What the platform is told."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"


class Channel(Protocol):
    """One platform."""

    name: str
    capabilities: Capabilities
    trouble: str  # why nothing can be heard just now, for people; empty: all is well

    async def receive(self, cursor: str, take: Take) -> None:
        """Hand on what comes after `cursor`, in order, for ever.

        Goes on by itself after trouble, and after a `take` that raised `Transient`. Raises
        `Misconfigured` where only the operator can help: a token that is refused.
        """
        ...

    def split(self, text: str) -> tuple[str, ...]:
        """Markdown as parts, in order, each of which `deliver` can carry; none: nothing to see.

        The same text gives the same parts. Code that is cut is closed and opened again.
        """
        ...

    async def deliver(self, message: Outgoing) -> Sent:
        """Carry one message, as one. Too long for that: `Refused`. Raises only cancellation."""
        ...

    async def show_typing(self, address: Address) -> None:
        """Say that something is being done, where the platform can; never raises."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...


@runtime_checkable
class Hears(Channel, Protocol):
    """A channel that its platform calls. Its `receive` keeps `take` in mind and waits for ever."""

    path: str  # below /hooks/; empty: as it is set up, nobody calls it

    async def hear(self, hook: Hook) -> HookAnswer:
        """Check it and hand it on. 2xx only when `take` has returned; 503 while nobody takes."""
        ...


class Clock(Protocol):
    """The wall clock and the way to wait on it."""

    def now(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        ...


Secret = Callable[[str], str]  # what the environment has under that name, else `Misconfigured`


class Kind(Value):
    """How a channel is found and made. Its module has one, named `CHANNEL`."""

    name: str
    settings: type[Any]  # a frozen struct that knows all its keys
    secrets: tuple[str, ...]  # the names that `create` asks for
    create: Callable[[Any, Secret, Clock], Channel]
