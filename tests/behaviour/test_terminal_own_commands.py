"""`!command` at the terminal, the user's own with every model; and `holdfast "message"`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.behaviour.desk import ASKS, Desk, desk, gated, idle

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]


@pytest.fixture(params=["embedded", "served"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, served=request.param == "served") as it:
        yield it


@pytest.mark.promise("TERM-05")
async def test_a_command_of_the_users_own_runs_unasked_and_is_read_by_the_model(
    either: Desk,
) -> None:
    async with either.terminal() as it:
        await it.say("!echo one >made && echo '*all* done'")
        await it.until(lambda t: idle(t) and "  *all* done" in t)
        assert (either.work / "made").read_text() == "one\n"
        assert either.model.requests == []  # no model was asked
        await it.say("say:and now")
        await it.until("\nand now")
        assert ASKS not in await it.said()
    (request,) = either.model.requests
    assert "*all* done" in str(request.body["messages"])
    assert either.heard() == ["!echo one >made && echo '*all* done'", "say:and now"]


@pytest.mark.promise("TERM-05")
async def test_it_waits_for_the_run_at_work_and_a_model_that_says_it_gains_nothing(
    alone: Desk,
) -> None:
    reply, gate = gated("half")
    alone.model.then(reply)
    async with alone.terminal() as it:
        await it.say("first")
        await it.until("half")
        await it.say("!echo mine")
        await it.until("⋯ waits: !echo mine")
        gate.set()
        await it.until(lambda t: idle(t) and "  mine" in t)
        assert "■ interrupted" not in await it.said()
        await it.say('tool:terminal {"command": "touch made"}')
        await it.until(ASKS)
        await it.key("Escape")
        await it.until(idle)


@pytest.mark.promise("TERM-06")
async def test_a_message_on_the_command_line_begins_the_conversation(either: Desk) -> None:
    async with either.terminal("say:hello there") as it:
        await it.until(lambda t: idle(t) and "\nhello there" in t)
        await it.say("say:once more")
        await it.until("\nonce more")
    assert either.heard() == ["say:hello there", "say:once more"]


@pytest.mark.promise("TERM-07")
async def test_enter_takes_the_only_command_that_matches(alone: Desk) -> None:
    async with alone.terminal() as it:
        await it.say("/usage")
        await it.until("No tokens yet")  # by then it knows the commands
        await it.type("/cos")
        await it.until("The same as /usage.")
        await it.key("Enter")
        await it.until("› /cost")
        await it.type("/ren")
        await it.until("Give this session a title.")
        await it.key("Enter")  # it needs a title
        await it.until("› /rename")
        await it.key("C-u")
        await it.say("/hlep")
        await it.until("Did you mean /help?")
