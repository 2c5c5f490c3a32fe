"""The contract of a slash command: one file, one command.

A command is words for the gateway itself, not for the agent: `/stop`, `/status`. It gets the
conversation it was said in and what stands behind its name, and returns what to say there, as
markdown; empty: nothing. What it may not do is refused by the conversation, in words for people.
"""

from collections.abc import Awaitable, Callable

from holdfast.core.approval import Role
from holdfast.core.types import Value
from holdfast.gateway import Chat


class Command(Value):
    """One command. Nothing has a default: a new one says so itself."""

    name: str  # without the slash
    arguments: str  # as the help shows them: "[words]"
    help: str  # one line
    needs: Role
    run: Callable[[Chat, str], Awaitable[str]]
