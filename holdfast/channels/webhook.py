"""Webhooks: a platform of whoever can send and take a signed request (Standard Webhooks).

Both ways a request has an id, a time and a signature over both and the body; one secret for
both. In: what is unsigned, forged or older than five minutes is refused, so that nobody can say
again what was said once; the id is the message's name. A body has no keys but those of `Said`:
so what we sent out can never be sent back to us as if somebody had said it. Out: the id is the
delivery's. The receiver drops what it has had under the same id: nothing is doubled by sending
it again.

The text that goes out is markdown, with addresses that nobody named defanged.
"""

import base64
import binascii
import hmac
from typing import Annotated

import aiohttp
import anyio
import msgspec
from msgspec import Meta
from yarl import URL

from holdfast.channels.addresses import defang
from holdfast.channels.channel import (
    Accepted,
    Button,
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
from holdfast.core.address import Address, ChatType
from holdfast.core.types import DeliveryId
from holdfast.errors import Misconfigured, Transient

SECRET_KEY = "HOLDFAST_WEBHOOK_SECRET"
TOLERANCE_S = 300.0

_PREFIX = "whsec_"
_SHORTEST_KEY = 24  # bytes
_RETRY_S = 1.0
_LONG_RETRY_S = 60.0  # for what waits until somebody mends it
_BUSY = (408, 425, 429)
_LOCKED = (401, 403)  # it does not know us; somebody can mend that

Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[\x21-\x7e]+$",
        description="an address with http:// or https://",
        examples=["https://chat.example.org/holdfast"],
    ),
]
Seconds = Annotated[float, Meta(gt=0, le=600, description="a number of seconds, up to 600")]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
Short = Annotated[str, Meta(max_length=256)]


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the operator says of it."""

    url: Url  # where messages are sent to
    answer_s: Seconds = 20.0
    connect_s: Seconds = 10.0


class Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sender says: the body of a request to us."""

    chat: Name
    user: Name
    text: str = ""
    thread: Short = ""
    name: Short = ""
    chat_type: ChatType = ChatType.DIRECT
    message_id: Short = ""
    reply_to: Short = ""
    quoted: str = ""
    pressed: Short = ""
    edited: bool = False


