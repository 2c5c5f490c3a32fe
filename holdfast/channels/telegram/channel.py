"""The Telegram channel: receives updates by long polling or by webhook, and sends messages.

Incoming: an update is stored when `take` has returned. Only then does the next poll confirm it,
or the webhook answer 200. The cursor is the number of the last stored update, even if it is
smaller than the number before it: after a week without updates Telegram chooses a new random
number, and a cursor that can only grow would request the same updates for ever. With the webhook
there is no cursor, because Telegram keeps the position itself and sends one update at a time.
Switching between polling and webhook never drops a waiting update.

Outgoing: if Telegram refused a message, or no connection was made, the message has not arrived.
If the reply to a sent message was lost, the result is doubtful. An edit can be repeated without
harm, so the result of an edit is never doubtful.

The webhook secret is derived from the bot token, so the operator configures only the token.
"""

import hmac
import logging
import re
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.json import decode

from holdfast.channels.channel import (
    ChannelCapabilities,
    ChannelKind,
    Clock,
    Hook,
    HookAnswer,
    Incoming,
    Outgoing,
    Secret,
    SendRefused,
    Sent,
    Take,
)
from holdfast.channels.telegram import api, outgoing
from holdfast.channels.text import render
from holdfast.channels.text.split import split
from holdfast.core.address import Address, ChatType
from holdfast.errors import Misconfigured, Transient

log = logging.getLogger(__name__)

BAD_TOKEN = f"{api.TOKEN_KEY} is not a bot token"
CANNOT_RECEIVE = "cannot receive from telegram"
SKIPPED_UPDATE = "skipped an update that cannot be decoded"

_RETRY_S = 1.0  # the shortest wait between retries
_OPTIONAL_S = 5.0  # time limit for optional calls: the typing indicator, the answer to a button
_ALERT = 200  # characters of an alert that Telegram shows
_RENEW_S = 300.0  # interval between checks that the webhook is still set to our URL
_MARK = len(outgoing.REPEATED)  # every part leaves this much room for the note
_UPDATES = ("message", "edited_message", "callback_query")
_COMMAND = re.compile(r"(/\w+)@(\w+)(?=\s|\Z)")
_CHAT_TYPES = {"private": ChatType.DIRECT, "channel": ChatType.CHANNEL}  # else a group
_SECRET_HEADER = "x-telegram-bot-api-secret-token"
_MEDIA = frozenset(
    "animation audio contact dice document location photo poll sticker story venue video "
    "video_note voice".split()
)

_ADDRESS = r"https?://[\x21-\x7e]+"
Url = Annotated[
    str, Meta(pattern=f"^{_ADDRESS}$", description="an address with http:// or https://")
]
Reached = Annotated[
    str,
    Meta(
        pattern=f"^({_ADDRESS})?$",
        description="the address under which Telegram reaches our /hooks/telegram, or empty",
        examples=["https://bot.example.org/hooks/telegram"],
    ),
]
Poll = Annotated[int, Meta(ge=0, le=50, description="a whole number of seconds, 0 to 50")]
Seconds = Annotated[float, Meta(gt=0, le=600, description="a number of seconds, up to 600")]


class TelegramSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the channel."""

    webhook_url: Reached = ""  # empty: long polling
    base_url: Url = "https://api.telegram.org"
    poll_s: Poll = 25  # how long Telegram keeps a poll open
    answer_s: Seconds = 20.0  # time limit for every other reply
    connect_s: Seconds = 10.0


class Telegram:
    """A Telegram bot as a channel."""

    name = "telegram"
    capabilities = ChannelCapabilities(
        late=True,
        answerable=True,
        edits=True,
        buttons=True,
        threads=True,
        typing=True,
        attachments=False,
        alerts=True,
        max_length=render.TELEGRAM_LENGTH,
        idempotent_send=False,
    )

    def __init__(self, settings: TelegramSettings, token: str, clock: Clock) -> None:
        token = token.strip()
        if not re.fullmatch(r"[0-9]+:[A-Za-z0-9_-]+", token):
            raise Misconfigured(BAD_TOKEN, api.HINT)
        self.trouble = ""
        self.path = self.name if settings.webhook_url else ""
        self._hook_secret = hmac.digest(token.encode(), b"holdfast webhook", "sha256").hex()
        self._api = api.Api(settings.base_url, token, settings.answer_s, settings.connect_s)
        self._settings = settings
        self._clock = clock
        self._username = ""
        self._take: Take | None = None  # set while the webhook is in use

    async def receive(self, cursor: str, take: Take) -> None:
        """Pass updates after `cursor` to `take`. `Misconfigured` if the token is refused."""
        wait_s = _RETRY_S
        try:
            while True:
                try:
                    if self.path:
                        await self._use_webhook(take)
                    else:
                        # Sorted by number: the cursor must not pass an update not yet stored.
                        for update in sorted(await self._poll(cursor), key=_number_of):
                            cursor = await self._hand_on(update, take)
                        self.trouble = ""
                except Misconfigured as refusal:
                    self.trouble = str(refusal)
                    raise
                except Transient as trouble:
                    self._note(str(trouble))
                    await self._clock.sleep(trouble.retry_after_s or wait_s)
                    if not trouble.retry_after_s:
                        wait_s = min(2 * wait_s, outgoing.LONGEST_WAIT_S)
                else:
                    wait_s = _RETRY_S
        finally:
            self._take = None

    async def hear(self, hook: Hook) -> HookAnswer:
        """Verify one request to the webhook and pass its update on."""
        given = hook.headers.get(_SECRET_HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._hook_secret.encode()):
            return HookAnswer(401, b"the secret token is wrong")
        if self._take is None:
            return HookAnswer(503, b"updates are not accepted now")
        try:
            await self._hand_on(decode(hook.body, type=api.Update), self._take)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return HookAnswer(400, b"the body is not an update")
        except Transient as trouble:
            self._note(str(trouble))
            return HookAnswer(503, b"the update cannot be stored now")
        self.trouble = ""
        return HookAnswer(200)

    def split(self, text: str) -> tuple[str, ...]:
        """Split into parts that fit in every case: all links defanged, and marked as repeated."""
        limit = self.capabilities.max_length - _MARK
        return split(
            text, outgoing.length if len(text) <= 2 * limit else outgoing.upper_bound, limit
        )

    async def deliver(self, message: Outgoing) -> Sent:
        """Send one message. If its group was replaced by another group, send it there."""
        request = outgoing.encode(message)
        if isinstance(request, SendRefused):
            return request
        answer = await self._send(request)
        if isinstance(answer, api.ApiError) and answer.moved_to:
            answer = await self._send(outgoing.moved(request, answer.moved_to))
        return outgoing.send_result(request, answer)

    async def show_typing(self, address: Address) -> None:
        """Show the indicator for some seconds, or until a message is sent."""
        params = {**outgoing.chat_params(address), "action": "typing"}
        await self._api.call("sendChatAction", params, _OPTIONAL_S)

    async def aclose(self) -> None:
        """Close the connection pool."""
        await self._api.aclose()

    def _note(self, trouble: str) -> None:
        if self.trouble != trouble:  # log each problem once, not at every retry
            log.warning(CANNOT_RECEIVE, extra={"reason": trouble})
        self.trouble = trouble

    async def _learn_name(self) -> None:
        """Ask for the bot's user name, which commands may contain: `/stop@holdfast_bot`."""
        if not self._username:
            self._username = (await self._api.ask("getMe", {}, api.Result)).username

    async def _poll(self, cursor: str) -> list[api.Update]:
        await self._learn_name()
        params = {"timeout": self._settings.poll_s, "allowed_updates": _UPDATES}
        if cursor:
            params["offset"] = int(cursor) + 1
        limit_s = self._settings.answer_s + self._settings.poll_s
        answer = await self._api.call("getUpdates", params, limit_s)
        if _is_webhook_conflict(answer):
            await self._api.ask("deleteWebhook", {}, bool)
            answer = await self._api.call("getUpdates", params, limit_s)
        return api.result(answer, list)

    async def _use_webhook(self, take: Take) -> None:
        """Set the webhook, then wait until it is time to check it again."""
        await self._learn_name()
        self._take = take
        state = await self._api.ask("getWebhookInfo", {}, api.Result)
        params = {"url": self._settings.webhook_url, "secret_token": self._hook_secret}
        # With more than one connection, updates could arrive out of order.
        await self._api.ask(
            "setWebhook", {**params, "allowed_updates": _UPDATES, "max_connections": 1}, bool
        )
        if state.pending_update_count and state.last_error_message:
            self._note(f"Telegram cannot reach the webhook: {state.last_error_message}")
            await self._clock.sleep(outgoing.LONGEST_WAIT_S)
        else:
            self.trouble = ""
            await self._clock.sleep(_RENEW_S)

    async def _hand_on(self, update: api.Update, take: Take) -> str:
        """Pass one update to `take` and return its cursor. Updates without content are skipped."""
        cursor = str(update.update_id)
        try:
            query = decode(update.callback_query, type=api.Query | None)
            incoming = self._incoming(update, query)
        except msgspec.DecodeError:
            log.warning(SKIPPED_UPDATE, extra={"update_id": cursor})
            return cursor
        alert_text = await take(incoming) if incoming is not None else ""
        if query is not None:
            alert = {"text": alert_text[:_ALERT], "show_alert": True} if alert_text else {}
            answer = {"callback_query_id": query.id, **alert}
            await self._api.call("answerCallbackQuery", answer, _OPTIONAL_S)
        return cursor

    def _incoming(self, update: api.Update, query: api.Query | None) -> Incoming | None:
        edited = decode(update.edited_message, type=api.TelegramMessage | None)
        raw = update.edited_message if edited else update.message
        message = query.message if query else decode(raw, type=api.TelegramMessage | None)
        if message is None:
            return None
        pressed = query.data if query else ""
        text = "" if query else self._without_bot_name(message.text or _describe(message, raw))
        if not (pressed or text):
            return None
        own, cursor = str(message.message_id), str(update.update_id)
        kind = f"edit:{cursor}" if edited else "message"
        # For a message sent in the name of a chat, `sender` is one placeholder user for all
        # such messages. The chat itself is the sender then.
        sender = query.sender if query else message.sender_chat or message.sender or message.chat
        return Incoming(
            external_id=f"press:{query.id}" if query else f"{kind}:{message.chat.id}:{own}",
            cursor="" if self.path else cursor,
            address=_address(message, str(sender.id)),
            name=sender.name,
            text=text,
            reply_to=own if query else message.reply_to,
            message_id="" if query else own,
            quoted="" if query else message.quoted,
            pressed=pressed,
            edited=edited is not None,
            forwarded="" if query else message.forwarded,
        )

    def _without_bot_name(self, text: str) -> str:
        """Convert `/stop@our_bot` to `/stop`; return "" for a command to another bot."""
        command = _COMMAND.match(text)
        if command is None:
            return text
        ours = command[2].casefold() == self._username.casefold()
        return command[1] + text[command.end() :] if ours else ""

    async def _send(self, request: outgoing.SendRequest) -> api.Answer:
        method = "editMessageText" if request.edit else "sendMessage"
        answer = await self._api.call(method, request.html)
        if isinstance(answer, api.ApiError) and "can't parse entities" in answer.description:
            answer = await self._api.call(method, request.plain)
        return answer


