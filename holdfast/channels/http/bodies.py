"""What clients may send, as types; and what is said when it does not fit.

Nothing is allocated for a request before it has come through here whole. Unknown fields
are ignored, because clients of other servers send them; a known one that is not built
yet is refused, because silence would be a lie.
"""

import re
from hashlib import sha256
from typing import Any, TypeVar

import anyio
import msgspec
from aiohttp import web

from holdfast.core.inbox import Mode
from holdfast.core.intents import Principal, RequestKey, Submit
from holdfast.core.messages import Assistant, Message, System, User
from holdfast.core.types import RunId, SessionId
from holdfast.errors import Refused

T = TypeVar("T")

_SESSION_ID = re.compile(r"[A-Za-z0-9_.:@+=~-]{1,255}")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Part(msgspec.Struct):
    """A piece of content. Only text is read."""

    type: str
    text: str = ""


class InputMessage(msgspec.Struct):
    role: str
    content: str | list[Part]


class RunRequest(msgspec.Struct):
    """The body of POST /v1/runs."""

    input: str | list[InputMessage]
    session_id: str | None = None
    instructions: str | None = None
    conversation_history: list[InputMessage] | None = None
    previous_response_id: str | None = None
    model: str | None = None
    workspace: str | None = None
    metadata: dict[str, str] | None = None
    webhook: Any = None
    late: str | None = None
    answerable: bool = True
    mode: Mode = Mode.QUEUE  # what it does to a run of the session that is at work


class SteerRequest(msgspec.Struct):
    """The body of POST /v1/runs/{id}/steer: guidance, or the answer to what the run asks."""

    input: str
    call_id: str | None = None  # whose question it answers; 409 if it waits no more


class ApprovalRequest(msgspec.Struct):
    """The body of POST /v1/runs/{id}/approval."""

    choice: str
    all: Any = None
    request_id: str | None = None


class CodeRequest(msgspec.Struct):
    """The body of POST /v1/pairing/look-up."""

    code: str


class PairRequest(msgspec.Struct):
    """The body of POST /v1/pairing."""

    code: str
    roles: list[str]


class RemoveRequest(msgspec.Struct):
    """The body of POST /v1/users/remove."""

    platform: str
    user: str


_DECODERS: dict[type, msgspec.json.Decoder[object]] = {
    t: msgspec.json.Decoder(t)
    for t in (
        RunRequest,
        SteerRequest,
        ApprovalRequest,
        CodeRequest,
        PairRequest,
        RemoveRequest,
    )
}


async def read_body(request: web.Request, limit: int, wait_s: float) -> bytes:
    """The body, refused before it is read whole if it is too large or does not come."""
    if (request.content_length or 0) > limit:
        raise Refused("body_too_large", f"The body is over {limit} bytes.")
    if not request.can_read_body:
        return b""
    packed = request.headers.get("Content-Encoding", "identity").strip().lower()
    if packed not in ("", "identity"):
        raise Refused("unsupported_media_type", "Send the body as it is, without Content-Encoding.")
    if request.content.is_eof():
        body = await request.read()
    else:
        try:
            with anyio.fail_after(wait_s):
                body = await request.read()
        except TimeoutError:
            raise Refused(
                "request_timeout", f"The body did not come within {wait_s:g} s."
            ) from None
    if body and request.content_type != "application/json":
        raise Refused(
            "unsupported_media_type",
            f"Content-Type is {request.content_type}; it must be application/json.",
        )
    return body


def decode(body: bytes, wanted: type[T]) -> T:
    """The body as a typed value, or a refusal that says what is wrong and where."""
    try:
        value = _DECODERS[wanted].decode(body)
    except msgspec.ValidationError as error:
        param = _param(str(error))
        raise Refused("invalid_request", f"The body does not fit: {error}", param=param) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused("invalid_json", f"The body is not JSON: {error}") from None
    except RecursionError:
        raise Refused("invalid_json", "The body is nested too deeply.") from None
    assert isinstance(value, wanted)
    return value


def _param(message: str) -> str | None:
    if (at := re.search(r"`\$\.?([^`]*)`$", message)) is not None:
        return at[1] or None
    field = re.search(r"required field `([^`]*)`", message)
    return field[1] if field is not None else None


