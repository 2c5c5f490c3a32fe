"""Ask approvals and questions in the line mode, and read the typed answers.

There is no default: Enter alone asks again, and only a choice or its first letter is an answer.
Text typed before the question appeared does not answer it and is dropped. A question closes and
says why when it is answered elsewhere, expires or is withdrawn; a half-typed choice is dropped
then, so that it does not become the next message. A half-typed answer to a question that comes
too late answers no other question and is the next line (HALT-09).

The terminal keeps its own settings (echo, line editing, Ctrl-C), so nothing has to be restored.
"""

import os
import select
import sys
import termios
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.lowlevel

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.cli.client.client import Client
from holdfast.cli.client.frames import AskedQuestion
from holdfast.cli.client.refusals import TooLateExit
from holdfast.cli.exits import Exit
from holdfast.cli.run import approval
from holdfast.cli.run.questions import Asked, OpenQuestions
from holdfast.cli.run.screen import Plain

CLOSED = "was answered elsewhere, has expired or lost its run"

Keep = Callable[[str], None]  # takes an answer that came too late for its question


def at_terminal() -> bool:
    """Tell whether a user can read a question and type an answer."""
    return all(s is not None and s.isatty() for s in (sys.stdin, sys.stderr))


class LineQuestions:
    """Ask the questions of a run and its children one after the other, oldest first.

    `put` is the task that asks; `hear` gets every event of the run.
    """

    def __init__(self, client: Client, screen: Plain, keep: Keep | None = None) -> None:
        self._questions = OpenQuestions(client, self._add, self._close)
        self._open, self.hear = self._questions.open, self._questions.hear
        self._client = client
        self._ours: set[str] = set()  # answered here
        self._screen = screen
        self._keep = keep
        self._came = anyio.Event()
        self._scope = anyio.CancelScope()
        self._asking: Asked | None = None  # whose line waits for an answer
        self._sending = ""  # whose answer is on its way
        self._meanwhile = ""  # how that one was closed before we heard back
        self._left = False

    def _add(self, asked: Asked) -> bool:
        if self._left:
            return False
        self._open[asked.key] = asked
        self._came.set()
        return True

    def leave(self) -> None:
        """Ask nothing more: the run is about to end."""
        self._left = True
        self._open.clear()
        self._end_line("")

    async def put(self) -> None:
        """Ask the open questions until cancelled."""
        try:
            while True:
                while not self._open:
                    self._came = anyio.Event()
                    await self._came.wait()
                first = next(iter(self._open.values()))
                if not await self._questions.waits(first) or await self._put(first):
                    self._open.pop(first.key, None)
        finally:
            self._end_line("")

    def _close(self, key: str, how: str) -> bool:
        self._open.pop(key, None)
        if key == self._sending:
            self._meanwhile = how
            return True
        if self._asking is not None and key == self._asking.key:
            self._end_line(how)
            return True
        return key in self._ours

    def _end_line(self, how: str) -> None:
        """Remove the line that waits for an answer, and say why."""
        if self._asking is not None:
            asking, self._asking = self._asking, None
            self._screen.withdraw()
            if isinstance(asking, ApprovalObject) or self._keep is None:
                _drop_typed()
            if how:
                self._screen.note(f"… {asking.name} {how}")
            self._screen.go_on()
            self._scope.cancel()

    async def _put(self, asked: Asked) -> bool:
        """Ask a question; return False if it must be asked again."""
        if isinstance(asked, AskedQuestion):
            self._screen.note(f"? the run asks:\n{approval.asks(asked)}")
        else:
            when = approval.expires(asked)
            head = f"? the run asks for an approval, {asked.request_id} ({when}):"
            self._screen.note(f"{head}\n{approval.body(asked)}")
        self._screen.hold()
        try:
            return await self._settle(asked)
        finally:
            self._screen.go_on()

    async def _settle(self, asked: Asked) -> bool:
        typed = ""
        if not _in_background():
            with anyio.CancelScope() as self._scope:
                typed = await (
                    self._hear_out(asked)
                    if isinstance(asked, AskedQuestion)
                    else self._choose(asked)
                )
            if self._scope.cancelled_caught:
                return True
        if not typed:
            self._screen.note(f"… left open; {approval.elsewhere(asked)}")
            return True
        return await self._send(asked, typed)

    async def _hear_out(self, asked: AskedQuestion) -> str:
        """Return the typed answer; empty at the end of the input."""
        while True:
            typed = await self._line(asked, approval.line(asked))
            if not typed or typed.strip():
                return approval.reply(asked, typed)
            self._screen.note("type an answer; then Enter")

    async def _line(self, asked: Asked, prompt: str) -> str:
        """Show the prompt and return the typed line; text typed before is dropped."""
        _drop_typed()  # the last thing before the line that asks
        self._asking = asked
        self._screen.ask(prompt)
        typed = await _read_line()
        self._asking = None
        self._screen.asked(ended=typed.endswith("\n"))
        return typed

    async def _choose(self, asked: ApprovalObject) -> str:
        """Return the typed choice; empty at the end of the input."""
        while True:
            typed = await self._line(asked, approval.prompt(asked))
            if not typed:
                return ""
            if typed.endswith("\n") and (choice := approval.choice(asked.choices, typed)):
                return choice
            self._screen.note(f"type one of: {', '.join(asked.choices)}, or its letter; then Enter")

    async def _send(self, asked: Asked, given: str) -> bool:
        """Send an answer or a choice; return False if it must be asked again."""
        self._sending, self._meanwhile = asked.key, ""
        self._ours.add(asked.key)
        try:
            if isinstance(asked, AskedQuestion):
                await self._client.reply(asked, given)
                return True
            recorded = await self._client.answer(asked, given)
        except TooLateExit:
            self._tell_late(asked, given)
            return True
        except Exit as refused:
            self._ours.discard(asked.key)
            self._screen.note(f"holdfast: {refused}")
            return False
        finally:
            self._sending = ""
        self._screen.note(f"… {approval.answered(recorded.choice)}")
        if recorded.note:
            self._screen.note(f"… {recorded.note}")
        return True

    def _tell_late(self, asked: Asked, given: str) -> None:
        if isinstance(asked, AskedQuestion):
            self._screen.note("… too late: it was answered elsewhere, or its run is over")
            if self._keep is not None:
                self._keep(given)
            return
        if not self._meanwhile:  # then it is still to come
            self._ours.discard(asked.key)
        how = self._meanwhile or CLOSED
        self._screen.note(f"… too late: {asked.request_id} {how}")


async def _read_line() -> str:
    """Return the next line with its end, or nothing at the end of the input.

    Readiness is checked again right before reading: the input may have been dropped since, and
    reading would then block the event loop.
    """
    ready = False
    while not ready:
        await anyio.wait_readable(sys.stdin)
        await anyio.lowlevel.checkpoint_if_cancelled()
        ready = bool(select.select([sys.stdin], [], [], 0)[0])
    try:
        return os.read(sys.stdin.fileno(), 1 << 16).decode("utf-8", "replace")
    except OSError:  # the terminal is gone
        return ""


def _drop_typed() -> None:
    """Drop typed text that has not been read yet, complete lines too."""
    with suppress(termios.error):  # the terminal may be gone
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _in_background() -> bool:
    """Tell whether we are in the background: reading from the terminal would stop us."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp()
    except OSError:  # not the terminal that sends us signals
        return False
