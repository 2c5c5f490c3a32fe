"""The models' part of the configuration: one table for each server of models.

`[models.NAME]` has the keys of `WrittenTable`. `provider` is a vendor of `vendors.py`, by default
the one called NAME. `[openai]` means `[models.openai]`. A vendor whose key is in the environment
has a table without writing one. A model is called `NAME/model`.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import fields, replace

from holdfast.config import program, vendors
from holdfast.config.secrets import Secret
from holdfast.config.tables import convert, line
from holdfast.config.types import Price, Seconds, Size, Text, Url
from holdfast.config.vendors import BY_NAME, OPENAI, VENDORS, Vendor
from holdfast.core.types import Value
from holdfast.errors import Misconfigured
from holdfast.models import windows

SECTION = "models"
NO_MODEL = "offline"
WITHOUT_TABLE = ("builtin", NO_MODEL)  # providers that need no server
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_KEYS = frozenset({"api_key", "api_keys"})

KeyText = Annotated[str, Meta(description="a text of visible characters", examples=["sk-…"])]
KeyTexts = Annotated[
    tuple[str, ...], Meta(description="a list of keys", examples=[["sk-…1", "sk-…2"]])
]
Provider = Annotated[str, Meta(description=f"one of {', '.join(BY_NAME)}", examples=[OPENAI.name])]
Address = Annotated[Url, Meta(examples=[OPENAI.base_url])]
ModelName = Annotated[Text, Meta(examples=[OPENAI.model])]


class WrittenTable(msgspec.Struct, frozen=True):
    """The keys of a table."""

    provider: Provider = ""
    base_url: Address = ""
    api_key: KeyText = ""
    api_keys: KeyTexts = ()  # a pool: the next one is used if one fails
    model: ModelName = ""  # used if no other is named
    stall_s: Seconds = 120.0
    context_tokens: Size = 0  # what its models can read at once; 0: not known
    usd_per_m_input: Price = 0.0  # what a million tokens cost; 0: not known
    usd_per_m_output: Price = 0.0
    usd_per_m_cached: Price = 0.0  # input that the server read from its cache


_FIELDS = {field.name: field for field in fields(WrittenTable)}


class ModelTable(Value):
    """A server of models."""

    name: str
    vendor: Vendor
    base_url: str
    keys: tuple[Secret, ...]
    model: str  # used if no other is named; empty: none is known
    origin: str  # the file, a variable, or what else named it
    key_origin: str = ""
    written: WrittenTable = WrittenTable()
    in_file: frozenset[str] = frozenset()  # the keys that are in the file
    known: windows.KnownModels | None = None  # of models everywhere; None: what we ship

    @property
    def is_vendors(self) -> bool:
        """Tell whether it is at its vendor's own address."""
        return self.base_url.strip().rstrip("/") == self.vendor.base_url

    @property
    def lacks_key(self) -> bool:
        """Tell whether the server needs a key and there is none."""
        return self.is_vendors and bool(self.vendor.variables) and not self.keys

    @property
    def is_doubtful(self) -> bool:
        """Tell whether its key is in a variable that programs use for other purposes too."""
        return self.key_origin.removeprefix("environment ") in vendors.DOUBTFUL

    @property
    def lacks_model(self) -> bool:
        """Tell whether it is written in the file, can be used, and no model is known for it."""
        return bool(self.in_file) and not self.model and not self.lacks_key

    @property
    def section(self) -> str:
        """Name the section of its settings."""
        return OPENAI.name if self.name == OPENAI.name else f"{SECTION}.{self.name}"

    def window(self, model: str) -> int:
        """Return how many tokens the model reads at once; 0: not known."""
        known = self._known.window(model)
        if self.vendor.wire == "ollama":  # it reads no more than it is asked to
            known = min(known or windows.OLLAMA, windows.OLLAMA)
        return self.written.context_tokens or known

    def price(self, model: str) -> windows.Price:
        """Return what the model costs; all 0: not known."""
        given = self.written
        if given.usd_per_m_input or given.usd_per_m_output:
            return windows.Price(
                given.usd_per_m_input, given.usd_per_m_output, given.usd_per_m_cached
            )
        if not self.vendor.variables:
            return windows.Price(free=True)  # it runs on a machine of the user's
        vendor = self.vendor.name if self.vendor.name != "responses" else OPENAI.name
        return self._known.price(vendor, model) if self.is_vendors else windows.Price()

    @property
    def _known(self) -> windows.KnownModels:
        return self.known or windows.shipped()

    @property
    def key_setting(self) -> str:
        """Name the setting that holds the key, for messages."""
        if self.key_origin.startswith("environment "):
            return self.key_origin.removeprefix("environment ")
        if self.name == OPENAI.name or (self.lacks_key and not self.key_origin):
            return self.vendor.variable
        return f"{self.section}.api_key"

    @property
    def url_setting(self) -> str:
        """Name the setting that holds the address, for messages."""
        return "OPENAI_BASE_URL" if self.name == OPENAI.name else f"{SECTION}.{self.name}.base_url"


