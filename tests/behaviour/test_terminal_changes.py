"""Changed files at a real terminal: below the call, and all of it on a key."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.cli.tui.pager import KEYS
from holdfast.cli.tui.unfold.chooser import HELP
from tests.behaviour.desk import Desk, desk, idle
from tests.fakes.emulator import screen

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["embedded", "served"])
async def either(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, served=request.param == "served") as it:
        yield it


def _write(path: str, lines: int) -> str:
    content = "".join(f"line {n}\n" for n in range(lines))
    return f"tool:write_file {json.dumps({'path': path, 'content': content})}"


@pytest.mark.promise("TERM-04")
async def test_a_changed_file_is_shown_below_its_call_and_whole_on_a_key(either: Desk) -> None:
    async with either.terminal() as it:
        await it.say(_write("notes.md", 50))
        shown = await it.until(lambda t: idle(t) and "+50 new file notes.md" in t)
        assert "    +line 0\n" in shown and "more: Ctrl-O shows all" in shown
        assert shown.index("write_file  notes.md") < shown.index("new file notes.md")
        await it.say(_write("other.md", 1))
        await it.until(lambda t: idle(t) and "+1 new file other.md" in t)
        await it.key("C-o")
        await it.until(HELP)
        await it.key("Up")
        await it.until("▸ → write_file  notes.md")
        await it.key("Enter")
        await it.until(KEYS)
        await it.type("G")
        await it.until("\n+line 49\n")
        await it.type("q")
        await it.until(HELP)  # the next one can be chosen
        await it.key("Escape")
        await it.until(lambda t: HELP not in t)
        await it.say("say:still here")
        await it.until("\nstill here")


@pytest.mark.promise("TERM-04")
async def test_the_users_own_pager_gets_the_text(alone: Desk) -> None:
    environment = {**alone.gateway.environment, "PAGER": "sh -c 'cat >paged'"}
    async with screen(environment, alone.work) as it:
        await it.until("/help lists")
        await it.say(_write("notes.md", 3))
        await it.until(lambda t: idle(t) and "new file notes.md" in t)
        await it.key("C-o")
        await it.until(HELP)
        await it.key("Enter")
        paged = alone.work / "paged"
        await it.until(lambda _: paged.exists() and "+line 2" in paged.read_text())
        await it.key("Escape")
        await it.say("say:still here")
        await it.until("\nstill here")


@pytest.mark.promise("TERM-04")
async def test_a_message_is_written_in_the_users_editor(alone: Desk) -> None:
    environment = {**alone.gateway.environment, "EDITOR": "sh -c 'echo say:edited >$0'"}
    async with screen(environment, alone.work) as it:
        await it.until("/help lists")
        await it.key("C-g")
        await it.until("› say:edited")
        await it.key("Enter")
        await it.until("\nedited")
