"""Telegram: the Bot API by long polling, over one connection pool.

In: an update is ours when `take` has returned; only then does the next poll confirm it. The
cursor is the number of the one taken last, even if it is smaller than the one before: Telegram
draws a new number after a quiet week, and a cursor that only grew would ask for ever the same.

Out: what Telegram refused and what found no connection has not arrived; a lost answer to a
message is doubtful. A change of a message can be made twice without harm, so it never is.

The token is part of every address that is asked. So no text of an exception of the HTTP library
is ever shown, and what Telegram says is shown without it.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec.json import decode
from yarl import URL

from holdfast.channels import render
from holdfast.channels.channel import (
    Accepted,
    Capabilities,
    Doubtful,
    Incoming,
    Later,
    Outgoing,
    Refused,
    Sent,
    Take,
)
from holdfast.core.address import Address, ChatType
from holdfast.core.types import Value
from holdfast.errors import HoldfastError, Misconfigured, Transient

log = logging.getLogger(__name__)

TOKEN_KEY = "TELEGRAM_BOT_TOKEN"
REPEATED = "*(Possibly repeated: it is not known whether this arrived before.)*"

_RETRY_S = 1.0  # the shortest wait
_LONGEST_WAIT_S = 60.0
_COURTESY_S = 5.0  # for what may as well be left undone: typing, the answer to a button
_PART_RETRIES = 3  # for each part but the first, of a text in several
_HINT = "copy it again from @BotFather, whole: digits, a colon, letters"
_WORDS = 300  # characters shown of what Telegram says
_STRANGE = "not Telegram but something on the way to it answered"
_UPDATES = ("message", "edited_message", "callback_query")
_COMMAND = re.compile(r"(/\w+)@(\w+)(?=\s|\Z)")
_CHAT_TYPES = {"private": ChatType.DIRECT, "channel": ChatType.CHANNEL}  # else a group
_MEDIA = frozenset(
    "animation audio contact dice document location photo poll sticker story venue video "
    "video_note voice".split()
)

Sleep = Callable[[float], Awaitable[None]]
T = TypeVar("T")


class Settings(Value):
    """What the operator says of it. The token is asked for, so that no printing shows it."""

    token: Callable[[], str]
    base_url: str = "https://api.telegram.org"
    poll_s: int = 25  # how long Telegram may keep a poll open; it allows 50
    answer_s: float = 20.0  # how long it may take to answer anything else
    connect_s: float = 10.0


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

    def __init__(self, settings: Settings, sleep: Sleep) -> None:
        token = settings.token().strip()
        if not re.fullmatch(r"[0-9]+:[A-Za-z0-9_-]+", token):
            raise Misconfigured(f"{TOKEN_KEY} is no bot token", _HINT)
        self.trouble = ""  # why nothing can be heard just now; empty: all is well
        self._secret = token.partition(":")[2]
        self._root = f"{settings.base_url.rstrip('/')}/bot{token}"
        self._settings = settings
        self._sleep = sleep
        self._username = ""
        self._session: aiohttp.ClientSession | None = None

    async def receive(self, cursor: str, take: Take) -> None:
        """Hand on what comes after `cursor`, for ever. Ends only with a token that is refused."""
        wait_s = _RETRY_S
        while True:
            try:
                for update in await self._poll(cursor):
                    cursor = await self._hand_on(update, take)
            except Transient as trouble:
                if self.trouble != str(trouble):  # it is said once, not each time it is met
                    log.warning("telegram cannot be heard", extra={"reason": str(trouble)})
                self.trouble = str(trouble)
                await self._sleep(trouble.retry_after_s or wait_s)
                wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
            else:
                wait_s, self.trouble = _RETRY_S, ""

    async def deliver(self, message: Outgoing) -> Sent:
        """Carry one message, in several where it is long; the id is that of the last."""
        requests = _requests(message)
        sent: Sent = Refused("there is nothing in it that could be seen")
        for arrived, request in enumerate(requests):
            sent = await self._send(request)
            for _ in range(_PART_RETRIES if arrived else 0):
                if isinstance(sent, Later):
                    await self._sleep(min(sent.after_s, _LONGEST_WAIT_S))
                    sent = await self._send(request)
            if not isinstance(sent, Accepted):
                return _partly(sent, arrived, len(requests)) if arrived else sent
        return sent

    async def show_typing(self, address: Address) -> None:
        """Show it for some seconds, or until something is sent."""
        await self._call("sendChatAction", {**_place(address), "action": "typing"}, _COURTESY_S)

    async def aclose(self) -> None:
        """Close the pool."""
        if self._session is not None:
            await self._session.close()

    async def _poll(self, cursor: str) -> "list[_Update]":
        if not self._username:  # what people call the bot in a command: `/stop@holdfast_bot`
            self._username = (await self._ask("getMe", {}, _Result)).username
        params = {"timeout": self._settings.poll_s, "allowed_updates": _UPDATES}
        if cursor:
            params["offset"] = int(cursor) + 1
        return await self._ask("getUpdates", params, list)

    async def _ask(self, method: str, params: dict[str, Any], shape: type[T]) -> T:
        limit_s = self._settings.answer_s + params.get("timeout", 0)
        answer = await self._call(method, params, limit_s)
        if isinstance(answer, shape):
            return answer
        raise _problem(answer if isinstance(answer, _Failed) else _Failed(_STRANGE))

    async def _hand_on(self, update: "_Update", take: Take) -> str:
        """Hand on one update; the cursor behind it. One that says nothing is passed over."""
        cursor = str(update.update_id)
        try:
            query = decode(update.callback_query, type=_Query | None)
            incoming = self._incoming(update, query, cursor)
        except msgspec.DecodeError:
            log.warning("an update was not understood", extra={"update_id": cursor})
            return cursor
        if incoming is not None:
            await take(incoming)
        if query is not None:
            await self._call("answerCallbackQuery", {"callback_query_id": query.id}, _COURTESY_S)
        return cursor

    def _incoming(self, update: "_Update", query: "_Query | None", cursor: str) -> Incoming | None:
        edited = decode(update.edited_message, type=_Message | None)
        raw = update.edited_message if edited else update.message
        message = query.message if query else decode(raw, type=_Message | None)
        if message is None:
            return None
        pressed = query.data if query else ""
        text = "" if query else self._unaddressed(message.text or _caption(message, raw))
        if not (pressed or text):
            return None
        own = str(message.message_id)
        kind = f"edit:{cursor}" if edited else "message"
        # Whoever speaks as a chat is that chat: the user named then is one for all of them.
        sender = query.sender if query else message.sender_chat or message.sender or message.chat
        return Incoming(
            external_id=f"press:{query.id}" if query else f"{kind}:{message.chat.id}:{own}",
            cursor=cursor,
            address=_address(message, str(sender.id)),
            name=sender.name,
            text=text,
            reply_to=own if query else message.reply_to,
            message_id="" if query else own,
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

    async def _send(self, request: "_Request") -> Sent:
        method = "editMessageText" if request.edit else "sendMessage"
        answer = await self._call(method, request.html)
        if isinstance(answer, _Failed) and "can't parse entities" in answer.words:
            answer = await self._call(method, request.plain)
        return _judge(request, answer)

    async def _call(self, method: str, params: dict[str, Any], limit_s: float = 0) -> "_Answer":
        limit_s = limit_s or self._settings.answer_s
        if self._session is None:
            connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar)
        timeout = aiohttp.ClientTimeout(total=limit_s, connect=self._settings.connect_s)
        url = URL(f"{self._root}/{method}", encoded=True)
        try:
            async with self._session.post(
                url, json=params, timeout=timeout, allow_redirects=False
            ) as response:
                return self._read(response.status, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return _Failed("Telegram cannot be reached", begun=False)
        except TimeoutError:
            return _Failed(f"Telegram did not answer within {limit_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return _Failed(f"the connection to Telegram broke ({type(error).__name__})")

    def _read(self, status: int, body: bytes) -> "_Answer":
        try:
            reply = decode(body, type=_Reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return _Failed(f"{_STRANGE} ({status})", begun=status < 300 or status >= 500)
        if reply.ok:
            return reply.result
        words = reply.description.replace(self._secret, "…")[:_WORDS] or f"status {status}"
        return _Failed(words, status, reply.parameters.get("retry_after", 0.0), begun=status >= 500)


class _Failed(Value):
    """What Telegram said instead of a result, or what became of the connection."""

    words: str
    status: int = 0  # nothing was said
    retry_after_s: float = 0.0
    begun: bool = True  # it may have been done


class _Request(Value):
    """One message to send or change, and the same without markup."""

    html: dict[str, Any]
    plain: dict[str, Any]
    edit: str


def _requests(message: Outgoing) -> list[_Request]:
    """What to ask for, in order: a reply with the first part, the buttons with the last."""
    parts = render.telegram(message.text, named_hosts=message.named_hosts)
    if message.repeated and parts and not (message.edit and len(parts) == 1):
        marked = f"{REPEATED}\n\n{message.text}"
        parts = render.telegram(marked, named_hosts=message.named_hosts)
    requests = []
    for at, part in enumerate(parts):
        edit, reply_to = ("", "") if at else (message.edit, message.reply_to)
        params = {**_place(message.address), "link_preview_options": {"is_disabled": True}}
        if edit:
            params["message_id"] = _number(edit)
        elif reply_to:
            reply = {"message_id": _number(reply_to), "allow_sending_without_reply": True}
            params["reply_parameters"] = reply
        if message.buttons and at == len(parts) - 1:
            rows = [[{"text": b.text, "callback_data": b.data} for b in r] for r in message.buttons]
            params["reply_markup"] = {"inline_keyboard": rows}
        html = {**params, "text": part.html, "parse_mode": "HTML"}
        requests.append(_Request(html, {**params, "text": part.text}, edit))
    return requests


def _judge(request: _Request, answer: "_Answer") -> Sent:
    """What an answer says about where the message is."""
    if not isinstance(answer, _Failed):
        return Accepted(
            request.edit or str(answer.message_id if isinstance(answer, _Result) else "")
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


def _partly(sent: Later | Refused | Doubtful, arrived: int, parts: int) -> Sent:
    """What became of a message of which so much has arrived: it is too late for `Later`."""
    reason = f"{arrived} of {parts} parts arrived, then: {sent.reason}"
    return Refused(reason) if isinstance(sent, Refused) else Doubtful(reason)


def _problem(answer: _Failed) -> HoldfastError:
    """Why nothing can be heard: what waiting may mend, and what only the operator can."""
    if answer.status in (401, 404):
        return Misconfigured(f"Telegram refuses {TOKEN_KEY} ({answer.words})", _HINT)
    whose = "somebody else receives this bot's messages: " if answer.status == 409 else ""
    return Transient(whose + answer.words, retry_after_s=answer.retry_after_s or None)


def _place(address: Address) -> dict[str, Any]:
    thread = {"message_thread_id": _number(address.thread)} if address.thread else {}
    return {"chat_id": address.chat, **thread}


def _number(name: str) -> int | str:
    return int(name) if re.fullmatch(r"[0-9]{1,18}", name) else name  # the latter is refused


class _Who(msgspec.Struct):
    """A user or a chat."""

    id: int
    type: str = ""
    title: str = ""
    first_name: str = ""
    last_name: str = ""

    @property
    def name(self) -> str:
        return self.title or f"{self.first_name} {self.last_name}".strip()


class _Result(msgspec.Struct):
    message_id: int = 0  # of a message
    username: str = ""  # of a bot


class _Message(msgspec.Struct):
    message_id: int
    chat: _Who
    sender: _Who | None = msgspec.field(name="from", default=None)
    sender_chat: _Who | None = None
    message_thread_id: int = 0
    is_topic_message: bool = False
    reply_to_message: _Result | None = None
    text: str = ""
    caption: str = ""

    @property
    def thread(self) -> str:
        """The topic. In a plain group a chain of replies has a thread id too, and is none."""
        return str(self.message_thread_id) if self.is_topic_message else ""

    @property
    def reply_to(self) -> str:
        """All that is said in a topic replies to the topic's first message; that is no reply."""
        replied = str(self.reply_to_message.message_id) if self.reply_to_message else ""
        return "" if replied == self.thread else replied


