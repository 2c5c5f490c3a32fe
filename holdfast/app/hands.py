"""Build what runs commands (the spawner, the sandbox, their tools), and what reads instructions."""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import anyio
from anyio.abc import TaskGroup

from holdfast.config.settings import Config
from holdfast.core.redaction import Redactor
from holdfast.core.session.instructions import InstructionFile
from holdfast.host import machine
from holdfast.host.machine import JournalClock
from holdfast.journal.versions import DAY_S
from holdfast.tools import process, terminal
from holdfast.tools.exec.commands import Commands
from holdfast.tools.exec.record import CALLS
from holdfast.tools.exec.spawn import Spawner
from holdfast.tools.fs import instructions
from holdfast.tools.fs.restore import FileRestorer
from holdfast.tools.sandbox.sandbox import Sandbox
from holdfast.tools.snapshot.snapshots import Snapshots
from holdfast.tools.tool import Tool, VersionStore

log = logging.getLogger(__name__)

CLOSE_S = 2.0


def build_hands(
    config: Config, redactor: Redactor, tasks: TaskGroup, clock: JournalClock
) -> tuple[Commands, Spawner, Sequence[Tool[Any]]]:
    """Build the command runner; returned with its spawner, to be closed, and its tools."""
    spawner = Spawner(config.home / CALLS, os.getpid(), clock.now, machine.users_umask())
    sandbox = Sandbox(
        config.home,
        config.user_home,
        allow_none=config.sandbox.allow_none,
        container=config.sandbox.container,
        memory_mb=config.terminal.memory_mb,
    )
    hands = Commands(spawner, sandbox, redactor, tasks, clock)
    snapshots = Snapshots(config.home)
    tasks.start_soon(_keep, snapshots, config.journal.versions_days * DAY_S, clock)
    memory_mb = config.terminal.memory_mb
    tools = (*terminal.tools(hands, memory_mb, snapshots=snapshots), *process.tools(hands))
    return hands, spawner, tools


async def _keep(snapshots: Snapshots, keep_s: float, clock: JournalClock) -> None:
    """Remove snapshots of workspaces that are no longer used; close the others at the end."""
    try:
        while True:
            try:
                gone = await snapshots.prune(clock.now() - keep_s)
            except OSError as error:
                log.warning("snapshots were not pruned", extra={"why": str(error)})
            else:
                log.info("snapshots removed", extra={"removed": gone.count, "bytes": gone.size})
            await clock.sleep(DAY_S)
    finally:
        with anyio.move_on_after(CLOSE_S, shield=True):
            await snapshots.aclose()


def instruction_finder(config: Config) -> Callable[[str], Awaitable[Sequence[InstructionFile]]]:
    """Build what reads the files with instructions for a workspace."""
    return partial(instructions.find, config.home, config.user_home)


def build_restorer(versions: VersionStore) -> FileRestorer:
    """Build what restores files for undo. New directories get modes by the user's umask."""
    return FileRestorer(versions, machine.users_umask())
