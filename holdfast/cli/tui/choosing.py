"""`holdfast --resume`: the session that is named, or the one that is chosen from a list."""

from holdfast import config as configuration
from holdfast.cli import resuming
from holdfast.cli.client import connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.tui import status
from holdfast.cli.tui.picker import Picker, pick
from holdfast.cli.tui.style import Style
from holdfast.config import Config

SHOWN = 500


async def choose(config: Config, given: str) -> str:
    """The id of a session; empty: none was chosen."""
    async with connect(config, lambda text: None, linger_s=0.0) as client:
        if given:
            return (await resuming.named(client, given)).session_id
        sessions = await client.list_sessions(SHOWN)
    if not sessions:
        raise Exit(Code.USAGE, "there is no session yet; begin one with: holdfast")
    style = Style(colour=not configuration.wants_no_colour())
    chosen = await pick(Picker(sessions, style, status.now()))
    return chosen.session_id if chosen else ""
