"""Read `config.toml`, and check each value that a file, a flag or the environment gives.

An unknown key or a value of the wrong type is `Misconfigured`, in one line that names the place,
the key and what to write instead.
"""

import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.config import channels as config_channels
from holdfast.config import models as config_models
from holdfast.config.secrets import Secret
from holdfast.config.settings import EXAMPLES, FILE, SECTIONS, SETTINGS
from holdfast.errors import Misconfigured


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was written, and its place."""

    value: object
    origin: str
    written: str  # the name it goes by there

    @property
    def is_text(self) -> bool:
        """Flags and the environment know no types: a number comes as its digits."""
        return not self.origin.endswith(FILE)


_TABLES = {config_models.SECTION: "openai", config_channels.SECTION: "telegram"}  # an example each
_LONGEST = 1024 * 1024  # bytes of the file


def document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            text = file.read(_LONGEST + 1)
        if len(text) > _LONGEST:
            raise Misconfigured(f"{path} is over {_LONGEST} bytes", "take out what is not needed")
        return tomllib.loads(text.decode("utf-8").replace("\r\n", "\n"))
    except FileNotFoundError:
        return {}
    except UnicodeDecodeError:
        raise Misconfigured(f"{path} is not UTF-8 text", "save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{path} is not TOML: {error}", "mend that line") from None
    except RecursionError:
        raise Misconfigured(f"{path} is nested too deeply", "no setting needs that") from None
    except ValueError as error:  # a number of thousands of digits
        raise Misconfigured(f"{path} cannot be read: {error}", "mend that value") from None
    except OSError as error:
        raise Misconfigured(
            f"{path} cannot be read: {error.strerror}", "make it a file that you can read"
        ) from None


def from_file(path: Path, document: Mapping[str, object]) -> dict[str, Given]:
    origin = str(path)
    given: dict[str, Given] = {}
    for key, value in _flatten(path, document):
        if key not in SETTINGS:
            raise _unknown(path, key)
        given[key] = Given(value, origin, f"{path}: {key}")
    return given


def _flatten(path: Path, document: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in document.items():
        if name not in SECTIONS:
            inner = next(iter(value), "") if isinstance(value, dict) else ""
            if isinstance(value, dict):
                raise _unknown(path, f"{name}.{inner}" if inner else name)
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            raise Misconfigured(f"{path}: {name} is a section", f"write [{name}] on its own line")


def _unknown(path: Path, key: str) -> Misconfigured:
    section, dot, _ = key.partition(".")
    if dot and (table := difflib.get_close_matches(section, _TABLES, n=1)):
        meant = f"[{table[0]}.{_TABLES[table[0]]}]"
        return Misconfigured(f"{path}: unknown key {key}", f"did you mean {meant}?")
    last = key.rpartition(".")[2]
    # The right name in the wrong section, or the section misspelt; only else a misspelt name.
    same = [k for k in SETTINGS if k.rpartition(".")[2] == last]
    close = difflib.get_close_matches(key, same or SETTINGS, n=1, cutoff=0.0 if same else 0.6)
    if close:
        return Misconfigured(f"{path}: unknown key {key}", f"did you mean {_line(close[0])}?")
    known = [k for k in SETTINGS if k.startswith(section + ".")] or [
        *(k for k in SETTINGS if "." not in k),
        *(f"[{s}]" for s in SECTIONS),
        *(f"[{name}.NAME]" for name in _TABLES),
    ]
    return Misconfigured(f"{path}: unknown key {key}", f"known are {', '.join(known)}")


def _line(key: str) -> str:
    """Return an example line for `key` with a valid value."""
    example = EXAMPLES.get(key, SETTINGS[key].default)
    section, _, name = key.rpartition(".")
    where = f" under [{section}]" if section else " above the first section"
    return f"{name} = {json.dumps(example, ensure_ascii=False)}{where}"


def read(key: str, given: Given) -> Any:
    setting = SETTINGS[key]
    if setting.meta.extra:
        return _read_secret(key, given, setting.meta.extra["pattern"])
    try:
        return msgspec.convert(given.value, setting.type, strict=not given.is_text)
    except msgspec.ValidationError:
        shown = json.dumps(given.value, ensure_ascii=False, default=str)
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        raise Misconfigured(f"{given.written} is {shown}", _instead(key, given)) from None


def _read_secret(key: str, given: Given, pattern: str) -> Secret:
    try:
        return Secret(msgspec.convert(given.value, Annotated[str, Meta(pattern=pattern)]))
    except msgspec.ValidationError:
        what = "is empty" if given.value == "" else "is not usable as a key"
        if isinstance(given.value, str) and 0 < len(given.value) < 16 and key == "gateway.api_key":
            what = "is too short"
        raise Misconfigured(f"{given.written} {what}", _instead(key, given)) from None


def _instead(key: str, given: Given) -> str:
    said = SETTINGS[key].meta.description
    if given.is_text:
        example = EXAMPLES.get(key, SETTINGS[key].default)
        return f"it must be {said}, like {example}"
    return f"it must be {said}; write {_line(key)}"
