"""The parts that slash commands are given."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from holdfast.core.intents import Principal
from holdfast.core.types import Value
from holdfast.engine.clock import Clock
from holdfast.engine.runs.asking import Asking
from holdfast.engine.runs.rewinding import Rewinder
from holdfast.engine.sessions import Sessions
from holdfast.gateway import Gateway
from holdfast.journal.journal import Journal
from holdfast.models.model import Models


class ProcessControl(Protocol):
    """The process, as far as a command may ask it for something."""

    @property
    def check(self) -> Callable[[], Awaitable[None]]:
        """Refuse if the process would not start again."""

    async def restart(self, by: Principal) -> None: ...


class CommandDeps(Value):
    """The parts that commands need."""

    gateway: Gateway
    journal: Journal
    sessions: Sessions
    clock: Clock
    models: Models
    asking: Asking
    rewinder: Rewinder
