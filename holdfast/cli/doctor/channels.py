"""Checks of the channels: each can be built, receives messages, and lets a user in."""

import anyio

from holdfast.channels import OWN
from holdfast.cli.doctor.check import Checks, bad, note, ok
from holdfast.cli.ops import channels
from holdfast.cli.ops.channels import ShownChannel
from holdfast.config.settings import Config
from holdfast.connect import connect
from holdfast.core.text.escape import reveal
from holdfast.errors import Misconfigured
from holdfast.host.machine import SystemClock

LOOK_S = 1.0  # for a gateway to report them

_NAME = "channel"


async def look(config: Config) -> Checks:
    """Check each channel that is on, and secrets of channels that are not configured."""
    if not config.channels.tables and not config.channels.secrets:
        return []
    live: list[ShownChannel] = []
    with anyio.move_on_after(LOOK_S):
        live = [s for s in await channels.known(config) if s.can]
    found = [check for state in live for check in _live(config, state)]
    return [*found, *_asleep(config, {state.name for state in live}), *_idle_secrets(config)]


def _live(config: Config, state: ShownChannel) -> Checks:
    if state.trouble:
        trouble = f"{state.name} does not receive: {reveal(state.trouble)}"
        return bad(_NAME, trouble, "see all of it: holdfast channels")
    if state.stuck:
        stuck = f"{state.name} receives; messages that wait for you: {state.stuck}"
        return note(_NAME, stuck, "see them: holdfast outbox")
    return _described(config, state.name, "receives")


def _asleep(config: Config, live: set[str]) -> Checks:
    """Check the channels that are on and that no gateway serves now."""
    asleep = [n for n, t in config.channels.tables.items() if t.common.enabled and n not in live]
    if not asleep:
        return []
    try:
        connect(config, SystemClock())
    except Misconfigured as error:
        return bad(_NAME, str(error), error.hint)
    except Exception as error:  # noqa: BLE001  foreign code: whatever it raises is the finding
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return bad(_NAME, f"a plugin fails: {what}", "fix it, or remove it")
    how = "receives once a gateway runs"
    return [check for name in asleep for check in _described(config, name, how)]


def _described(config: Config, name: str, how: str) -> Checks:
    table = config.channels.tables.get(name)
    if table is not None and not table.common.users and not table.common.pairing:
        step = f"write users, or pairing = true, under {table.place} in {config.file}"
        return note(_NAME, f"{name} {how}, and no user is let in", step)
    return ok(_NAME, f"{name} {how}")


def _idle_secrets(config: Config) -> Checks:
    """Find secrets of channels that are not configured."""
    idle = [n for n in OWN if n not in config.channels.tables]
    return [
        check
        for name, given in config.channels.secrets.items()
        if given.channel in idle
        for check in note(
            _NAME,
            f"{name} is set, but {given.channel} is not configured",
            f"write [channels.{given.channel}] in {config.file}; see docs/channels.md",
        )
    ]
