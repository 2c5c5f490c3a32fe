"""Build the channels that are configured.

What only the operator can fix raises `Misconfigured` here, before anything is served: a missing or
malformed secret, a channel that no plugin provides, a plugin's channel with wrong settings.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

import msgspec

from holdfast import plugins
from holdfast.channels.channel import Channel, ChannelKind, Clock
from holdfast.config import channels
from holdfast.config.channels import ChannelTable
from holdfast.config.settings import Config
from holdfast.core.address import Daily, Idle, Never, Reset
from holdfast.core.chat.access import PlatformAccess
from holdfast.engine.chats.places import Connected
from holdfast.errors import Misconfigured


def connect(config: Config, clock: Clock) -> dict[str, Connected]:
    """Every channel that is on, by its name. No platform is contacted yet."""
    tables = [t for t in config.channels.tables.values() if t.common.enabled]
    if not tables:
        return {}
    kinds = plugins.find_channels([t.name for t in tables], config.plugins)
    for table in tables:
        if table.name not in kinds:
            raise channels.unknown(config.file, table.name, kinds)
    utc_offset_s = _utc_offset_s(clock.now())
    return {t.name: _connected(config, t, kinds[t.name], clock, utc_offset_s) for t in tables}


def found(config: Config) -> str:
    """The channels that are on, for the line at the start; empty if there are none."""
    words = [
        f"{t.name} (by {t.origin.removeprefix('environment ')}; users are let in only by pairing)"
        if t.origin != str(config.file)
        else t.name
        for t in config.channels.tables.values()
        if t.common.enabled
    ]
    return f"chats on {', '.join(words)}" if words else ""


def _connected(
    config: Config, table: ChannelTable, kind: ChannelKind, clock: Clock, utc_offset_s: float
) -> Connected:
    said = table.common
    return Connected(
        channel=_channel(config, table, kind, clock),
        rules=PlatformAccess(said.users, said.chats, said.pairing),
        groups=said.groups,
        reset=reset(said.reset, utc_offset_s),
        busy=said.busy,
        on_ambiguous=said.on_ambiguous,
        progress=said.progress,
    )


def _channel(config: Config, table: ChannelTable, kind: ChannelKind, clock: Clock) -> Channel:
    channels.check_own(config.file, table, kind.settings)
    try:
        settings = msgspec.convert(table.own, kind.settings)
    except msgspec.ValidationError as error:  # no single key is wrong
        raise Misconfigured(f"{config.file}: {table.place}: {error}", "mend that table") from None
    return kind.create(settings, partial(_secret, config, table, kind.secrets), clock)


def _secret(config: Config, table: ChannelTable, asked: Iterable[str], name: str) -> str:
    given = config.channels.secrets.get(name)
    if name not in asked or given is None or given.channel != table.name:
        raise Misconfigured(
            f"{table.name} is on and there is no {name}",
            f'set {name}, or write {name} = "…" under {table.place} in {config.file}, '
            "or enabled = false to do without it",
        )
    return given.secret.reveal()


def reset(said: str, utc_offset_s: float) -> Reset:
    """Convert the checked setting of when a chat gets a new session."""
    kind, _, number = said.partition(":")
    match kind:
        case "idle":
            return Idle(float(number))
        case "daily":
            return Daily(int(number), utc_offset_s)
        case _:
            return Never()


def _utc_offset_s(now: float) -> float:
    offset = datetime.fromtimestamp(now, UTC).astimezone().utcoffset()
    return offset.total_seconds() if offset else 0.0
