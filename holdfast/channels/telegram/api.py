"""A client for the methods of Telegram's Bot API that we use, and the parts of its replies we read.

`Api.call` raises no error: a failure is a return value (`ApiError`). The bot token is part of
every request URL. So the text of an HTTP library exception is never shown, because it could
contain the URL, and the token is removed from every text of Telegram that is shown.
"""

from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec.json import decode
from yarl import URL

from holdfast.core.types import Value
from holdfast.errors import HoldfastError, Misconfigured, Transient

TOKEN_KEY = "TELEGRAM_BOT_TOKEN"
HINT = "copy the complete token from @BotFather: digits, a colon, letters"
OTHER_RECEIVER = "another program receives this bot's messages: "
NOT_TELEGRAM = "the reply did not come from Telegram but from something in between"

_MAX_DESCRIPTION = 300  # characters of Telegram's error description that are shown

T = TypeVar("T")


class Api:
    """The API methods of one bot, over one connection pool."""

    def __init__(self, base_url: str, token: str, answer_s: float, connect_s: float) -> None:
        self._root = f"{base_url.rstrip('/')}/bot{token}"
        self._secret = token.partition(":")[2]
        self._answer_s, self._connect_s = answer_s, connect_s
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, method: str, params: dict[str, Any], shape: type[T]) -> T:
        """Call a method and return its result; raises `Transient` or `Misconfigured`."""
        return result(await self.call(method, params), shape)

    async def call(self, method: str, params: dict[str, Any], limit_s: float = 0) -> "Answer":
        """Call a method and return Telegram's result, or an `ApiError`."""
        limit_s = limit_s or self._answer_s
        if self._session is None:
            connector, jar = aiohttp.TCPConnector(limit=0), aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=jar)
        timeout = aiohttp.ClientTimeout(total=limit_s, connect=self._connect_s)
        url = URL(f"{self._root}/{method}", encoded=True)
        try:
            async with self._session.post(
                url, json=params, timeout=timeout, allow_redirects=False
            ) as response:
                return self._read(response.status, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            return ApiError("cannot reach Telegram", begun=False)
        except TimeoutError:
            return ApiError(f"Telegram did not answer within {limit_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return ApiError(f"the connection to Telegram broke ({type(error).__name__})")

    def _read(self, status: int, body: bytes) -> "Answer":
        try:
            reply = decode(body, type=ApiReply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ApiError(f"{NOT_TELEGRAM} ({status})", begun=status < 300 or status >= 500)
        if reply.ok:
            return reply.result
        description = reply.description.replace(self._secret, "…")[:_MAX_DESCRIPTION]
        return ApiError(
            description or f"status {status}",
            status,
            reply.parameters.retry_after,
            begun=status >= 500,
            moved_to=reply.parameters.migrate_to_chat_id,
        )

    async def aclose(self) -> None:
        """Close the connection pool."""
        if self._session is not None:
            await self._session.close()


class ApiError(Value):
    """Telegram's error reply, or a failure of the connection."""

    description: str
    status: int = 0  # 0: there was no reply
    retry_after_s: float = 0.0
    begun: bool = True  # Telegram may have executed the method
    moved_to: int = 0  # id of the chat that replaces this one


def result(answer: "Answer", shape: type[T]) -> T:
    """Return the answer if it has the type `shape`; otherwise raise the error."""
    if isinstance(answer, shape):
        return answer
    raise _problem(answer if isinstance(answer, ApiError) else ApiError(NOT_TELEGRAM))


def _problem(answer: ApiError) -> HoldfastError:
    """Convert an error: `Misconfigured` if only the operator can fix it, otherwise `Transient`."""
    if answer.status in (401, 404):
        return Misconfigured(f"Telegram refuses {TOKEN_KEY} ({answer.description})", HINT)
    prefix = OTHER_RECEIVER if answer.status == 409 else ""
    return Transient(prefix + answer.description, retry_after_s=answer.retry_after_s or None)


class Who(msgspec.Struct):
    """A user or a chat."""

    id: int
    type: str = ""
    title: str = ""
    first_name: str = ""
    last_name: str = ""

    @property
    def name(self) -> str:
        return self.title or f"{self.first_name} {self.last_name}".strip()


class Result(msgspec.Struct):
    message_id: int = 0  # sendMessage, editMessageText
    username: str = ""  # getMe
    pending_update_count: int = 0  # getWebhookInfo
    last_error_message: str = ""


class ForwardOrigin(msgspec.Struct):
    """The source of a forwarded message. Telegram sets the field that fits the kind of source."""

    sender_user: Who | None = None
    sender_user_name: str = ""  # of a user who hides the link to their account
    sender_chat: Who | None = None
    chat: Who | None = None  # a channel

    @property
    def name(self) -> str:
        who = self.sender_user or self.sender_chat or self.chat
        return (who.name if who else self.sender_user_name) or "an unknown sender"


class Replied(msgspec.Struct):
    message_id: int = 0
    text: str = ""
    caption: str = ""


class TelegramMessage(msgspec.Struct):
    message_id: int
    chat: Who
    sender: Who | None = msgspec.field(name="from", default=None)
    sender_chat: Who | None = None
    message_thread_id: int = 0
    is_topic_message: bool = False
    reply_to_message: Replied | None = None
    quote: Replied | None = None
    text: str = ""
    caption: str = ""
    forward_origin: ForwardOrigin | None = None

    @property
    def forwarded(self) -> str:
        """Describe the source of a forwarded message; empty if the sender wrote it."""
        origin = self.forward_origin
        return "" if origin is None else f"a forwarded message from {origin.name}"

    @property
    def thread(self) -> str:
        """The id of the topic. In a plain group, chains of replies have thread ids but no topic."""
        return str(self.message_thread_id) if self.is_topic_message else ""

    @property
    def reply_to(self) -> str:
        """The id of the message it replies to.

        Every message in a topic replies to the topic's first message; that does not count.
        """
        replied = str(self.reply_to_message.message_id) if self.reply_to_message else ""
        return "" if replied == self.thread else replied

    @property
    def quoted(self) -> str:
        """The part of the replied message that the sender quoted, or its whole text."""
        source = self.quote or (self.reply_to_message if self.reply_to else None)
        return (source.text or source.caption) if source else ""


class File(msgspec.Struct):
    file_name: str = ""


class Query(msgspec.Struct):
    id: str
    sender: Who = msgspec.field(name="from")
    message: TelegramMessage | None = None
    data: str = ""


class Update(msgspec.Struct):
    """An update, decoded only as far as its number, so that a malformed one can be skipped."""

    update_id: int
    message: msgspec.Raw = msgspec.Raw(b"null")
    edited_message: msgspec.Raw = msgspec.Raw(b"null")
    callback_query: msgspec.Raw = msgspec.Raw(b"null")


class Parameters(msgspec.Struct, frozen=True):
    retry_after: float = 0.0
    migrate_to_chat_id: int = 0


class ApiReply(msgspec.Struct):
    ok: bool
    result: list[Update] | Result | bool = False
    description: str = ""
    parameters: Parameters = Parameters()


Answer = list[Update] | Result | bool | ApiError
