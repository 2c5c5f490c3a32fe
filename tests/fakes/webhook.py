"""The other side of the webhook channel on loopback: it sends signed requests and takes ours.

`async with serve(secret) as platform` gives a server. Messages for it go to `platform.url`.
It sends what people do (`say`, `change`, `press`) to `platform.hook_url`, once that is set,
each until it is taken: in order within a chat, chats side by side. What it was sent and took
is in `accepted`, in order, each delivery once; `copies` are the ids that came again and were
dropped, `shown()` is what stands in a chat now. What is not signed by Standard Webhooks (the
check here is its own, not that of the channel) is refused with 401 and counted in `forged`.

    platform.then(Say(429, retry_after=3), Say(410), Reset(after=True), Hold(gate))

plays these on the next requests, one each; `after` means that it was taken and only the answer
is lost. A `Hold` whose gate nobody opens hangs. `platform.weather = lambda taken: …` chooses a
fault, or none, for each request that has no such orders; `platform.delay_s` makes every answer
slow. `platform.send_again(count)` sends the last so many once more under their old ids.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import struct
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import aiohttp
import anyio
from aiohttp import web

RETRY_S = 0.02  # what was not taken is sent again after it
TOLERANCE_S = 300
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Say:
    """That status instead of taking it, or of saying so."""

    status: int
    retry_after: int = 0
    body: str = ""
    after: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset, before or after it is taken."""

    after: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """The answer waits for the test; what was sent is taken."""

    gate: anyio.Event = field(default_factory=anyio.Event)


Fault = Say | Reset | Hold


class Taken(NamedTuple):
    """One delivery."""

    delivery_id: str
    chat: str
    thread: str
    text: str
    edit: str  # the message it changed
    message_id: str
    body: Json


class Shown(NamedTuple):
    """A message of ours as it stands in a chat."""

    message_id: str
    chat: str
    thread: str
    text: str
    reply_to: str
    buttons: tuple[str, ...]


