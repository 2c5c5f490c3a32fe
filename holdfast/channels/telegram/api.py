"""Telegram's Bot API: how a method is called, and what Telegram says, as far as we read it.

No call raises: what went wrong is an answer too. The token is part of every address that is
asked. So no text of an exception of the HTTP library is ever shown, and what Telegram says is
shown without it.
"""

from typing import Any, TypeVar

import aiohttp
import msgspec
from msgspec.json import decode
from yarl import URL

from holdfast.core.types import Value
from holdfast.errors import HoldfastError, Misconfigured, Transient

TOKEN_KEY = "TELEGRAM_BOT_TOKEN"
HINT = "copy it again from @BotFather, whole: digits, a colon, letters"

_WORDS = 300  # characters shown of what Telegram says
_STRANGE = "not Telegram but something on the way to it answered"

T = TypeVar("T")


class Api:
    """One bot's methods, over one connection pool."""

    def __init__(self, base_url: str, token: str, answer_s: float, connect_s: float) -> None:
        self._root = f"{base_url.rstrip('/')}/bot{token}"
        self._secret = token.partition(":")[2]
        self._answer_s, self._connect_s = answer_s, connect_s
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, method: str, params: dict[str, Any], shape: type[T]) -> T:
        """The result, or `Transient`, or `Misconfigured`."""
        return result(await self.call(method, params), shape)

    async def call(self, method: str, params: dict[str, Any], limit_s: float = 0) -> "Answer":
        """What Telegram answers, or that it did not."""
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
            return Failed("Telegram cannot be reached", begun=False)
        except TimeoutError:
            return Failed(f"Telegram did not answer within {limit_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Failed(f"the connection to Telegram broke ({type(error).__name__})")

    def _read(self, status: int, body: bytes) -> "Answer":
        try:
            reply = decode(body, type=Reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Failed(f"{_STRANGE} ({status})", begun=status < 300 or status >= 500)
        if reply.ok:
            return reply.result
        words = reply.description.replace(self._secret, "…")[:_WORDS] or f"status {status}"
        retry_after_s, moved_to = reply.parameters.retry_after, reply.parameters.migrate_to_chat_id
        return Failed(words, status, retry_after_s, begun=status >= 500, moved_to=moved_to)

    async def aclose(self) -> None:
        """Close the pool."""
        if self._session is not None:
            await self._session.close()


class Failed(Value):
    """What Telegram said instead of a result, or what became of the connection."""

    words: str
    status: int = 0  # nothing was said
    retry_after_s: float = 0.0
    begun: bool = True  # it may have been done
    moved_to: int = 0  # the chat that this one has become


def result(answer: "Answer", shape: type[T]) -> T:
    """The answer, if it is one of that shape; else why not, raised."""
    if isinstance(answer, shape):
        return answer
    raise _problem(answer if isinstance(answer, Failed) else Failed(_STRANGE))


def _problem(answer: Failed) -> HoldfastError:
    """Why nothing can be heard: what waiting may mend, and what only the operator can."""
    if answer.status in (401, 404):
        return Misconfigured(f"Telegram refuses {TOKEN_KEY} ({answer.words})", HINT)
    whose = "somebody else receives this bot's messages: " if answer.status == 409 else ""
    return Transient(whose + answer.words, retry_after_s=answer.retry_after_s or None)


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
    message_id: int = 0  # of a message
    username: str = ""  # of a bot
    pending_update_count: int = 0  # of a webhook
    last_error_message: str = ""


class Replied(msgspec.Struct):
    message_id: int = 0
    text: str = ""
    caption: str = ""


class Message(msgspec.Struct):
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

    @property
    def thread(self) -> str:
        """The topic. In a plain group a chain of replies has a thread id too, and is none."""
        return str(self.message_thread_id) if self.is_topic_message else ""

    @property
    def reply_to(self) -> str:
        """All that is said in a topic replies to the topic's first message; that is no reply."""
        replied = str(self.reply_to_message.message_id) if self.reply_to_message else ""
        return "" if replied == self.thread else replied

    @property
    def quoted(self) -> str:
        """What was marked of the message replied to, or else all of it."""
        source = self.quote or (self.reply_to_message if self.reply_to else None)
        return (source.text or source.caption) if source else ""


class File(msgspec.Struct):
    file_name: str = ""


class Query(msgspec.Struct):
    id: str
    sender: Who = msgspec.field(name="from")
    message: Message | None = None
    data: str = ""


class Update(msgspec.Struct):
    """Read as far as its number, so that one that is not understood can be passed over."""

    update_id: int
    message: msgspec.Raw = msgspec.Raw(b"null")
    edited_message: msgspec.Raw = msgspec.Raw(b"null")
    callback_query: msgspec.Raw = msgspec.Raw(b"null")


class Parameters(msgspec.Struct, frozen=True):
    retry_after: float = 0.0
    migrate_to_chat_id: int = 0


class Reply(msgspec.Struct):
    ok: bool
    result: list[Update] | Result | bool = False
    description: str = ""
    parameters: Parameters = Parameters()


Answer = list[Update] | Result | bool | Failed
