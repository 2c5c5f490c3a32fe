"""The display of a real terminal: narrow or wide, resized, without colour."""

from collections.abc import Callable

import pytest

from holdfast.core.inbox import Mode
from tests.behaviour.desk import Desk, gated, idle, switch
from tests.fakes import tmux
from tests.fakes.emulator import screen

pytestmark = pytest.mark.anyio

PLAIN = {0, 39, 49}  # the codes that end a style, the colour, and that behind

LONG = "Many words that a narrow terminal has to fold, and a wide one does not, whatever they say. "


def _drawn(columns: int, *once: str) -> Callable[[str], bool]:
    """Whether a screen is drawn for that width, to its last row, with each of `once` on it once.

    What was drawn for another width stands there until it is drawn again.
    """
    rule = f"\n{'─' * columns}\n› what is"
    return lambda shown: (
        rule in shown and not idle(shown) and all(shown.count(text) == 1 for text in once)
    )


@pytest.mark.debian("tmux")
async def test_a_terminal_that_changes_its_width_shows_everything_once(alone: Desk) -> None:
    reply, gate = gated(LONG + "Then ")
    alone.model.then(reply)
    async with tmux.screen(alone.gateway.environment, alone.work, columns=100, rows=24) as it:
        await it.until("/help lists")
        await switch(it, Mode.QUEUE)
        await it.say("go on")
        await it.until("Then")
        await it.say("say:the words that wait, and are many, too, so that they are folded as well")
        await it.until("⋯ waits")
        await it.type("what is being typed is also rather long, for a terminal this narrow")
        await it.until("this narrow")
        for columns in (70, 45, 120, 40):
            await it.resize(columns, 24)
            await it.until(_drawn(columns, "Many words", "Then", "⋯ waits", "› what is"))
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
        assert it.paints() <= PLAIN
    async with screen(alone.gateway.environment, alone.work) as it:
        await it.until("/help lists")
        assert it.paints() - PLAIN


async def test_the_terminal_is_not_asked_where_its_cursor_is(alone: Desk) -> None:
    """A late answer would be wrong after lines were printed, and scroll them out of sight."""
    async with screen(alone.gateway.environment, alone.work, columns=80, rows=24) as it:
        await it.until("/help lists")
        await it.say("say:hello")
        await it.until(lambda t: idle(t) and "\nhello" in t and "/help lists" in t)
        assert it.answers() == []