def submit_of(body: RunRequest, by: Principal, raw: bytes, idempotency_key: str | None) -> Submit:
    """The intent that a request is, once all of it has been found right."""
    for name in ("previous_response_id", "webhook"):
        if getattr(body, name) is not None:
            raise Refused("not_supported_yet", f"`{name}` is not built yet.", param=name)
    if body.late not in (None, "events"):
        raise Refused("invalid_request", '`late` can only be "events".', param="late")
    text, before = _input(body.input)
    history = before or None
    if body.conversation_history is not None:
        given = [_message(m, "conversation_history") for m in body.conversation_history]
        history = (*given, *before)
    key = None
    if idempotency_key is not None:
        if not _KEY.fullmatch(idempotency_key):
            raise Refused(
                "invalid_request", "Idempotency-Key must be 1 to 255 visible ASCII characters."
            )
        key = RequestKey("POST /v1/runs", idempotency_key, sha256(raw).hexdigest())
    return Submit(
        by=by,
        text=text,
        session_id=None if body.session_id is None else session_id(body.session_id),
        instructions=_clean(body.instructions or "", "instructions"),
        history=history,
        model=body.model or "",
        workspace=_path(body.workspace or ""),
        metadata=_metadata(body.metadata or {}),
        request_key=key,
        answerable=body.answerable,
        late=body.late is not None,
        mode=body.mode,
    )


def _input(given: str | list[InputMessage]) -> tuple[str, tuple[Message, ...]]:
    before: tuple[Message, ...] = ()
    if isinstance(given, str):
        text = given
    else:
        messages = tuple(_message(m, "input") for m in given)
        if not messages or not isinstance(messages[-1], User):
            raise Refused(
                "invalid_request",
                "`input` must be a text, or messages of which the last is the user's.",
                param="input",
            )
        text, before = messages[-1].text, messages[:-1]
    return words(text), before


def words(text: str) -> str:
    """Somebody's words: there are some, and they can be written down."""
    if not text.strip():
        raise Refused("invalid_request", "`input` is empty.", param="input")
    return _clean(text, "input")


def _message(message: InputMessage, param: str) -> User | Assistant | System:
    if isinstance(message.content, str):
        text = message.content
    else:
        for part in message.content:
            if part.type not in ("text", "input_text", "output_text"):
                raise Refused(
                    "not_supported_yet",
                    f"Content of type {part.type[:40]!r} is not built yet.",
                    param=param,
                )
        text = "".join(part.text for part in message.content)
    text = _clean(text, param)
    match message.role:
        case "user":
            return User(text)
        case "assistant":
            return Assistant(text)
        case "system" | "developer":
            return System(text)
        case _:
            raise Refused(
                "invalid_request",
                f"`{param}` has a message with role {message.role[:40]!r}; user, assistant and "
                "system are possible.",
                param=param,
            )


def _metadata(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
        raise Refused(
            "invalid_request",
            "`metadata` takes 16 entries, names up to 64 and values up to 512 characters.",
            param="metadata",
        )
    return {_clean(k, "metadata"): _clean(v, "metadata") for k, v in metadata.items()}


def _clean(text: str, param: str) -> str:
    """Text that can be written down: no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(
            "invalid_request", f"`{param}` is not valid Unicode (a lone surrogate).", param=param
        ) from None
    return text


def _path(path: str) -> str:
    if "\0" in path or len(path) > 4096:
        raise Refused("invalid_request", "`workspace` is not a path.", param="workspace")
    return _clean(path, "workspace")


def session_id(given: str) -> SessionId:
    """A session id from outside. It is a name: it never becomes a path."""
    if not _SESSION_ID.fullmatch(given):
        raise Refused(
            "invalid_request",
            "`session_id` must be 1 to 255 letters, digits or _ . : @ + = ~ -",
            param="session_id",
        )
    return SessionId(given)


def run_id(request: web.Request) -> RunId:
    """The run a URL names. One that cannot exist does not."""
    return checked_run_id(request.match_info["run_id"])


def checked_run_id(given: str) -> RunId:
    """A run id from outside."""
    if not _RUN_ID.fullmatch(given):
        raise Refused("run_not_found", "There is no such run.")
    return RunId(given)


def cursor(request: web.Request) -> int:
    """The number after which to read: Last-Event-ID, or ?after=."""
    given = request.headers.get("Last-Event-ID") or request.query.get("after") or "0"
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise Refused(
            "invalid_request",
            "Last-Event-ID (or ?after=) must be a sequence number.",
            param="after",
        )
    return int(given)


def truth(value: object) -> bool:
    """`all`: true, "true", "1", "yes" and "on" are true; anything else is not."""
    if isinstance(value, str):
        return value.strip().lower() in {"true", "1", "yes", "on"}
    return value is True
