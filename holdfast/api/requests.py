"""Read and check what clients send: bodies, ids, headers and query parameters.

Nothing is allocated for a request before all of it has been checked. Unknown fields are ignored,
because clients of other servers send them; a known field that is not supported yet is refused,
because ignoring it would mislead the client.
"""

import re
from typing import TypeVar

import anyio
import msgspec
from aiohttp import web

from holdfast.core.intents import Principal
from holdfast.core.types import Owner, RequestId, RunId, SessionId
from holdfast.errors import Refused
from holdfast.gateway import AskedPlace

T = TypeVar("T", bound=msgspec.Struct)

_SESSION_ID = re.compile(r"[A-Za-z0-9_.:@+=~-]{1,255}")
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OWNER = "X-Holdfast-Owner"  # the owner of the session, at the operator's socket
_SHORT = 64  # bytes of JSON that a flag can have

_DECODERS: dict[type, msgspec.json.Decoder[object]] = {}


async def read(request: web.Request, wanted: type[T], limit: int, wait_s: float) -> T:
    """Read the body of a request as a typed value."""
    return decode(await read_body(request, limit, wait_s), wanted)


async def read_body(request: web.Request, limit: int, wait_s: float) -> bytes:
    """Read the body. Refuse it early if it is too large or does not arrive in time."""
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
    """Decode a body, or refuse it with a message that says what is wrong and where."""
    if (decoder := _DECODERS.get(wanted)) is None:
        decoder = _DECODERS[wanted] = msgspec.json.Decoder(wanted)
    try:
        value = decoder.decode(body)
    except msgspec.ValidationError as error:
        param = _param(str(error))
        raise invalid(f"The body does not fit: {error}", param) from None
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


def invalid(message: str, param: str | None = None) -> Refused:
    """Make the refusal of a request that is not valid."""
    return Refused("invalid_request", message, param=param)


def clean(text: str, param: str) -> str:
    """Check that text can be stored: it has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(f"`{param}` is not valid Unicode (a lone surrogate).", param) from None
    return text


def path_of(path: str) -> str:
    """Check a workspace from outside, as far as a path can be checked here."""
    if "\0" in path or len(path) > 4096:
        raise invalid("`workspace` is not a path.", "workspace")
    return clean(path, "workspace")


def key_of(given: str) -> str:
    """Check an Idempotency-Key."""
    if not _KEY.fullmatch(given):
        raise invalid("Idempotency-Key must be 1 to 255 visible ASCII characters.")
    return given


def session_id(given: str) -> SessionId:
    """Check a session id from outside. It is a name: it never becomes a path."""
    if not _SESSION_ID.fullmatch(given):
        form = "1 to 255 letters, digits or _ . : @ + = ~ -"
        raise invalid(f"`session_id` must be {form}", "session_id")
    return SessionId(given)


def session_in(request: web.Request) -> SessionId:
    """The session that a URL names."""
    return session_id(request.match_info["session_id"])


def asking(request: web.Request, by: Principal) -> Principal:
    """The caller, for the sessions of the owner that a header names."""
    given = request.headers.get(_OWNER)
    return by if given is None else by.among(owner(given))


def owner(given: str) -> Owner:
    """Check the name of an owner."""
    if not _SESSION_ID.fullmatch(given):
        raise invalid(f"{_OWNER} is no owner's name.")
    return Owner(given)


def run_in(request: web.Request) -> RunId:
    """The run that a URL names."""
    return run_id(request.match_info["run_id"])


def run_id(given: str) -> RunId:
    """Check a run id from outside. There is no run for an id that is not well-formed."""
    if not _RUN_ID.fullmatch(given):
        raise Refused("run_not_found", "There is no such run.")
    return RunId(given)


def cursor(request: web.Request) -> int:
    """The number after which to read: Last-Event-ID, or ?after=."""
    given = request.headers.get("Last-Event-ID") or request.query.get("after") or "0"
    if not (given.isascii() and given.isdigit() and len(given) < 19):
        raise invalid("Last-Event-ID (or ?after=) must be a sequence number.", "after")
    return int(given)


def limit(request: web.Request, usual: int = 20, most: int = 100) -> int:
    """The length of a page: ?limit=, or `usual`."""
    given = request.query.get("limit", str(usual))
    if not (given.isascii() and given.isdigit() and len(given) < 5 and 1 <= int(given) <= most):
        raise invalid(f"`limit` must be 1 to {most}.", "limit")
    return int(given)


def asked_place(request: web.Request) -> AskedPlace | None:
    """The position of a page of approvals: ?after=, the `next` of the page before."""
    if (given := request.query.get("after")) is None:
        return None
    expires_at, _, name = given.partition(":")
    try:
        place = float(expires_at), RequestId(name)
        name.encode()
    except ValueError:
        raise invalid("`after` must be a page's `next`.", "after") from None
    return place


def flag(given: msgspec.Raw | msgspec.UnsetType) -> bool:
    """Tell whether a field of any JSON type is a true flag. A long value is not parsed."""
    if given is msgspec.UNSET or len(bytes(given)) > _SHORT:
        return False
    return truth(msgspec.json.decode(given))


def truth(value: object) -> bool:
    """Tell whether a value is true, "true", "1", "yes" or "on"."""
    if isinstance(value, str):
        return value.strip().lower() in {"true", "1", "yes", "on"}
    return value is True
