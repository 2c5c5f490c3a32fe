"""`holdfast --resume`: the session that is named, or the one that is chosen from a list."""

from holdfast import config as configuration
from holdfast.cli import resuming
from holdfast.cli.client import connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.tui.picker import Picker, pick
from holdfast.cli.tui.style import Style, wall_clock
from holdfast.cli.wire_sessions import SessionInfo
from holdfast.config import Config

SHOWN = 500


async def choose(config: Config, given: str) -> SessionInfo | None:
    """The session to go on with; None: none was chosen."""
    async with connect(config, lambda text: None, linger_s=0.0) as client:
        if given:
            return await resuming.named(client, given)
        sessions = await client.list_sessions(SHOWN)
    if not sessions:
        raise Exit(Code.USAGE, "there is no session yet; begin one with: holdfast")
    style = Style(colour=not configuration.wants_no_colour())
    return await pick(Picker(sessions, style, wall_clock()))