Raw = dict[str, dict[str, Any]]


def read(path: Path, tables: object) -> Raw:
    """Check the tables of the file; each key has its type then."""
    if not isinstance(tables, dict):
        raise Misconfigured(f"{path}: {SECTION} is a section", _write_table("openai"))
    return {name: _checked(path, name, raw) for name, raw in tables.items()}


def _checked(path: Path, name: str, raw: object) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise Misconfigured(f"{path}: {SECTION}.{name} is no table", _write_table(name))
    if not _NAME.fullmatch(name) or name in WITHOUT_TABLE:
        raise Misconfigured(
            f"{path}: {SECTION}.{name} is no usable name",
            f"use letters, digits, - and _, and none of {', '.join(WITHOUT_TABLE)}",
        )
    for key in raw:
        if key not in _FIELDS:
            raise _unknown_key(path, name, key)
    table = {key: _value(path, name, key, value) for key, value in raw.items()}
    provider = str(table.setdefault("provider", name))
    if provider not in BY_NAME:
        raise _unknown_provider(path, name, provider, written="provider" in raw)
    if name == OPENAI.name and BY_NAME[provider].base_url != OPENAI.base_url:
        raise Misconfigured(  # its key is in OPENAI_API_KEY
            f'{path}: {SECTION}.{name}.provider is "{provider}"',
            f'write "{OPENAI.name}" or "responses", or call the table [{SECTION}.{provider}]',
        )
    return table


def _write_table(name: str) -> str:
    return f'write [{SECTION}.{name}] on its own line, and below it keys like api_key = "sk-…"'


def _unknown_key(path: Path, name: str, key: str) -> Misconfigured:
    wrong = f"{path}: unknown key {SECTION}.{name}.{key}"
    if close := difflib.get_close_matches(key, _FIELDS, n=1):
        meant = line(f"{SECTION}.{name}", _FIELDS[close[0]]).removeprefix("write ")
        return Misconfigured(wrong, f"did you mean {meant}?")
    return Misconfigured(wrong, f"known are {', '.join(_FIELDS)}")


def _unknown_provider(path: Path, name: str, provider: str, *, written: bool) -> Misconfigured:
    wrong = f"{path}: {SECTION}.{name}.provider is " + (f'"{provider}"' if written else "missing")
    close = difflib.get_close_matches(provider, BY_NAME, n=1)
    meant = close[0] if close else OPENAI.name
    known = ", ".join(BY_NAME)
    return Misconfigured(
        wrong, f'write provider = "{meant}" under [{SECTION}.{name}]; known are {known}'
    )


def _value(path: Path, name: str, key: str, value: object) -> object:
    if key not in _KEYS:
        return convert(path, f"{SECTION}.{name}", _FIELDS[key], value)
    given = value if isinstance(value, list) and key == "api_keys" else [value]
    usable = all(isinstance(one, str) and _VISIBLE.fullmatch(one) for one in given)
    if not usable or not given or (key == "api_keys") != isinstance(value, list):
        raise Misconfigured(
            f"{path}: {SECTION}.{name}.{key} is not usable as a key",
            f"it must be {'texts' if key == 'api_keys' else 'a text'} of visible characters; "
            f"{line(f'{SECTION}.{name}', _FIELDS[key])}",
        )
    return tuple(given) if key == "api_keys" else value


def keys_in(environ: Mapping[str, str]) -> dict[str, Secret]:
    """Return every vendor's key in the environment, by its variable."""
    found: dict[str, Secret] = {}
    for name in vendors.VARIABLES:
        if value := environ.get(name, "").strip():
            if not _VISIBLE.fullmatch(value):
                raise Misconfigured(
                    f"{name} is not usable as a key",
                    "it must be a text of visible characters, like sk-…",
                )
            found[name] = Secret(value)
    return found