def sign(secret: str, name: str, at: int, body: bytes) -> str:
    """`webhook-signature`, as the standard has it."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{name}.{at}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


class Platform:
    """What a test holds of a running server."""

    def __init__(self, secret: str, now: Callable[[], float]) -> None:
        self.secret = secret
        self.url = ""
        self._hook_url = ""
        self.accepted: list[Taken] = []
        self.copies: list[str] = []
        self.forged = 0
        self.requests: list[dict[str, str]] = []  # the headers of each
        self.pushes: list[int] = []  # what each attempt to send got; 0: nothing
        self.closed: set[str] = set()  # chats that take nothing
        self.delay_s = 0.0
        self.weather: Callable[[Taken], Fault | None] = lambda _: None
        self._now = now
        self._faults: deque[Fault] = deque()
        self._shown: dict[str, Shown] = {}
        self._answers: dict[str, str] = {}  # delivery id → message id
        self._ids = count(1)
        self._sent: list[tuple[str, Json]] = []
        self._lanes: dict[str, deque[tuple[str, Json]]] = defaultdict(deque)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed = anyio.Event()

    @property
    def hook_url(self) -> str:
        """Where what people do is sent to; empty: nobody is there."""
        return self._hook_url

    @hook_url.setter
    def hook_url(self, url: str) -> None:
        self._hook_url = url
        self._wake()

    @property
    def pending(self) -> int:
        """How many of what people did nobody has taken."""
        return sum(map(len, self._lanes.values()))

    def say(self, chat: str, user: str, text: str, **more: object) -> str:
        """Somebody writes; the message's id."""
        number = f"in-{next(self._ids)}"
        self._put(
            {"chat": chat, "user": user, "text": text, "name": user.title(), "message_id": number}
            | more
        )
        return number

    def change(self, chat: str, user: str, message_id: str, text: str) -> None:
        """Somebody changes what they wrote."""
        said = {"chat": chat, "user": user, "text": text, "name": user.title()}
        self._put(said | {"message_id": message_id, "edited": True})

    def press(self, user: str, message_id: str, data: str) -> None:
        """Somebody presses a button of ours, which must be there."""
        shown = self._shown[message_id]
        if data not in shown.buttons:
            raise LookupError(f"message {message_id} has no button {data!r}")
        pressed = {"chat": shown.chat, "user": user, "name": user.title(), "pressed": data}
        self._put(pressed | {"thread": shown.thread, "reply_to": message_id})

    def shown(self, chat: str) -> list[Shown]:
        """What we have said in a chat, as it stands there now."""
        return [shown for shown in self._shown.values() if shown.chat == chat]

    def then(self, *faults: Fault) -> None:
        """Play these on the next requests, one each."""
        self._faults.extend(faults)

    def send_again(self, times: int = 1) -> None:
        """The last so many that were sent are sent once more."""
        for name, said in self._sent[-times:]:
            self._put(said, name)

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that is sent or taken makes it true."""
        while not condition():
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _put(self, said: Json, name: str = "") -> None:
        if not name:
            name = f"msg_{next(self._ids)}"
            self._sent.append((name, said))
        chat = said["chat"]
        self._lanes[chat].append((name, said))
        if chat not in self._tasks:
            self._tasks[chat] = asyncio.create_task(self._push(chat))
        self._wake()

    async def _push(self, chat: str) -> None:
        lane = self._lanes[chat]
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as client:
            while True:
                await self.until(lambda: self.hook_url and lane)
                status = await self._push_one(client, *lane[0])
                self.pushes.append(status)
                if 200 <= status < 300:
                    lane.popleft()
                self._wake()
                if not 200 <= status < 300:
                    await anyio.sleep(RETRY_S)  # sleep: the pace of retries is what is played

    async def _push_one(self, client: aiohttp.ClientSession, name: str, said: Json) -> int:
        body, at = json.dumps(said).encode(), int(self._now())
        signed = {
            "webhook-id": name,
            "webhook-timestamp": str(at),
            "webhook-signature": sign(self.secret, name, at, body),
        }
        try:
            async with client.post(self.hook_url, data=body, headers=signed) as answer:
                return answer.status
        except (aiohttp.ClientError, TimeoutError):
            return 0

    async def handle(self, request: web.Request) -> web.Response:
        """Take one request of ours."""
        body = await request.read()
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        if not self._genuine(request, body):
            self.forged += 1
            return web.Response(status=401)
        said: Json = json.loads(body)
        taken = Taken(
            delivery_id=request.headers["webhook-id"],
            chat=said["chat"],
            thread=said["thread"],
            text=said["text"],
            edit=said["edit"],
            message_id=said["edit"] or f"out-{next(self._ids)}",
            body=said,
        )
        fault = self._faults.popleft() if self._faults else self.weather(taken)
        try:
            return await self._play(request, taken, fault)
        finally:
            self._wake()

    def _genuine(self, request: web.Request, body: bytes) -> bool:
        name = request.headers.get("webhook-id", "")
        at = int(request.headers.get("webhook-timestamp", "0"))
        signature = request.headers.get("webhook-signature", "")
        fresh = abs(self._now() - at) <= TOLERANCE_S
        return fresh and hmac.compare_digest(signature, sign(self.secret, name, at, body))

    async def _play(self, request: web.Request, taken: Taken, fault: Fault | None) -> web.Response:
        answer = web.Response()
        if not (isinstance(fault, Say | Reset) and not fault.after):
            answer = self._take(taken)
        self._wake()
        await anyio.sleep(self.delay_s)  # sleep: a slow platform is what is played
        match fault:
            case Say():
                headers = {"Retry-After": str(fault.retry_after)} if fault.retry_after else {}
                headers |= {"Location": "/elsewhere"} if 300 <= fault.status < 400 else {}
                return web.Response(status=fault.status, text=fault.body, headers=headers)
            case Reset():
                return _reset(request)
            case Hold():
                await fault.gate.wait()
            case None:
                pass
        return answer

    def _take(self, taken: Taken) -> web.Response:
        if taken.chat in self.closed:
            return web.Response(status=410)
        if taken.delivery_id in self._answers:
            self.copies.append(taken.delivery_id)
        elif taken.edit and taken.edit not in self._shown:
            return web.Response(status=404)
        else:
            self._answers[taken.delivery_id] = taken.message_id
            self.accepted.append(taken)
            rows = taken.body["buttons"]
            self._shown[taken.message_id] = Shown(
                message_id=taken.message_id,
                chat=taken.chat,
                thread=taken.thread,
                text=taken.text,
                reply_to=taken.body["reply_to"],
                buttons=tuple(button["data"] for row in rows for button in row),
            )
        return web.json_response({"message_id": self._answers[taken.delivery_id]})

    async def aclose(self) -> None:
        """Stop sending."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())


def _reset(request: web.Request) -> web.Response:
    """No answer: the peer sees its connection reset."""
    if request.transport is not None:
        sock = request.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        request.transport.close()
    return web.Response()


@asynccontextmanager
async def serve(secret: str, now: Callable[[], float] = time.time) -> AsyncIterator[Platform]:
    """A server on loopback for the length of a block."""
    platform = Platform(secret, now)
    app = web.Application()
    app.router.add_post("/in", platform.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        platform.url = f"http://127.0.0.1:{runner.addresses[0][1]}/in"
        yield platform
    finally:
        await platform.aclose()
        await runner.cleanup()
