"""The composition root: builds every part from the configuration and runs all of it.

Whoever holds the home's lock is the owner: it opens the journal, recovers, and serves
the front door on a unix socket. A gateway serves the network too, and waits for the
lock; a terminal embeds the same engine only where there is no owner.

The way down has one deadline. A timer thread, armed by the first signal, ends the
process come what may; a second signal ends it at once. Neither is needed for anything
to be correct: a shutdown is a crash with courtesy.
"""

import ctypes
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from select import select
from socket import gaierror

import anyio
import anyio.abc
import anyio.to_thread

from holdfast import __version__, observe, plugins
from holdfast.channels.http.door import LOCAL_HOSTS, Door, key_hash
from holdfast.channels.http.server import application, listen_tcp, listen_unix, serving
from holdfast.config import Config, api_key, known_secrets
from holdfast.core.approval import Role
from holdfast.core.intents import Capabilities, Principal
from holdfast.core.lifecycle import Reason, Supervisor, exit_code
from holdfast.core.limits import Limits
from holdfast.core.redaction import Redactor
from holdfast.core.run import Cause
from holdfast.core.types import OPERATOR, RunId
from holdfast.engine.permits import Policy
from holdfast.engine.service import Parts, Service
from holdfast.errors import Misconfigured
from holdfast.journal import audit
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite import SqliteJournal
from holdfast.lock import SOCKET, Lock, wait_for_lock
from holdfast.models.model import Model
from holdfast.models.offline import Offline
from holdfast.models.openai import OpenAI
from holdfast.models.scripted import Scripted
from holdfast.tools import process, terminal
from holdfast.tools.hands import Hands
from holdfast.tools.sandbox import Sandbox
from holdfast.tools.spawn import Spawner

log = logging.getLogger(__name__)

JOURNAL = "journal.db"
CALLS = "calls"

EXIT_AFTER_DRAIN_S = 9.0  # the net below the promise of drain + 10 s
CLOSE_S = 2.0
LINGER_S = 8.0  # for runs of other terminals to finish, before ours hands them over
MB = 1024 * 1024

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_PR_SET_DUMPABLE = 4  # sys/prctl.h

_ALL_ROLES = frozenset(Role)
_NOT_ADMIN = _ALL_ROLES - {Role.ADMIN}
# The doors, and what they can do. LATE-03: whatever comes in over the network is bound here.
_OPERATORS_DOOR = Principal(
    OPERATOR, Capabilities(platform="cli", answerable=True, late=True), _ALL_ROLES
)
_NETWORK = Principal(
    OPERATOR, Capabilities(platform="api_server", answerable=True, late=False), _NOT_ADMIN
)


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await anyio.sleep(seconds)


def build_model(config: Config) -> Model:
    """The configured model."""
    match config.provider:
        case "openai":
            key = config.openai.api_key
            if key is None and config.origins.get("openai.base_url", "default") == "default":
                raise Misconfigured(
                    f"the model is {config.model} and there is no key for {config.openai.base_url}",
                    "set OPENAI_API_KEY, or OPENAI_BASE_URL to a server that needs none",
                )
            return OpenAI(
                config.openai.base_url,
                key.reveal() if key is not None else "",
                stall_s=config.openai.stall_s,
            )
        case "scripted":
            return Scripted()
        case _:
            return Offline()


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


