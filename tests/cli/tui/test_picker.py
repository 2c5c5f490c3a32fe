"""Choosing a session: by the arrows, by words, or not at all."""

import pytest
from msgspec.structs import replace
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from holdfast.api.schema.sessions import SessionObject
from holdfast.cli.tui.picker import Picker, pick
from holdfast.cli.tui.style import Style

pytestmark = pytest.mark.anyio


def _session(name: str, title: str = "", preview: str = "", unfinished: int = 0) -> SessionObject:
    return SessionObject(
        session_id=name,
        title=title,
        preview=preview,
        created_at=0.0,
        updated_at=0.0,
        workspace="/work",
        platform="cli",
        model="openai/fake",
        status="open",
        unfinished=unfinished,
    )


KNOWN = (
    _session("ses_1", title="The tax papers"),
    _session("ses_2", preview="mend the roof", unfinished=1),
    _session("ses_3", preview="evil \x1b[2J words"),
)


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        ("\r", "ses_1"),
        ("\x1b[B\r", "ses_2"),
        ("\x1b[B\x1b[B\x1b[B\x1b[A\r", "ses_2"),
        ("roof\r", "ses_2"),
        ("ROOF the\r", "ses_2"),
        ("roofx\x7f\r", "ses_2"),
        ("nothing\r\x03", ""),
        ("\x03", ""),
        ("\x04", ""),
        ("\x1b", ""),
    ],
)
async def test_typed_words_filter_the_list(keys: str, chosen: str) -> None:
    with create_pipe_input() as typed:
        typed.send_text(keys)
        found = await pick(Picker(KNOWN, Style(False), 60.0), typed, DummyOutput())
    assert (found.session_id if found else "") == chosen


@pytest.mark.parametrize("columns", [20, 40, 200])
def test_the_list_fits_and_steers_nothing(columns: int) -> None:
    lines = Picker(KNOWN, Style(False), 60.0).lines(columns, 10)
    assert all(len(line) <= columns for line in lines)
    assert not any("\x1b" in line for line in lines)
    assert any("at work" in line for line in lines) or columns < 40


def test_a_session_of_another_owner_is_shown_and_found_by_owner() -> None:
    theirs = replace(_session("agent:main:telegram:dm:7", preview="hi"), owner="telegram:7")
    picker = Picker((*KNOWN, theirs), Style(False), 60.0)
    assert picker.lines(80, 10)[-2].endswith("· telegram · 7")
    picker.type("telegram:7")
    assert picker.found() == [theirs]
