"""Show the prompt first, then load the rest: the user can type while the engine is loaded."""

import argparse
import importlib
import math
import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream

from holdfast.cli.exits import Code
from holdfast.cli.run.options import RunOptions
from holdfast.cli.tui.actions import Action, Quit, SendMessage
from holdfast.cli.tui.input.completion import InputCompleter
from holdfast.cli.tui.input.history import FILE, InputHistory
from holdfast.cli.tui.input.paste import Pastes
from holdfast.cli.tui.style import Style
from holdfast.cli.tui.ui import Ui
from holdfast.config import process as configuration
from holdfast.config.home import known_secrets
from holdfast.config.settings import Config
from holdfast.core.redaction import Redactor


def main(config: Config, wish: RunOptions, args: argparse.Namespace) -> int:
    """Start the conversation and return the exit code."""
    return anyio.run(_start, config, wish, args)


async def _start(config: Config, wish: RunOptions, args: argparse.Namespace) -> int:
    """Find the session to continue, or let the user choose it; then start with the given message."""
    if args.resume is not None:
        picker = importlib.import_module("holdfast.cli.tui.picker")
        chosen = await picker.choose(config, args.resume)
        if chosen is None:
            return Code.OK
        wish = wish.within(chosen.session_id, chosen.owner)
    return await _talk(config, wish, args.words)


async def _talk(config: Config, wish: RunOptions, words: Sequence[str]) -> int:
    send, receive = anyio.create_memory_object_stream[Action](math.inf)
    style = Style(not configuration.wants_no_colour())
    pastes = Pastes(lambda why: ui.hint(why))
    completer = InputCompleter(Path(wish.workspace), spans=pastes.spans)
    redactor = Redactor(known_secrets(config))
    history = InputHistory(config.home / FILE, redactor, pastes.remembered)
    ui = Ui(
        style,
        send.send_nowait,
        completer,
        history,
        pastes,
        mode=config.cli.busy,
        notify=config.cli.notify,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_hear_signals, ui)
        async with anyio.create_task_group() as both:
            for line in [*words, *_typed_ahead()]:
                ui.say(SendMessage(line, ui.mode))
            both.start_soon(_serve, config, wish, ui, receive)
            both.start_soon(ui.run)
        tasks.cancel_scope.cancel()
    return Code.OK


async def _serve(
    config: Config,
    wish: RunOptions,
    ui: Ui,
    actions: MemoryObjectReceiveStream[Action],
) -> None:
    """Load the client, then carry out what was typed."""
    talk = await anyio.to_thread.run_sync(importlib.import_module, "holdfast.cli.tui.talk")
    await talk.serve(config, wish, ui, actions)


def _typed_ahead() -> list[str]:
    """Return complete lines that were typed before the prompt appeared."""
    if not select.select([sys.stdin], [], [], 0)[0]:
        return []
    typed = os.read(sys.stdin.fileno(), 1 << 16).decode("utf-8", "replace")
    return [line for line in typed.splitlines() if line.strip()]


async def _hear_signals(ui: Ui) -> None:
    wanted = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
    with anyio.open_signal_receiver(*wanted) as signals:
        async for heard in signals:
            if not ui.app.is_running:  # not yet, or not any more: exit at once
                os._exit(Code.INTERRUPTED)
            if heard is signal.SIGINT:
                ui.interrupt()
            else:
                ui.do(Quit())
