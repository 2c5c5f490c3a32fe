"""Telegram: the Bot API over one connection pool, by long polling or by its webhook.

In: an update is ours when `take` has returned; only then does the next poll confirm it, or the
webhook answer 200. The cursor is the number of the one taken last, even if it is smaller than
the one before: Telegram draws a new number after a quiet week, and a cursor that only grew would
ask for ever the same. Through the webhook Telegram keeps the place itself, and sends one at a
time, so there is no cursor. Nothing that waits is ever dropped, whichever way is taken.

Out: what Telegram refused and what found no connection has not arrived; a lost answer to a
message is doubtful. A change of a message can be made twice without harm, so it never is.

The secret of the webhook is made from the token: there is one thing to configure.
"""

import hmac
import logging
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.json import decode

from holdfast.channels import render
from holdfast.channels.channel import (
    Accepted,
    Capabilities,
    Clock,
    Doubtful,
    Hook,
    HookAnswer,
    Incoming,
    Kind,
    Later,
    Outgoing,
    Refused,
    Secret,
    Sent,
    Take,
)
from holdfast.channels.split import split
from holdfast.channels.telegram_api import (
    HINT,
    TOKEN_KEY,
    Answer,
    Api,
    Failed,
    File,
    Message,
    Query,
    Result,
    Update,
    result,
)
from holdfast.core.address import Address, ChatType
from holdfast.core.types import Value
from holdfast.errors import Misconfigured, Transient

log = logging.getLogger(__name__)

REPEATED = "*(Possibly repeated: it is not known whether this arrived before.)*\n\n"

