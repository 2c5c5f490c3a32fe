"""The composition root: builds every part from the configuration and runs all of it.

Whoever holds the home's lock is the owner: it opens the journal, recovers, and serves
the front door on a unix socket. A gateway serves the network too, and waits for the
lock; a terminal embeds the same engine only where there is no owner.

The way down has one deadline. A timer thread, armed by the first signal, ends the
process come what may; a second signal ends it at once. Neither is needed for anything
to be correct: a shutdown is a crash with courtesy.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache, partial
from pathlib import Path
from socket import gaierror

import anyio
import anyio.abc
import anyio.to_thread

from holdfast import __version__, machine, observe, plugins
from holdfast.channels.channel import Channel
from holdfast.channels.http import commands as commands_route
from holdfast.channels.http import hooks, imports, operator, outbox, people
from holdfast.channels.http import search as search_route
from holdfast.channels.http.door import LOCAL_HOSTS, Door, key_hash
from holdfast.channels.http.server import application, listen_tcp, listen_unix, serving
from holdfast.config import Config, Supervision, api_key, known_secrets, take_supervision
from holdfast.connect import connect, found
from holdfast.control import JOURNAL as JOURNAL
from holdfast.control import LOG, Control, check_successor, detach
from holdfast.core.approval import Role
from holdfast.core.intents import Capabilities, Principal
from holdfast.core.lifecycle import Reason, Start, Supervisor, Wanted, exit_code
from holdfast.core.limits import Limits
from holdfast.core.redaction import Redactor
from holdfast.core.run import Cause
from holdfast.core.types import OPERATOR, RunId, Value
from holdfast.engine.finder import Finder
from holdfast.engine.messenger import Chatting
from holdfast.engine.permits import Policy
from holdfast.engine.service import Parts, Service
from holdfast.errors import Misconfigured
from holdfast.journal import audit, search
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite import SqliteJournal
from holdfast.lock import SOCKET, Lock, wait_for_lock
from holdfast.machine import SystemClock, exit_now, say
from holdfast.models.model import Model
from holdfast.models.offline import Offline
from holdfast.models.openai import OpenAI
from holdfast.models.scripted import Scripted
from holdfast.notify import Notifier, feed, status
from holdfast.tools import process, terminal
from holdfast.tools.hands import Hands
from holdfast.tools.sandbox import Sandbox
from holdfast.tools.spawn import Spawner

log = logging.getLogger(__name__)

CALLS = "calls"

EXIT_AFTER_DRAIN_S = 9.0  # the net below the promise of drain + 10 s
CLOSE_S = 2.0
LINGER_S = 8.0  # for runs of other terminals to finish, before ours hands them over
MB = 1024 * 1024

_ALL_ROLES = frozenset(Role)
_NOT_ADMIN = _ALL_ROLES - {Role.ADMIN}
# The doors, and what they can do. LATE-03: whatever comes in over the network is bound here.
_OPERATORS_DOOR = Principal(
    OPERATOR, Capabilities(platform="cli", answerable=True, late=True), _ALL_ROLES
)
_NETWORK = Principal(
    OPERATOR, Capabilities(platform="api_server", answerable=True, late=False), _NOT_ADMIN
)


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


@asynccontextmanager
async def _engine(
    config: Config, chatting: Chatting | None = None
) -> AsyncIterator[tuple[Service, SqliteJournal]]:
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
            boot_id=machine.boot_id(),
            low_water=config.journal.low_water_mb * MB,
            ballast=config.journal.ballast_mb * MB,
        )
        closing.push_async_callback(_within, CLOSE_S, journal.aclose)
        async with anyio.create_task_group() as tasks:
            spawner = Spawner(config.home / CALLS, os.getpid(), time.time, machine.users_umask())
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
                chatting=chatting,
                commands=cache(partial(plugins.find_commands, config.plugins)),
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
    config: Config,
    service: Service,
    journal: SqliteJournal,
    doors: AsyncExitStack,
    orders: Control | Callable[[], None],
) -> None:
    """Open the operator's own door: the unix socket in the home.

    A gateway takes orders there; a terminal only the one to hand over.
    """
    door = Door(_OPERATORS_DOOR)
    body = config.limits.body_mb * MB, config.limits.body_s
    handover = None if isinstance(orders, Control) else orders
    app = application(service, door, *body, handover)
    operator.add_session_routes(app, service.keeper, _OPERATORS_DOOR)
    outbox.add_routes(app, service.clerk, _OPERATORS_DOOR)
    finder = Finder(journal, search.Index(config.home / search.FILE), SystemClock())
    search_route.add_routes(app, finder, _OPERATORS_DOOR)
    imports.add_routes(app, service.library, _OPERATORS_DOOR, *body)
    commands_route.add_routes(app, service.desk, _OPERATORS_DOOR)
    if isinstance(orders, Control):
        operator.add_routes(app, orders, _OPERATORS_DOOR)
    if service.messenger is not None:
        people.add_routes(app, service.messenger.people, _OPERATORS_DOOR)
    runner = await doors.enter_async_context(serving(app))
    await listen_unix(runner, config.home / SOCKET)


async def _serve_network(
    config: Config, service: Service, channels: Iterable[Channel], doors: AsyncExitStack
) -> str:
    """Open the network's door, behind the key; its address. Platforms come in by their hooks."""
    gateway = config.gateway
    door = Door(
        _NETWORK,
        key_hash(api_key(config).reveal()),
        LOCAL_HOSTS | {gateway.host.lower()} | {h.lower() for h in gateway.allowed_hosts},
        frozenset(gateway.allowed_origins),
    )
    body = config.limits.body_mb * MB, config.limits.body_s
    app = application(service, door, *body, None)
    hooks.add_routes(app, channels, config.limits.body_s)
    runner = await doors.enter_async_context(serving(app))
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
    config: Config, lock: Lock, only: frozenset[RunId], linger_s: float = LINGER_S
) -> AsyncIterator[anyio.Event]:
    """The engine inside this process, serving only the unix socket.

    It brings back `only` the runs it came for: it will not stay. At the end it lets runs finish
    for `linger_s`; what does not is taken up by whoever comes next. What it yields is set when
    somebody better wants the home; then the block should end.
    """
    machine.keep_private()
    machine.harden()
    wanted = anyio.Event()
    try:
        async with (
            _engine(config) as (service, journal),
            anyio.create_task_group() as watching,
            AsyncExitStack() as doors,
        ):
            await _serve_operator(config, service, journal, doors, wanted.set)
            lock.describe("terminal", "")
            watching.start_soon(_end_if_broken, journal)
            await service.start(only)
            try:
                yield wanted
            finally:
                with anyio.CancelScope(shield=True):
                    await service.stop(0 if wanted.is_set() else linger_s, Cause.TERMINAL)
                    await doors.aclose()
                    await service.end()
                watching.cancel_scope.cancel()
    finally:
        lock.release()


