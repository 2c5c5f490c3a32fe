"""Reasoning that servers with the chat-completions protocol want to have back.

OpenAI's own protocol has none. DeepSeek sends `reasoning_content` and refuses calls that come back
without it; OpenRouter sends `reasoning_details` in pieces, with what the models behind it signed.
Both go back with the calls that they led to, in the fields that they came in.
"""

from typing import Any

import msgspec

from holdfast.core.messages import Assistant, Proposal
from holdfast.models.replay import Layout, parts

_GROWING = ("text", "summary", "data")  # fields of a detail that come in pieces


class KeptThoughts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of an answer's reasoning."""

    reasoning_content: str = ""
    reasoning_details: tuple[dict[str, Any], ...] = ()


_decode = msgspec.json.Decoder(KeptThoughts).decode


class Thoughts:
    """The reasoning of one answer, as it arrives."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._details: list[dict[str, Any]] = []

    def add(self, content: object, details: object) -> None:
        """Add what one delta has."""
        if isinstance(content, str):
            self._content.append(content)
        for detail in details if isinstance(details, list) else ():
            if isinstance(detail, dict):
                self._add_detail(detail)

    def encode(self) -> str:
        """Return what is kept, for `Answer.opaque`."""
        kept = KeptThoughts("".join(self._content), tuple(self._details))
        layout = Layout()
        if kept != KeptThoughts():
            layout.own(kept)
        return layout.encode()

    def _add_detail(self, detail: dict[str, Any]) -> None:
        last = self._details[-1] if self._details else {}
        if not last or _place(last) != _place(detail):
            self._details.append(dict(detail))
            return
        for name, value in detail.items():
            if name in _GROWING and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None:
                last[name] = value


def demands_thoughts(host: str) -> bool:
    """Tell if the server refuses calls without their reasoning."""
    return host.partition(":")[0].endswith("deepseek.com")


def kept(message: Assistant) -> KeptThoughts:
    """Return what was kept with an answer."""
    own = [part for part in parts(message) if not isinstance(part, str | Proposal)]
    return _decode(own[0]) if own else KeptThoughts()


def _place(detail: dict[str, Any]) -> tuple[object, object]:
    return detail.get("index"), detail.get("type")
