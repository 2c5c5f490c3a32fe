"""Telegram's Bot API on loopback, as far as a chat channel needs it, faults included.

`async with serve() as telegram` gives a server. What people do is a method of it: `say`,
`edit`, `click`, `block`, `delete`, `upgrade`. What the bot did is in `calls` (everything
received, in order), `accepted` (every message and change that took effect, in order) and
`messages` (what stands in the chats). It is as strict as the real one where a bot can go
wrong: markup is parsed by Telegram's rules, lengths are counted in UTF-16, an edit must
change something, an update comes again until a later `getUpdates` confirms it, a message
of a forum topic replies to the topic's first, a thread that is no topic cannot be sent to.

    telegram.then("sendMessage", TooMany(3), Fail(502), Reset(after=True), Hold(gate))

plays these faults on the next calls of that method, one each; `after` means that the
effect has happened and only the answer is lost. A `Hold` whose gate nobody opens hangs.
`telegram.weather = lambda call: …` chooses a fault, or none, for each call that has no such
orders; `telegram.delay_s` makes every answer slow. `telegram.forget_offset()` has the next poll
answered with what was confirmed before, as if Telegram had lost the bot's place.

Not played: media, MarkdownV2, rate limits of its own accord, privacy mode, TLS for webhooks.
"""

import asyncio
import json
import re
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import aiohttp
import anyio
from aiohttp import web

from tests.fakes.telegram_markup import Json as Json
from tests.fakes.telegram_markup import Refusal, bad, parse_html, utf16

MAX_LENGTH = 4096
RETRY_S = 0.02  # a webhook that failed is tried again after it


@dataclass(frozen=True, slots=True)
class TooMany:
    """429, before any effect."""

    retry_after: int


@dataclass(frozen=True, slots=True)
class Fail:
    """That status, before or after the effect."""

    status: int
    description: str = "Internal Server Error"
    after: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset, before or after the effect."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer waits for the test; the effect does not, unless `after` is false."""

    gate: anyio.Event = field(default_factory=anyio.Event)
    after: bool = True


Fault = TooMany | Fail | Reset | Hold


class Taken(NamedTuple):
    """A message, or a change of one, that took effect."""

    chat: int
    thread: int
    message_id: int
    text: str
    edit: bool


@dataclass(slots=True)
class Call:
    """A request as it came, and the status it got (0: none, the connection was reset)."""

    method: str
    params: Json
    status: int = -1


@dataclass(eq=False)
class Chat:
    """A chat, with its topics by thread id."""

    id: int
    type: str
    title: str = ""
    topics: dict[int, Json] = field(default_factory=dict)

    @property
    def is_forum(self) -> bool:
        return self.type == "supergroup" and bool(self.topics)

    def public(self) -> Json:
        """As it goes over the wire."""
        shown: Json = {"id": self.id, "type": self.type}
        shown["first_name" if self.type == "private" else "title"] = self.title
        return shown | {"is_forum": True} if self.is_forum else shown


