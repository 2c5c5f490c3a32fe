"""A conversation, line by line: for terminals that cannot move their cursor, and for programs.

Each line is a run in the same session. Ctrl-C during a run stops that run and comes
back to the prompt; at the prompt it drops the line that is being typed, and leaves if
there is none, as do Ctrl-D, /quit and /exit. Where background processes would end with us, it
says so and leaves the second time only. A line typed while a run works waits in
the terminal and is the next one, unless the run asks for an approval before that: what was
typed until then is dropped, so that it cannot answer what it was not meant for. What a line
brings may fail; the conversation goes on.

What comes late (LATE-06) is shown above a fresh prompt: the end of a background process, the
run that follows from it, whatever else happens in the session. When a session is opened again,
what has come since the user last spoke there is shown first.
"""

import argparse
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio
from anyio.abc import TaskGroup

from holdfast import __version__
from holdfast.api.schema.runs import RunObject
from holdfast.cli.client import operator
from holdfast.cli.client.client import Client, connect
from holdfast.cli.client.frames import Frame
from holdfast.cli.exits import Code, Exit, sole
from holdfast.cli.line.keyboard import LineKeyboard
from holdfast.cli.run import news, run
from holdfast.cli.run import options as run_options
from holdfast.cli.run.news import News
from holdfast.cli.run.options import RunOptions
from holdfast.cli.run.run import Signals
from holdfast.cli.run.screen import JsonScreen, Plain, Screen
from holdfast.config.settings import Config

HELP = """\
Every line goes to the agent, in one conversation.
  /help           this
  /quit, /exit    leave; so does Ctrl-D
  Ctrl-C          stops a run; drops a line that is being typed; leaves at an empty prompt,
                  at once or, where background processes would end with us, the second time
What is typed while a run works is the next line. If the run asks for an approval, what was
typed before the question appeared is dropped; a choice is made by its name or letter and Enter,
never by Enter alone. Other terminals can answer too: holdfast approvals
If it asks you something, your next line is the answer.
What comes late, like the end of a background process and the run that it begins, is shown as it
comes, above the prompt. What was typed until then is kept; only Ctrl-C takes it back."""

AGAIN_S = 2.0  # for the second Ctrl-C, where something would be lost
_LEAVE = frozenset({"/quit", "/exit"})


def main(args: argparse.Namespace) -> int:
    """Talk."""
    config = operator.load({"model": args.model})
    screen: Screen = JsonScreen() if args.json else Plain()
    return anyio.run(_talk, config, run_options.read(args, config), screen)


async def _talk(config: Config, given: RunOptions, screen: Screen) -> int:
    async with connect(config, screen.note) as client, anyio.create_task_group() as tasks:
        options = await run.settled(client, given)
        await run.check_model(client, options)
        model = await run.model_in_use(client, config)
        where = options.workspace
        screen.note(f"Holdfast {__version__} · {model} · {where} · /help, /quit or Ctrl-D leaves")
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            talk = LineConversation(client, options, screen, signals, tasks)
            await talk.reopen()
            while (line := await talk.next_line()) not in _LEAVE:
                if line == "/help":
                    screen.note(HELP)
                elif line:
                    await talk.say(line)
            await talk.leave()
        tasks.cancel_scope.cancel()
    return Code.OK


