"""`holdfast` on a terminal: a conversation, line by line."""

import signal
from collections.abc import AsyncIterator

import pytest

from holdfast import __version__
from holdfast.cli.line.chat import HELP, TO_CONTINUE
from tests.cli import Place, read_until, terminal
from tests.fakes.model_server import ModelServer, Wait, serve, stream, token

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server(place: Place) -> AsyncIterator[ModelServer]:
    async with serve() as server:
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        yield server


async def test_every_line_is_a_run_of_the_same_session(place: Place, server: ModelServer) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("say:one\n")
        assert "one\r\n› " in (await screen.read_until("\n› "))
        await screen.type("say:two\n")
        await screen.read_until("two\r\n› ")
        await screen.type("/quit\n")
        assert await screen.process.wait() == 0
    said = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] != "system"]
    assert said == ["say:one", "one", "say:two"]


async def test_an_interrupt_stops_the_run_and_comes_back_to_the_prompt(
    place: Place, server: ModelServer
) -> None:
    server.then(stream(token("thinking"), Wait()))
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("work\n")
        await screen.read_until("thinking")
        screen.process.send_signal(signal.SIGINT)
        assert "the run was stopped" in await screen.read_until("› ")
        await screen.type("say:on\n")
        await screen.read_until("on\r\n› ")
        screen.process.send_signal(signal.SIGINT)
        assert await screen.process.wait() == 0


@pytest.mark.usefixtures("server")
async def test_the_conversation_says_what_it_is_and_how_to_come_back(place: Place) -> None:
    async with terminal(place) as screen:
        said = await screen.read_until("› ")
        assert f"Holdfast {__version__} · openai/fake · {place.work} · " in said
        await screen.type("/help\n")
        assert HELP.splitlines()[0] in await screen.read_until("\n› ")
        await screen.type("say:one\n")
        await screen.read_until("one\r\n› ")
        await screen.type("/exit\n")
        said = await screen.read_until(TO_CONTINUE)
        assert await screen.process.wait() == 0


async def test_that_there_is_no_model_is_said_once(place: Place) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("list the files here\n")
        assert "no model is configured:" in await screen.read_until("\n› ")
        await screen.type("list the files here\n")
        assert "no model is configured:" not in await screen.read_until("\n› ")


@pytest.mark.usefixtures("server")
async def test_an_interrupt_drops_the_line_that_is_being_typed_and_only_else_leaves(
    place: Place,
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("say:not this")
        await screen.read_until("not this")  # its echo: the terminal has it
        screen.process.send_signal(signal.SIGINT)
        await screen.read_until("\r\n› ")
        await screen.type("say:that\n")
        assert "not this" not in await screen.read_until("that\r\n› ")
        screen.process.send_signal(signal.SIGINT)
        assert (await screen.read_until(TO_CONTINUE)).startswith("\r\n")
        assert await screen.process.wait() == 0


@pytest.mark.usefixtures("server")
async def test_a_model_that_is_not_served_is_refused_before_the_first_word(place: Place) -> None:
    async with place.started("gateway", "run", "--port", "0") as gateway:
        await read_until(gateway.stderr, "ready on")
        async with terminal(place, "--model", "groq/other") as screen:
            await screen.read_until("uses openai/fake, not groq/other")
            assert await screen.process.wait() == 2


@pytest.mark.usefixtures("server")
async def test_a_run_that_fails_does_not_end_the_conversation(place: Place) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("fail:401\n")
        assert "the run failed" in await screen.read_until("› ")
        await screen.type("\n")
        await screen.read_until("› ")
        await screen.type("\x04")
        assert await screen.process.wait() == 0
