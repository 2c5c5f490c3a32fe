"""Turn checked requests into the intents and values that the gateway accepts."""

from hashlib import sha256

import anyio.to_thread
import msgspec
from aiohttp import web

from holdfast.api.requests import clean, decode, invalid, key_of, path_of, session_id
from holdfast.api.schema.operator import CommandRequest
from holdfast.api.schema.runs import ContentPart, ImageUrl, InputMessage, RunRequest, SteerRequest
from holdfast.api.schema.sessions import ImportRequest, MessageObject, ToolCallObject
from holdfast.core import images
from holdfast.core.inbox import Mode, UpdateRef
from holdfast.core.intents import Principal, RequestKey, Steer, Stop, Submit
from holdfast.core.messages import (
    Assistant,
    Image,
    Message,
    Proposal,
    System,
    ToolResult,
    User,
)
from holdfast.core.session.library import Imported
from holdfast.core.types import CallId, RunId, SessionId
from holdfast.errors import Refused
from holdfast.gateway import CommandGiven

_STEER, _STOP = "/steer", "/stop"  # scopes of idempotency keys; no channel has such a name
_LONG = 256 * 1024  # bytes of a body
_LATEST = 253_402_300_799.0  # the end of the year 9999: the last date there is
_TEXTS = frozenset({"text", "input_text", "output_text"})
_PICTURES = frozenset({"image_url", "input_image"})


async def submitted(raw: bytes, by: Principal, idempotency_key: str | None) -> Submit:
    """Turn the body of POST /v1/runs into an intent. A long body is decoded in a thread."""

    def read() -> Submit:
        return submit_of(decode(raw, RunRequest), by, raw, idempotency_key)

    return await anyio.to_thread.run_sync(read) if len(raw) > _LONG else read()


