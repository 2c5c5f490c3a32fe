"""Facts to rows and back, through every version there has been.

A row carries the version its fact was written in. When a fact's shape changes, its
old version stays readable: an upcast turns the old JSON object into the next one,
step by step, before it is decoded. Fields that were only added need no upcast, because
a missing field takes its default; unknown fields are ignored.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.core.events import Event
from holdfast.core.types import Fact

VERSION = 1

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

# (kind, version it was written in) → how to make the next version of it.
UPCASTS: dict[tuple[str, int], Upcast] = {}

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(fact: Fact) -> bytes:
    """The fact as it is written down, in the current version."""
    return _encoder.encode(fact)


def decode(data: bytes, version: int) -> Fact:
    """The fact as it was written, whatever version wrote it."""
    if version != VERSION:
        raw: dict[str, Any] = msgspec.json.decode(data)
        for v in range(version, VERSION):
            raw = UPCASTS.get((raw["kind"], v), _unchanged)(raw)
        fact: Fact = msgspec.convert(raw, Event)
        return fact
    return _decoder.decode(data)


def _unchanged(raw: dict[str, Any]) -> dict[str, Any]:
    return raw
