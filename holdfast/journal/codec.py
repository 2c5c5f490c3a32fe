"""Encode facts as rows, and decode rows of all versions.

A row has the version in which its fact was written. When the shape of a fact changes, old
versions stay readable: before decoding, upcasts turn the old JSON object into the next version,
step by step. New fields need no upcast, because a missing field takes its default; unknown fields
are ignored.

A damaged field is left out and the rest of the fact is used: the field takes its default, or 0 if
it is a time. This is never done for facts that give permissions, or for the origin of a run: they
stay an error, and so does a row that is not a fact or lacks a required field.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec
from msgspec.structs import FieldInfo, fields

from holdfast.core.approval import approval, tree
from holdfast.core.chat import access
from holdfast.core.events import Event
from holdfast.core.run import run
from holdfast.core.types import Fact, kind

log = logging.getLogger(__name__)

VERSION = 1

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

# (kind, version of the row) → the function that makes the next version.
UPCASTS: dict[tuple[str, int], Upcast] = {}

encode: Callable[[Fact], bytes] = msgspec.json.Encoder().encode  # in the current version
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_NEVER_MENDED: frozenset[type[msgspec.Struct]] = frozenset(
    {
        run.Origin,
        approval.Grant,
        approval.Standing,
        approval.PostureSeen,
        approval.ApprovalGranted,
        tree.Tree,  # an approval is bound to it
        *access.Event.__args__,
    }
)
_MENDABLE: Mapping[str, type[Fact]] = {
    kind(fact): fact for fact in get_args(Event) if fact not in _NEVER_MENDED
}
_TIMES = ("at", "until")


def decode(data: bytes, version: int) -> Fact:
    """Decode a fact of any version, without its damaged fields."""
    try:
        return _decode(data, version)
    except msgspec.ValidationError as error:
        raw = msgspec.json.decode(data)
        which = _MENDABLE.get(str(raw.get("kind"))) if isinstance(raw, dict) else None
        if which is None or version != VERSION:
            raise
        mended, dropped = _mend(raw, which)
        if not _fits(mended, which):
            raise error from None
        log.warning("damaged fields left out", extra={"kind": raw["kind"], "fields": dropped})
        fact: Fact = msgspec.convert(mended, which)
        return fact


def time_of(column: object) -> float:
    """Return the time of a row; 0 if it is damaged."""
    if isinstance(column, float | int):
        return float(column)
    log.warning("damaged time of a row left out")
    return 0.0


def _mend(raw: Mapping[str, Any], which: type[msgspec.Struct]) -> tuple[dict[str, Any], list[str]]:
    """Return `raw` without its damaged optional fields, and their names."""
    mended, dropped = dict(raw), []
    for field in fields(which):
        name = field.encode_name
        if name not in raw or _fits(raw[name], field.type):
            continue
        inner = _struct(field.type)
        if inner in _NEVER_MENDED:
            continue
        if inner is not None and isinstance(raw[name], dict):
            mended[name], names = _mend(raw[name], inner)
            if _fits(mended[name], field.type):
                dropped += [f"{name}.{n}" for n in names]
                continue
        if _is_time(field):
            mended[name] = 0.0
        else:
            del mended[name]  # without a default, decoding will fail
        dropped.append(name)
    return mended, dropped


def _fits(value: object, wanted: object) -> bool:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError:
        return False
    return True


def _struct(wanted: object) -> type[msgspec.Struct] | None:
    """Return the struct type of a field, if it has exactly one."""
    types = [t for t in (wanted, *get_args(wanted)) if isinstance(t, type)]
    found = [t for t in types if issubclass(t, msgspec.Struct)]
    return found[0] if len(found) == 1 else None


def _is_time(field: FieldInfo) -> bool:
    return field.required and field.type is float and field.name.rpartition("_")[2] in _TIMES


def _decode(data: bytes, version: int) -> Fact:
    if version != VERSION:
        raw: dict[str, Any] = msgspec.json.decode(data)
        for v in range(version, VERSION):
            raw = UPCASTS.get((raw["kind"], v), _unchanged)(raw)
        fact: Fact = msgspec.convert(raw, Event)
        return fact
    return _decoder.decode(data)


def _unchanged(raw: dict[str, Any]) -> dict[str, Any]:
    return raw
