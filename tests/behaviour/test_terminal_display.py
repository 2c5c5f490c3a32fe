"""What a real terminal looks like: narrow or wide, resized, without colour."""

import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
import pytest

from tests.behaviour.desk import Desk, desk, gated, idle, switch
from tests.fakes.screen import screen

pytestmark = [pytest.mark.anyio, pytest.mark.debian("tmux")]

LONG = "Many words that a narrow terminal has to fold, and a wide one does not, whatever they say. "


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as it:
        yield it


def _drawn(columns: int) -> Callable[[str], bool]:
    """Whether a screen is drawn for that width, to its last row."""
    rule = f"\n{'─' * columns}\n› what is"
    return lambda shown: rule in shown and not idle(shown)


async def test_a_terminal_that_changes_its_width_shows_everything_once(alone: Desk) -> None:
    reply, gate = gated(LONG + "Then ")
    alone.model.then(reply)
    async with alone.terminal(columns=100, rows=24) as it:
        await switch(it, "wait for their turn")
        await it.say("go on")
        await it.until("Then")
        await it.say("say:the words that wait, and are many, too, so that they are folded as well")
        await it.until("⋯ waits")
        await it.type("what is being typed is also rather long, for a terminal this narrow")
        await it.until("this narrow")
        for columns in (70, 45, 120, 40):
            await it.resize(columns, 24)
            shown = await it.until(_drawn(columns))
            await anyio.sleep(0.1)  # sleep: what is on its way to a terminal, nobody sees
            for once in ("Many words", "Then", "⋯ waits", "› what is"):
                assert shown.count(once) == 1, shown
            assert "› go on" in await it.said()
        gate.set()
        shown = await it.until(lambda t: idle(t) and "\nthe words that wait" in t)
    assert shown.count("› what is") == 1


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
async def test_every_width_has_room_for_the_prompt_and_what_matters(
    alone: Desk, columns: int
) -> None:
    reply, _ = gated(LONG)
    alone.model.then(reply)
    async with screen(alone.gateway.environment, alone.work, columns=columns, rows=12) as it:
        await it.until("Holdfast")
        await it.say("go on")
        shown = await it.until(lambda t: "Esc stops" in t.rstrip().rpartition("\n")[2])
    rule, prompt, _ = shown.rstrip().rsplit("\n", 2)[-3:]
    assert rule.endswith("─" * columns)
    assert prompt.strip() == "›"


async def test_without_colour_nothing_is_painted(alone: Desk) -> None:
    environment = {**alone.gateway.environment, "NO_COLOR": "1"}
    async with screen(environment, alone.work) as it:
        await it.until("/help lists")
        await it.say("say:# A head\n\nand **bold** words")
        await it.until("words\n")
        shown = await it.text("-e")
    assert not re.findall(r"\x1b\[(?!0?m|39m|49m)[0-9;]*m", shown), shown
