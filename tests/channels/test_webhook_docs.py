"""The webhook examples in docs/channels.md are correct."""

import re
from pathlib import Path

import msgspec

from holdfast.channels.webhook import WebhookMessage, WebhookRequest

TEXT = (Path(__file__).parents[2] / "docs" / "channels.md").read_text()
BODIES = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
SENT, HEARD, PRESSED = BODIES


def _keys(head: str) -> set[str]:
    """The names in the first column of the table after `head`."""
    table = TEXT.split(head)[1].split("|---|---|\n")[1].split("\n\n")[0]
    return {key for row in table.splitlines() for key in re.findall("`(.+?)`", row.split("|")[1])}


def test_the_example_of_what_is_sent_to_us_is_understood() -> None:
    assert msgspec.json.decode(SENT, type=WebhookRequest).text
    assert _keys(SENT) == set(WebhookRequest.__struct_fields__)


def test_the_example_of_what_we_send_has_every_key() -> None:
    shown = msgspec.json.decode(HEARD, type=WebhookMessage)
    assert msgspec.json.decode(msgspec.json.encode(shown)) == msgspec.json.decode(HEARD)
    assert _keys(HEARD) == {"type", *WebhookMessage.__struct_fields__}


def test_the_example_of_a_press_presses_a_button_of_that_message() -> None:
    shown = msgspec.json.decode(HEARD, type=WebhookMessage)
    pressed = msgspec.json.decode(PRESSED, type=WebhookRequest)
    assert pressed.pressed in {button.data for row in shown.buttons for button in row}
    assert pressed.reply_to == shown.delivery_id
