"""Which session is meant by "go on": the latest of this directory, or one by its name."""

from holdfast.cli.client import Client
from holdfast.cli.exits import Code, Exit
from holdfast.cli.output import Output
from holdfast.cli.wire import NotFound
from holdfast.cli.wire_sessions import SessionInfo

LOOKED_AT = 10_000  # the latest, among which one is looked for


async def latest(client: Client, workspace: str) -> SessionInfo:
    """The session that was spoken in last at a terminal in this directory."""
    for one in await client.list_sessions(LOOKED_AT):
        if one.platform == "cli" and one.workspace == workspace:
            return one
    raise NotFound(Code.FAILED, f"nothing was said in {workspace} yet; all: holdfast --resume")


async def named(client: Client, given: str) -> SessionInfo:
    """The session that is meant: its id, the beginning of just one, or its title."""
    try:
        return await client.session(given)
    except Exit as refused:
        if refused.code != Code.FAILED:
            raise
    known = await client.list_sessions(LOOKED_AT)
    meant = [one for one in known if one.session_id == given] or [
        one for one in known if one.session_id.startswith(given) or one.title == given
    ]
    if not meant:
        harmless = Output().text("", given)
        raise NotFound(Code.FAILED, f"there is no session {harmless}; see: holdfast sessions")
    if len(meant) > 1:
        some = ", ".join(one.session_id for one in meant[:5])
        raise Exit(Code.USAGE, f"say which of {len(meant)}: {some}{', …' * (len(meant) > 5)}")
    return meant[0]
