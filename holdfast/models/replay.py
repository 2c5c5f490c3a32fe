"""Answers of a model on their way back to it, in later requests.

Some models add parts to an answer that must come back unchanged and in their place: signed
thoughts, encrypted reasoning. `Layout` writes the order of an answer's parts as JSON for
`Answer.opaque`: a number stands for so many characters of the text, null for the next call, and
any other value is the provider's own. Nothing here does I/O.
"""

import re
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from hashlib import sha256

import msgspec

from holdfast.core.messages import Assistant, Message, Proposal, System, ToolResult, User
from holdfast.core.types import CallId

_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SHORT_ID = re.compile(r"[A-Za-z0-9]{9}")
_encode = msgspec.json.Encoder().encode
_decode_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode = msgspec.json.Decoder().decode


class Layout:
    """The order of the parts of an answer."""

    def __init__(self) -> None:
        self._parts: list[object] = []
        self._has_own = False

    def text(self, size: int) -> None:
        """Add `size` characters of the text."""
        self._parts.append(size)

    def call(self) -> None:
        """Add the next call."""
        self._parts.append(None)

    def own(self, part: object) -> None:
        """Add a part of the provider's own: an object or a string."""
        self._parts.append(part)
        self._has_own = True

    def encode(self) -> str:
        """Return the JSON; empty if there is nothing of the provider's own."""
        return _encode(self._parts).decode() if self._has_own else ""


def parts(message: Assistant) -> Iterator[str | Proposal | msgspec.Raw]:
    """Yield the parts of an answer in their order: text, calls, and the provider's own.

    If the text is not the one that was laid out, it comes whole where text was first.
    """
    laid_out = [bytes(raw) for raw in _decode_parts(message.opaque)] if message.opaque else []
    sizes = [int(part) for part in laid_out if part.isdigit()]
    same = sum(sizes) == len(message.text)
    text, calls = message.text, iter(message.calls)
    for part in laid_out:
        if part == b"null":
            if (call := next(calls, None)) is not None:
                yield call
        elif part.isdigit():
            size = int(part) if same else len(text)
            yield text[:size]
            text = text[size:]
        else:
            yield msgspec.Raw(part)
    if text:
        yield text
    yield from calls


def with_results(
    messages: Sequence[Message],
) -> Iterator[tuple[User | Assistant | System, list[ToolResult | None]]]:
    """Yield each message that is no result, with one result, if there is any, for each call.

    Wherever in the history results are: some servers want them at once after their calls. An id
    that a history uses again stands for the next result with it.
    """
    waiting: dict[CallId, deque[ToolResult]] = defaultdict(deque)
    for message in messages:
        if isinstance(message, ToolResult):
            waiting[message.call_id].append(message)
    for message in messages:
        if not isinstance(message, ToolResult):
            calls = message.calls if isinstance(message, Assistant) else ()
            found = [waiting[call.call_id] for call in calls]
            yield message, [results.popleft() if results else None for results in found]


def wire_id(call_id: CallId) -> str:
    """Return the id in the letters that every server accepts; other models use more."""
    if _PLAIN_ID.fullmatch(call_id):
        return call_id
    return f"call_{sha256(call_id.encode()).hexdigest()[:24]}"


def short_id(call_id: CallId) -> str:
    """Return the id as nine letters or digits, which is all that Mistral accepts."""
    return call_id if _SHORT_ID.fullmatch(call_id) else sha256(call_id.encode()).hexdigest()[:9]


def as_object(arguments: str) -> msgspec.Raw:
    """Return a call's arguments as a JSON object; what is none becomes a field of one."""
    try:
        found = _decode(arguments)
    except msgspec.DecodeError:
        found = None
    if isinstance(found, dict):
        return msgspec.Raw(arguments.encode())
    return msgspec.Raw(_encode({"arguments": arguments}))
