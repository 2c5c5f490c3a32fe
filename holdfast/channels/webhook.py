"""The webhook channel: signed HTTP requests in both directions (Standard Webhooks).

Every request has an id, a timestamp and a signature over the id, the timestamp and the body. Both
directions use the same secret.

Incoming: a request that is unsigned, forged or more than five minutes old is refused, so that an
attacker cannot replay a request. The request id becomes the message's id. The body may contain
only the keys of `WebhookRequest`, so a request that we sent cannot be returned to us as if a user
had written it.

Outgoing: the request id is the delivery id. The receiver drops a request whose id it has seen, so
sending again creates no duplicate. The text is Markdown. Links to hosts that the user did not
name are defanged.
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

from holdfast.channels.channel import (
    Accepted,
    Button,
    ChannelCapabilities,
    ChannelKind,
    Clock,
    Doubtful,
    Hook,
    HookAnswer,
    Incoming,
    Later,
    Outgoing,
    Secret,
    SendRefused,
    Sent,
    Take,
)
from holdfast.channels.text.links import defang
from holdfast.channels.text.split import split
from holdfast.core.address import Address, ChatType
from holdfast.core.types import DeliveryId
from holdfast.errors import Misconfigured, Transient

SECRET_KEY = "HOLDFAST_WEBHOOK_SECRET"
TOLERANCE_S = 300.0

_PREFIX = "whsec_"
_SHORTEST_KEY = 24  # bytes
BAD_SECRET = f"{SECRET_KEY} is not a webhook secret"
MAKE_SECRET = (
    f'use "{_PREFIX}" and the base64 of at least {_SHORTEST_KEY} random bytes: '
    f'echo "{_PREFIX}$(head -c 32 /dev/urandom | base64)"'
)
_LONG_RETRY_S = 60.0  # for problems that a person has to fix
_BUSY = (408, 425, 429)
_LOCKED = (401, 403)  # wrong credentials, which a person can fix

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


class WebhookSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the channel."""

    url: Url  # receives our messages
    answer_s: Seconds = 20.0
    connect_s: Seconds = 10.0


class WebhookRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request to us: one message or button press of a user."""

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


class WebhookMessage(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """The body of a request that we send: one message to a chat."""

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
    """A pair of URLs as a channel: ours receives, the operator's is sent to."""

    name = path = "webhook"
    capabilities = ChannelCapabilities(
        late=True,
        answerable=True,
        edits=True,
        buttons=True,
        threads=True,
        typing=False,
        attachments=False,
        alerts=False,
        max_length=16_000,
        idempotent_send=True,
    )

    def __init__(self, settings: WebhookSettings, secret: str, clock: Clock) -> None:
        self.trouble = ""
        self._key = _key(secret)
        self._url = _url(settings.url)
        self._settings = settings
        self._clock = clock
        self._take: Take | None = None
        self._session: aiohttp.ClientSession | None = None

    async def receive(self, cursor: str, take: Take) -> None:
        """Let `hear` accept requests until cancelled.

        There is no cursor: a sender repeats what we did not confirm.
        """
        self._take = take
        try:
            await anyio.sleep_forever()
        finally:
            self._take = None

    async def hear(self, hook: Hook) -> HookAnswer:
        """Verify one request, then decode it and pass it to `take`."""
        refusal = self._refusal(hook)
        if refusal:
            return HookAnswer(401, refusal.encode())
        try:
            incoming = _incoming(hook.headers["webhook-id"], hook.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return HookAnswer(400, str(error).encode(errors="replace"))
        if self._take is None:
            return HookAnswer(503, b"messages are not accepted now")
        try:
            await self._take(incoming)
        except Transient as trouble:
            self.trouble = str(trouble)
            return HookAnswer(503, b"the message cannot be stored now")
        self.trouble = ""
        return HookAnswer(200)

    def split(self, text: str) -> tuple[str, ...]:
        """Split into parts that fit even if every link in them is defanged."""
        return split(text, _length, self.capabilities.max_length)

    async def deliver(self, message: Outgoing) -> Sent:
        """Send one request."""
        # A lone surrogate cannot be encoded as UTF-8.
        whole = message.text.encode("utf-8", "replace").decode()
        text = defang(whole, message.named_hosts)
        if not text.strip():
            return SendRefused("the message has no visible text")
        if len(text) > self.capabilities.max_length:
            limit = self.capabilities.max_length
            return SendRefused(f"the message is longer than {limit} characters")
        where = message.address
        body = WebhookMessage(
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
        """Do nothing: the protocol has no typing indicator."""

    async def aclose(self) -> None:
        """Close the connection pool."""
        if self._session is not None:
            await self._session.close()

    def _refusal(self, hook: Hook) -> str:
        """Return why a request is not authentic; empty if it is."""
        name, time, given = (
            hook.headers.get(f"webhook-{header}", "") for header in ("id", "timestamp", "signature")
        )
        if not name or not time.isascii() or not time.isdigit() or len(time) > 12:
            return "the headers webhook-id and webhook-timestamp are required"
        expected = _signature(self._key, name, time, hook.body)
        # Compare all of them, so that the time taken reveals nothing.
        if not any([hmac.compare_digest(_raw(one), expected) for one in given.split(" ")]):
            return "webhook-signature is wrong"
        if abs(self._clock.now() - int(time)) > TOLERANCE_S:
            return "webhook-timestamp is not within five minutes of our clock"
        return ""

    async def _post(self, message: WebhookMessage) -> Sent:
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
                return _send_result(message, response.status, retry_after, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return Later("cannot reach the receiver", 0.0)
        except TimeoutError:
            return Doubtful(f"the receiver did not answer within {limit_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Doubtful(f"the connection to the receiver broke ({type(error).__name__})")


def _signature(key: bytes, name: str, time: str, body: bytes) -> bytes:
    signed = b".".join((_raw(name), time.encode(), body))
    return b"v1," + base64.b64encode(hmac.digest(key, signed, "sha256"))


def _raw(header: str) -> bytes:
    """The bytes of a header: the server decodes invalid UTF-8 as lone surrogates."""
    return header.encode("utf-8", "surrogateescape")


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.strip().removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        key = b""
    if len(key) < _SHORTEST_KEY or not secret.strip().startswith(_PREFIX):
        raise Misconfigured(BAD_SECRET, MAKE_SECRET)
    return key


def _url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise Misconfigured(
            "the `url` of the webhook channel is not a URL", "use http:// or https:// and a host"
        )
    return url


def _incoming(name: str, body: bytes) -> Incoming:
    request = msgspec.json.decode(body, type=WebhookRequest)
    if not (request.text.strip() or request.pressed):
        raise msgspec.ValidationError("`text` and `pressed` are both empty")
    return Incoming(
        external_id=name,
        cursor="",
        address=Address(
            platform=Webhook.name,
            chat_type=request.chat_type,
            chat=request.chat,
            thread=request.thread,
            user=request.user,
        ),
        name=request.name or request.user,
        text="" if request.pressed else request.text,
        reply_to=request.reply_to,
        message_id="" if request.pressed else request.message_id,
        quoted=request.quoted,
        pressed=request.pressed,
        edited=request.edited,
    )


def _length(text: str) -> int:
    return len(defang(text, ())) if text.strip() else 0


class _Receipt(msgspec.Struct):
    message_id: str | int = ""


def _send_result(message: WebhookMessage, status: int, retry_after: str, answer: bytes) -> Sent:
    """Conclude from the receiver's answer whether the message was delivered."""
    if 200 <= status < 300:
        try:
            name = str(msgspec.json.decode(answer, type=_Receipt).message_id)
        except (msgspec.DecodeError, UnicodeDecodeError):
            name = ""
        return Accepted(message.edit or name or message.delivery_id)
    reason = f"the receiver answered {status}"
    if status < 400:
        return Later(f"{reason}: set `url` to the address it redirects to", _LONG_RETRY_S)
    if status in _LOCKED:
        return Later(f"{reason}: check that both sides use the same {SECRET_KEY}", _LONG_RETRY_S)
    if status < 500 and status not in _BUSY:
        return SendRefused(reason)
    asked = retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 7
    return Later(reason, float(retry_after) if asked else 0.0)


def create(settings: WebhookSettings, secret: Secret, clock: Clock) -> Webhook:
    """Create the channel with the secret from the environment."""
    return Webhook(settings, secret(SECRET_KEY), clock)


CHANNEL = ChannelKind(Webhook.name, WebhookSettings, (SECRET_KEY,), create)
