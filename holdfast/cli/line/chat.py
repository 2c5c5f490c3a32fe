"""A conversation, line by line: for terminals that cannot move their cursor, and for programs.

Each line starts a run in the same session. Ctrl-C during a run stops it and returns to the prompt.
At the prompt it drops the typed line, or leaves if there is none, as do Ctrl-D, /quit and /exit. If
background processes would end with this process, it warns and leaves only the second time. A line
typed during a run waits in the terminal and is the next one, unless the run asks for an approval
first: then typed text is dropped, so that it does not answer the question. If a line fails, the
conversation continues.

Late events (LATE-06) are shown above a new prompt: the end of a background process, the run that it
starts, other events of the session. When a session is opened again, the events since the user's
last message are shown first.
"""

import argparse
import signal
from collections.abc import Iterator, Sequence
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
  /help           show this text
  /quit, /exit    leave, like Ctrl-D
  Ctrl-C          stop the run, or drop the typed line; at an empty prompt: leave (press it
                  twice if background processes would end)
A line that you type during a run is sent after it. If the run asks for an approval, text typed
before the question is dropped; answer with the name or the letter of a choice and Enter, never with
Enter alone. Other terminals can answer too: holdfast approvals
If the run asks a question, your next line is the answer.
Late events, such as the end of a background process and the run that it starts, appear above the
prompt. The text that you are typing is kept; only Ctrl-C drops it."""

SINCE = "… since your last message here:"
TO_CONTINUE = "to continue: holdfast --session "
AGAIN_S = 2.0  # for the second Ctrl-C, if processes would end
_LEAVE = frozenset({"/quit", "/exit"})


def main(args: argparse.Namespace) -> int:
    """Run the conversation and return the exit code."""
    config = operator.load({"model": args.model})
    screen: Screen = JsonScreen() if args.json else Plain()
    return anyio.run(_talk, config, run_options.read(args, config), screen, args.words)


async def _talk(config: Config, given: RunOptions, screen: Screen, words: Sequence[str]) -> int:
    async with connect(config, screen.note) as client, anyio.create_task_group() as tasks:
        options = await run.settled(client, given)
        await run.check_model(client, options)
        model = await run.model_in_use(client, config)
        where = options.workspace
        screen.note(f"Holdfast {__version__} · {model} · {where} · /help, /quit or Ctrl-D leaves")
        with anyio.open_signal_receiver(signal.SIGINT) as signals:
            talk = LineConversation(client, options, screen, signals, tasks)
            await talk.reopen()
            for line in words:
                await talk.say(line)
            while (line := await talk.next_line()) not in _LEAVE:
                if line == "/help":
                    screen.note(HELP)
                elif line:
                    await talk.say(line)
            await talk.leave()
        tasks.cancel_scope.cancel()
    return Code.OK


class LineConversation:
    """One conversation: messages, answers and late events."""

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
        self._warned_at: float | None = None  # of processes that would end

    async def reopen(self) -> None:
        """Show the events of the session since the user's last message."""
        if not self._session:
            return
        self._news = await news.reopen(self._client, self._session, self._tasks)
        frame = self._news.take() if self._news else None
        if frame is not None:
            self._screen.note(SINCE)
        while frame is not None and self._news is not None:
            await self._tell(self._news, frame)
            frame = self._news.take()

    async def say(self, line: str) -> None:
        """Do the run of one line. If it fails, the conversation continues."""
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
        """Show the runs that must end before this one can start: they may ask questions."""
        late.known(run_id)
        while (frame := late.take()) is not None:
            await self._tell(late, frame)
        for found in reversed(await self._client.runs(self._session)):
            if found.run_id == run_id:
                return
            if not found.ended:
                await self._show(late, found)

    async def next_line(self) -> str:
        """Return the user's next line; /quit at the end of the input or after Ctrl-C."""
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
        """Say which processes end, and how to come back."""
        if not self._is_warned:
            await self._tell_running()
        if self._session:
            self._screen.note(f"{TO_CONTINUE}{self._session}")

    async def _warn(self) -> bool:
        """Before Ctrl-C leaves, list the processes that would end; True if there are any."""
        if self._is_warned or not await self._tell_running():
            return False
        self._warned_at = anyio.current_time()
        self._screen.note(f"  Ctrl-C again within {AGAIN_S:g} s leaves anyway")
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
        """Return a line or an event, whichever comes first. Typed text is kept."""
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
        """Show an event."""
        if not frame.event.run_id:
            self._screen.show(frame)
            return
        with self._telling():
            await self._show(late, await self._client.status(frame.event.run_id))

    async def _show(self, late: News, found: RunObject) -> None:
        """Show a run that was started elsewhere to its end, and ask its questions here."""
        late.known(found.run_id)
        if not late.is_late(found):
            self._screen.note(f"● another run of this session, {found.run_id}:")
        keep = self._keyboard.give_back
        await run.follow(self._client, found.run_id, self._screen, self._signals, keep)

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Show a failure of the block; the conversation continues."""
        try:
            yield
        except* Exit as group:
            self._screen.note(f"holdfast: {sole(group)}")