async def record(config: Config, lock: Lock, wanted: Wanted) -> None:
    """Write down what is wanted of a gateway that does not run now."""
    try:
        async with _engine(config) as (service, _):
            await service.want(_OPERATORS_DOOR, wanted)
    finally:
        lock.release()


def run_gateway(config: Config, start: Start) -> int:
    """Serve until a signal or the operator ends it; the exit code.

    Does not return while anything still hangs.
    """
    watched = take_supervision()
    observe.setup(config.log.level)
    machine.keep_private()
    machine.harden()
    machine.raise_fd_limit()
    machine.tune_allocator()
    notifier = Notifier(watched.socket)

    def tell(line: str) -> None:
        notifier.tell(status(line))
        say(line)

    lock = wait_for_lock(config.home, tell)  # until the process ends
    api_key(config)  # made before the engine, which must know what to keep quiet about
    process = _Process(config, lock, start, watched, notifier)
    return anyio.run(_serve, process, backend_options={"debug": False})


class _Process(Value):
    """What a gateway's process was started with."""

    config: Config
    lock: Lock
    start: Start
    watched: Supervision
    notifier: Notifier

    def exit_code(self, reason: Reason) -> int:
        return exit_code(reason, self.watched.by)


async def _serve(process: _Process) -> int:
    config = process.config
    channels = connect(config, SystemClock())
    commands = plugins.find_commands(config.plugins) if channels else {}  # nobody else needs them
    chatting = Chatting(channels, commands)
    async with _engine(config, chatting) as (service, journal):
        if not await service.boots(process.start):
            say("Left down: the operator has stopped it. To start it: holdfast gateway start")
            return process.exit_code(Reason.STOP)
        async with AsyncExitStack() as doors, anyio.create_task_group() as watching:
            check = partial(check_successor, config)
            control = Control(service, process.watched, partial(_succeed, config), check)
            assert service.messenger is not None
            service.messenger.control = service.desk.control = control
            # The doors first: what keeps them from opening must not cost anybody a run.
            heard = [connected.channel for connected in chatting.channels.values()]
            address = await _serve_network(config, service, heard, doors)
            await _serve_operator(config, service, journal, doors, control)
            process.lock.describe("gateway", address)
            watching.start_soon(_end_if_broken, journal)
            await service.start()
            machine.tune_collector()
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                _say_ready(process, address)
                watching.start_soon(service.booted)
                if process.watched.watchdog_s:
                    # The way through the writer's thread and back; there is nothing to prune.
                    answered = partial(journal.prune, 0.0, 0.0)
                    every_s = process.watched.watchdog_s / 2
                    watching.start_soon(feed, process.notifier, every_s, answered)
                asked_by = await _end_asked_by(signals, control)
                code = process.exit_code(control.reason)
                watching.start_soon(_end_at_once, signals, code)
                arm_exit(config.gateway.drain_s + EXIT_AFTER_DRAIN_S, code)
                _say_shutting_down(process, asked_by, service)
                await _go_down(config, service, doors, control.reason)
                with anyio.move_on_after(CLOSE_S):
                    await journal.aclose()
                say(_last_words(process, control.reason))
                exit_now(code)  # here: a task group waits for what a stuck thread holds
    return code


