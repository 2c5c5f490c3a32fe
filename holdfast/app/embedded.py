"""Embed the engine in a terminal's process, where the home has no owner."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from holdfast.app.doors import serve_operator
from holdfast.app.ending import end_if_broken
from holdfast.app.engine import engine
from holdfast.app.principals import OPERATORS_DOOR
from holdfast.config.settings import Config
from holdfast.core.life.lifecycle import Wanted
from holdfast.core.run.run import CutCause
from holdfast.core.types import RunId
from holdfast.host import machine
from holdfast.host.lock import Lock

LINGER_S = 8.0  # for runs of other terminals to finish, before ours hands them over


@asynccontextmanager
async def embedded(
    config: Config, lock: Lock, only: frozenset[RunId], linger_s: float = LINGER_S
) -> AsyncIterator[anyio.Event]:
    """The engine inside this process, serving only the unix socket.

    It brings back `only` the runs it came for: it will not stay. At the end it lets runs finish
    for `linger_s`; the next owner takes up what does not. The event it yields is set when a
    gateway wants the home; then the block should end.
    """
    machine.keep_private()
    machine.harden()
    wanted = anyio.Event()
    try:
        async with (
            engine(config) as (service, journal),
            anyio.create_task_group() as watching,
            AsyncExitStack() as doors,
        ):
            await serve_operator(config, service, journal, doors, wanted.set)
            lock.describe("terminal", "")
            watching.start_soon(end_if_broken, journal)
            await service.start(only)
            try:
                yield wanted
            finally:
                with anyio.CancelScope(shield=True):
                    await service.stop(0 if wanted.is_set() else linger_s, CutCause.TERMINAL)
                    await doors.aclose()
                    await service.end()
                watching.cancel_scope.cancel()
    finally:
        lock.release()


async def record(config: Config, lock: Lock, wanted: Wanted) -> None:
    """Write down what is wanted of a gateway that does not run now."""
    try:
        async with engine(config) as (service, _):
            await service.want(OPERATORS_DOOR, wanted)
    finally:
        lock.release()
