"""Outgoing messages as requests to Telegram's Bot API, and the meaning of its answers."""

import re
from typing import Any

from holdfast.channels.channel import Accepted, Doubtful, Later, Outgoing, SendRefused, Sent
from holdfast.channels.telegram import api
from holdfast.channels.text import render
from holdfast.core.address import Address
from holdfast.core.types import Value

REPEATED = "*(Possibly repeated: it is not known whether this arrived before.)*\n\n"
LONGEST_WAIT_S = 60.0
_VISIBLE = re.compile(r"""[^\W_]|[:/.,;?=&%$@"'{}^]""")  # characters that are never markup


class SendRequest(Value):
    """The parameters to send or edit one message, with markup and without."""

    html: dict[str, Any]
    plain: dict[str, Any]
    edit: str


def upper_bound(text: str) -> int:
    """An upper bound of the rendered length, without rendering, which would block the event loop.

    Only tables and links can render longer than the source text with defanged addresses.
    """
    if "|" in text or "](" in text or not _VISIBLE.search(text):
        return length(text)
    return render.utf16_length(text) + 2 * sum(map(text.count, ".:。．｡"))


def length(text: str) -> int:
    part = render.telegram(text, named_hosts=())
    return render.utf16_length(part.text) if part else 0


def encode(message: Outgoing) -> SendRequest | SendRefused:
    """Build the request, or refuse a message that is invisible or too long."""
    marked = message.repeated and not message.edit
    text = REPEATED + message.text if marked and message.text.strip() else message.text
    part = render.telegram(text, named_hosts=message.named_hosts)
    if part is None:
        return SendRefused("the message has no visible text")
    if render.utf16_length(part.text) > render.TELEGRAM_LENGTH:
        return SendRefused(f"the message is longer than {render.TELEGRAM_LENGTH} characters")
    params = {**chat_params(message.address), "link_preview_options": {"is_disabled": True}}
    if message.edit:
        params["message_id"] = _number(message.edit)
    elif message.reply_to:
        reply = {"message_id": _number(message.reply_to), "allow_sending_without_reply": True}
        params["reply_parameters"] = reply
    if message.buttons:
        rows = [[{"text": b.text, "callback_data": b.data} for b in r] for r in message.buttons]
        params["reply_markup"] = {"inline_keyboard": rows}
    html = {**params, "text": part.html, "parse_mode": "HTML"}
    return SendRequest(html, {**params, "text": part.text}, message.edit)


def moved(request: SendRequest, chat: int) -> SendRequest:
    """The same request for another chat."""
    there = {"chat_id": chat}
    return SendRequest(request.html | there, request.plain | there, request.edit)


def send_result(request: SendRequest, answer: api.Answer) -> Sent:
    """Conclude from Telegram's answer whether the message was delivered."""
    if not isinstance(answer, api.ApiError):
        return Accepted(
            request.edit or str(answer.message_id if isinstance(answer, api.Result) else "")
        )
    if request.edit and "message is not modified" in answer.description:
        return Accepted(request.edit)
    if answer.status in (401, 404):
        return Later(f"Telegram refuses {api.TOKEN_KEY} ({answer.description})", LONGEST_WAIT_S)
    if 400 <= answer.status < 500 and answer.status != 429:
        return SendRefused(answer.description)
    if answer.begun and not request.edit:
        return Doubtful(answer.description)
    return Later(answer.description, answer.retry_after_s)


def chat_params(address: Address) -> dict[str, Any]:
    thread = {"message_thread_id": _number(address.thread)} if address.thread else {}
    return {"chat_id": address.chat, **thread}


def _number(name: str) -> int | str:
    # Telegram refuses an id that is not a number.
    return int(name) if re.fullmatch(r"[0-9]{1,18}", name) else name
