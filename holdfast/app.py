"""The composition root: builds every part from the configuration and runs all of it.

Whoever holds the home's lock is the owner: it opens the journal, recovers, and serves
the front door on a unix socket. A gateway serves the network too, and waits for the
lock; a terminal embeds the same engine only where there is no owner.

The way down has one deadline. A timer thread, armed by the first signal, ends the
process come what may; a second signal ends it at once. Neither is needed for anything
to be correct: a shutdown is a crash with courtesy.
"""

import ctypes
import fcntl
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.abc

from holdfast import __version__, observe, plugins
from holdfast.channels.http.door import LOCAL_HOSTS, Door, key_hash
from holdfast.channels.http.server import application, listen_tcp, listen_unix, serving
from holdfast.config import Config, api_key, known_secrets
from holdfast.core.intents import Principal
from holdfast.core.lifecycle import Reason, Supervisor, exit_code
from holdfast.core.limits import Limits
from holdfast.core.redaction import Redactor
from holdfast.core.run import Cause
from holdfast.core.types import OPERATOR
from holdfast.engine.service import Parts, Service
from holdfast.errors import Misconfigured
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite import SqliteJournal
from holdfast.models.model import Model
from holdfast.models.offline import Offline
from holdfast.models.openai import OpenAI
from holdfast.models.scripted import Scripted

log = logging.getLogger(__name__)

SOCKET = "run/front.sock"
LOCK = "run/lock"
JOURNAL = "journal.db"

EXIT_AFTER_DRAIN_S = 9.0  # the net below the promise of drain + 10 s
CLOSE_S = 2.0
MB = 1024 * 1024

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_PR_SET_DUMPABLE = 4  # sys/prctl.h


class SystemClock:
    """The real clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`."""
        await anyio.sleep(seconds)


class Lock:
    """The home's lock. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let somebody else own the home."""
        os.close(self._descriptor)


def take_lock(home: Path) -> Lock | None:
    """The lock, if nobody has it."""
    descriptor = _open_lock(home)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return _locked(descriptor)


def wait_for_lock(home: Path) -> Lock:
    """The lock, as soon as whoever has it ends. Says so if that is not now."""
    if (lock := take_lock(home)) is not None:
        return lock
    descriptor = _open_lock(home)
    owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
    _say(f"Another Holdfast (pid {owner}) owns {home}; waiting for it to end.")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return _locked(descriptor)


def _open_lock(home: Path) -> int:
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / "run").mkdir(mode=0o700, exist_ok=True)
    return os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _locked(descriptor: int) -> Lock:
    """The pid is for people who wonder; nothing reads it to decide."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return Lock(descriptor)


def build_model(config: Config) -> Model:
    """The configured model."""
    match config.provider:
        case "openai":
            key = config.openai.api_key
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
    """The engine over the home's journal, recovered. Its tasks end with the block."""
    redactor = Redactor(known_secrets(config))
    observe.hide(redactor)
    blobs = Blobs(config.home)
    tools = plugins.find_tools(config.plugins)
    model = build_model(config)
    journal = await SqliteJournal.open(
        config.home / JOURNAL,
        blobs,
        boot_id=_boot_id(),
        low_water=config.journal.low_water_mb * MB,
        ballast=config.journal.ballast_mb * MB,
    )
    parts = Parts(
        journal=journal,
        blobs=blobs,
        model=model,
        model_name=config.model,
        tools=tools,
        clock=SystemClock(),
        limits=Limits(
            running=config.limits.running,
            queued=config.limits.queued,
            turns=config.limits.turns,
            model_attempts=config.limits.model_attempts,
        ),
        on_start=config.recovery.on_start,
        home=config.home,
        workspace_roots=tuple(map(Path, config.gateway.workspace_roots)),
        retention_s=config.journal.retention_h * 3600.0,
        approval_s=config.approval.expiry_s,
        version=__version__,
        redactor=redactor,
    )
    try:
        async with anyio.create_task_group() as tasks:
            service = Service(parts, tasks)
            await service.start()
            try:
                yield service, journal
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.move_on_after(CLOSE_S, shield=True):
            await model.aclose()
        with anyio.move_on_after(CLOSE_S, shield=True):
            await journal.aclose()


async def _open_doors(config: Config, service: Service, doors: AsyncExitStack, *, tcp: bool) -> str:
    """Serve the operator's socket and, if asked for, the network; the address of the latter."""
    body = config.limits.body_mb * MB, config.limits.body_s
    own = Door(Principal(OPERATOR, "cli"))
    unix = await doors.enter_async_context(serving(application(service, own, *body)))
    address = ""
    if tcp:
        gateway = config.gateway
        door = Door(
            Principal(OPERATOR, "api_server"),
            key_hash(api_key(config).reveal()),
            LOCAL_HOSTS | {gateway.host.lower()} | {h.lower() for h in gateway.allowed_hosts},
            frozenset(gateway.allowed_origins),
        )
        network = await doors.enter_async_context(serving(application(service, door, *body)))
        try:
            port = await listen_tcp(network, gateway.host, gateway.port)
        except OSError as error:
            raise Misconfigured(
                f"cannot listen on {gateway.host}:{gateway.port}: {error.strerror or error}",
                "end what listens there, or choose another port with --port or HOLDFAST_PORT",
            ) from None
        host = f"[{gateway.host}]" if ":" in gateway.host else gateway.host
        address = f"http://{host}:{port}"
    await listen_unix(unix, config.home / SOCKET)
    return address


@asynccontextmanager
async def embedded(config: Config, lock: Lock) -> AsyncIterator[Path]:
    """The engine inside this process, serving only the unix socket, whose path it yields."""
    os.umask(0o077)
    _harden()
    try:
        async with _engine(config) as (service, _), AsyncExitStack() as doors:
            await _open_doors(config, service, doors, tcp=False)
            try:
                yield config.home / SOCKET
            finally:
                with anyio.CancelScope(shield=True):
                    await service.stop(0, Cause.TERMINAL)
    finally:
        lock.release()


def run_gateway(config: Config) -> int:
    """Serve until a signal; the exit code. Does not return while anything still hangs."""
    observe.setup(config.log.level)
    os.umask(0o077)
    _harden()
    _raise_fd_limit()
    _tune_allocator()
    wait_for_lock(config.home)
    api_key(config)  # made before the engine, which must know what to keep quiet about
    return anyio.run(_serve, config, backend_options={"debug": False})


async def _serve(config: Config) -> int:
    code = exit_code(Reason.STOP, Supervisor.NONE)
    async with _engine(config) as (service, journal):
        async with AsyncExitStack() as doors, anyio.create_task_group() as watching:
            address = await _open_doors(config, service, doors, tcp=True)
            _tune_collector()
            watching.start_soon(_end_if_broken, journal)
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
    timer = threading.Timer(after_s, _exit, (exit_code(Reason.STOP, Supervisor.NONE),))
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
    with suppress(OSError):  # whoever read us may have left: no reason to leave, too
        print(observe.clean(line), file=sys.stderr, flush=True)  # noqa: T201  the operator's terminal