def _is_webhook_conflict(answer: api.Answer) -> bool:
    """Return whether Telegram refuses to be polled because a webhook is set."""
    if not isinstance(answer, api.ApiError) or answer.status != 409:
        return False
    return "webhook" in answer.description


def _number_of(update: api.Update) -> int:
    return update.update_id


def _address(message: api.TelegramMessage, user: str) -> Address:
    kind = _CHAT_TYPES.get(message.chat.type, ChatType.GROUP)
    chat, thread = str(message.chat.id), message.thread
    return Address(platform=Telegram.name, chat_type=kind, chat=chat, thread=thread, user=user)


def _describe(message: api.TelegramMessage, raw: msgspec.Raw) -> str:
    """The text for a message without text: the kind and name of the attachment, and the caption."""
    content = decode(raw, type=dict[str, msgspec.Raw])
    kind = next((kind for kind in content if kind in _MEDIA), "")
    if not kind:
        return message.caption
    file = decode(content[kind], type=api.File | list[msgspec.Raw])  # a photo is a list of sizes
    name = file.file_name if isinstance(file, api.File) else ""
    label = ": ".join(filter(None, (kind.replace("_", " "), " ".join(name.split()))))
    return f"[{label}]\n{message.caption}".strip()


def create(settings: TelegramSettings, secret: Secret, clock: Clock) -> Telegram:
    """Create the channel with the token from the environment."""
    return Telegram(settings, secret(api.TOKEN_KEY), clock)


CHANNEL = ChannelKind(Telegram.name, TelegramSettings, (api.TOKEN_KEY,), create)
