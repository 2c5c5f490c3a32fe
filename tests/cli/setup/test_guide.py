"""`holdfast setup` on a terminal: provider, key, model, one call; nothing half-written."""

import signal
import stat
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.cli.setup.guide import (
    AFTER_FAILURE,
    ANOTHER,
    KEPT,
    NEEDS_KEY,
    NO_SUCH_MODEL,
    NOT_A_KEY,
    NOT_LISTED,
)
from tests.cli import Place, Terminal, terminal
from tests.fakes import anthropic
from tests.fakes.model_server import ModelServer, refuse, serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("SETUP-01")]

NOWHERE = ("--ports", "9")  # nobody serves models there
KEY = "sk-ant-canary-0123456789"
PROVIDER, SECRET, MODEL = "q leaves: ", "goes back: ", "b goes back: "


def saved(place: Place) -> dict[str, Any]:
    return tomllib.loads((place.home / "config.toml").read_text())


@asynccontextmanager
async def guided(place: Place) -> AsyncIterator[tuple[Terminal, ModelServer]]:
    """A terminal in the first step; Anthropic is at a server of the test's, and nothing is found."""
    async with serve(lambda _: anthropic.say("ready"), wire=anthropic.WIRE) as server:
        place.configure(f'[models.anthropic]\nbase_url = "{server.base_url}"\n')
        place.environ["TERM"] = "dumb"
        async with terminal(place, "setup", *NOWHERE) as screen:
            yield screen, server


async def test_a_person_chooses_a_provider_pastes_a_key_and_picks_a_model(place: Place) -> None:
    async with guided(place) as (screen, server):
        said = await screen.read_until(PROVIDER)
        assert NEEDS_KEY in said and "OpenAI" in said and ANOTHER in said
        await screen.type("anthropic\n")
        said = await screen.read_until(SECRET)
        await screen.type(f"{KEY}\n")
        said += await screen.read_until(MODEL)
        assert " 1   fake-small" in said and " 2   fake-large" in said
        await screen.type("2\n")
        said += await screen.read_until("holdfast doctor")
        assert await screen.process.wait() == 0
        assert {seen.headers["x-api-key"] for seen in server.requests} == {KEY}
        assert len(server.requests) == 1, "one call"
    assert KEY not in said
    assert saved(place)["model"] == "anthropic/fake-large"
    assert saved(place)["models"]["anthropic"]["api_key"] == KEY
    assert stat.S_IMODE((place.home / "config.toml").stat().st_mode) == 0o600


async def test_a_wrong_answer_is_told_and_asked_for_again(place: Place) -> None:
    async with guided(place) as (screen, server):
        await screen.read_until(PROVIDER)
        await screen.type("99\n")
        await screen.read_until("There is no 99")
        await screen.read_until(PROVIDER)
        await screen.type("Anthropic\n")
        await screen.read_until(SECRET)
        await screen.type("short\n")
        await screen.read_until(NOT_A_KEY)
        await screen.read_until(SECRET)
        await screen.type(f"{KEY}\n")
        await screen.read_until(MODEL)
        await screen.type("77\n")
        await screen.read_until("There is no 77")
        await screen.read_until(MODEL)
        await screen.type("nowhere\n")
        await screen.read_until(NOT_LISTED.format(name="nowhere"))
        await screen.type("n\n")
        await screen.read_until(NO_SUCH_MODEL.format(answer="nowhere"))
        await screen.read_until(MODEL)
        await screen.type("fake\n")
        await screen.read_until("Several fit:")
        await screen.read_until(MODEL)
        await screen.type("large\n")
        await screen.read_until("holdfast doctor")
    assert saved(place)["model"] == "anthropic/fake-large"


async def test_a_refused_key_leads_back_to_the_key(place: Place) -> None:
    async with guided(place) as (screen, server):
        await screen.read_until(PROVIDER)
        await screen.type("anthropic\n")
        await screen.read_until(SECRET)
        server.refuse_models = refuse(401, "invalid x-api-key")
        await screen.type("sk-wrong-canary\n")
        await screen.read_until("answered 401")
        await screen.read_until(SECRET)
        server.refuse_models = None
        await screen.type(f"{KEY}\n")
        await screen.read_until(MODEL)
        server.then(refuse(404, "no such model"))
        await screen.type("1\n")
        await screen.read_until("answered 404")
        await screen.read_until(AFTER_FAILURE)
        await screen.type("m\n")
        await screen.read_until(MODEL)
        await screen.type("2\n")
        await screen.read_until("holdfast doctor")
    assert saved(place)["models"]["anthropic"]["api_key"] == KEY


@pytest.mark.parametrize("leave", ["q\n", "ctrl-c"])
async def test_leaving_in_the_middle_leaves_nothing_behind(place: Place, leave: str) -> None:
    async with guided(place) as (screen, server):
        before = (place.home / "config.toml").read_bytes()
        await screen.read_until(PROVIDER)
        await screen.type("anthropic\n")
        await screen.read_until(SECRET)
        await screen.type(f"{KEY}\n")
        await screen.read_until(MODEL)
        if leave == "ctrl-c":
            screen.process.send_signal(signal.SIGINT)
        else:
            await screen.type(leave)
            await screen.read_until(KEPT)
        assert await screen.process.wait() != 0
        assert server.requests == []
    assert (place.home / "config.toml").read_bytes() == before
    assert [path.name for path in place.home.iterdir()] == ["config.toml"]


async def test_enter_takes_what_was_found_and_its_only_model(place: Place) -> None:
    async with serve() as server:
        server.models = ["only"]
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": KEY, "TERM": "dumb"}
        async with terminal(place, "setup", *NOWHERE) as screen:
            await screen.read_until("[1], q leaves: ")
            await screen.type("\n")
            await screen.read_until(f"[only], {MODEL}")
            await screen.type("\n")
            said = await screen.read_until("holdfast doctor")
            assert await screen.process.wait() == 0
    assert saved(place)["model"] == "openai/only"
    assert KEY not in (place.home / "config.toml").read_text(), "it stays in the environment"
    assert "\x1b" not in said


async def test_a_server_is_named_by_its_address(place: Place) -> None:
    async with serve() as server:
        place.environ["TERM"] = "dumb"
        async with terminal(place, "setup", *NOWHERE) as screen:
            await screen.read_until(PROVIDER)
            await screen.type(f"{ANOTHER}\n")
            await screen.read_until("Its address")
            await screen.type("nonsense\n")
            await screen.read_until("That is no address")
            await screen.read_until("Its address")
            await screen.type(f"{server.base_url}\n")
            await screen.read_until("Enter for none")
            await screen.type("\n")
            await screen.read_until(MODEL)
            await screen.type("fake-small\n")
            await screen.read_until("holdfast doctor")
    assert saved(place) == {"model": "openai/fake-small", "openai": {"base_url": server.base_url}}
