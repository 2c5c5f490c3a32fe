"""Somebody at the terminal: the real application over a pipe for a keyboard and paper for a screen.

What is typed goes through the pipe, byte for byte as a terminal sends it; what becomes of a key is
noted where the application hands it on.
"""

import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from prompt_toolkit.data_structures import Size
from prompt_toolkit.history import DummyHistory
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import DummyOutput
from typing_extensions import override

from holdfast.cli.run.options import RunOptions
from holdfast.cli.tui import talk
from holdfast.cli.tui.actions import Action, SendMessage
from holdfast.cli.tui.input.completion import InputCompleter
from holdfast.cli.tui.input.paste import Pastes
from holdfast.cli.tui.style import Style
from holdfast.cli.tui.ui import Ui
from holdfast.config.settings import Config
from holdfast.core.inbox import Mode
from tests.cli.tui.stage import News

ENTER, SWITCH, UP, END = "\r", "\x1b[Z", "\x1b[A", "\x1b[1;5F"


def paste(what: str) -> str:
    """What a terminal sends for it."""
    return f"\x1b[200~{what}\x1b[201~"


_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Paper(DummyOutput):
    """A screen that keeps what was printed for good."""

    def __init__(self, news: News) -> None:
        self.printed = ""
        self._news = news

    @override
    def write_raw(self, data: str) -> None:
        self.printed += _SEQUENCE.sub("", data)
        self._news.tell()

    @override
    def get_size(self) -> Size:
        return Size(rows=20, columns=60)


class Desk:
    """One terminal, in one session."""

    def __init__(self, ui: Ui, keyboard: PipeInput, paper: Paper, news: News) -> None:
        self.ui = ui
        self.paper = paper
        self.news = news
        self.acts: list[Action] = []
        self.entered = 0  # how often Enter was pressed, with words
        self._keyboard = keyboard

    def press(self, keys: str) -> None:
        self.entered += keys.count(ENTER)
        self._keyboard.send_text(keys)

    async def escape(self) -> str:
        """Press it, and nothing else until it is known to be Esc; what was at work on the screen."""
        keys, at_work = self.ui.app.key_processor, list[str]()

        def note(_: object) -> None:
            if [key.key for key in keys.key_buffer] == [Keys.Escape]:
                at_work.append(self.ui.view.run_id)
                self.news.tell()

        keys.after_key_press += note
        self.press("\x1b")
        await self.news.until(lambda: bool(at_work))
        keys.after_key_press -= note
        await self.news.until(lambda: not keys.key_buffer)
        return at_work[0]

    @property
    def idle(self) -> bool:
        """Whether all that was typed has been taken, and nothing is left to do."""
        said = sum(isinstance(act, SendMessage) for act in self.acts)
        return said == self.entered and not self.ui.view.busy and not self.ui.sending

    def shows(self, text: str) -> bool:
        return text in self.paper.printed or any(text in row for row in self.ui.view.live(" "))


@asynccontextmanager
async def sitting(
    config: Config, session_id: str, where: Path, news: News, escape_s: float = 0.0
) -> AsyncIterator[Desk]:
    """A terminal with the whole application in it, for the length of a block.

    `escape_s`: how long Esc might still be the beginning of something longer.
    """
    send, receive = anyio.create_memory_object_stream[Action](math.inf)
    pastes, paper = Pastes(), Paper(news)
    completer = InputCompleter(where, spans=pastes.spans)
    wish = RunOptions(workspace=str(where), insists=False, session_id=session_id)

    def do(action: Action) -> None:
        desk.acts.append(action)
        send.send_nowait(action)
        news.tell()

    with create_pipe_input() as keyboard:
        ui = Ui(
            Style(False), do, completer, DummyHistory(), pastes,
            mode=Mode.INTERRUPT, typed=keyboard, output=paper,
        )  # fmt: skip
        ui.app.ttimeoutlen, ui.app.timeoutlen = 0.0, escape_s
        ui.app.after_render += news.tell
        desk = Desk(ui, keyboard, paper, news)
        async with anyio.create_task_group() as tasks, send, receive:
            tasks.start_soon(ui.run)
            tasks.start_soon(talk.serve, config, wish, ui, receive)
            yield desk
            await ui.leave()
            tasks.cancel_scope.cancel()
