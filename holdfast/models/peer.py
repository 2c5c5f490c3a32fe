"""A model server as error messages name it, and the classification of its errors.

The type of an error says who acts next: `Transient` (we, later), `Overflow` (compact the history),
`Rejected` (the operator). Our key is removed from all texts of the server. Nothing here does I/O.
"""

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from holdfast.core.redaction import Redactor
from holdfast.core.types import Value
from holdfast.errors import Filtered, HoldfastError, Overflow, Rejected, Transient

_TOO_LONG = re.compile(
    r"context[ _](length|window|size|limit)|(prompt|input|request) is too (long|large)"
    r"|too many (input )?tokens|maximum prompt length|reduce the length|token count.*exceeds"
    r"|exceeds the (maximum|available)[\w ]* (tokens|context)",
    re.IGNORECASE,
)
_BAD_KEY = re.compile(
    r"API key (not valid|expired|not found)|invalid (x-)?api[ -]key", re.IGNORECASE
)
# Errors inside a stream have no HTTP status: these codes are permanent errors.
_FINAL = {
    "invalid_api_key": 401,
    "authentication_error": 401,
    "insufficient_quota": 402,
    "billing_error": 402,
    "permission_error": 403,
    "model_not_found": 404,
    "not_found_error": 404,
    "invalid_request_error": 400,
    "invalid_prompt": 400,
    "request_too_large": 413,
    "overloaded_error": 529,
    "rate_limit_error": 429,
}


class ServerError(msgspec.Struct):
    """A server's error message."""

    message: str | None = None
    code: str | int | None = None
    type: str | None = None
    details: Any = None  # Gemini's; may say how long to wait


class _Refusal(msgspec.Struct):
    error: ServerError | str | None = None
    message: str | None = None


_decode_refusal = msgspec.json.Decoder(_Refusal).decode


class Settings(Value):
    """What error messages tell the operator to check."""

    key: str  # like OPENAI_API_KEY, or models.work.api_key
    url: str
    model: str = "HOLDFAST_MODEL"


class Peer(Value):
    """A server and model, and the classification of its errors."""

    provider: str
    host: str
    model: str
    key: str
    settings: Settings
    if_missing: str = ""  # what the operator can do if the server does not have the model

    @property
    def name(self) -> str:
        """The name for people."""
        return f"{self.provider} at {self.host}" + (f" (model {self.model})" if self.model else "")

    def cut(self, why: str) -> Transient:
        """Return the error of an answer that was cut off."""
        return Transient(f"{self.name} {why}")

    def absent(self, why: str) -> Transient:
        """Return the error of a request that did not reach the server."""
        return Transient(f"{self.name} {why}", billed=False)

    def filtered(self, what: str) -> Filtered:
        """Return the error of an answer that a filter (`what`) refused."""
        return Filtered(
            f"{self.name} refused to answer ({what}); change the request, or use another model"
        )

    def judge(
        self, status: int, error: ServerError, wait_s: float | None, *, billed: bool = False
    ) -> HoldfastError:
        """Classify an error response with `status`."""
        if error.code == "insufficient_quota":
            status = 402
        details = f"{error.code or ''} {error.type or ''} {error.message or ''}"
        text = f"{self.name} answered {status}{self._excerpt(error.message or '')}"
        if status == 413 or (status not in (401, 403, 429) and _TOO_LONG.search(details)):
            return Overflow(text)
        if status in (408, 409, 425, 429) or status >= 500:
            wait_s = _delay(error.details) if wait_s is None else wait_s
            return Transient(text, retry_after_s=wait_s, billed=billed, status=status)
        if _BAD_KEY.search(details):
            status = 401
        return Rejected(f"{text}; {self._hint(status)}")

    def judge_inside(self, error: ServerError | str) -> HoldfastError:
        """Classify an error inside a stream, which has no status."""
        if isinstance(error, str):
            error = ServerError(error)
        code = str(error.code or "")
        if code.isdecimal() and 400 <= int(code) < 600:
            status = int(code)
        else:
            status = _FINAL.get(code) or _FINAL.get(error.type or "") or 500
        return self.judge(status, error, None, billed=True)

    def _hint(self, status: int) -> str:
        check = self.settings
        match status:
            case 401:
                return f"check {check.key}"
            case 402:
                return f"check the account's credit, or {check.key}"
            case 403:
                return f"check {check.key} and {check.model}"
            case 404:
                either = f"{self.if_missing}, or " if self.if_missing else ""
                return f"{either}check {check.model} and {check.url}"
            case _:
                return f"check {check.url} and {check.model}"

    def _excerpt(self, text: str) -> str:
        text = Redactor([self.key]).clean(text)  # before it is shortened
        text = " ".join(text.split())
        return f' "{text[:200]}{"…" if len(text) > 200 else ""}"' if text else ""


def _delay(details: object) -> float | None:
    """Return the wait in the details of an error: `[{"retryDelay": "34.5s"}]`."""
    for detail in details if isinstance(details, list) else ():
        given = detail.get("retryDelay") if isinstance(detail, dict) else None
        try:
            wait_s = float(str(given).removesuffix("s"))
        except ValueError:
            continue
        if math.isfinite(wait_s):
            return max(0.0, wait_s)
    return None


def read_refusal(body: bytes) -> ServerError:
    """Parse the body of an error response, in any of the known forms."""
    try:
        refusal = _decode_refusal(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ServerError(body.decode(errors="replace"))
    error = refusal.error or refusal.message or body.decode()
    return error if isinstance(error, ServerError) else ServerError(error)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the wait that the server asks for. A date is compared with the server's own clock."""
    for name, unit_s in (("retry-after-ms", 0.001), ("Retry-After", 1.0)):
        try:
            wait_s = float(headers.get(name, "")) * unit_s
        except ValueError:
            continue
        if math.isfinite(wait_s):
            return max(0.0, wait_s)
    try:
        until = parsedate_to_datetime(headers.get("Retry-After", ""))
        wait_s = (until - parsedate_to_datetime(headers.get("Date", ""))).total_seconds()
    except (ValueError, TypeError):
        return None
    return max(0.0, wait_s)
