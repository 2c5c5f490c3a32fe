"""`holdfast channels`: list each configured channel, whether it is on, and its state."""

import argparse

import anyio
from msgspec.structs import asdict

from holdfast.api.schema.operator import ChannelList, ChannelObject
from holdfast.cli import output
from holdfast.cli.client import operator
from holdfast.cli.client.operator import NoGateway
from holdfast.cli.exits import Code
from holdfast.config.settings import Config
from holdfast.core.text.escape import reveal
from holdfast.core.types import Value

NO_CHANNEL = (
    "No channel is configured. For Telegram: export TELEGRAM_BOT_TOKEN=… (see docs/channels.md)"
)


class ShownChannel(Value):
    """One channel, from the configuration and from the gateway."""

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
        """Return what waits for the operator; empty if nothing does."""
        counts = {"held": self.held, "given up": self.given_up}
        return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def main(args: argparse.Namespace) -> int:
    """List the channels. Exit code 1: one of them has a problem."""
    states = anyio.run(known, operator.load())
    output.print_each(states, _shown, NO_CHANNEL, output.as_json if args.json else None)
    return Code.FAILED if any(state.trouble for state in states) else Code.OK


async def known(config: Config) -> list[ShownChannel]:
    """Return the configured channels, with the gateway's report on those that are on."""
    live: dict[str, ChannelObject] = {}
    otherwise = "the running gateway does not have it; to add it: holdfast gateway restart"
    try:
        found = await operator.ask(config, "GET", "/v1/channels", ChannelList)
        live = {channel.name: channel for channel in found.data}
    except NoGateway as error:
        otherwise = str(error)
    states = []
    for name, table in config.channels.tables.items():
        on = table.common.enabled
        state = ShownChannel(name, on, table.origin, otherwise if on else "")
        if (channel := live.pop(name, None)) is not None:
            state = _live(channel, table.origin)
        states.append(state)
    # Channels that only the gateway knows: configured by its environment.
    return states + [_live(channel, "the gateway's environment") for channel in live.values()]


def _live(channel: ChannelObject, set_by: str) -> ShownChannel:
    return ShownChannel(on=True, set_by=set_by, **asdict(channel))


def _shown(state: ShownChannel) -> str:
    lines = [f"{state.name:12} {'on' if state.on else 'off'}, set by {state.set_by}"]
    if state.trouble:
        lines.append(f"  problem      {reveal(state.trouble)}")
    if state.can:
        stuck = f", {state.stuck}; see: holdfast outbox" if state.stuck else ""
        lines.append(f"  can          {', '.join(state.can)}")
        lines.append(f"  undelivered  {state.undelivered}{stuck}")
    return "\n".join(lines)