def submit_of(body: RunRequest, by: Principal, raw: bytes, idempotency_key: str | None) -> Submit:
    """Check all of a request and make an intent of it."""
    webhook = body.webhook
    unsupported = {
        "previous_response_id": body.previous_response_id is not None,
        "webhook": webhook is not msgspec.UNSET and bytes(webhook) != b"null",
    }
    for name in (name for name, is_given in unsupported.items() if is_given):
        raise Refused("not_supported_yet", f"`{name}` is not built yet.", param=name)
    if body.late not in (None, "events"):
        raise invalid('`late` can only be "events".', "late")
    last, before = _input(body.input)
    history = before or None
    if body.conversation_history is not None:
        given = [message_of(m, "conversation_history") for m in body.conversation_history]
        history = (*given, *before)
    key = None
    if idempotency_key is not None:
        key = RequestKey("POST /v1/runs", key_of(idempotency_key), sha256(raw).hexdigest())
    return Submit(
        by=by,
        text=last.text,
        images=last.images,
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
    """Make the intent to stop a run. Repeated under the same key it is the same intent."""
    unless_begun, key = request.query.get("unless_begun", "") == "true", None
    if (given := request.headers.get("Idempotency-Key")) is not None:
        key = UpdateRef(channel=_STOP, external_id=f"{of_run} {key_of(given)}")
    return Stop(by, of_run, "Stop requested via API", unless_begun, key)


def steer_of(body: SteerRequest, by: Principal, of_run: RunId, key: str | None) -> Steer:
    """Make the intent to steer a run. The same text under the same key is the same intent."""
    text, came = text_of(body.input), None
    call_id = None if body.call_id is None else CallId(clean(body.call_id, "call_id"))
    if key is not None:
        digest = sha256(f"{key_of(key)}\n{call_id}\n{text}".encode()).hexdigest()
        came = UpdateRef(channel=_STEER, external_id=f"{of_run} {digest}")
    return Steer(by, of_run, text, call_id, came)


def command_of(body: CommandRequest, session: SessionId, key: str | None) -> CommandGiven:
    """Check all of a request for a slash command."""
    return CommandGiven(
        session_id=session,
        text=text_of(body.input),
        mode=body.mode or Mode.INTERRUPT,
        workspace=path_of(body.workspace or ""),
        key="" if key is None else key_of(key),
    )


def imported_of(body: ImportRequest) -> Imported:
    """Check all of a session that is imported."""
    return Imported(
        session_id=session_id(body.session_id),
        title=clean(body.title or "", "title"),
        source=clean(body.source or "", "source"),
        messages=tuple(map(_imported_message, body.messages)),
        created_at=_time(body.created_at, "created_at"),
        updated_at=_time(body.updated_at, "updated_at"),
        workspace=path_of(body.workspace or ""),
    )


def _input(given: str | tuple[InputMessage, ...]) -> tuple[User, tuple[Message, ...]]:
    if isinstance(given, str):
        return User(text_of(given)), ()
    messages = tuple(message_of(m, "input") for m in given)
    if not messages or not isinstance(last := messages[-1], User):
        raise invalid(
            "`input` must be a text, or messages of which the last is the user's.", "input"
        )
    if not last.images:
        text_of(last.text)
    return last, messages[:-1]


def text_of(text: str) -> str:
    """Check the text of a message: it is not empty and can be stored."""
    if not text.strip():
        raise invalid("`input` is empty.", "input")
    return clean(text, "input")


def message_of(message: InputMessage, param: str) -> User | Assistant | System:
    """Check a message of the conversation that a request brings with it."""
    return _message(message.role, message.content, param)


def _message(
    role: str, content: str | tuple[ContentPart, ...], param: str
) -> User | Assistant | System:
    pictures: tuple[Image, ...] = ()
    if isinstance(content, str):  # by the thousands in a history
        text = clean(content, param)
    else:
        pictures = _images(content, param)
        text = clean("".join(p.text for p in content if p.type in _TEXTS), param)
    match role:
        case "user":
            return User(text, pictures)
        case "assistant" | "system" | "developer" if pictures:
            raise invalid("Only the user's messages have pictures.", param)
        case "assistant":
            return Assistant(text)
        case "system" | "developer":
            return System(text)
        case _:
            roles = "user, assistant and system are possible"
            raise invalid(f"`{param}` has a message with role {role[:40]!r}; {roles}.", param)


def _images(parts: tuple[ContentPart, ...], param: str) -> tuple[Image, ...]:
    """The pictures of one message. A part that is neither text nor a picture is refused."""
    for part in parts:
        if part.type not in _TEXTS | _PICTURES:
            what = f"Content of type {part.type[:40]!r} is not built yet."
            raise Refused("not_supported_yet", what, param=param)
    urls = [_url(part) for part in parts if part.type in _PICTURES]
    try:
        images.check_count(len(urls))
        return tuple(images.from_url(url, "A picture") for url in urls)
    except Refused as refused:
        raise Refused(refused.code, str(refused), param=param) from None


def _url(part: ContentPart) -> str:
    return part.image_url.url if isinstance(part.image_url, ImageUrl) else part.image_url or ""


def _metadata(metadata: dict[str, str]) -> dict[str, str]:
    if len(metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
        limits = "16 entries, names up to 64 and values up to 512 characters"
        raise invalid(f"`metadata` takes {limits}.", "metadata")
    return {clean(k, "metadata"): clean(v, "metadata") for k, v in metadata.items()}


def _time(given: float | None, name: str) -> float:
    if given is not None and not 0 <= given <= _LATEST:
        raise invalid(f"`{name}` is not a time.", name)
    return given or 0.0


def _imported_message(given: MessageObject) -> Message:
    content = "" if given.content is None else given.content
    if given.role == "tool":
        if not given.tool_call_id:
            raise _unfit("a result that names no call")
        called = CallId(clean(given.tool_call_id, "messages"))
        return ToolResult(called, _message("user", content, "messages").text)
    if given.calls and given.role != "assistant":
        raise _unfit("calls that are not the assistant's")
    message = _message(given.role, content, "messages")
    return Assistant(message.text, tuple(map(_call, given.calls))) if given.calls else message


def _call(given: ToolCallObject) -> Proposal:
    parts = (given.id, given.function.name, given.function.arguments)
    call_id, tool, arguments = (clean(part, "messages") for part in parts)
    if not call_id:
        raise _unfit("a call without an id")
    return Proposal(CallId(call_id), tool, arguments)


def _unfit(what: str) -> Refused:
    return invalid(f"`messages` has {what}.", "messages")