class LineConversation:
    """One conversation: what is said, what is answered, and what comes late."""

    def __init__(
        self,
        client: Client,
        options: RunOptions,
        screen: Screen,
        signals: Signals,
        tasks: TaskGroup,
    ) -> None:
        self._client = client
        self._options = options
        self._told = False  # the note about the model
        self._screen = screen
        self._signals = signals
        self._tasks = tasks
        self._keyboard = LineKeyboard()
        self._news: News | None = None
        self._last: RunObject | None = None  # of the runs that were asked for here
        self._warned_at: float | None = None  # of what would end with us

    async def reopen(self) -> None:
        """Show what came in the session since the user last spoke there."""
        if not self._session:
            return
        self._news = await news.reopen(self._client, self._session, self._tasks)
        frame = self._news.take() if self._news else None
        if frame is not None:
            self._screen.note("… since you last spoke here:")
        while frame is not None and self._news is not None:
            await self._tell(self._news, frame)
            frame = self._news.take()

    async def say(self, line: str) -> None:
        """One line's run. It may fail; the conversation goes on."""
        client, screen, signals = self._client, self._screen, self._signals
        with self._telling():
            sending = partial(run.submit, client, self._options, line, screen)
            run_id = await run.unless_interrupted(signals, sending, times=2)
            if run_id is None:
                return
            if not self._told:
                await run.tell_model(client, run_id, self._options, screen)
                self._told = True
            if self._news is not None:
                await self._tell_earlier(self._news, run_id)
            await run.follow(client, run_id, screen, signals, self._keyboard.give_back)
            self._last = await client.status(run_id)
            self._options = self._options.within(self._last.session_id)
            if self._news is None:
                self._news = News(client, self._session)
                self._tasks.start_soon(self._news.listen)
            self._news.known(run_id)

    async def _tell_earlier(self, late: News, run_id: str) -> None:
        """Show what has to end before the run can begin: it may have something to ask."""
        late.known(run_id)
        while (frame := late.take()) is not None:
            await self._tell(late, frame)
        for found in reversed(await self._client.runs(self._session)):
            if found.run_id == run_id:
                return
            if not found.ended:
                await self._show(late, found)

    async def next_line(self) -> str:
        """What the user says next; /quit where that is said without words."""
        while True:
            came = await run.unless_interrupted(self._signals, self._line_or_news)
            if isinstance(came, Frame) and self._news is not None:
                self._keyboard.withdraw()
                await self._tell(self._news, came)
            elif came:
                return str(came).strip()
            else:
                print(flush=True)
                dropped = came is None and self._keyboard.drop()
                if not dropped and (came is not None or not await self._warn()):
                    return "/quit"

    async def leave(self) -> None:
        """Say what becomes of what goes on, and how to come back."""
        if not self._is_warned:
            await self._tell_running()
        if self._session:
            self._screen.note(f"to go on: holdfast --session {self._session}")

    async def _warn(self) -> bool:
        """Before an interrupt ends us, say what would end with us; whether that is to be heard."""
        if self._is_warned or not await self._tell_running():
            return False
        self._warned_at = anyio.current_time()
        self._screen.note(f"  Ctrl-C again within {AGAIN_S:g} s leaves all the same")
        return True

    @property
    def _is_warned(self) -> bool:
        at = self._warned_at
        return at is not None and anyio.current_time() - at <= AGAIN_S

    async def _tell_running(self) -> bool:
        if self._news is None or not self._client.is_owner:
            return False
        await self._news.catch_up([self._last] if self._last else [])
        return run.tell_running(self._news, self._screen)

    @property
    def _session(self) -> str:
        return self._options.session_id

    async def _line_or_news(self) -> str | Frame:
        """Whatever comes first. What is typed meanwhile stays with the keyboard."""
        async with anyio.create_task_group() as either:

            async def hear(late: News) -> None:
                await late.come()
                either.cancel_scope.cancel()

            if self._news is not None:
                either.start_soon(hear, self._news)
            line = await self._keyboard.line()
            either.cancel_scope.cancel()
            return line
        frame = self._news.take() if self._news is not None else None
        return frame or ""

    async def _tell(self, late: News, frame: Frame) -> None:
        """Show a piece of news."""
        if not frame.event.run_id:
            self._screen.show(frame)
            return
        with self._telling():
            await self._show(late, await self._client.status(frame.event.run_id))

    async def _show(self, late: News, found: RunObject) -> None:
        """Show a run that was not asked for here, to its end; what it asks is put here too."""
        late.known(found.run_id)
        if not late.is_late(found):
            self._screen.note(f"● another run of this session, {found.run_id}:")
        keep = self._keyboard.give_back
        await run.follow(self._client, found.run_id, self._screen, self._signals, keep)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Whatever fails in the block is told, and the conversation goes on."""
        try:
            yield
        except* Exit as group:
            self._screen.note(f"holdfast: {sole(group)}")
