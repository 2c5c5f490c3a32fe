"""/model: which model this session asks."""

from holdfast.commands.command import Command
from holdfast.commands.phrases import code
from holdfast.core.approval import Role
from holdfast.gateway import Chat

_CONFIGURED = "default"


async def _run(chat: Chat, rest: str) -> str:
    if not rest:
        model = code((await chat.status()).model)
        return f"Model: {model}. /model name takes another, /model default the configured one."
    if len(rest.split()) > 1:
        return "/model takes one name, or default for the configured one."
    chosen = await chat.choose_model("" if rest.lower() == _CONFIGURED else rest)
    return f"Model: {code(chosen)}, in this session, from the next run on."


COMMAND = Command(
    name="model",
    arguments="[name]",
    help="Take another model for this session, default for the configured one; alone: which it is.",
    needs=Role.RUN,
    run=_run,
)