class _Query(msgspec.Struct):
    id: str
    sender: _Who = msgspec.field(name="from")
    message: _Message | None = None
    data: str = ""


class _Update(msgspec.Struct):
    """Read as far as its number, so that one that is not understood can be passed over."""

    update_id: int
    message: msgspec.Raw = msgspec.Raw(b"null")
    edited_message: msgspec.Raw = msgspec.Raw(b"null")
    callback_query: msgspec.Raw = msgspec.Raw(b"null")


class _Reply(msgspec.Struct):
    ok: bool
    result: list[_Update] | _Result | bool = False
    description: str = ""
    parameters: dict[str, Any] = {}


_Answer = list[_Update] | _Result | bool | _Failed


def _address(message: _Message, user: str) -> Address:
    kind = _CHAT_TYPES.get(message.chat.type, ChatType.GROUP)
    chat, thread = str(message.chat.id), message.thread
    return Address(platform=Telegram.name, chat_type=kind, chat=chat, thread=thread, user=user)


def _caption(message: _Message, raw: msgspec.Raw) -> str:
    """What is to be read of a message that is not text, and that there was more."""
    kinds = decode(raw, type=dict[str, msgspec.Raw])
    notes = [f"[{kind.replace('_', ' ')}: cannot be read here]" for kind in kinds if kind in _MEDIA]
    return "\n".join([*notes[:1], message.caption]).strip()
