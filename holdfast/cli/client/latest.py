"""Find the session to continue: the latest of a directory, or one by its name."""

import shlex

from holdfast.api.schema.sessions import SessionObject
from holdfast.cli.client.client import Client
from holdfast.cli.client.refusals import NotFound
from holdfast.cli.exits import Code, Exit
from holdfast.core.text.escape import OutputCleaner, reveal

LOOKED_AT = 10_000  # sessions that are searched, last used first


async def latest(client: Client, workspace: str) -> SessionObject:
    """The session that was last used at a terminal in this directory."""
    for one in await client.list_sessions(LOOKED_AT):
        if one.platform == "cli" and one.workspace == workspace:
            return one
    raise NotFound(
        Code.FAILED,
        f"no session has been used in {workspace}; choose one of all: holdfast --resume",
    )


async def check_own(client: Client, session_id: str) -> None:
    """Raise `Exit` if only another owner, such as a chat, has a session of that id.

    Without this check a second session with the same id would begin.
    """
    try:
        await client.session(session_id)
    except NotFound:
        for one in await client.list_sessions(LOOKED_AT):
            if one.session_id == session_id and one.owner:
                shown = f"session {reveal(session_id)} belongs to {reveal(one.owner)}"
                raise Exit(
                    Code.USAGE,
                    f"{shown}; to continue it: holdfast --resume {shlex.quote(session_id)}",
                ) from None


async def named(client: Client, given: str) -> SessionObject:
    """The session with that id or title, or the only one whose id begins so."""
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
        harmless = OutputCleaner().text("", given)
        raise NotFound(Code.FAILED, f"there is no session {harmless}; see: holdfast sessions")
    if len(meant) > 1:
        some = ", ".join(one.session_id for one in meant[:5])
        raise Exit(Code.USAGE, f"say which of {len(meant)}: {some}{', …' * (len(meant) > 5)}")
    return meant[0]