_RETRY_S = 1.0  # the shortest wait
_LONGEST_WAIT_S = 60.0
_COURTESY_S = 5.0  # for what may as well be left undone: typing, the answer to a button
_RENEW_S = 300.0  # so often it is made sure that the webhook is still ours
_MARK = len(REPEATED)  # what a part leaves free for it
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


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator says of it."""

    webhook_url: Reached = ""  # empty: long polling
    base_url: Url = "https://api.telegram.org"
    poll_s: Poll = 25  # how long Telegram may keep a poll open
    answer_s: Seconds = 20.0  # how long it may take to answer anything else
    connect_s: Seconds = 10.0


class Telegram:
    """One bot."""

    name = "telegram"
    capabilities = Capabilities(
        late=True,
        answerable=True,
        edits=True,
        buttons=True,
        threads=True,
        typing=True,
        attachments=False,
        max_length=render.TELEGRAM_LENGTH,
        idempotent_send=False,
    )

    def __init__(self, settings: Settings, token: str, clock: Clock) -> None:
        token = token.strip()
        if not re.fullmatch(r"[0-9]+:[A-Za-z0-9_-]+", token):
            raise Misconfigured(f"{TOKEN_KEY} is no bot token", HINT)
        self.trouble = ""
        self.path = self.name if settings.webhook_url else ""
        self._hook_secret = hmac.digest(token.encode(), b"holdfast webhook", "sha256").hex()
        self._api = Api(settings.base_url, token, settings.answer_s, settings.connect_s)
        self._settings = settings
        self._clock = clock
        self._username = ""
        self._take: Take | None = None  # of the webhook

    async def receive(self, cursor: str, take: Take) -> None:
        """Hand on what comes after `cursor`, for ever. Ends only with a token that is refused."""
        wait_s = _RETRY_S
        try:
            while True:
                try:
                    if self.path:
                        await self._be_called(take)
                    else:
                        for update in await self._poll(cursor):
                            cursor = await self._hand_on(update, take)
                        self.trouble = ""
                except Misconfigured as refusal:
                    self.trouble = str(refusal)
                    raise
                except Transient as trouble:
                    self._note(str(trouble))
                    await self._clock.sleep(trouble.retry_after_s or wait_s)
                    wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
                else:
                    wait_s = _RETRY_S
        finally:
            self._take = None

    async def hear(self, hook: Hook) -> HookAnswer:
        """One update that Telegram sends to the webhook."""
        given = hook.headers.get(_SECRET_HEADER, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._hook_secret.encode()):
            return HookAnswer(401, b"this is not Telegram")
        if self._take is None:
            return HookAnswer(503, b"nobody takes it now")
        try:
            await self._hand_on(decode(hook.body, type=Update), self._take)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return HookAnswer(400, b"this is no update")
        except Transient as trouble:
            self._note(str(trouble))
            return HookAnswer(503, b"it cannot be taken now")
        self.trouble = ""
        return HookAnswer(200)

    def split(self, text: str) -> tuple[str, ...]:
        """Parts that fit wherever they go: with no host named, and marked as repeated."""
        return split(text, _length, self.capabilities.max_length - _MARK)

    async def deliver(self, message: Outgoing) -> Sent:
        """Carry one message, into the group that its group has become if need be."""
        request = _request(message)
        if isinstance(request, Refused):
            return request
        answer = await self._send(request)
        if isinstance(answer, Failed) and answer.moved_to:
            answer = await self._send(_moved(request, answer.moved_to))
        return _judge(request, answer)

    async def show_typing(self, address: Address) -> None:
        """Show it for some seconds, or until something is sent."""
        await self._api.call("sendChatAction", {**_place(address), "action": "typing"}, _COURTESY_S)

    async def aclose(self) -> None:
        """Close the pool."""
        await self._api.aclose()

    def _note(self, trouble: str) -> None:
        if self.trouble != trouble:  # it is said once, not each time it is met
            log.warning("telegram cannot be heard", extra={"reason": trouble})
        self.trouble = trouble

    async def _learn_name(self) -> None:
        """What people call the bot in a command: `/stop@holdfast_bot`."""
        if not self._username:
            self._username = (await self._api.ask("getMe", {}, Result)).username

    async def _poll(self, cursor: str) -> list[Update]:
        await self._learn_name()
        params = {"timeout": self._settings.poll_s, "allowed_updates": _UPDATES}
        if cursor:
            params["offset"] = int(cursor) + 1
        limit_s = self._settings.answer_s + self._settings.poll_s
        answer = await self._api.call("getUpdates", params, limit_s)
        if isinstance(answer, Failed) and answer.status == 409 and "webhook" in answer.words:
            await self._api.ask("deleteWebhook", {}, bool)
            answer = await self._api.call("getUpdates", params, limit_s)
        return result(answer, list)

    async def _be_called(self, take: Take) -> None:
        """Have Telegram send what there is to the webhook, until it is time to look again."""
        await self._learn_name()
        self._take = take
        state = await self._api.ask("getWebhookInfo", {}, Result)
        params = {"url": self._settings.webhook_url, "secret_token": self._hook_secret}
        # One connection: with more of them updates may overtake one another.
        await self._api.ask(
            "setWebhook", {**params, "allowed_updates": _UPDATES, "max_connections": 1}, bool
        )
        if state.pending_update_count and state.last_error_message:
            self._note(f"Telegram cannot reach the webhook: {state.last_error_message}")
            await self._clock.sleep(_LONGEST_WAIT_S)
        else:
            self.trouble = ""
            await self._clock.sleep(_RENEW_S)

    async def _hand_on(self, update: Update, take: Take) -> str:
        """Hand on one update; the cursor behind it. One that says nothing is passed over."""
        cursor = str(update.update_id)
        try:
            query = decode(update.callback_query, type=Query | None)
            incoming = self._incoming(update, query)
        except msgspec.DecodeError:
            log.warning("an update was not understood", extra={"update_id": cursor})
            return cursor
        if incoming is not None:
            await take(incoming)
        if query is not None:
            await self._api.call(
                "answerCallbackQuery", {"callback_query_id": query.id}, _COURTESY_S
            )
        return cursor

    def _incoming(self, update: Update, query: Query | None) -> Incoming | None:
        edited = decode(update.edited_message, type=Message | None)
        raw = update.edited_message if edited else update.message
        message = query.message if query else decode(raw, type=Message | None)
        if message is None:
            return None
        pressed = query.data if query else ""
        text = "" if query else self._unaddressed(message.text or _described(message, raw))
        if not (pressed or text):
            return None
        own, cursor = str(message.message_id), str(update.update_id)
        kind = f"edit:{cursor}" if edited else "message"
        # Whoever speaks as a chat is that chat: the user named then is one for all of them.
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
        )

    def _unaddressed(self, text: str) -> str:
        """`/stop@us` as `/stop`; nothing of a command to another bot."""
        command = _COMMAND.match(text)
        if command is None:
            return text
        ours = command[2].casefold() == self._username.casefold()
        return command[1] + text[command.end() :] if ours else ""

    async def _send(self, request: "_Request") -> Answer:
        method = "editMessageText" if request.edit else "sendMessage"
        answer = await self._api.call(method, request.html)
        if isinstance(answer, Failed) and "can't parse entities" in answer.words:
            answer = await self._api.call(method, request.plain)
        return answer


class _Request(Value):
    """One message to send or change, and the same without markup."""

    html: dict[str, Any]
    plain: dict[str, Any]
    edit: str


def _length(text: str) -> int:
    part = render.telegram(text, named_hosts=())
    return render.utf16_length(part.text) if part else 0


def _request(message: Outgoing) -> _Request | Refused:
    """What to ask for, if it is one message that can be seen."""
    marked = message.repeated and not message.edit
    text = REPEATED + message.text if marked and message.text.strip() else message.text
    part = render.telegram(text, named_hosts=message.named_hosts)
    if part is None:
        return Refused("there is nothing in it that could be seen")
    if render.utf16_length(part.text) > render.TELEGRAM_LENGTH:
        return Refused(f"it is longer than one message ({render.TELEGRAM_LENGTH} characters)")
    params = {**_place(message.address), "link_preview_options": {"is_disabled": True}}
    if message.edit:
        params["message_id"] = _number(message.edit)
    elif message.reply_to:
        reply = {"message_id": _number(message.reply_to), "allow_sending_without_reply": True}
        params["reply_parameters"] = reply
    if message.buttons:
        rows = [[{"text": b.text, "callback_data": b.data} for b in r] for r in message.buttons]
        params["reply_markup"] = {"inline_keyboard": rows}
    html = {**params, "text": part.html, "parse_mode": "HTML"}
    return _Request(html, {**params, "text": part.text}, message.edit)


def _moved(request: _Request, chat: int) -> _Request:
    """The same into another chat."""
    there = {"chat_id": chat}
    return _Request(request.html | there, request.plain | there, request.edit)


def _judge(request: _Request, answer: Answer) -> Sent:
    """What an answer says about where the message is."""
    if not isinstance(answer, Failed):
        return Accepted(
            request.edit or str(answer.message_id if isinstance(answer, Result) else "")
        )
    if request.edit and "message is not modified" in answer.words:
        return Accepted(request.edit)
    if answer.status in (401, 404):
        return Later(f"{TOKEN_KEY} is refused ({answer.words})", _LONGEST_WAIT_S)
    if 400 <= answer.status < 500 and answer.status != 429:
        return Refused(answer.words)
    if answer.begun and not request.edit:
        return Doubtful(answer.words)
    return Later(answer.words, answer.retry_after_s or _RETRY_S)


def _place(address: Address) -> dict[str, Any]:
    thread = {"message_thread_id": _number(address.thread)} if address.thread else {}
    return {"chat_id": address.chat, **thread}


def _number(name: str) -> int | str:
    return int(name) if re.fullmatch(r"[0-9]{1,18}", name) else name  # the latter is refused


def _address(message: Message, user: str) -> Address:
    kind = _CHAT_TYPES.get(message.chat.type, ChatType.GROUP)
    chat, thread = str(message.chat.id), message.thread
    return Address(platform=Telegram.name, chat_type=kind, chat=chat, thread=thread, user=user)


def _described(message: Message, raw: msgspec.Raw) -> str:
    """What is to be read of a message that is not text, and what came with it, in one line."""
    content = decode(raw, type=dict[str, msgspec.Raw])
    kind = next((kind for kind in content if kind in _MEDIA), "")
    if not kind:
        return message.caption
    file = decode(content[kind], type=File | list[msgspec.Raw])  # the latter: sizes of a photo
    name = file.file_name if isinstance(file, File) else ""
    label = ": ".join(filter(None, (kind.replace("_", " "), " ".join(name.split()))))
    return f"[{label}]\n{message.caption}".strip()


def create(settings: Settings, secret: Secret, clock: Clock) -> Telegram:
    """The bot whose token the environment has."""
    return Telegram(settings, secret(TOKEN_KEY), clock)


CHANNEL = Kind(Telegram.name, Settings, (TOKEN_KEY,), create)
