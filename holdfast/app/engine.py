"""Build the engine over the home's journal."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path

import anyio
import anyio.to_thread

from holdfast import __version__, plugins
from holdfast.app.hands import build_hands, build_restorer, instruction_finder
from holdfast.app.models import ModelBuilder
from holdfast.config.home import known_secrets
from holdfast.config.settings import Config
from holdfast.core.redaction import Redactor
from holdfast.core.run.limits import Limits
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.life.lifecycle import GatewayLife
from holdfast.engine.messenger import Chatting
from holdfast.engine.runs.approvals import ApprovalPolicy
from holdfast.engine.service import Service
from holdfast.host import machine, observe
from holdfast.host.control import JOURNAL, GatewayControl
from holdfast.host.machine import JournalClock
from holdfast.journal import audit
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.journal.versions import DAY_S, Versions

log = logging.getLogger(__name__)

CLOSE_S = 2.0
MB = 1024 * 1024


@asynccontextmanager
async def engine(
    config: Config,
    chatting: Chatting | None = None,
    control: Callable[[GatewayLife], GatewayControl] | None = None,
) -> AsyncIterator[tuple[Service, SqliteJournal]]:
    """The engine over the home's journal, not started yet. Its tasks end with the block."""
    redactor = Redactor(known_secrets(config))
    observe.hide(redactor)
    builder = await ModelBuilder.create(config)
    models = builder.build()
    async with AsyncExitStack() as closing:
        closing.push_async_callback(_within, CLOSE_S, builder.aclose)
        blobs = Blobs(config.home)
        journal = await SqliteJournal.open(
            config.home / JOURNAL,
            blobs,
            now=machine.read_clocks(),
            ledger=config.home / audit.FILE,
            low_water=config.journal.low_water_mb * MB,
            ballast=config.journal.ballast_mb * MB,
        )
        closing.push_async_callback(_within, CLOSE_S, journal.aclose)
        ledger = audit.Audit(config.home / audit.FILE, time.time, redactor, lambda: journal.commits)
        closing.callback(ledger.close)
        async with anyio.create_task_group() as tasks:
            clock = JournalClock(journal.begun.anchor)
            tasks.start_soon(clock.watch, journal.keep_offset)
            tasks.start_soon(builder.learn)
            versions = Versions(config.home, config.journal.versions_days * DAY_S, clock.now)
            hands, spawner, own = build_hands(config, redactor, tasks, clock)
            closing.push_async_callback(_within, CLOSE_S, spawner.aclose)
            tools = plugins.find_tools(config.plugins, own, machine.users_umask())
            parts = ServiceDeps(
                journal=journal,
                blobs=versions,
                files=build_restorer(versions),
                models=models,
                tools=lambda: tools,
                clock=clock,
                limits=limits(config),
                on_start=config.recovery.on_start,
                home=config.home,
                workspace_roots=tuple(map(Path, config.gateway.workspace_roots)),
                retention_s=config.journal.retention_h * 3600.0,
                policy=ApprovalPolicy(config.approval.mode, config.approval.expiry_s),
                version=__version__,
                redactor=redactor,
                hands=hands,
                audit=partial(_in_thread, ledger.append),
                chatting=chatting,
                control=control,
                commands=cache(partial(plugins.find_commands, config.plugins)),
                find_instructions=instruction_finder(config),
            )
            tasks.start_soon(_prune, versions, clock)
            service = Service(parts, tasks)
            try:
                yield service, journal
            finally:
                tasks.cancel_scope.cancel()


async def _prune(versions: Versions, clock: JournalClock) -> None:
    """Remove former versions of files when they are too old; look once a day."""
    while True:
        try:
            gone = await anyio.to_thread.run_sync(versions.prune)
        except OSError as error:
            log.warning("versions were not pruned", extra={"why": str(error)})
        else:
            log.info("former versions removed", extra={"removed": gone.count, "bytes": gone.size})
        await clock.sleep(DAY_S)


async def _in_thread(append: Callable[[audit.AuditEntry], None], entry: audit.AuditEntry) -> None:
    await anyio.to_thread.run_sync(append, entry)


async def _within(seconds: float, close: Callable[[], Awaitable[None]]) -> None:
    with anyio.move_on_after(seconds, shield=True):
        await close()


def limits(config: Config) -> Limits:
    return Limits(
        running=config.limits.running,
        queued=config.limits.queued,
        queued_bytes=config.limits.queued_mb * MB,
        turns=config.limits.turns,
        model_attempts=config.limits.model_attempts,
        run_usd=config.limits.run_usd,
    )
