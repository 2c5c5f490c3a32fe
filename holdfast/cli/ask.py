"""What is asked at the terminal: an approval, or a question, and the answer that is typed to it.

Nothing is chosen beforehand, Enter alone asks again, and only a whole word or its first
letter is an answer. What was typed before the question could be read does not answer it:
it is dropped when the question appears. A question closes by itself and says why when it
is answered elsewhere, runs out or is withdrawn; what was half typed to it is dropped
then, lest it becomes the next line of a conversation. Words to a question are different: what
comes too late for it answers no other, and is the next line (HALT-09).

The terminal keeps its own ways (echo, line editing, Ctrl-C): however we end, there is
nothing to put back.
"""

import os
import select
import sys
import termios
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.lowlevel

from holdfast.cli import question
from holdfast.cli.client import Client
from holdfast.cli.exits import Exit
from holdfast.cli.screen import Plain
from holdfast.cli.wire import TERMINAL, Approval, Event, Question, TooLate, question_of, requested

Keep = Callable[[str], None]  # where words go that came too late for their question


def at_terminal() -> bool:
    """Whether somebody sits there who can read a question and type an answer."""
    return all(s is not None and s.isatty() for s in (sys.stdin, sys.stderr))


class Questions:
    """What a run and its children ask, put one after the other, oldest first.

    `put` is the task that asks; `hear` is told every event of the run meanwhile.
    """

    def __init__(self, client: Client, screen: Plain, keep: Keep | None = None) -> None:
        self._client = client
        self._screen = screen
        self._keep = keep
        self._waiting: dict[str, Approval | Question] = {}
        self._came = anyio.Event()
        self._open = anyio.CancelScope()
        self._asking: Approval | Question | None = None  # whose line waits for an answer
        self._sending = ""  # whose answer is on its way
        self._meanwhile = ""  # how that one was closed before we heard back
        self._ours: set[str] = set()
        self._left = False

    def hear(self, event: Event) -> bool:
        """Take in what an event means for the questions; whether nothing is left to be shown."""
        match event.event:
            case "approval.request" if not self._left:
                return self._add(requested(event))
            case "question.asked" if not self._left:
                return self._add(question_of(event))
            case "question.answered":
                return self._closed(question_of(event).key, "was answered elsewhere")
            case "approval.responded":
                how = f"was answered elsewhere: {question.answered(event.choice)}"
                return self._closed(event.request_id, how)
            case "approval.expired":
                return self._closed(event.request_id, "ran out: nobody answered in time")
            case "approval.withdrawn":
                return self._closed(event.request_id, f"is withdrawn: {event.reason}")
            case ending if ending in TERMINAL:
                self._end(event.run_id)
            case _:
                pass
        return False

    def _add(self, waits: Approval | Question) -> bool:
        self._waiting[waits.key] = waits
        self._came.set()
        return True

    def _end(self, run_id: str) -> None:
        for key in [k for k, waits in self._waiting.items() if waits.run_id == run_id]:
            del self._waiting[key]
        if self._asking is not None and self._asking.run_id == run_id:
            self._close("is withdrawn: the run is over")

    def leave(self) -> None:
        """Ask nothing more: the run is to end."""
        self._left = True
        self._waiting.clear()
        self._close("")

    async def put(self) -> None:
        """Ask whatever there is to ask, for as long as the run is followed."""
        try:
            while True:
                while not self._waiting:
                    self._came = anyio.Event()
                    await self._came.wait()
                first = next(iter(self._waiting.values()))
                if not await self._waits(first) or await self._put(first):
                    self._waiting.pop(first.key, None)
        finally:
            self._close("")

    async def _waits(self, asked: Approval | Question) -> bool:
        """Whether it is still to be asked: the events of an old run tell of old questions."""
        if isinstance(asked, Question):
            oldest = (await self._client.status(asked.run_id)).question
            return (
                asked.key in self._waiting
                and oldest is not None
                and (oldest.call_id == asked.call_id)
            )
        waiting = await self._client.approvals(asked.run_id)
        known = asked.request_id in self._waiting
        return known and any(other.request_id == asked.request_id for other in waiting)

    def _closed(self, key: str, how: str) -> bool:
        self._waiting.pop(key, None)
        if key == self._sending:
            self._meanwhile = how
            return True
        if self._asking is not None and key == self._asking.key:
            self._close(how)
            return True
        return key in self._ours

    def _close(self, how: str) -> None:
        """Take back the line that waits for an answer, and say why it does so no more."""
        if self._asking is not None:
            asking, self._asking = self._asking, None
            self._screen.withdraw()
            if isinstance(asking, Approval) or self._keep is None:
                _drop_typed()
            if how:
                self._screen.note(f"… {asking.name} {how}")
            self._screen.go_on()
            self._open.cancel()

    async def _put(self, asked: Approval | Question) -> bool:
        """Ask one; whether it is done with, here."""
        if isinstance(asked, Question):
            self._screen.note(f"? the run asks:\n{question.asks(asked)}")
        else:
            when = question.expires(asked)
            head = f"? the run asks for an approval, {asked.request_id} ({when}):"
            self._screen.note(f"{head}\n{question.body(asked)}")
        self._screen.hold()
        try:
            return await self._settle(asked)
        finally:
            self._screen.go_on()

    async def _settle(self, asked: Approval | Question) -> bool:
        typed = ""
        if not _in_background():
            with anyio.CancelScope() as self._open:
                typed = await (
                    self._hear_out(asked) if isinstance(asked, Question) else self._choose(asked)
                )
            if self._open.cancelled_caught:
                return True
        if not typed:
            self._screen.note(f"… left open; {question.elsewhere(asked)}")
            return True
        if isinstance(asked, Question):
            return await self._reply(asked, typed)
        return await self._answer(asked, typed)

    async def _hear_out(self, asked: Question) -> str:
        """The words that are typed; nothing if the input has ended."""
        while True:
            typed = await self._line(asked, question.line(asked))
            if not typed or typed.strip():
                return question.reply(asked, typed)
            self._screen.note("type an answer; then Enter")

    async def _line(self, asked: Approval | Question, prompt: str) -> str:
        """What is typed to the line that asks; what was typed before is dropped."""
        _drop_typed()  # the last thing before the line that asks
        self._asking = asked
        self._screen.ask(prompt)
        typed = await _read_line()
        self._asking = None
        self._screen.asked(ended=typed.endswith("\n"))
        return typed

    async def _reply(self, asked: Question, words: str) -> bool:
        """Hand in words; False: they did not get there, so ask again."""
        self._sending = asked.key
        self._ours.add(asked.key)
        try:
            await self._client.reply(asked, words)
        except TooLate:
            self._screen.note("… too late: it was answered elsewhere, or its run is over")
            if self._keep is not None:
                self._keep(words)
            return True
        except Exit as refused:
            self._ours.discard(asked.key)
            self._screen.note(f"holdfast: {refused}")
            return False
        finally:
            self._sending = ""
        return True

    async def _choose(self, asked: Approval) -> str:
        """The choice that is typed; nothing if the input has ended."""
        choices = question.words(asked.choices)
        while True:
            typed = await self._line(asked, question.prompt(asked))
            if not typed:
                return ""
            if typed.endswith("\n") and (choice := choices.get(typed.strip().lower())):
                return choice
            self._screen.note(f"type one of: {', '.join(asked.choices)}, or its letter; then Enter")

    async def _answer(self, asked: Approval, choice: str) -> bool:
        """Hand in an answer; False: it did not get there, so ask again."""
        self._sending, self._meanwhile = asked.request_id, ""
        self._ours.add(asked.request_id)
        try:
            given = await self._client.answer(asked, choice)
        except TooLate:
            if not self._meanwhile:  # then it is still to come
                self._ours.discard(asked.request_id)
            how = self._meanwhile or "was answered elsewhere, ran out or lost its run"
            self._screen.note(f"… too late: {asked.request_id} {how}")
            return True
        except Exit as refused:
            self._ours.discard(asked.request_id)
            self._screen.note(f"holdfast: {refused}")
            return False
        finally:
            self._sending = ""
        self._screen.note(f"… {question.answered(given.choice)}")
        if given.note:
            self._screen.note(f"… {given.note}")
        return True


async def _read_line() -> str:
    """The next line with its end, or nothing at the end of the input.

    By readiness, and looked at again right before it is read: what was there may have been
    dropped since, and to read what is not there would hold up everything.
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
    """Drop what has been typed and not been read yet, whole lines too."""
    with suppress(termios.error):  # the terminal may be gone
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)


def _in_background() -> bool:
    """Whether the shell has the terminal, and not we: to read from it would stop us."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) != os.getpgrp()
    except OSError:  # not the terminal that sends us signals
        return False
