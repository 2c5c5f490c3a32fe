"""The prompt first, then the rest: one can type while the engine is still being loaded."""

import argparse
import importlib
import math
import os
import select
import signal
import sys
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream

from holdfast import config as configuration
from holdfast.cli.exits import Code
from holdfast.cli.tui.actions import Action, Leave, Say
from holdfast.cli.tui.completion import InputCompleter
from holdfast.cli.tui.history import FILE, InputHistory
from holdfast.cli.tui.pasting import Pastes
from holdfast.cli.tui.style import Style
from holdfast.cli.tui.ui import Ui
from holdfast.cli.tui.wish import Wish
from holdfast.config import Config, known_secrets
from holdfast.core.redaction import Redactor


def main(config: Config, where: str, args: argparse.Namespace) -> int:
    """Talk; returns the exit code."""
    wish = Wish(
        workspace=where,
        insists=args.workspace is not None,
        session_id=args.session or "",
        goes_on=bool(args.goes_on) and not args.session,
        instructions=args.instructions or "",
        model=args.model or "",
        expected=config.asked_model,
    )
    return anyio.run(_resume if args.resume is not None else _talk, config, wish, args.resume)


async def _resume(config: Config, wish: Wish, given: str) -> int:
    """Find the session to go on with, or have it chosen; then talk."""
    choosing = importlib.import_module("holdfast.cli.tui.choosing")
    chosen = await choosing.choose(config, given)
    if chosen is None:
        return Code.OK
    return await _talk(config, wish.within(chosen.session_id, chosen.owner))


async def _talk(config: Config, wish: Wish, _: object = None) -> int:
    send, receive = anyio.create_memory_object_stream[Action](math.inf)
    style = Style(not configuration.wants_no_colour())
    pastes = Pastes(lambda why: ui.hint(why))
    completer = InputCompleter(Path(wish.workspace), spans=pastes.spans)
    redactor = Redactor(known_secrets(config))
    history = InputHistory(config.home / FILE, redactor, pastes.remembered)
    ui = Ui(style, send.send_nowait, completer, history, pastes, mode=config.cli.busy)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_hear_signals, ui)
        async with anyio.create_task_group() as both:
            for line in _typed_ahead():
                ui.say(Say(line, ui.mode))
            both.start_soon(_serve, config, wish, ui, receive)
            both.start_soon(ui.run)
        tasks.cancel_scope.cancel()
    return Code.OK


async def _serve(
    config: Config,
    wish: Wish,
    ui: Ui,
    actions: MemoryObjectReceiveStream[Action],
) -> None:
    """Load what is heavy, then carry out what was typed."""
    talk = await anyio.to_thread.run_sync(importlib.import_module, "holdfast.cli.tui.talk")
    await talk.serve(config, wish, ui, actions)


def _typed_ahead() -> list[str]:
    """Whole lines that were typed before there was a prompt: the terminal has ended them itself."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return []
    typed = os.read(sys.stdin.fileno(), 1 << 16).decode("utf-8", "replace")
    return [line for line in typed.splitlines() if line.strip()]


async def _hear_signals(ui: Ui) -> None:
    wanted = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with anyio.open_signal_receiver(*wanted) as signals:
        async for heard in signals:
            if not ui.app.is_running:  # not yet, or on the way down: at once, then
                os._exit(Code.INTERRUPTED)
            if heard is signal.SIGINT:
                ui.interrupt()
            else:
                ui.do(Leave())
