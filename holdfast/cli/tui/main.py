"""`holdfast` alone: a conversation. With input from a pipe it is `holdfast run`.

The prompt appears first: the client, and the engine that it may embed, are loaded in a thread while
the user can already type. On a terminal that cannot move its cursor, and for programs (--json), the
conversation is line by line (cli/line/chat.py).
"""

import argparse
import importlib
import os
import sys

from holdfast.cli.run import options
from holdfast.config import process as configuration
from holdfast.host import observe


def main(args: argparse.Namespace) -> int:
    """Start the conversation in the form that the terminal supports."""
    if not args.model and (open_ := configuration.peek({})).is_open:
        importlib.import_module("holdfast.cli.models.first").offer(open_)
    if sys.stdin is None or not sys.stdin.isatty():
        return _hand_on("holdfast.cli.run.run", args)
    if args.json or not configuration.can_draw() or not sys.stdout.isatty():
        return _hand_on("holdfast.cli.line.chat", args)
    config = configuration.from_process({"model": args.model} if args.model else {})
    observe.setup("warning", config.home / observe.CLI_LOG)
    wish = options.read(args, config)
    code = importlib.import_module("holdfast.cli.tui.start").main(config, wish, args)
    sys.stdout.flush()
    os._exit(code)  # no thread that hangs can hold us (HALT-06)


def _hand_on(module: str, args: argparse.Namespace) -> int:
    code: int = importlib.import_module(module).main(args)
    return code
