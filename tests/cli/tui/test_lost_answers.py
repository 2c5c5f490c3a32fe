"""Words whose answer was lost: they come back, and sent again they are the same words."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from prompt_toolkit.completion import DummyCompleter
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast.cli.client.client import connect
from holdfast.cli.run.options import RunOptions
from holdfast.cli.tui.actions import Action, SendMessage
from holdfast.cli.tui.input.paste import Pastes
from holdfast.cli.tui.style import Style
from holdfast.cli.tui.talk import TerminalConversation
from holdfast.cli.tui.ui import Ui
from holdfast.config.load import load
from holdfast.core.inbox import Mode
from holdfast.host.lock import SOCKET, take_lock

pytestmark = pytest.mark.anyio

WORDS = "delete the old one"
SESSION = "ses_1"
HEALTH = {"sandbox": {"level": "L2", "note": ""}, "paused": ""}


class Door:
    """Takes words and commands, and loses every answer to them until it is told not to."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.answer: web.Response | None = None
        self.closed = anyio.Event()

    def accept(self) -> None:
        self.answer = web.json_response({"run_id": "run_1", "status": "started"}, status=202)

    def refuse(self) -> None:
        error = {"code": "invalid_request", "message": "no"}
        self.answer = web.json_response({"error": error}, status=400)

    def done(self, **fields: object) -> None:
        self.answer = web.json_response({"output": "no", "session_id": SESSION} | fields)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            self.keys.append(request.headers["Idempotency-Key"])
            if self.answer is None:
                assert request.transport is not None
                request.transport.close()
                return web.Response()
            return self.answer
        if request.path.endswith("/events"):
            await self.closed.wait()
        if SESSION in request.path:
            return web.json_response({"error": {"message": "no such session"}}, status=404)
        return web.json_response(HEALTH | {"data": [], "has_more": False})


@asynccontextmanager
async def _open(door: Door, home: Path) -> AsyncIterator[None]:
    lock = take_lock(home)
    assert lock is not None
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", door.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(home / SOCKET)).start()
    try:
        yield
    finally:
        door.closed.set()
        await runner.cleanup()
        lock.release()


class Desk:
    """Somebody before that door."""

    def __init__(self, ui: Ui, talk: TerminalConversation, done: list[Action]) -> None:
        self.ui = ui
        self._talk = talk
        self._done = done

    async def enter(self, more: str = "") -> SendMessage:
        """Type, press Enter and see what becomes of it."""
        self.ui.buffer.insert_text(more)
        self.ui.accept()
        said = self._done[-1]
        assert isinstance(said, SendMessage)
        self._talk.take(said)
        await said.arrived.wait()
        return said


@asynccontextmanager
async def sitting(directory: Path, door: Door) -> AsyncIterator[Desk]:
    """Sit down there."""
    config = load({"HOME": str(directory), "HOLDFAST_HOME": str(directory / "home")}, {})
    done: list[Action] = []
    with create_pipe_input() as typed:
        ui = Ui(
            Style(False), done.append, DummyCompleter(), InMemoryHistory(), Pastes(),
            mode=Mode.INTERRUPT, typed=typed, output=DummyOutput(),
        )  # fmt: skip
        async with (
            _open(door, config.home),
            connect(config, lambda _: None, patience_s=0.3) as client,
            anyio.create_task_group() as tasks,
        ):
            talk = TerminalConversation(
                config,
                client,
                RunOptions(str(directory), False, session_id=SESSION),
                ui,
                tasks,
            )
            tasks.start_soon(talk.begin)
            tasks.start_soon(talk.speak)
            yield Desk(ui, talk, done)
            tasks.cancel_scope.cancel()


async def test_words_whose_answer_was_lost_are_sent_again_under_their_name(tmp_path: Path) -> None:
    door = Door()
    async with sitting(tmp_path, door) as desk:
        await desk.enter(WORDS)
        assert desk.ui.buffer.text == WORDS
        await desk.enter()
        door.accept()
        assert (await desk.enter()).run_id == "run_1"
        assert desk.ui.buffer.text == ""
        assert len(set(door.keys)) == 1
        await desk.enter(WORDS)
        assert len(set(door.keys)) == 2, "who says them once more means it"


@pytest.mark.parametrize("edit", ["more", "mode", "retyped"])
async def test_words_that_were_edited_are_others(tmp_path: Path, edit: str) -> None:
    door = Door()
    async with sitting(tmp_path, door) as desk:
        await desk.enter(WORDS)
        door.accept()
        if edit == "mode":
            desk.ui.switch_mode()
        if edit == "retyped":
            desk.ui.buffer.text = ""
            desk.ui.buffer.text = WORDS
        await desk.enter(" now" if edit == "more" else "")
        assert len(set(door.keys)) == 2


async def test_words_that_were_refused_get_another_name(tmp_path: Path) -> None:
    door = Door()
    async with sitting(tmp_path, door) as desk:
        door.refuse()
        await desk.enter(WORDS)
        assert desk.ui.buffer.text == WORDS
        await desk.enter()
        assert len(set(door.keys)) == 2


async def test_a_command_whose_answer_was_lost_is_given_again_under_its_name(
    tmp_path: Path,
) -> None:
    door = Door()
    async with sitting(tmp_path, door) as desk:
        await desk.enter("/queue later")
        assert desk.ui.buffer.text == "/queue later"
        door.done()
        await desk.enter()
        assert desk.ui.buffer.text == ""
        assert len(set(door.keys)) == 1


async def test_a_command_whose_words_were_refused_comes_back(tmp_path: Path) -> None:
    door = Door()
    async with sitting(tmp_path, door) as desk:
        door.done(refused=True)
        await desk.enter("/queue later")
        assert desk.ui.buffer.text == "/queue later"