async def _go_down(config: Config, service: Service, doors: AsyncExitStack, reason: Reason) -> None:
    cause = Cause.RESTART if reason is Reason.RESTART else Cause.SHUTDOWN
    service.refuse_work()
    await service.stop(config.gateway.drain_s, cause)
    await doors.aclose()
    await service.end(reason)


async def _end_asked_by(signals: AsyncIterator[signal.Signals], control: Control) -> str:
    """Wait for a signal or the operator's word, and say which it was."""
    asked_by = ""
    async with anyio.create_task_group() as either:

        async def hear() -> None:
            nonlocal asked_by
            asked_by = (await anext(signals)).name
            either.cancel_scope.cancel()

        either.start_soon(hear)
        asked_by = f"holdfast gateway {await control.ended()}"
        either.cancel_scope.cancel()
    return asked_by


def _succeed(config: Config) -> None:
    """Start whoever comes after us; it waits for the home until we are gone."""
    successor = detach(config, sys.argv[1:])
    say(f"Restarting as pid {successor.pid}, in the background.")


def _say_ready(process: _Process, address: str) -> None:
    about = ", ".join(filter(None, (f"model {process.config.model}", found(process.config))))
    ready = f"Holdfast {__version__} ready on {address} ({about})"
    say(ready)
    process.notifier.tell("READY=1", status(ready))


def _say_shutting_down(process: _Process, asked_by: str, service: Service) -> None:
    running, drain_s = service.health().running, process.config.gateway.drain_s
    wait = f", waiting up to {drain_s:g} s for them" if running and drain_s else ""
    line = f"Shutting down ({asked_by}); {running} running{wait}. Nothing accepted is lost."
    say(line)
    process.notifier.tell("STOPPING=1", status(line))


def _last_words(process: _Process, reason: Reason) -> str:
    if reason is not Reason.RESTART or process.watched.by is not Supervisor.NONE:
        return "Stopped."
    log_file = process.config.home / LOG
    return f"Stopped. It goes on in the background, and says so in {log_file}"


async def _end_at_once(signals: AsyncIterator[signal.Signals], code: int) -> None:
    async for _ in signals:
        say("Second signal: ending at once.")
        exit_now(code)


async def _end_if_broken(journal: SqliteJournal) -> None:
    reason = await journal.broken()
    log.critical("the journal is broken", extra={"reason": reason})
    say(f"The journal cannot be trusted any more: {reason}. Ending, to recover at the next start.")
    exit_now(exit_code(Reason.BROKEN, Supervisor.NONE))


def arm_exit(after_s: float, code: int) -> None:
    """Whatever hangs: the process is gone by then."""
    timer = threading.Timer(after_s, os._exit, (code,))
    timer.daemon = True
    timer.start()
