"""What clients may send, as types; and what is said when it does not fit.

Nothing is allocated for a request before it has come through here whole. Unknown fields
are ignored, because clients of other servers send them; a known one that is not built
yet is refused, because silence would be a lie.
"""

import re
from hashlib import sha256
from typing import Annotated, Any, TypeVar

import anyio
import msgspec
from aiohttp import web

from holdfast.core import images
from holdfast.core.inbox import Came, Mode
from holdfast.core.intents import Principal, RequestKey, Steer, Stop, Submit
from holdfast.core.messages import Assistant, Image, Message, System, User
from holdfast.core.types import CallId, Owner, RunId, SessionId
from holdfast.errors import Refused
from holdfast.gateway import CommandGiven

T = TypeVar("T")

_SESSION_ID = re.compile(r"[A-Za-z0-9_.:@+=~-]{1,255}")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STEER, _STOP = "/steer", "/stop"  # where such are known by their keys: no channels' names
_OWNER = "X-Holdfast-Owner"  # whose the session is, at the only door that has everybody's
_TEXTS = frozenset({"text", "input_text", "output_text"})
_PICTURES = frozenset({"image_url", "input_image"})


class ImageUrl(msgspec.Struct):
    url: str


Picture = Annotated[
    str | ImageUrl | None,
    msgspec.Meta(
        description="With type image_url or input_image: a picture as a data: URL in base64, PNG, "
        "JPEG, GIF or WebP, up to 5 MiB; in messages of the user, up to 8 in each."
    ),
]


class Part(msgspec.Struct):
    """A piece of content: text (text, input_text, output_text) or a picture."""

    type: str
    text: str = ""
    image_url: Picture = None


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


class CommandRequest(msgspec.Struct):
    """The body of POST /v1/operator/sessions/{id}/command."""

    input: str
    mode: Mode | None = None  # what words do there to a run that is at work
    workspace: str | None = None  # for a session that words of the command begin


