"""`holdfast` alone: a conversation, line by line. Through a pipe it is `holdfast run`.

Each line is a run in the same session. Ctrl-C during a run stops that run and comes
back to the prompt; at the prompt it drops the line that is being typed, and leaves if
there is none, as do Ctrl-D, /quit and /exit. A line typed while a run works waits in
the terminal and is the next one, unless the run asks for an approval before that: what was
typed until then is dropped, so that it cannot answer what it was not meant for. What a line
brings may fail; the conversation goes on.
"""

import argparse
import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import anyio
import msgspec
from msgspec.structs import replace

from holdfast import __version__
from holdfast.cli import run
from holdfast.cli.client import Client, connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.run import Errand, Signals
from holdfast.cli.screen import JsonLines, Plain, Screen
from holdfast.config import Config

PROMPT = "› "
HELP = """\
Every line goes to the agent, in one conversation.
  /help           this
  /quit, /exit    leave; so does Ctrl-D
  Ctrl-C          stops a run; drops a line that is being typed; leaves at an empty prompt
What is typed while a run works is the next line. If the run asks for an approval, what was
typed before the question appeared is dropped; a choice is made by its name or letter and Enter,
never by Enter alone. Other terminals can answer too: holdfast approvals"""

_LEAVE = frozenset({"/quit", "/exit"})
_LOCAL_FLAGS = 3  # where termios keeps them


def main(args: argparse.Namespace) -> int:
    """Talk, if there is a terminal to talk through."""
    if sys.stdin is None or not sys.stdin.isatty():
        return run.main(args)
    config = run.load(args)
    screen: Screen = JsonLines() if args.json else Plain()
    return anyio.run(_talk, config, run.prepare(args, config, ""), screen)


async def _talk(config: Config, errand: Errand, screen: Screen) -> int:
    async with connect(config, screen.note) as client:
        await run.check_model(client, errand.submission)
        model = await run.served_model(client) or config.model
        where = errand.submission.workspace
        screen.note(f"Holdfast {__version__} · {model} · {where} · /help, /quit or Ctrl-D leaves")
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            while (line := await _next_line(signals)) not in _LEAVE:
                if line == "/help":
                    screen.note(HELP)
                elif line:
                    errand = _say(errand, input=line)
                    errand = await _answer(client, errand, screen, signals)
    if errand.submission.session_id:
        screen.note(f"to go on: holdfast --session {errand.submission.session_id}")
    return Code.OK


async def _answer(client: Client, errand: Errand, screen: Screen, signals: Signals) -> Errand:
    """One line's run. Returns the errand that the next line goes on from."""
    try:
        run_id = await run.despite_interrupt(signals, lambda: run.submit(client, errand, screen))
        if run_id is not None:
            if not errand.told:
                await run.tell_model(client, run_id, errand, screen)
                errand = replace(errand, told=True)
            await run.follow(client, run_id, screen, signals)
            session = (await client.status(run_id)).session_id
            errand = _say(errand, session_id=session)
    except* Exit as group:
        screen.note(f"holdfast: {group.exceptions[0]}")
    return errand


def _say(errand: Errand, **fields: str) -> Errand:
    return replace(errand, submission=msgspec.structs.replace(errand.submission, **fields))


async def _next_line(signals: Signals) -> str:
    """What the user says next; /quit where that is said without words."""
    while True:
        line = await run.unless_interrupted(signals, _read_line)
        if line:
            return line.strip()
        print(flush=True)
        if line is not None or not _drop_typed():
            return "/quit"


async def _read_line() -> str:
    """The next line with its end, or nothing at the end of the input.

    By readiness, not in a thread: a thread in read() could be neither cancelled nor left.
    """
    print(PROMPT, end="", flush=True)
    with _flags(on=termios.NOFLSH):  # else an interrupt drops the line before we can look
        await anyio.wait_readable(sys.stdin)
        return os.read(sys.stdin.fileno(), 1 << 16).decode("utf-8", "replace")


def _drop_typed() -> bool:
    """Drop the line that is being typed; whether there was one.

    Until its end is typed, it is the terminal's alone: that shows it to us only while it
    does not keep lines.
    """
    keyboard = sys.stdin.fileno()
    with _flags(off=termios.ICANON):
        room = fcntl.ioctl(keyboard, termios.FIONREAD, struct.pack("i", 0))
        termios.tcflush(keyboard, termios.TCIFLUSH)
    return bool(struct.unpack("i", room)[0])


@contextmanager
def _flags(*, on: int = 0, off: int = 0) -> Iterator[None]:
    """The terminal's local flags, changed for as long as the block lasts."""
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    changed = before.copy()
    changed[_LOCAL_FLAGS] = (changed[_LOCAL_FLAGS] | on) & ~off
    termios.tcsetattr(keyboard, termios.TCSANOW, changed)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(keyboard, termios.TCSANOW, before)
