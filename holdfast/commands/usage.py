"""/usage: what this session has spent."""

from holdfast.commands.command import Command
from holdfast.core.approval import Role
from holdfast.gateway import Chat


async def _run(chat: Chat, rest: str) -> str:
    spent = await chat.usage()
    if not spent.total_tokens:
        return "No tokens yet in this session."
    return (
        f"Tokens in this session: {spent.total_tokens:,}"
        f" ({spent.input_tokens:,} read, {spent.output_tokens:,} written)."
    )


COMMAND = Command(
    name="usage",
    arguments="",
    help="How many tokens this session has spent.",
    needs=Role.READ,
    run=_run,
)