_DECODERS: dict[type, msgspec.json.Decoder[object]] = {
    t: msgspec.json.Decoder(t)
    for t in (
        RunRequest,
        SteerRequest,
        ApprovalRequest,
        CodeRequest,
        PairRequest,
        RemoveRequest,
        CommandRequest,
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
    if (decoder := _DECODERS.get(wanted)) is None:
        decoder = _DECODERS[wanted] = msgspec.json.Decoder(wanted)
    try:
        value = decoder.decode(body)
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
    said, before = _input(body.input)
    history = before or None
    if body.conversation_history is not None:
        given = [message_of(m, "conversation_history") for m in body.conversation_history]
        history = (*given, *before)
    key = None
    if idempotency_key is not None:
        named = _key(idempotency_key)
        key = RequestKey("POST /v1/runs", named, sha256(raw).hexdigest())
    return Submit(
        by=by,
        text=said.text,
        images=said.images,
        session_id=None if body.session_id is None else session_id(body.session_id),
        instructions=clean(body.instructions or "", "instructions"),
        history=history,
        model=body.model or "",
        workspace=path_of(body.workspace or ""),
        metadata=_metadata(body.metadata or {}),
        request_key=key,
        answerable=body.answerable,
        late=body.late is not None,
        mode=body.mode,
    )


def stop_of(request: web.Request, by: Principal, of_run: RunId) -> Stop:
    """The end of a run that a request asks for; again under its key, it is the same one."""
    unless_begun, key = request.query.get("unless_begun", "") == "true", None
    if (given := request.headers.get("Idempotency-Key")) is not None:
        key = Came(channel=_STOP, external_id=f"{of_run} {_key(given)}")
    return Stop(by, of_run, "Stop requested via API", unless_begun, key)


def steer_of(body: SteerRequest, by: Principal, of_run: RunId, key: str | None) -> Steer:
    """The words for a live run that a request brings; the same again under its key are the same."""
    text, came = words(body.input), None
    call_id = None if body.call_id is None else CallId(clean(body.call_id, "call_id"))
    if key is not None:
        said = sha256(f"{_key(key)}\n{call_id}\n{text}".encode()).hexdigest()
        came = Came(channel=_STEER, external_id=f"{of_run} {said}")
    return Steer(by, of_run, text, call_id, came)


def _input(given: str | list[InputMessage]) -> tuple[User, tuple[Message, ...]]:
    if isinstance(given, str):
        return User(words(given)), ()
    messages = tuple(message_of(m, "input") for m in given)
    if not messages or not isinstance(last := messages[-1], User):
        raise Refused(
            "invalid_request",
            "`input` must be a text, or messages of which the last is the user's.",
            param="input",
        )
    if not last.images:
        words(last.text)
    return last, messages[:-1]


def words(text: str) -> str:
    """Somebody's words: there are some, and they can be written down."""
    if not text.strip():
        raise Refused("invalid_request", "`input` is empty.", param="input")
    return clean(text, "input")


def message_of(message: InputMessage, param: str) -> User | Assistant | System:
    """A message that a caller tells of, once it has been found right."""
    parts = [Part("text", message.content)] if isinstance(message.content, str) else message.content
    pictures = _images(parts, param)
    text = clean("".join(p.text for p in parts if p.type in _TEXTS), param)
    match message.role:
        case "user":
            return User(text, pictures)
        case "assistant" | "system" | "developer" if pictures:
            raise Refused("invalid_request", "Only the user's messages have pictures.", param=param)
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


def _images(parts: list[Part], param: str) -> tuple[Image, ...]:
    """The pictures among the parts of one message; a part that is neither text nor one is refused."""
    for part in parts:
        if part.type not in _TEXTS | _PICTURES:
            raise Refused(
                "not_supported_yet",
                f"Content of type {part.type[:40]!r} is not built yet.",
                param=param,
            )
    urls = [_url(part) for part in parts if part.type in _PICTURES]
    try:
        images.check_count(len(urls))
        return tuple(images.from_url(url, "A picture") for url in urls)
    except Refused as refused:
        raise Refused(refused.code, str(refused), param=param) from None


def _url(part: Part) -> str:
    return part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url or ""


def command_of(body: CommandRequest, session: SessionId, key: str | None) -> CommandGiven:
    """The command that a request gives, once all of it has been found right."""
    return CommandGiven(
        session_id=session,
        text=words(body.input),
        mode=body.mode or Mode.INTERRUPT,
        workspace=path_of(body.workspace or ""),
        key="" if key is None else _key(key),
    )


def _key(given: str) -> str:
    if not _KEY.fullmatch(given):
        raise Refused(
            "invalid_request", "Idempotency-Key must be 1 to 255 visible ASCII characters."
        )
    return given


def _metadata(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
        raise Refused(
            "invalid_request",
            "`metadata` takes 16 entries, names up to 64 and values up to 512 characters.",
            param="metadata",
        )
    return {clean(k, "metadata"): clean(v, "metadata") for k, v in metadata.items()}


def clean(text: str, param: str) -> str:
    """Text that can be written down: no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Refused(
            "invalid_request", f"`{param}` is not valid Unicode (a lone surrogate).", param=param
        ) from None
    return text


def path_of(path: str) -> str:
    """A workspace from outside, as far as it can be one."""
    if "\0" in path or len(path) > 4096:
        raise Refused("invalid_request", "`workspace` is not a path.", param="workspace")
    return clean(path, "workspace")


def session_id(given: str) -> SessionId:
    """A session id from outside. It is a name: it never becomes a path."""
    if not _SESSION_ID.fullmatch(given):
        raise Refused(
            "invalid_request",
            "`session_id` must be 1 to 255 letters, digits or _ . : @ + = ~ -",
            param="session_id",
        )
    return SessionId(given)


def asking(request: web.Request, by: Principal) -> Principal:
    """Who asks, in whose sessions. Refused where only one owner's can be meant."""
    given = request.headers.get(_OWNER)
    return by if given is None else by.among(owner(given))


def owner(given: str) -> Owner:
    """Whose a session is, as somebody says."""
    if not _SESSION_ID.fullmatch(given):
        raise Refused("invalid_request", f"{_OWNER} is no owner's name.")
    return Owner(given)


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


def limit(request: web.Request) -> int:
    """How many a list is to have: ?limit=, 20 if nobody says."""
    given = request.query.get("limit", "20")
    if not (given.isascii() and given.isdigit() and len(given) < 4 and 1 <= int(given) <= 100):
        raise Refused("invalid_request", "`limit` must be 1 to 100.", param="limit")
    return int(given)


def truth(value: object) -> bool:
    """`all`: true, "true", "1", "yes" and "on" are true; anything else is not."""
    if isinstance(value, str):
        return value.strip().lower() in {"true", "1", "yes", "on"}
    return value is True
