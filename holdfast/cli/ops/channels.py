"""`holdfast channels`: each channel that is set up, whether it is on, and how it is doing."""

import argparse

import anyio
import msgspec

from holdfast.cli import operator, question
from holdfast.cli.exits import Code
from holdfast.cli.operator import Channel, Channels, NoGateway
from holdfast.config import Config
from holdfast.core.types import Value


class State(Value):
    """A channel as far as it is known here."""

    name: str
    on: bool
    set_by: str
    trouble: str = ""
    can: tuple[str, ...] = ()
    undelivered: int = 0
    held: int = 0
    given_up: int = 0

    @property
    def stuck(self) -> str:
        """What waits for a person, in words; empty: nothing does."""
        counts = {"held": self.held, "given up": self.given_up}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def main(args: argparse.Namespace) -> int:
    """List them. Exit code 1: one of them is in trouble."""
    return anyio.run(_list, operator.load(), args.json)


async def _list(config: Config, as_json: bool) -> int:  # noqa: FBT001  the flag as it was given
    states = await known(config)
    for state in states:
        print(msgspec.json.encode(state).decode() if as_json else _shown(state))
    if not states and not as_json:
        print("No channel is set up. For one: export TELEGRAM_BOT_TOKEN=… (see docs/channels.md)")
    return Code.FAILED if any(state.trouble for state in states) else Code.OK


async def known(config: Config) -> list[State]:
    """All that the configuration names, and what the gateway says of those that are on."""
    live: dict[str, Channel] = {}
    otherwise = "the gateway runs without it; to have it: holdfast gateway restart"
    try:
        found = await operator.ask(config, "GET", "/v1/channels", Channels)
        live = {channel.name: channel for channel in found.data}
    except NoGateway as nobody:
        otherwise = str(nobody)
    states = []
    for name, table in config.channels.tables.items():
        on = table.common.enabled
        state = State(name, on, table.origin, otherwise if on else "")
        if (channel := live.pop(name, None)) is not None:
            state = _live(channel, table.origin)
        states.append(state)
    # What the gateway has and this shell does not know of: it was found by its environment.
    return states + [_live(channel, "the gateway's environment") for channel in live.values()]


def _live(channel: Channel, set_by: str) -> State:
    return State(
        channel.name,
        on=True,
        set_by=set_by,
        trouble=channel.trouble,
        can=channel.can,
        undelivered=channel.undelivered,
        held=channel.held,
        given_up=channel.given_up,
    )


def _shown(state: State) -> str:
    lines = [f"{state.name:12} {'on' if state.on else 'off'}, set by {state.set_by}"]
    if state.trouble:
        lines.append(f"  trouble      {question.visible(state.trouble)}")
    if state.can:
        stuck = f", {state.stuck}; see: holdfast outbox" if state.stuck else ""
        lines.append(f"  can          {', '.join(state.can)}")
        lines.append(f"  undelivered  {state.undelivered}{stuck}")
    return "\n".join(lines)