@asynccontextmanager
async def _engine(config: Config) -> AsyncIterator[tuple[Service, SqliteJournal]]:
    """The engine over the home's journal, not started yet. Its tasks end with the block."""
    redactor = Redactor(known_secrets(config))
    observe.hide(redactor)
    model = build_model(config)
    async with AsyncExitStack() as closing:
        closing.push_async_callback(_within, CLOSE_S, model.aclose)
        ledger = audit.Audit(config.home / audit.FILE, time.time, redactor)
        closing.callback(ledger.close)
        blobs = Blobs(config.home)
        journal = await SqliteJournal.open(
            config.home / JOURNAL,
            blobs,
            boot_id=_boot_id(),
            low_water=config.journal.low_water_mb * MB,
            ballast=config.journal.ballast_mb * MB,
        )
        closing.push_async_callback(_within, CLOSE_S, journal.aclose)
        async with anyio.create_task_group() as tasks:
            spawner = Spawner(config.home / CALLS, os.getpid(), time.time)
            closing.push_async_callback(_within, CLOSE_S, spawner.aclose)
            sandbox = Sandbox(
                config.home,
                config.user_home,
                allow_none=config.sandbox.allow_none,
                container=config.sandbox.container,
            )
            clock = SystemClock()
            hands = Hands(spawner, sandbox, redactor, tasks, clock)
            own = (*terminal.tools(hands, config.terminal.memory_mb), *process.tools(hands))
            parts = Parts(
                journal=journal,
                blobs=blobs,
                model=model,
                model_name=config.model,
                tools=plugins.find_tools(config.plugins, own),
                clock=clock,
                limits=_limits(config),
                on_start=config.recovery.on_start,
                home=config.home,
                workspace_roots=tuple(map(Path, config.gateway.workspace_roots)),
                retention_s=config.journal.retention_h * 3600.0,
                policy=Policy(config.approval.mode, config.approval.expiry_s),
                version=__version__,
                redactor=redactor,
                hands=hands,
                audit=partial(_in_thread, ledger.append),
            )
            service = Service(parts, tasks)
            try:
                yield service, journal
            finally:
                tasks.cancel_scope.cancel()


async def _in_thread(append: Callable[[audit.Entry], None], entry: audit.Entry) -> None:
    await anyio.to_thread.run_sync(append, entry)


async def _within(seconds: float, close: Callable[[], Awaitable[None]]) -> None:
    with anyio.move_on_after(seconds, shield=True):
        await close()


def _limits(config: Config) -> Limits:
    return Limits(
        running=config.limits.running,
        queued=config.limits.queued,
        turns=config.limits.turns,
        model_attempts=config.limits.model_attempts,
    )


async def _serve_operator(
    config: Config, service: Service, doors: AsyncExitStack, handover: Callable[[], None] | None
) -> None:
    """Open the operator's own door: the unix socket in the home."""
    door = Door(_OPERATORS_DOOR)
    body = config.limits.body_mb * MB, config.limits.body_s
    app = application(service, door, *body, handover)
    runner = await doors.enter_async_context(serving(app))
    await listen_unix(runner, config.home / SOCKET)


async def _serve_network(config: Config, service: Service, doors: AsyncExitStack) -> str:
    """Open the network's door, behind the key; its address."""
    gateway = config.gateway
    door = Door(
        _NETWORK,
        key_hash(api_key(config).reveal()),
        LOCAL_HOSTS | {gateway.host.lower()} | {h.lower() for h in gateway.allowed_hosts},
        frozenset(gateway.allowed_origins),
    )
    body = config.limits.body_mb * MB, config.limits.body_s
    runner = await doors.enter_async_context(serving(application(service, door, *body, None)))
    try:
        port = await listen_tcp(runner, gateway.host, gateway.port)
    except gaierror:
        raise Misconfigured(
            f"cannot listen on {gateway.host}: no such name", "set gateway.host or --host"
        ) from None
    except OSError as error:
        raise Misconfigured(
            f"cannot listen on {gateway.host}:{gateway.port}: {error.strerror or error}",
            "end what listens there, or choose another port with --port or HOLDFAST_PORT",
        ) from None
    host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
    return f"http://{host}:{port}"


@asynccontextmanager
async def embedded(
    config: Config, lock: Lock, only: frozenset[RunId]
) -> AsyncIterator[anyio.Event]:
    """The engine inside this process, serving only the unix socket.

    It brings back `only` the runs it came for: it will not stay. What it yields is set when
    somebody better wants the home; then the block should end.
    """
    os.umask(0o077)
    _harden()
    wanted = anyio.Event()
    try:
        async with (
            _engine(config) as (service, journal),
            anyio.create_task_group() as watching,
            AsyncExitStack() as doors,
        ):
            await _serve_operator(config, service, doors, wanted.set)
            lock.describe("terminal", "")
            watching.start_soon(_end_if_broken, journal)
            await service.start(only)
            try:
                yield wanted
            finally:
                with anyio.CancelScope(shield=True):
                    await service.stop(0 if wanted.is_set() else LINGER_S, Cause.TERMINAL)
                    await doors.aclose()
                    await service.end()
                watching.cancel_scope.cancel()
    finally:
        lock.release()


