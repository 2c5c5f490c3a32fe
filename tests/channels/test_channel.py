"""The contract of channels: every channel states its capabilities."""

import pytest
from msgspec.structs import asdict, fields

from holdfast.channels import webhook
from holdfast.channels.channel import ChannelCapabilities
from holdfast.channels.telegram import channel


@pytest.mark.promise("LATE-01")
@pytest.mark.parametrize("name", [field.name for field in fields(ChannelCapabilities)])
def test_channel_capabilities_have_no_defaults(name: str) -> None:
    stated = asdict(channel.Telegram.capabilities)
    assert ChannelCapabilities(**stated) == channel.Telegram.capabilities
    del stated[name]
    with pytest.raises(TypeError, match=name):
        ChannelCapabilities(**stated)


@pytest.mark.promise("LATE-01")
def test_every_channel_says_whether_it_can_deliver_late() -> None:
    stated = {channel.CHANNEL: channel.Telegram.capabilities.late}
    stated[webhook.CHANNEL] = webhook.Webhook.capabilities.late
    assert stated == {channel.CHANNEL: True, webhook.CHANNEL: True}
