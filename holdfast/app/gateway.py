"""Run a gateway: from the lock to the exit code."""

import sys
from contextlib import AsyncExitStack
from functools import partial

import anyio

from holdfast import __version__, plugins
from holdfast.app.doors import serve_network, serve_operator
from holdfast.app.ending import Ending, GatewayProcess, end_if_broken
from holdfast.app.engine import CLOSE_S, engine
from holdfast.config.home import api_key
from holdfast.config.process import take_supervision
from holdfast.config.settings import Config
from holdfast.connect import connect, found
from holdfast.core.life.lifecycle import Reason, StartedBy, Supervisor
from holdfast.core.run.run import CutCause
from holdfast.engine.life.lifecycle import GatewayLife
from holdfast.engine.messenger import Chatting
from holdfast.engine.service import Service
from holdfast.host import machine, observe, signals
from holdfast.host.control import LOG, GatewayControl, check_successor, detach
from holdfast.host.lock import wait_for_lock
from holdfast.host.machine import SystemClock, exit_now, say
from holdfast.host.notify import Notifier, feed, status


def run_gateway(config: Config, start: StartedBy) -> int:
    """Serve until a signal or the operator ends it; return the exit code.

    If a thread hangs, it does not return: the process exits.
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
    api_key(config)  # created before the engine, which must hide it in all texts
    process = GatewayProcess(config, lock, start, watched, notifier)
    return anyio.run(_serve, process, backend_options={"debug": False})


async def _serve(process: GatewayProcess) -> int:
    ending = Ending(process)
    async with anyio.create_task_group() as hearing:
        with anyio.open_signal_receiver(*signals.ending()) as received:
            hearing.start_soon(ending.hear, received)
            code = await _serve_until(process, ending)
        hearing.cancel_scope.cancel()
    return code


async def _serve_until(process: GatewayProcess, ending: Ending) -> int:
    config = process.config
    channels = connect(config, SystemClock())
    commands = plugins.find_commands(config.plugins) if channels else {}  # only chats need them
    chatting = Chatting(channels, commands)
    async with engine(config, chatting, partial(_control, process)) as (service, journal):
        control = service.control
        assert isinstance(control, GatewayControl)
        process.lock.describe("", "")
        if not await service.boots(process.start):
            say("Left down: the operator has stopped it. To start it: holdfast gateway start")
            return process.exit_code(Reason.STOP)
        async with AsyncExitStack() as doors, anyio.create_task_group() as watching:
            # The doors first: if one cannot open, no run must be interrupted by that.
            heard = [connected.channel for connected in chatting.channels.values()]
            address = await serve_network(config, service, heard, doors)
            await serve_operator(config, service, journal, doors, control)
            process.lock.describe("gateway", address)
            watching.start_soon(end_if_broken, journal)
            await service.start()
            machine.tune_collector()
            if not ending.asked_by:
                _say_ready(process, address, service)
            watching.start_soon(service.booted)
            if process.watched.watchdog_s:
                # This goes through the writer's thread and back; it prunes nothing.
                answered = partial(journal.prune, 0.0, 0.0)
                every_s = process.watched.watchdog_s / 2
                watching.start_soon(feed, process.notifier, every_s, answered)
            reason = await ending.wait(control)
            _say_shutting_down(process, ending.asked_by, service)
            await _go_down(config, service, doors, reason)
            with anyio.move_on_after(CLOSE_S):
                await journal.aclose()
            say(_last_words(process, reason))
            code = process.exit_code(reason)
            exit_now(code)  # not later: leaving the task group would wait for a stuck thread
    return code


async def _go_down(config: Config, service: Service, doors: AsyncExitStack, reason: Reason) -> None:
    cause = CutCause.RESTART if reason is Reason.RESTART else CutCause.SHUTDOWN
    service.refuse_work()
    await service.stop(config.gateway.drain_s, cause)
    await doors.aclose()
    await service.end(reason)


def _control(process: GatewayProcess, life: GatewayLife) -> GatewayControl:
    config = process.config
    check = partial(check_successor, config)
    return GatewayControl(life, process.watched, partial(_succeed, config), check)


def _succeed(config: Config) -> None:
    """Start the successor; it waits for the home until this process is gone."""
    successor = detach(config, sys.argv[1:])
    say(f"Restarting as pid {successor.pid}, in the background.")


def _say_ready(process: GatewayProcess, address: str, service: Service) -> None:
    health = service.health()
    about = ", ".join(filter(None, (f"model {health.model}", found(process.config))))
    ready = f"Holdfast {__version__} ready on {address} ({about})"
    say(f"Model {health.model}: {health.model_reason}.")
    say(ready)
    process.notifier.tell("READY=1", status(ready))


def _say_shutting_down(process: GatewayProcess, asked_by: str, service: Service) -> None:
    running, drain_s = service.health().running, process.config.gateway.drain_s
    wait = f", waiting up to {drain_s:g} s for them" if running and drain_s else ""
    line = f"Shutting down ({asked_by}); {running} running{wait}. Nothing accepted is lost."
    say(line)
    process.notifier.tell("STOPPING=1", status(line))


def _last_words(process: GatewayProcess, reason: Reason) -> str:
    if reason is not Reason.RESTART or process.watched.by is not Supervisor.NONE:
        return "Stopped."
    log_file = process.config.home / LOG
    return f"Stopped. It goes on in the background, and says so in {log_file}"