def run_gateway(config: Config) -> int:
    """Serve until a signal; the exit code. Does not return while anything still hangs."""
    observe.setup(config.log.level)
    os.umask(0o077)
    _harden()
    _raise_fd_limit()
    _tune_allocator()
    lock = wait_for_lock(config.home, _say)  # until the process ends
    api_key(config)  # made before the engine, which must know what to keep quiet about
    return anyio.run(_serve, config, lock, backend_options={"debug": False})


async def _serve(config: Config, lock: Lock) -> int:
    code = exit_code(Reason.STOP, Supervisor.NONE)
    async with _engine(config) as (service, journal):
        async with AsyncExitStack() as doors, anyio.create_task_group() as watching:
            # The doors first: what keeps them from opening must not cost anybody a run.
            address = await _serve_network(config, service, doors)
            await _serve_operator(config, service, doors, None)
            lock.describe("gateway", address)
            watching.start_soon(_end_if_broken, journal)
            await service.start()
            _tune_collector()
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                _say(f"Holdfast {__version__} ready on {address} (model {config.model})")
                received = await anext(aiter(signals))
                watching.start_soon(_end_at_once, signals)
                drain_s = config.gateway.drain_s
                _arm_exit(drain_s + EXIT_AFTER_DRAIN_S)
                _say_shutting_down(received, service, drain_s)
                service.refuse_work()
                await service.stop(drain_s, Cause.SHUTDOWN)
                await doors.aclose()
                await service.end()
                with anyio.move_on_after(CLOSE_S):
                    await journal.aclose()
                _say("Stopped.")
                _exit(code)  # here: a task group waits for what a stuck thread holds
    return code


def _say_shutting_down(received: signal.Signals, service: Service, drain_s: float) -> None:
    running = service.health().running
    wait = f", waiting up to {drain_s:g} s for them" if running and drain_s else ""
    _say(f"Shutting down ({received.name}); {running} running{wait}. Nothing accepted is lost.")


async def _end_at_once(signals: AsyncIterator[signal.Signals]) -> None:
    async for _ in signals:
        _say("Second signal: ending at once.")
        _exit(exit_code(Reason.STOP, Supervisor.NONE))


async def _end_if_broken(journal: SqliteJournal) -> None:
    reason = await journal.broken()
    log.critical("the journal is broken", extra={"reason": reason})
    _say(f"The journal cannot be trusted any more: {reason}. Ending, to recover at the next start.")
    _exit(exit_code(Reason.BROKEN, Supervisor.NONE))


def _arm_exit(after_s: float) -> None:
    """Whatever hangs: the process is gone by then."""
    timer = threading.Timer(after_s, os._exit, (exit_code(Reason.STOP, Supervisor.NONE),))
    timer.daemon = True
    timer.start()


def _exit(code: int) -> None:
    """Now: a busy worker thread must not hold the exit."""
    with suppress(OSError):  # nobody may be there to read it
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _harden() -> None:
    """Keep our memory to ourselves: no core file, no look into it by others of the same user.

    Nor into the environment we were started with: /proc/self/environ keeps showing it, whatever
    was removed since, but of an undumpable process only to root. A child that calls exec is
    dumpable again.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:  # Linux only
        prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def _raise_fd_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tune_allocator() -> None:
    """Keep freed memory at hand.

    asyncio reads with a buffer of 256 KiB, which glibc maps and unmaps anew for each read:
    18 µs, measured, against 2 µs when it comes from the heap.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries have other habits
        mallopt(_M_MMAP_THRESHOLD, MB)
        mallopt(_M_TRIM_THRESHOLD, 16 * MB)


def _tune_collector() -> None:
    """What is loaded now stays; what a run makes is freed by counting, not by searching."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def _say(line: str) -> None:
    """A line for the operator. Whoever reads us may have left, or read no more: then not."""
    with suppress(OSError, ValueError):
        if select([], [sys.stderr], [], 0)[1]:
            print(observe.clean(line), file=sys.stderr, flush=True)  # noqa: T201  the operator's terminal
