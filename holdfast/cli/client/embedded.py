"""The engine in the process of a terminal, if no other process owns the home."""

import anyio
from anyio.abc import TaskGroup, TaskStatus

from holdfast.app.embedded import embedded
from holdfast.config.settings import Config
from holdfast.core.types import RunId
from holdfast.host.lock import Lock


class EmbeddedEngine:
    """The engine in this process, once it is needed. It has its own task."""

    def __init__(self, config: Config, tasks: TaskGroup, linger_s: float) -> None:
        self._config = config
        self._tasks = tasks
        self._linger_s = linger_s
        self._leaving = anyio.Event()
        self._ended: anyio.Event | None = None

    @property
    def serves(self) -> bool:
        """Tell whether it runs now."""
        return self._ended is not None and not self._ended.is_set()

    async def start(self, lock: Lock, only: frozenset[RunId]) -> None:
        """Start the engine for `only` these runs and new ones; returns when it serves."""
        self._ended = anyio.Event()
        await self._tasks.start(self._embed, lock, only, self._ended)

    async def stop(self) -> None:
        """Stop it if it runs; its runs can be resumed."""
        self._leaving.set()
        if self._ended is not None:
            await self._ended.wait()
        self._leaving = anyio.Event()

    async def _embed(
        self,
        lock: Lock,
        only: frozenset[RunId],
        ended: anyio.Event,
        *,
        task_status: TaskStatus[None],
    ) -> None:
        try:
            async with (
                embedded(self._config, lock, only, self._linger_s) as wanted,
                anyio.create_task_group() as either,
            ):
                task_status.started()
                for end in (self._leaving, wanted):
                    either.start_soon(_cancel_after, end, either.cancel_scope)
        finally:
            ended.set()


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