def build(path: Path, raw: Raw, keys: Mapping[str, Secret], openai: ModelTable) -> list[ModelTable]:
    """Return the tables in the order of choice: those of the file, then those of the environment.

    `openai` is the table that the keys of `[openai]` and the environment make.
    """
    found: list[ModelTable] = []
    if openai.origin == str(path) and OPENAI.name not in raw:
        found.append(openai)
    for name, given in raw.items():
        found.append(openai if name == OPENAI.name else _build(path, name, given, keys))
    if openai not in found and openai.origin != "default":
        found.append(openai)
    names = {table.name for table in found}
    tables = (
        without_table(vendor.name, "", keys)
        for vendor in VENDORS
        if vendor.name not in names and vendor.name not in (OPENAI.name, "responses")
    )
    others = [replace(table, origin=table.key_origin) for table in tables if table.keys]
    return [*found, *sorted(others, key=lambda table: table.is_doubtful)]


def _build(path: Path, name: str, raw: Mapping[str, Any], keys: Mapping[str, Secret]) -> ModelTable:
    written = WrittenTable(**raw)
    vendor = BY_NAME[written.provider]
    table = ModelTable(
        name=name,
        vendor=vendor,
        base_url=written.base_url or vendor.base_url,
        keys=own_keys(written),
        model=written.model or ("" if written.base_url else vendor.model),
        origin=str(path),
        key_origin=str(path) if _KEYS & set(raw) else "",
        written=replace(written, api_key="", api_keys=()),
        in_file=frozenset(raw),
    )
    return table if table.keys else _with_key(table, keys)


def own_keys(written: WrittenTable) -> tuple[Secret, ...]:
    """Return the keys that are written in the table, each once."""
    given = (written.api_key, *written.api_keys)
    return tuple(Secret(key) for key in dict.fromkeys(given) if key)


def _with_key(table: ModelTable, keys: Mapping[str, Secret]) -> ModelTable:
    """Return the table with the key in the environment for its address, if there is one."""
    vendor = vendors.at(table.base_url)
    for variable in vendor.variables if vendor is not None else ():
        if variable in keys:
            return replace(table, keys=(keys[variable],), key_origin=f"environment {variable}")
    return table


def without_table(name: str, origin: str, keys: Mapping[str, Secret]) -> ModelTable:
    """Return the table of a vendor that none is written for."""
    vendor = BY_NAME[name]
    return _with_key(ModelTable(name, vendor, vendor.base_url, (), vendor.model, origin), keys)


def choose(tables: list[ModelTable]) -> tuple[str, str] | None:
    """Return the model of the first table that can be used, and the line that says why."""
    for table in tables:
        if table.lacks_key:
            continue
        if table.model:
            what = f"a key in {table.key_origin}" if table.keys else f"a server in {table.origin}"
            doubt = vendors.DOUBTFUL[table.key_setting] if table.is_doubtful else ""
            return f"{table.name}/{table.model}", f"there is {what} and no model is named{doubt}"
        if not table.is_vendors and table.vendor.wire == OPENAI.wire:
            return f"{table.name}/default", (
                f"there is a server in {table.origin} and no model is named, "
                'so it is asked for "default"'
            )
    for table in tables:
        if table.lacks_model:
            return NO_MODEL, (
                f'[{table.section}] names no model: write model = "{table.name}/…" above the first '
                f"section; to see which there are: {program.typed()} models list {table.name}"
            )
    return None


def shown(tables: Mapping[str, ModelTable]) -> Iterator[tuple[str, object, str]]:
    """List every key of every table with its value and its origin. Secrets stay masked."""
    for table in tables.values():
        place = f"{SECTION}.{table.name}"
        pool = table.keys
        if table.name == OPENAI.name:  # the rest is among the keys of [openai]
            rows = table.in_file & _EXTRA
            pool = pool[1:]
        else:
            yield f"{place}.provider", table.vendor.name, _origin(table, "provider")
            yield f"{place}.base_url", table.base_url, _origin(table, "base_url")
            rows = table.in_file - _KEYS - {"provider", "base_url"}
        if len(pool) == 1 and pool == table.keys:
            yield f"{place}.api_key", pool[0], table.key_origin
        else:
            for number, key in enumerate(pool, len(table.keys) - len(pool) + 1):
                yield f"{place}.api_keys.{number}", key, table.origin
        for setting in sorted(rows):
            yield f"{place}.{setting}", getattr(table.written, setting), table.origin


_EXTRA = frozenset({"provider", "model", "usd_per_m_cached"})


def _origin(table: ModelTable, key: str) -> str:
    return table.origin if key in table.in_file else "default"