class Telegram:
    """What a test holds of a running server."""

    def __init__(self) -> None:
        self.token = "123456789:AAFakeTokenForTestsOnly"
        self.address = ""  # without the `/bot<token>` that a library adds
        self.bot: Json = {
            "id": 123456789, "is_bot": True, "first_name": "Holdfast", "username": "holdfast_bot",
            "can_join_groups": True, "can_read_all_group_messages": False,
            "supports_inline_queries": False,
        }  # fmt: skip
        self.calls: list[Call] = []
        self.accepted: list[Taken] = []
        self.delay_s = 0.0  # before every answer
        self.newest_first = False  # the order of updates in an answer to a poll
        self.weather: Callable[[Call], Fault | None] = lambda _: None
        self.messages: dict[tuple[int, int], Json] = {}
        self.pending: list[Json] = []  # updates that nobody has confirmed
        self.webhook: Json = {}
        self.pushes: list[int] = []  # what each attempt to push to the webhook got; 0: nothing
        self.answered: dict[str, Json] = {}  # callback queries, with what they were answered
        self.actions: list[Json] = []
        self._chats: dict[int, Chat] = {}
        self._upgraded: dict[int, int] = {}  # groups, and what they have become
        self._confirmed: list[Json] = []
        self._offset_lost = False
        self._blocked: set[int] = set()
        self._allowed: list[str] = []
        self._faults: dict[str, deque[Fault]] = defaultdict(deque)
        self._queries: set[str] = set()
        self._last_update_id = 870_000_000
        self._update_ids = count(self._last_update_id + 1)
        self._query_ids = count(4_100_000_000_000_000_001)
        self._own_ids = count(101)  # private chats and small groups share the bot's numbers
        self._group_ids: dict[int, count[int]] = {}
        self._poll: object = None
        self._changed = anyio.Event()

    @property
    def base_url(self) -> str:
        """Where the methods are: `<base_url>/getMe`."""
        return f"{self.address}/bot{self.token}"

    def private(self, user_id: int, name: str = "Ada") -> Chat:
        """The chat with one user, whose id is the user's."""
        return self._chat(Chat(user_id, "private", name))

    def group(self, title: str = "Group", *, kind: str = "supergroup") -> Chat:
        """A new group; it becomes a forum with its first topic."""
        return self._chat(Chat(-1_002_000_000_000 - len(self._chats), kind, title))

    def topic(self, chat: Chat, name: str) -> int:
        """A new topic of a forum or of a direct chat; its thread id."""
        number = self._next_id(chat)
        chat.topics[number] = {
            "message_id": number, "chat": chat.public(), "date": int(time.time()),
            "message_thread_id": number, "is_topic_message": True,
            "forum_topic_created": {"name": name, "icon_color": 7322096},
        }  # fmt: skip
        return number

    def say(
        self,
        chat: Chat,
        text: str,
        user: int = 0,
        thread: int = 0,
        *,
        reply_to: int = 0,
        quote: str = "",
    ) -> Json:
        """Somebody writes: the message, and an update about it."""
        message = self._message(chat, self._person(chat, user), text)
        if command := re.match(r"/\w+(?:@\w+)?", text):
            message["entities"] = [{"type": "bot_command", "offset": 0, "length": command.end()}]
        if quote:
            message["quote"] = {"text": quote, "position": 0, "is_manual": True}
        if reply_to:
            message["reply_to_message"] = self._shown(chat.id, reply_to)
            if chat.type == "supergroup" and not thread:
                message["message_thread_id"] = reply_to  # a thread, but no topic
        if thread:
            message |= {"message_thread_id": thread, "is_topic_message": True}
            message.setdefault("reply_to_message", chat.topics[thread])
        self._update("message", message)
        return message

    def edit(self, message: Json, text: str) -> None:
        """Somebody changes what they wrote."""
        message |= {"text": text, "edit_date": int(time.time())}
        self._update("edited_message", message)

    def forward(self, chat: Chat, text: str, name: str, user: int = 0) -> Json:
        """Somebody forwards what another has written."""
        message = self._message(chat, self._person(chat, user), text)
        origin = {"type": "hidden_user", "sender_user_name": name, "date": int(time.time())}
        message["forward_origin"] = origin
        self._update("message", message)
        return message

    def share(self, chat: Chat, latitude: float, user: int = 0) -> Json:
        """Somebody shares where they are, live."""
        message = self._message(chat, self._person(chat, user), "")
        del message["text"]
        message["location"] = {"latitude": latitude, "longitude": 11.5, "live_period": 900}
        self._update("message", message)
        return message

    def move(self, message: Json, latitude: float) -> None:
        """They are elsewhere: an edit of the message, as Telegram has it."""
        message["location"]["latitude"] = latitude
        message["edit_date"] = int(time.time())
        self._update("edited_message", message)

    def click(self, message: Json, data: str, user: int = 0) -> str:
        """Somebody presses the button with `data`, which must be there; the query's id."""
        message = self.messages[message["chat"]["id"], message["message_id"]]
        rows = message.get("reply_markup", {}).get("inline_keyboard", [])
        if data not in [button.get("callback_data") for row in rows for button in row]:
            raise LookupError(f"message {message['message_id']} has no button {data!r}")
        query_id = str(next(self._query_ids))
        self._queries.add(query_id)
        chat = self._chats[message["chat"]["id"]]
        query = {"id": query_id, "from": self._person(chat, user), "message": message}
        self._update("callback_query", {**query, "chat_instance": "-1", "data": data})
        return query_id

    def delete(self, chat: Chat, message_id: int) -> None:
        """Somebody deletes a message, for all."""
        del self.messages[chat.id, message_id]

    def upgrade(self, chat: Chat) -> Chat:
        """A group becomes a supergroup, which is another chat; the old one takes nothing more."""
        new = self.group(chat.title)
        self._upgraded[chat.id] = new.id
        return new

    def forget_offset(self, count: int = 100) -> None:
        """The last so many that were confirmed come again, whatever the next poll asks for."""
        self.pending[:0] = self._confirmed[-count:]
        self._offset_lost = True
        self._wake()

    def block(self, user_id: int) -> None:
        """The user blocks the bot."""
        self._blocked.add(user_id)

    def unblock(self, user_id: int) -> None:
        """The user lets the bot speak again."""
        self._blocked.discard(user_id)

    def then(self, method: str, *faults: Fault) -> None:
        """Play these on the next calls of `method`, one each."""
        self._faults[method.lower()].extend(faults)

    def made(self, method: str) -> list[Call]:
        """The calls of one method, in order."""
        return [call for call in self.calls if call.method.lower() == method.lower()]

    def sent(self, chat: Chat) -> list[Json]:
        """What the bot has said in a chat, as it stands there now."""
        here = [dict(m) for (chat_id, _), m in self.messages.items() if chat_id == chat.id]
        return [message for message in here if message["from"]["id"] == self.bot["id"]]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that the bot does, or its webhook answers, makes it true."""
        while not condition():
            await self._changed.wait()

    async def called(self, method: str, times: int = 1) -> Call:
        """Wait until so many calls of `method` have been answered; the last of them."""
        await self.until(lambda: len([c for c in self.made(method) if c.status >= 0]) >= times)
        return self.made(method)[times - 1]

    def _chat(self, chat: Chat) -> Chat:
        return self._chats.setdefault(chat.id, chat)

    def _person(self, chat: Chat, user: int) -> Json:
        user = user or (chat.id if chat.type == "private" else 1)
        return {"id": user, "is_bot": False, "first_name": f"user {user}", "language_code": "en"}

    def _next_id(self, chat: Chat) -> int:
        own = chat.type == "supergroup"
        return next(self._group_ids.setdefault(chat.id, count(2)) if own else self._own_ids)

    def _message(self, chat: Chat, sender: Json, text: str) -> Json:
        message: Json = {
            "message_id": self._next_id(chat), "from": sender, "chat": chat.public(),
            "date": int(time.time()), "text": text,
        }  # fmt: skip
        self.messages[chat.id, message["message_id"]] = message
        return message

    def _shown(self, chat_id: int, message_id: int) -> Json:
        """A message inside another: without what that one replies to."""
        message = self.messages[chat_id, message_id]
        return {name: value for name, value in message.items() if name != "reply_to_message"}

    def _update(self, kind: str, content: Json) -> None:
        if not self._allowed or kind in self._allowed:
            copied = json.loads(json.dumps(content))
            self._last_update_id = next(self._update_ids)
            self.pending.append({"update_id": self._last_update_id, kind: copied})
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def app(self) -> web.Application:
        """The one route, for whoever runs it."""
        app = web.Application()
        app.router.add_route("*", "/bot{token}/{method}", self._serve)
        return app

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.match_info["method"], await _params(request))
        if request.match_info["token"] != self.token:
            return _answer(Refusal(401, "Unauthorized"))
        self.calls.append(call)
        self._wake()
        faults = self._faults[call.method.lower()]
        fault = faults.popleft() if faults else self.weather(call)
        try:
            answer = await self._play(call, fault)
            await anyio.sleep(self.delay_s)  # sleep: a slow platform is what is played
            call.status = answer.status if answer else 0
            return answer or _reset(request)
        finally:
            self._wake()

    async def _play(self, call: Call, fault: Fault | None) -> web.Response | None:
        """The answer, or none if the connection is to be reset."""
        match fault:
            case TooMany(seconds):
                text = f"Too Many Requests: retry after {seconds}"
                return _answer(Refusal(429, text, retry_after=seconds))
            case Fail(status, description, False):
                return _answer(Refusal(status, description))
            case Reset(False):
                return None
            case Hold(gate, False):
                await gate.wait()
            case _:
                pass
        try:
            answer = web.json_response({"ok": True, "result": await self._perform(call)})
        except Refusal as refusal:
            answer = _answer(refusal)
        self._wake()
        match fault:
            case Fail(status, description, True):
                return _answer(Refusal(status, description))
            case Reset(True):
                return None
            case Hold(gate, True):
                await gate.wait()
            case _:
                pass
        return answer

    async def _perform(self, call: Call) -> object:
        methods: dict[str, Callable[[Json], object]] = {
            "getme": lambda _: self.bot,
            "setwebhook": self._set_webhook,
            "deletewebhook": self._delete_webhook,
            "getwebhookinfo": self._webhook_info,
            "sendmessage": self._send_message,
            "editmessagetext": self._edit_message_text,
            "answercallbackquery": self._answer_callback_query,
            "sendchataction": self._send_chat_action,
        }
        name = call.method.lower()
        if name == "getupdates":
            return await self._get_updates(call.params)
        if name not in methods:
            raise Refusal(404, "Not Found: method not found")
        return methods[name](call.params)

    async def _get_updates(self, params: Json) -> list[Json]:
        if self.webhook:
            raise Refusal(
                409,
                "Conflict: can't use getUpdates method while webhook is active; "
                "use deleteWebhook to delete the webhook first",
            )
        self._allow(params)
        offset, limit = _int(params, "offset"), min(max(_int(params, "limit") or 100, 1), 100)
        if offset > self._last_update_id + 11:
            offset = 0  # TDLib's TQueue: in the future, so it is read from its head
        if self._offset_lost:
            offset, self._offset_lost = 0, False
        if offset < 0:
            offset = self.pending[offset:][0]["update_id"] if self.pending else 0
        self._confirmed += [u for u in self.pending if u["update_id"] < offset]
        self.pending[:] = [u for u in self.pending if u["update_id"] >= offset]
        mine = self._poll = object()
        self._wake()
        with anyio.move_on_after(min(_int(params, "timeout"), 50)):
            await self.until(lambda: self.pending or self._poll is not mine)
        if self._poll is not mine:
            raise Refusal(
                409,
                "Conflict: terminated by other getUpdates request; "
                "make sure that only one bot instance is running",
            )
        return self.pending[:limit][::-1] if self.newest_first else self.pending[:limit]

    def _allow(self, params: Json) -> None:
        """Which updates are made from now on; what was set stays if nothing is said."""
        if "allowed_updates" in params:
            self._allowed = list(params["allowed_updates"])

    def _set_webhook(self, params: Json) -> bool:
        secret = params.get("secret_token", "")
        if not re.fullmatch(r"[A-Za-z0-9_-]{0,256}", secret):
            raise bad("secret token contains unallowed characters")
        if not 1 <= (_int(params, "max_connections") or 40) <= 100:
            raise bad("max_connections must be between 1 and 100")
        if not re.match(r"https?://[^/]", url := params.get("url", "")) and url:
            raise bad("bad webhook: An HTTPS URL must be provided for webhook")
        self._allow(params)
        self._drop_if_asked(params)
        connections = _int(params, "max_connections") or 40
        hook = {"url": url, "secret_token": secret, "max_connections": connections}
        self.webhook = hook if url else {}
        self._poll = None  # a poll under way is over
        self._wake()
        return True

    def _delete_webhook(self, params: Json) -> bool:
        self._drop_if_asked(params)
        self.webhook = {}
        return True

    def _drop_if_asked(self, params: Json) -> None:
        if params.get("drop_pending_updates") in (True, "true", "True", "1"):
            self.pending.clear()

    def _webhook_info(self, _: Json) -> Json:
        shown = {name: value for name, value in self.webhook.items() if name != "secret_token"}
        pending = {"has_custom_certificate": False, "pending_update_count": len(self.pending)}
        return {"url": "", "allowed_updates": self._allowed} | shown | pending

    def _send_message(self, params: Json) -> Json:
        chat = self._addressed(params)
        text, entities = _content(params)
        extra: Json = {"entities": entities} if entities else {}
        if reply := params.get("reply_parameters"):
            key = (chat.id, reply["message_id"])
            if key in self.messages:
                extra["reply_to_message"] = self._shown(*key)
            elif not reply.get("allow_sending_without_reply"):
                raise bad("message to be replied not found")
        if thread := _int(params, "message_thread_id"):
            extra |= {"message_thread_id": thread, "is_topic_message": True}
            extra.setdefault("reply_to_message", chat.topics[thread])
        if keyboard := _keyboard(params):
            extra["reply_markup"] = keyboard
        if preview := params.get("link_preview_options"):
            extra["link_preview_options"] = preview
        message = self._message(chat, self._self(), text)
        message |= extra
        self._accept(message, edit=False)
        return message

    def _accept(self, message: Json, *, edit: bool) -> None:
        thread = message.get("message_thread_id", 0)
        chat_id, number = message["chat"]["id"], message["message_id"]
        self.accepted.append(Taken(chat_id, thread, number, message["text"], edit))

    def _edit_message_text(self, params: Json) -> Json:
        chat = self._addressed(params)
        message = self.messages.get((chat.id, _int(params, "message_id")))
        if message is None:
            raise bad("message to edit not found")
        if message["from"]["id"] != self.bot["id"]:
            raise bad("message can't be edited")
        text, entities = _content(params)
        new = {"text": text, "entities": entities, "reply_markup": _keyboard(params)}
        if all(message.get(name, type(value)()) == value for name, value in new.items()):
            raise bad(
                "message is not modified: specified new message content and reply markup "
                "are exactly the same as a current content and reply markup of the message"
            )
        for name, value in new.items():
            message[name] = value
            if not value:
                del message[name]
        message["edit_date"] = int(time.time())
        if preview := params.get("link_preview_options"):
            message["link_preview_options"] = preview
        self._accept(message, edit=True)
        return message

    def _answer_callback_query(self, params: Json) -> bool:
        query_id = str(params.get("callback_query_id", ""))
        if query_id not in self._queries:
            raise bad("query is too old and response timeout expired or query ID is invalid")
        self.answered[query_id] = params
        return True

    def _send_chat_action(self, params: Json) -> bool:
        self._addressed(params)
        if params.get("action") not in ("typing", "upload_document", "upload_photo"):
            raise bad("wrong parameter action in request")
        self.actions.append(params)
        return True

    def _self(self) -> Json:
        return {name: self.bot[name] for name in ("id", "is_bot", "first_name", "username")}

    def _addressed(self, params: Json) -> Chat:
        """The chat and thread that a call names, if the bot may write there."""
        if "chat_id" not in params:
            raise bad("chat_id is empty")
        chat = self._chats.get(_int(params, "chat_id"))
        if chat is None:
            raise bad("chat not found")
        if new := self._upgraded.get(chat.id):
            words = "Bad Request: group chat was upgraded to a supergroup chat"
            raise Refusal(400, words, migrate_to_chat_id=new)
        if chat.id in self._blocked:
            raise Refusal(403, "Forbidden: bot was blocked by the user")
        thread = _int(params, "message_thread_id")
        if thread and thread not in chat.topics:
            raise bad("message thread not found")
        return chat

    async def push(self) -> None:
        """Push updates to the webhook for ever, each until it is taken, in order."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as client:
            while True:
                await self.until(lambda: self.webhook and self.pending)
                update = self.pending[0]
                status, words = await self._push_one(client, update)
                self.pushes.append(status)
                if 200 <= status < 300:
                    self.pending[:] = [u for u in self.pending if u is not update]
                    self._confirmed.append(update)
                elif self.webhook:
                    failed = {"last_error_date": int(time.time()), "last_error_message": words}
                    self.webhook |= failed
                self._wake()
                if not 200 <= status < 300:
                    await anyio.sleep(RETRY_S)  # sleep: the pace of retries is what is played

    async def _push_one(self, client: aiohttp.ClientSession, update: Json) -> tuple[int, str]:
        secret = self.webhook["secret_token"]
        headers = {"X-Telegram-Bot-Api-Secret-Token": secret} if secret else {}
        try:
            async with client.post(self.webhook["url"], json=update, headers=headers) as answer:
                words = f"Wrong response from the webhook: {answer.status} {answer.reason}"
                return answer.status, words
        except (aiohttp.ClientError, TimeoutError):
            return 0, "Connection refused"


