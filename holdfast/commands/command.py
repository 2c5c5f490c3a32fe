"""The contract of a slash command. Each module here, and a plugin, lists its own in `COMMANDS`.

A command is for the gateway, not for the agent: `/stop`, `/status`. It gets the conversation it
was sent in and the text after its name, and returns its reply as Markdown; empty: no reply. The
conversation refuses what the sender may not do, with a message for people.
"""

from collections.abc import Awaitable, Callable

from holdfast.core.approval.approval import Role
from holdfast.core.types import Value
from holdfast.gateway import CommandTarget


class Command(Value):
    """One command. No field has a default: every command states all of them."""

    name: str  # without the slash
    arguments: str  # as the help shows them: "[message]"
    help: str  # one line
    needs: Role
    run: Callable[[CommandTarget, str], Awaitable[str]]
