"""The channels' part of the configuration: one table each, checked like everything else.

`[channels.NAME]` has the keys of `Common`, the channel's own settings, and its secrets under the
names they have in the environment, which wins over the file. A channel of ours is checked here,
and its module imported only if it is set up; one of a plugin when it is made (`check_own`).
A channel whose secrets are in the environment, and which needs nothing else, is on without a
table, and users are let in only by pairing.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo, fields

from holdfast.channels import OWN
from holdfast.channels.channel import ChannelKind
from holdfast.config.secrets import Secret
from holdfast.config.tables import convert, line, plain
from holdfast.core.address import ChatType, Groups
from holdfast.core.approval.approval import Role
from holdfast.core.chat.delivery import OnAmbiguous
from holdfast.core.inbox import Mode
from holdfast.core.types import Value
from holdfast.errors import Misconfigured

SECTION = "channels"
_SECRET = re.compile(r"[A-Z][A-Z0-9_]*")
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_EXAMPLE = "telegram"
_ROLES = ", ".join(Role)

Flag = Annotated[bool, Meta(description="true or false")]
Roles = Annotated[frozenset[Role], Meta(description=f"a list of roles, which are {_ROLES}")]
Users = Annotated[
    dict[str, Roles],
    Meta(
        description=f"the platform's ids of users, each with its roles ({_ROLES})",
        examples=[{"12345": ["run", "approve"]}],
    ),
]
Kinds = Annotated[frozenset[ChatType], Meta(description='a list of "dm", "group" and "channel"')]
Sharing = Annotated[Groups, Meta(description='"per_user" or "shared"')]
Restarts = Annotated[
    str,
    Meta(
        pattern=r"^(none|idle:[1-9][0-9]{0,6}|daily:([01]?[0-9]|2[0-3]))$",
        description='"none", "idle:" and minutes, or "daily:" and an hour from 0 to 23',
        examples=["idle:120"],
    ),
]
Busy = Annotated[Mode, Meta(description='"interrupt", "queue" or "steer"')]
Doubt = Annotated[OnAmbiguous, Meta(description='"resend_marked" or "hold"')]


class Common(msgspec.Struct, frozen=True):
    """The settings that every channel has."""

    enabled: Flag = True
    users: Users = {}
    chats: Kinds = frozenset({ChatType.DIRECT})
    pairing: Flag = True  # strangers are shown a code in a direct chat
    groups: Sharing = Groups.PER_USER
    reset: Restarts = "none"  # when the next message starts a new session
    busy: Busy = Mode.INTERRUPT  # what a message does to an active run
    on_ambiguous: Doubt = OnAmbiguous.RESEND_MARKED
    progress: Flag = True


class ChannelTable(Value):
    """One channel that is set up."""

    name: str
    origin: str  # the file, or the variable by which it was found
    common: Common
    own: Mapping[str, Any]  # the channel's own settings, as they are written
    written: frozenset[str]  # the keys that are in the file

    @property
    def place(self) -> str:
        return f"[{SECTION}.{self.name}]"


class GivenSecret(Value):
    """A secret, whose it is, and where it comes from."""

    channel: str
    secret: Secret
    origin: str


class Channels(Value):
    """All that is set up, and every secret that belongs to a channel, by its name."""

    tables: Mapping[str, ChannelTable] = {}
    secrets: Mapping[str, GivenSecret] = {}


def read(path: Path, tables: object, environ: Mapping[str, str], *, plugins: bool) -> Channels:
    """The channels in the file and the environment. `plugins` may add more."""
    found: dict[str, ChannelTable] = {}
    secrets: dict[str, GivenSecret] = {}
    for name, raw in _each(path, tables, plugins=plugins):
        names = [*OWN.get(name, [key for key in raw if _SECRET.fullmatch(key)])]
        secrets |= _secrets(path, name, names, raw, environ)
        found[name] = _table(path, name, {k: v for k, v in raw.items() if k not in names})
    for name, asked in OWN.items():
        secrets |= _secrets(path, name, asked, {}, environ)
        if name not in found and all(n in secrets for n in asked) and not _needed(name):
            found[name] = ChannelTable(name, f"environment {asked[0]}", Common(), {}, frozenset())
    return Channels(found, secrets)


def _each(
    path: Path, tables: object, *, plugins: bool
) -> Iterator[tuple[str, Mapping[str, object]]]:
    if not isinstance(tables, dict):
        raise Misconfigured(f"{path}: {SECTION} is a section", _write_table(_EXAMPLE))
    for name, raw in tables.items():
        if not isinstance(raw, dict):
            raise Misconfigured(
                f"{path}: {SECTION}.{name} is no table",
                _write_table(name if name in OWN else _EXAMPLE),
            )
        if name not in OWN and not plugins:
            raise unknown(path, name, OWN)
        yield name, raw


def _write_table(name: str) -> str:
    return f"write [{SECTION}.{name}] on its own line, and below it what is to hold for it"


def unknown(path: Path, name: str, known: Mapping[str, object]) -> Misconfigured:
    """There is no channel of that name."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean [{SECTION}.{close[0]}]?" if close else f"known are {', '.join(known)}"
    return Misconfigured(f"{path}: unknown channel {name}", hint)


