"""What `holdfast doctor` says of channels: whether each can be had, is heard, and lets anybody in."""

import anyio

from holdfast.channels import OWN
from holdfast.cli import channels, question
from holdfast.cli.channels import State
from holdfast.cli.check import Check, Verdict
from holdfast.config import Config
from holdfast.connect import connect
from holdfast.errors import Misconfigured
from holdfast.machine import SystemClock

LOOK_S = 1.0  # for a gateway to say how they are doing

_NAME = "channel"


async def look(config: Config) -> list[Check]:
    """One check for each that is on, and for what keeps them all from being had."""
    if not config.channels.tables and not config.channels.secrets:
        return []
    live: list[State] = []
    with anyio.move_on_after(LOOK_S):
        live = [s for s in await channels.known(config) if s.can]
    found = [_live(config, state) for state in live]
    return [*found, *_asleep(config, {state.name for state in live}), *_idle_secrets(config)]


def _live(config: Config, state: State) -> Check:
    if state.trouble:
        trouble = f"{state.name} cannot be heard: {question.visible(state.trouble)}"
        return Check(_NAME, Verdict.BAD, trouble, "see all of it: holdfast channels")
    if state.stuck:
        stuck = f"{state.name} is heard; messages that wait for you: {state.stuck}"
        return Check(_NAME, Verdict.NOTE, stuck, "see them: holdfast outbox")
    return _described(config, state.name, "is heard")


def _asleep(config: Config, live: set[str]) -> list[Check]:
    """Those that are on, and that no gateway serves now."""
    asleep = [n for n, t in config.channels.tables.items() if t.common.enabled and n not in live]
    if not asleep:
        return []
    try:
        connect(config, SystemClock())
    except Misconfigured as error:
        return [Check(_NAME, Verdict.BAD, str(error), error.hint)]
    except Exception as error:  # noqa: BLE001  somebody else's code: whatever it raises is the finding
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return [Check(_NAME, Verdict.BAD, f"a plugin fails: {what}", "mend it, or remove it")]
    return [_described(config, name, "is heard once a gateway runs") for name in asleep]


def _described(config: Config, name: str, how: str) -> Check:
    table = config.channels.tables.get(name)
    if table is not None and not table.common.users and not table.common.pairing:
        return Check(
            _NAME,
            Verdict.NOTE,
            f"{name} {how}, and nobody is let in",
            f"write users, or pairing = true, under {table.place} in {config.file}",
        )
    return Check(_NAME, Verdict.OK, f"{name} {how}")


def _idle_secrets(config: Config) -> list[Check]:
    """Secrets of channels that are not set up."""
    idle = [n for n in OWN if n not in config.channels.tables]
    return [
        Check(
            _NAME,
            Verdict.NOTE,
            f"there is {name}, and {given.channel} is not set up",
            f"write [channels.{given.channel}] in {config.file}; see docs/channels.md",
        )
        for name, given in config.channels.secrets.items()
        if given.channel in idle
    ]
