"""Interrupting at a real terminal with real keys (HALT): stops, and text typed meanwhile."""

import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from holdfast.cli.tui.status import ENTER_DOES, TAB_QUEUES
from holdfast.cli.tui.ui import MEANS
from holdfast.cli.tui.view import INTERRUPTED_BY_NEXT
from holdfast.core.inbox import Mode
from tests.behaviour.desk import Desk, begin, desk, gated, idle, sleeper, switch
from tests.behaviour.hands import gone, running
from tests.fakes import model_server as says
from tests.fakes.screen import Screen

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

STOPPED_S = 1.0
TRIES = 3


@pytest.fixture(params=["embedded", "served"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, served=request.param == "served") as it:
        yield it


async def _at_work(it: Screen, at: Desk) -> anyio.Event:
    """A run that has said half of what it says, and what lets it end."""
    reply, gate = gated("half")
    at.model.then(reply)
    await it.say("first")
    await it.until("half")
    return gate


@pytest.mark.promise("HALT-04")
@pytest.mark.parametrize("key", ["Escape", "C-c"])
async def test_a_key_stops_a_foreground_sleep_within_a_second(either: Desk, key: str) -> None:
    took: list[float] = []
    async with either.terminal() as it:
        while not took or (min(took) > STOPPED_S and len(took) < TRIES):
            command, token = sleeper()
            await begin(it, command)
            await running(token)
            began = time.monotonic()
            await it.key(key)
            await it.until(lambda t: idle(t) and "■ interrupted" in t)
            await gone(token, 10)
            took.append(time.monotonic() - began)
            await it.say("say:at your service")
            await it.until("\nat your service")
            await it.key("C-l")
    assert min(took) <= STOPPED_S, took


@pytest.mark.promise("HALT-01", "HALT-03", "HALT-08")
async def test_words_typed_while_it_speaks_interrupt_it_and_are_answered(either: Desk) -> None:
    async with either.terminal() as it:
        await _at_work(it, either)
        await it.say("say:the second")
        shown = await it.until(lambda t: idle(t) and "\nthe second" in t)
    assert shown.index("half") < shown.index(INTERRUPTED_BY_NEXT)
    assert shown.index("■ interrupted") < shown.index("› say:the second")
    assert either.told() == ["first", "say:the second"]


@pytest.mark.promise("HALT-01", "HALT-03", "HALT-08")
async def test_words_typed_while_its_tools_work_interrupt_them_too(either: Desk) -> None:
    command, token = sleeper()
    async with either.terminal() as it:
        await begin(it, command)
        await running(token)
        await it.say("say:the second")
        shown = await it.until(lambda t: idle(t) and "\nthe second" in t)
        await gone(token, 10)
    assert INTERRUPTED_BY_NEXT in shown
    assert either.told()[-1].endswith("\n\nsay:the second")  # behind a note about the call


@pytest.mark.promise("HALT-01", "HALT-07", "HALT-08")
async def test_words_typed_in_quick_succession_are_all_read_in_order(alone: Desk) -> None:
    words = [f"say:answer {n}" for n in range(5)]
    async with alone.terminal() as it:
        await _at_work(it, alone)
        for one in words:
            await it.say(one)
        shown = await it.until(lambda t: idle(t) and "\nanswer 4" in t)
    assert alone.heard() == ["first", *words]
    places = [shown.index(f"› {one}") for one in words]
    assert places == sorted(places)


@pytest.mark.promise("HALT-07", "HALT-08")
async def test_words_that_wait_are_shown_and_can_be_edited_until_they_are_read(alone: Desk) -> None:
    async with alone.terminal() as it:
        await switch(it, Mode.QUEUE)
        gate = await _at_work(it, alone)
        await it.say("say:one")
        await it.say("say:two")
        await it.until(lambda t: "⋯ waits: say:one" in t and "⋯ waits: say:two" in t)
        await it.key("Up")
        await it.until(lambda t: "› say:two" in t and "waits: say:two" not in t)
        await it.say(" and a half")
        await it.until("⋯ waits: say:two and a half")
        gate.set()
        shown = await it.until(lambda t: idle(t) and "\ntwo and a half" in t)
    assert "interrupted" not in shown
    assert shown.index("half") < shown.index("› say:one") < shown.index("› say:two and a half")
    assert alone.told() == ["first", "say:one", "say:two and a half"]


@pytest.mark.promise("HALT-08")
async def test_words_that_steer_are_read_by_the_run_at_work(alone: Desk) -> None:
    async with alone.terminal() as it:
        await switch(it, Mode.STEER)
        gate = await _at_work(it, alone)
        await it.say("say:that way")
        await it.until("› say:that way")
        gate.set()
        shown = await it.until(lambda t: idle(t) and "\nthat way" in t)
    assert "interrupted" not in shown
    assert alone.told() == ["first", "say:that way"]


@pytest.mark.promise("HALT-01", "HALT-07")
async def test_a_large_paste_while_it_works_arrives_whole_and_in_its_place(alone: Desk) -> None:
    text = "\n".join(f"{n:04} ├ ünïcödé {'x' * (n % 50)}" for n in range(1500))
    async with alone.terminal() as it:
        await _at_work(it, alone)
        await it.type("say:read this ")
        await it.paste(text)
        await it.until("[pasted text 1 · ")
        await it.key("Enter")
        await it.say("say:done with it")
        await it.until(lambda t: idle(t) and "\ndone with it" in t)
    assert alone.heard() == ["first", f"say:read this {text}", "say:done with it"]


@pytest.mark.promise("HALT-02")
async def test_a_stop_that_comes_too_late_for_its_run_lets_the_next_one_be(served: Desk) -> None:
    """The end of the run is on its way through a gateway that stands still; then the key comes."""
    async with served.terminal() as it:
        await switch(it, Mode.QUEUE)
        gate = await _at_work(it, served)
        await it.say("say:the next one")
        await it.until("⋯ waits: say:the next one")
        served.gateway.signal(signal.SIGSTOP)
        gate.set()
        await served.model.idle()
        await it.key("Escape")
        await it.until("stopping …")
        served.gateway.signal(signal.SIGCONT)
        await it.until(lambda t: idle(t) and "\nthe next one" in t)
    assert served.told() == ["first", "say:the next one"]


@pytest.mark.promise("HALT-02")
async def test_a_key_pressed_as_the_run_ends_does_not_stop_the_one_that_takes_its_place(
    alone: Desk,
) -> None:
    async with alone.terminal() as it:
        await switch(it, Mode.QUEUE)
        gate = await _at_work(it, alone)
        reply, second = gated("and on")
        alone.model.then(reply)
        await it.say("next")
        await it.until("⋯ waits: next")
        await it.key("Escape")
        gate.set()
        await it.until("and on")
        second.set()
        await it.say("say:the end")
        shown = await it.until("\nthe end")
    assert "interrupted" not in shown.partition("› next")[2]
    assert alone.told() == ["first", "next", "say:the end"]


@pytest.mark.promise("HALT-01")
async def test_words_that_were_typed_before_the_engine_is_there_are_said(alone: Desk) -> None:
    async with alone.bare() as it:
        await it.until("›")
        await it.say("say:early words")
        await it.until("\nearly words")
    assert alone.told() == ["say:early words"]


@pytest.mark.promise("HALT-01")
@pytest.mark.parametrize("served", [False, True], ids=["embedded", "served"])
async def test_after_a_kill_everything_is_there_again_and_the_run_goes_on(
    tmp_path: Path, served: bool
) -> None:
    async with desk(tmp_path, served=served) as at:
        reply, gate = gated("the whole")
        at.model.then(says.say("hello back"), reply)
        async with at.terminal() as it:
            await it.say("hello there")
            await it.until("hello back")
            await it.say("say:the whole answer")
            await it.until("\nthe whole")
            await it.kill()
        async with at.terminal("--continue") as it:
            await it.until(lambda t: "› hello there" in t and "hello back" in t)
            if served:
                await it.until("\nthe whole")
                gate.set()
            shown = await it.until(lambda t: idle(t) and "\nthe whole" in t)
        assert shown.count("› say:the whole answer") == 1
        assert served or "\nthe whole answer" in shown


@pytest.mark.promise("TERM-03", "HALT-08")
async def test_the_screen_says_what_enter_does_and_tab_queues_instead(either: Desk) -> None:
    async with either.terminal() as it:
        gate = await _at_work(it, either)
        for mode in (Mode.QUEUE, Mode.STEER, Mode.INTERRUPT):
            await it.key("BTab")
            await it.until(MEANS[mode])
            await it.type("x")  # the hint of the switch has been read
            shown = await it.until(ENTER_DOES[mode])
            assert (TAB_QUEUES in shown) is (mode is not Mode.QUEUE)
            await it.key("BSpace")
        await it.type("/status")
        await it.until(lambda t: ENTER_DOES[Mode.INTERRUPT] not in t)  # a command does not
        await it.key("C-u")
        await it.type("say:later")
        await it.key("Tab")
        await it.until("⋯ waits: say:later")
        await it.type("say:much/later")  # might be a path: it is completed first
        await it.key("Tab", "Tab")
        await it.until("⋯ waits: say:much/later")
        assert "■ interrupted" not in await it.said()
        gate.set()
        await it.until(lambda t: idle(t) and "\nmuch/later" in t)
    assert either.told() == ["first", "say:later", "say:much/later"]
