"""Check the values of tables like `[channels.NAME]`, and write an example of each."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT, Meta
from msgspec.structs import FieldInfo

from holdfast.errors import Misconfigured


def convert(path: Path, place: str, field: FieldInfo, value: object) -> Any:
    """Return the value as its type; `Misconfigured` says what to write instead."""
    try:
        return msgspec.convert(value, field.type)
    except msgspec.ValidationError as error:
        shown = json.dumps(value, ensure_ascii=False, default=str)
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        otherwise = re.sub(r"^Expected |, got .*| - at .*|`", "", str(error))
        wanted = _says(field, otherwise)
        raise Misconfigured(
            f"{path}: {place}.{field.encode_name} is {shown}",
            f"it must be {wanted}; {line(place, field)}",
        ) from None


def _meta(field: FieldInfo) -> Meta:
    return next((m for m in getattr(field.type, "__metadata__", ()) if isinstance(m, Meta)), Meta())


def _says(field: FieldInfo, otherwise: str) -> str:
    return _meta(field).description or otherwise


def line(place: str, field: FieldInfo) -> str:
    """How a key is written, with a value that works."""
    if examples := _meta(field).examples:
        written = toml(examples[0])
    else:
        written = "…" if field.default is NODEFAULT else toml(field.default)
    return f"write {field.encode_name} = {written} under [{place}]"


def toml(value: object) -> str:
    """As it would be written in the file."""
    if isinstance(value, dict):
        pairs = ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items())
        return f"{{ {pairs} }}"
    return json.dumps(plain(value), ensure_ascii=False)


def plain(value: object) -> object:
    """As JSON and TOML have it; always in the same order."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return sorted(value) if isinstance(value, frozenset) else value
