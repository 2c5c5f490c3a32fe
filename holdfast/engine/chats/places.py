"""Where words come from: a channel as it is configured, and one conversation in it."""

from holdfast.channels.channel import Channel
from holdfast.core import address
from holdfast.core.address import Address, Groups, Key, Reset
from holdfast.core.chat import access, delivery
from holdfast.core.inbox import Mode, UpdateRef
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.types import Value


class Connected(Value):
    """A channel and what the configuration says of it."""

    channel: Channel
    rules: access.PlatformAccess
    groups: Groups
    reset: Reset
    busy: Mode
    on_ambiguous: delivery.OnAmbiguous
    progress: bool  # show how far a run is, where the platform can

    @property
    def door(self) -> DoorCapabilities:
        can = self.channel.capabilities
        return DoorCapabilities(self.channel.name, can.answerable, can.late)


class ChatPlace(Value):
    """One conversation, and who speaks in it now."""

    connected: Connected
    address: Address
    by: Principal
    came: UpdateRef
    reply_to: str

    @property
    def key(self) -> Key:
        return address.conversation(self.address, self.connected.groups).key
