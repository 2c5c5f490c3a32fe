"""The parts of the engine that the operator's routes call, as protocols.

Routes do not import the engine: the composition root hands these in.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.core.approval.approval import Role
from holdfast.core.chat.access import Person
from holdfast.core.intents import Principal
from holdfast.core.life.lifecycle import Reason, Recorded
from holdfast.core.types import DeliveryId, SessionId
from holdfast.gateway import ChannelState, CommandDone, CommandGiven, CommandView, SessionView
from holdfast.journal.journal import Outbound
from holdfast.journal.search import Hit


class TakesCommands(Protocol):
    """Executes the operator's slash commands."""

    def commands(self, by: Principal) -> Sequence[CommandView]:
        """List all commands."""
        ...

    async def take(self, by: Principal, given: CommandGiven) -> CommandDone:
        """Execute a command; refused with `invalid_request` if there is no such command."""
        ...


class ControlsProcess(Protocol):
    """Controls the process of the gateway."""

    async def recorded(self, by: Principal) -> Recorded: ...
    async def announce(self, by: Principal, reason: Reason) -> None: ...
    async def stop(self, by: Principal) -> None: ...
    async def restart(self, by: Principal) -> None: ...


class KeepsSessions(Protocol):
    """Sets and clears interruption marks, and ends quarantine."""

    async def sessions(self, by: Principal) -> Sequence[SessionView]: ...
    async def mark(self, by: Principal, session_id: SessionId) -> None: ...
    async def clear_mark(self, by: Principal, session_id: SessionId) -> None: ...
    async def release(self, by: Principal) -> int: ...


class KeepsOutbox(Protocol):
    """Lists, resends and drops messages to chats."""

    async def unsent(self, by: Principal, *, everything: bool) -> Sequence[Outbound]:
        """List undelivered messages, newest first; without `everything` only those worth a look."""
        ...

    async def message(self, by: Principal, delivery_id: DeliveryId) -> Outbound:
        """One message; refused with `delivery_not_found`."""
        ...

    async def resend(self, by: Principal, delivery_id: DeliveryId) -> None:
        """Send a held or given-up message again; else refused with `delivery_not_waiting`."""
        ...

    async def drop(self, by: Principal, delivery_id: DeliveryId) -> None:
        """Give a message up; refused with `delivery_not_waiting` if it was sent or given up."""
        ...


class KeepsPeople(Protocol):
    """Decides who may use the chats, and knows the channels."""

    async def look_up(self, by: Principal, code: str) -> Person:
        """Find the person who was shown that code; refused with `code_not_found` or `too_many_codes`."""
        ...

    async def pair(self, by: Principal, code: str, roles: Collection[Role]) -> Person:
        """Give that person roles; refused like `look_up`."""
        ...

    async def users(self, by: Principal) -> Sequence[Person]:
        """Everyone who has roles, then those who were shown a code."""
        ...

    async def remove(self, by: Principal, platform: str, user: str) -> None:
        """Remove a person who was paired; refused with `user_not_found`."""
        ...

    async def channels(self, by: Principal) -> Sequence[ChannelState]:
        """Every channel that is on."""
        ...


class SearchResult(Protocol):
    """The matches, and whether all sessions were searched."""

    @property
    def hits(self) -> Sequence[Hit]: ...
    @property
    def complete(self) -> bool: ...


class Searches(Protocol):
    """Searches the text of sessions."""

    async def search(self, by: Principal, words: str, limit: int) -> SearchResult:
        """The caller's sessions that have all the terms, newest and best first."""
        ...
