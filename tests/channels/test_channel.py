"""The contract: what a channel can do is said by the channel."""

import pytest
from msgspec.structs import asdict, fields

from holdfast.channels import telegram, webhook
from holdfast.channels.channel import Capabilities


@pytest.mark.promise("LATE-01")
@pytest.mark.parametrize("name", [field.name for field in fields(Capabilities)])
def test_nothing_a_channel_can_do_is_taken_for_granted(name: str) -> None:
    stated = asdict(telegram.Telegram.capabilities)
    assert Capabilities(**stated) == telegram.Telegram.capabilities
    del stated[name]
    with pytest.raises(TypeError, match=name):
        Capabilities(**stated)


@pytest.mark.promise("LATE-01")
def test_every_channel_says_whether_it_can_deliver_late() -> None:
    stated = {telegram.CHANNEL: telegram.Telegram.capabilities.late}
    stated[webhook.CHANNEL] = webhook.Webhook.capabilities.late
    assert stated == {telegram.CHANNEL: True, webhook.CHANNEL: True}