class Message(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """What a receiver is told: the body of our request."""

    delivery_id: DeliveryId
    chat: str
    thread: str
    user: str
    text: str
    reply_to: str
    edit: str
    buttons: tuple[tuple[Button, ...], ...]
    repeated: bool


class Webhook:
    """One sender and receiver."""

    name = path = "webhook"
    capabilities = Capabilities(
        late=True,
        answerable=True,
        edits=True,
        buttons=True,
        threads=True,
        typing=False,
        attachments=False,
        max_length=16_000,
        idempotent_send=True,
    )

    def __init__(self, settings: Settings, secret: str, clock: Clock) -> None:
        self.trouble = ""
        self._key = _key(secret)
        self._url = _url(settings.url)
        self._settings = settings
        self._clock = clock
        self._take: Take | None = None
        self._session: aiohttp.ClientSession | None = None

    async def receive(self, cursor: str, take: Take) -> None:
        """Have `hear` hand on what comes, for ever. There is no cursor: senders send again."""
        self._take = take
        try:
            await anyio.sleep_forever()
        finally:
            self._take = None

    async def hear(self, hook: Hook) -> HookAnswer:
        """One request, checked before it is read."""
        refusal = self._refusal(hook)
        if refusal:
            return HookAnswer(401, refusal.encode())
        try:
            incoming = _incoming(hook.headers["webhook-id"], hook.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return HookAnswer(400, str(error).encode(errors="replace"))
        if self._take is None:
            return HookAnswer(503, b"nobody takes it now")
        try:
            await self._take(incoming)
        except Transient as trouble:
            self.trouble = str(trouble)
            return HookAnswer(503, b"it cannot be taken now")
        self.trouble = ""
        return HookAnswer(200)

    def split(self, text: str) -> tuple[str, ...]:
        """Parts that fit with no host named."""
        return split(text, _length, self.capabilities.max_length)

    async def deliver(self, message: Outgoing) -> Sent:
        """Send one request."""
        whole = message.text.encode("utf-8", "replace").decode()  # half pairs cannot be sent
        text = defang(whole, message.named_hosts)
        if not text.strip():
            return Refused("there is nothing in it that could be seen")
        if len(text) > self.capabilities.max_length:
            return Refused(f"it is longer than {self.capabilities.max_length} characters")
        where = message.address
        body = Message(
            delivery_id=message.delivery_id,
            chat=where.chat,
            thread=where.thread,
            user=where.user,
            text=text,
            reply_to=message.reply_to,
            edit=message.edit,
            buttons=message.buttons,
            repeated=message.repeated,
        )
        return await self._post(body)

    async def show_typing(self, address: Address) -> None:
        """Nothing: there is no such request."""

    async def aclose(self) -> None:
        """Close the pool."""
        if self._session is not None:
            await self._session.close()

    def _refusal(self, hook: Hook) -> str:
        """Why a request is not to be believed; empty: it is."""
        name, time, given = (
            hook.headers.get(f"webhook-{header}", "") for header in ("id", "timestamp", "signature")
        )
        if not name or not time.isascii() or not time.isdigit() or len(time) > 12:
            return "webhook-id and webhook-timestamp must be there"
        expected = _signature(self._key, name, time, hook.body)
        # All are compared, so that how long it takes says nothing.
        if not any([hmac.compare_digest(_raw(one), expected) for one in given.split(" ")]):
            return "webhook-signature is not right"
        if abs(self._clock.now() - int(time)) > TOLERANCE_S:
            return "webhook-timestamp is not within five minutes of our clock"
        return ""

    async def _post(self, message: Message) -> Sent:
        if self._session is None:
            connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar)
        limit_s = self._settings.answer_s
        timeout = aiohttp.ClientTimeout(total=limit_s, connect=self._settings.connect_s)
        body = msgspec.json.encode(message)
        time = str(int(self._clock.now()))
        headers = {
            "content-type": "application/json",
            "webhook-id": message.delivery_id,
            "webhook-timestamp": time,
            "webhook-signature": _signature(self._key, message.delivery_id, time, body).decode(),
        }
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, timeout=timeout, allow_redirects=False
            ) as response:
                retry_after = response.headers.get("retry-after", "")
                return _judge(message, response.status, retry_after, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return Later("the receiver cannot be reached", _RETRY_S)
        except TimeoutError:
            return Doubtful(f"the receiver did not answer within {limit_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Doubtful(f"the connection to the receiver broke ({type(error).__name__})")


def _signature(key: bytes, name: str, time: str, body: bytes) -> bytes:
    signed = b".".join((_raw(name), time.encode(), body))
    return b"v1," + base64.b64encode(hmac.digest(key, signed, "sha256"))


def _raw(header: str) -> bytes:
    """A header as it came: the server reads what is no text as half pairs."""
    return header.encode("utf-8", "surrogateescape")


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.strip().removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < _SHORTEST_KEY or not secret.strip().startswith(_PREFIX):
        raise Misconfigured(
            f"{SECRET_KEY} is no secret for webhooks",
            f'write "{_PREFIX}" and the base64 of at least {_SHORTEST_KEY} random bytes: '
            f'echo "{_PREFIX}$(head -c 32 /dev/urandom | base64)"',
        )
    return key


def _url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise Misconfigured("the webhook's url is no address", "write http:// or https://, a host")
    return url


def _incoming(name: str, body: bytes) -> Incoming:
    said = msgspec.json.decode(body, type=Said)
    if not (said.text.strip() or said.pressed):
        raise msgspec.ValidationError("`text` is empty, and so is `pressed`")
    return Incoming(
        external_id=name,
        cursor="",
        address=Address(
            platform=Webhook.name,
            chat_type=said.chat_type,
            chat=said.chat,
            thread=said.thread,
            user=said.user,
        ),
        name=said.name or said.user,
        text="" if said.pressed else said.text,
        reply_to=said.reply_to,
        message_id="" if said.pressed else said.message_id,
        quoted=said.quoted,
        pressed=said.pressed,
        edited=said.edited,
    )


def _length(text: str) -> int:
    return len(defang(text, ())) if text.strip() else 0


class _Taken(msgspec.Struct):
    message_id: str | int = ""


def _judge(message: Message, status: int, retry_after: str, answer: bytes) -> Sent:
    """What an answer says about where the message is."""
    if 200 <= status < 300:
        try:
            name = str(msgspec.json.decode(answer, type=_Taken).message_id)
        except (msgspec.DecodeError, UnicodeDecodeError):
            name = ""
        return Accepted(message.edit or name or message.delivery_id)
    reason = f"the receiver answered {status}"
    if status < 400:
        return Later(f"{reason}: write in `url` where it leads to", _LONG_RETRY_S)
    if status in _LOCKED:
        return Later(f"{reason}: see that both have the same {SECRET_KEY}", _LONG_RETRY_S)
    if status < 500 and status not in _BUSY:
        return Refused(reason)
    asked = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 7
    return Later(reason, float(retry_after) if asked else _RETRY_S)


def create(settings: Settings, secret: Secret, clock: Clock) -> Webhook:
    """The one whose secret the environment has."""
    return Webhook(settings, secret(SECRET_KEY), clock)


CHANNEL = Kind(Webhook.name, Settings, (SECRET_KEY,), create)