def _secrets(
    path: Path,
    channel: str,
    names: list[str] | tuple[str, ...],
    raw: Mapping[str, object],
    environ: Mapping[str, str],
) -> dict[str, GivenSecret]:
    found: dict[str, GivenSecret] = {}
    for name in names:
        value, origin, written = raw.get(name, ""), str(path), f"{path}: {SECTION}.{channel}.{name}"
        if environ.get(name):
            value, origin, written = environ[name].strip(), f"environment {name}", name
        if not isinstance(value, str) or (value and not _VISIBLE.fullmatch(value)):
            raise Misconfigured(
                f"{written} is not usable as a secret", "it must be a text of visible characters"
            )
        if value:
            found[name] = GivenSecret(channel, Secret(value), origin)
    return found


def _table(path: Path, name: str, raw: Mapping[str, object]) -> ChannelTable:
    own = {k: v for k, v in raw.items() if k not in _COMMON}
    said = {k: v for k, v in raw.items() if k in _COMMON}
    _check_users(path, name, said.get("users"))
    common = Common(**{k: convert(path, _place(name), _COMMON[k], v) for k, v in said.items()})
    table = ChannelTable(name, str(path), common, own, frozenset(raw))
    if name in OWN:
        check_own(path, table, _settings(name))
    return table


_COMMON: Mapping[str, FieldInfo] = {field.name: field for field in fields(Common)}


def _place(name: str) -> str:
    return f"{SECTION}.{name}"


def _check_users(path: Path, name: str, users: object) -> None:
    """Which of the users it is that cannot be."""
    for user, roles in users.items() if isinstance(users, dict) else ():
        if not user.strip() or user != user.strip():
            raise Misconfigured(
                f"{path}: {SECTION}.{name}.users has an id {json.dumps(user)}",
                "write it as the platform has it, without spaces around it",
            )
        key = f"users.{json.dumps(user, ensure_ascii=False)}"
        convert(path, _place(name), FieldInfo(key, key, Roles, default=("run", "approve")), roles)


def _settings(name: str) -> type[Any]:
    kind: ChannelKind = import_module(f"holdfast.channels.{name}").CHANNEL
    return kind.settings


def _needed(name: str) -> list[str]:
    """The settings that a channel of ours cannot do without."""
    return [field.name for field in fields(_settings(name)) if field.required]


def check_own(path: Path, table: ChannelTable, shape: type[Any]) -> None:
    """Check the channel's own settings: `Misconfigured` names the key and what to write."""
    known = {field.encode_name: field for field in fields(shape)}
    for key, value in table.own.items():
        if key not in known:
            raise _unknown_key(path, table, key, known)
        convert(path, _place(table.name), known[key], value)
    for key, field in known.items():
        if field.required and key not in table.own and table.common.enabled:
            raise Misconfigured(
                f"{path}: {SECTION}.{table.name}.{key} is missing", line(_place(table.name), field)
            )


def _unknown_key(
    path: Path, table: ChannelTable, key: str, own: Mapping[str, FieldInfo]
) -> Misconfigured:
    secrets = OWN.get(table.name, ())
    known = [*_COMMON, *own, *secrets]
    wrong = f"{path}: unknown key {SECTION}.{table.name}.{key}"
    close = difflib.get_close_matches(key, known, n=1)
    if not close:
        return Misconfigured(wrong, f"known are {', '.join(known)}")
    if close[0] in secrets:
        return Misconfigured(wrong, f'did you mean {close[0]} = "…" under {table.place}?')
    written = line(_place(table.name), {**own, **_COMMON}[close[0]]).removeprefix("write ")
    return Misconfigured(wrong, f"did you mean {written}?")


def shown(channels: Channels) -> Iterator[tuple[str, object, str]]:
    """Every key of every channel with its value and its origin. Secrets stay masked."""
    for name, table in channels.tables.items():
        for key in _COMMON:
            value = plain(getattr(table.common, key))
            yield f"{SECTION}.{name}.{key}", value, table.origin if _said(table, key) else "default"
        for key, value in table.own.items():
            yield f"{SECTION}.{name}.{key}", value, table.origin
    for key, given in channels.secrets.items():
        yield f"{SECTION}.{given.channel}.{key}", given.secret, given.origin


def _said(table: ChannelTable, key: str) -> bool:
    """A channel that was found is on because it was."""
    return key in table.written or (key == "enabled" and table.origin.startswith("environment "))
