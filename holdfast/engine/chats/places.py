"""The source of a message: a configured channel, and one conversation in it."""

from holdfast.channels.channel import Channel
from holdfast.core import address
from holdfast.core.address import Address, Groups, Key, Reset
from holdfast.core.chat import access, delivery
from holdfast.core.inbox import Mode, UpdateRef
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.types import Value


class Outlet(Value):
    """A channel, and what to do if it is unknown whether a message has arrived."""

    channel: Channel
    policy: delivery.DeliveryPolicy


class Connected(Value):
    """A channel and its settings."""

    channel: Channel
    rules: access.PlatformAccess
    groups: Groups
    reset: Reset
    busy: Mode
    on_ambiguous: delivery.OnAmbiguous
    progress: bool  # show the progress of a run, if the platform can

    @property
    def door(self) -> DoorCapabilities:
        can = self.channel.capabilities
        return DoorCapabilities(self.channel.name, can.answerable, can.late)

    @property
    def outlet(self) -> Outlet:
        idempotent = self.channel.capabilities.idempotent_send
        return Outlet(self.channel, delivery.DeliveryPolicy(idempotent, self.on_ambiguous))


class ChatPlace(Value):
    """One conversation, and the sender of the present update."""

    connected: Connected
    address: Address
    by: Principal
    came: UpdateRef
    reply_to: str

    @property
    def key(self) -> Key:
        return address.conversation(self.address, self.connected.groups).key