def _content(params: Json) -> tuple[str, list[Json]]:
    """What a message shows, and how."""
    text = str(params.get("text", ""))
    entities: list[Json] = []
    match params.get("parse_mode", ""):
        case "HTML" | "html":
            text, entities = parse_html(text)
        case "":
            pass
        case _:
            raise bad("unsupported parse_mode")
    if not text.strip():
        raise bad("message text is empty" if not params.get("text") else "text must be non-empty")
    if utf16(text) > MAX_LENGTH:
        raise bad("message is too long")
    return text, entities


def _keyboard(params: Json) -> Json:
    markup = params.get("reply_markup") or {}
    if not isinstance(markup, dict):
        raise bad("object expected as reply markup")
    for button in (button for row in markup.get("inline_keyboard", []) for button in row):
        if not button.get("text"):
            raise bad("inline keyboard button text must be non-empty")
        if not 1 <= len(button.get("callback_data", button.get("url", "")).encode()) <= 64:
            raise bad("BUTTON_DATA_INVALID")
    return markup


def _int(params: Json, name: str) -> int:
    try:
        return int(params.get(name) or 0)
    except ValueError:
        raise bad(f"{name} must be a number") from None


_OBJECTS = ("allowed_updates", "reply_parameters", "link_preview_options", "reply_markup")


async def _params(request: web.Request) -> Json:
    """Parameters as the Bot API takes them: query, form or JSON; objects as JSON in a form."""
    params: Json = dict(request.query)
    if request.content_type == "application/json":
        params |= await request.json()
    else:
        params |= dict(await request.post())
    for name in _OBJECTS:
        if isinstance(params.get(name), str):
            params[name] = json.loads(params[name])
    return params


def _answer(refusal: Refusal) -> web.Response:
    return web.json_response(refusal.body, status=refusal.status)


def _reset(request: web.Request) -> web.Response:
    """No answer: the peer sees its connection reset."""
    if request.transport is not None:
        sock = request.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.close()
    return web.Response()


@asynccontextmanager
async def serve() -> AsyncIterator[Telegram]:
    """A server on loopback for the length of a block."""
    telegram = Telegram()
    runner = web.AppRunner(
        telegram.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.01
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        telegram.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        # Not in a task group: what a test raises inside the block would come out wrapped.
        pushing = asyncio.create_task(telegram.push())
        try:
            yield telegram
        finally:
            pushing.cancel()
            with suppress(asyncio.CancelledError):
                await pushing
    finally:
        await runner.cleanup()
