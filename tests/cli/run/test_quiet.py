"""`--quiet`, NO_COLOR, dumb terminals and pipes: nothing but what was asked for."""

import os

import pytest

from holdfast.api.schema.events import Event
from holdfast.cli.client.frames import Frame
from holdfast.cli.run.screen import Quiet
from tests.cli import Place, terminal
from tests.fakes.model_server import refuse, say, serve

pytestmark = pytest.mark.anyio


def happened(event: str, **fields: object) -> Frame:
    return Frame(Event(event=event, run_id="run_1", seq=1, **fields), "")  # type: ignore[arg-type]


async def test_only_the_last_answer_comes_to_stdout_and_nothing_to_stderr(place: Place) -> None:
    (place.work / "notes.txt").write_text("hello\n")
    asked = 'tool:read_file {"path": "notes.txt"}'
    async with serve() as server:
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        loud = await place.holdfast("run", asked)
        quiet = await place.holdfast("run", "--quiet", asked)
        piped = await place.holdfast("-q", stdin=asked.encode())
    assert "read_file" in loud.err
    for result in (quiet, piped):
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("the tool said: ")
        assert result.out.count("\n") == result.out.rstrip("\n").count("\n") + 1


async def test_offline_it_is_just_as_quiet(place: Place) -> None:
    (place.work / "notes.txt").write_text("hello\n")
    result = await place.holdfast("run", "-q", "list the files here")
    assert (result.code, result.err) == (0, "")
    assert "notes.txt" in result.out


async def test_quiet_still_prints_errors(place: Place) -> None:
    async with serve() as server:
        server.then(refuse(401, "wrong key"))
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        result = await place.holdfast("run", "--quiet", "hi")
    assert (result.code, result.out) == (4, "")
    assert result.err.startswith("holdfast: the run failed: ")
    assert result.err.count("\n") == 1


async def test_quiet_asks_nothing_and_reports_what_it_denied(place: Place) -> None:
    asked = 'tool:terminal {"command": "touch made"}'
    place.configure("[sandbox]\nallow_none = true\n")
    async with serve() as server:
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        async with terminal(place, "run", "--quiet", asked) as screen:
            said = await screen.read_until("the tool said: ")
    assert "holdfast: terminal was denied: --quiet asks no questions\r\n" in said
    assert not (place.work / "made").exists()


async def test_events_for_programs_stay_events(place: Place) -> None:
    quiet = await place.holdfast("run", "--quiet", "--json", "list the files here")
    assert quiet.code == 0
    assert quiet.out.startswith("{")
    assert quiet.err == ""


def test_a_run_that_others_have_stopped_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Quiet()
    screen.note("… a note")
    screen.show(happened("message.delta", delta="half"))
    screen.show(happened("run.cancelled"))
    assert capsys.readouterr() == ("", "holdfast: the run was stopped\n")


def test_an_answer_ends_with_one_line_end(capsys: pytest.CaptureFixture[str]) -> None:
    for output in ("Hello", "Hello\n", ""):
        Quiet().show(happened("run.completed", output=output))
    assert capsys.readouterr().out == "Hello\nHello\n"


@pytest.mark.parametrize(
    "environ", [{"TERM": "xterm", "NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "xterm"}]
)
async def test_escapes_are_for_terminals_that_want_them(
    place: Place, environ: dict[str, str]
) -> None:
    """What a command says while it works is dimmed, where that is wanted."""
    asked = 'tool:terminal {"command": "echo one"}'
    place.configure("[sandbox]\nallow_none = true\n")
    async with serve() as server:
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        place.environ |= environ
        async with terminal(place, "run", asked) as screen:
            said = await screen.read_until("the tool said: ")
    assert "│ " in said
    assert ("\x1b" in said) == (environ == {"TERM": "xterm"})


async def test_through_a_pipe_nothing_has_escapes(place: Place) -> None:
    place.environ["TERM"] = "xterm"
    async with serve() as server:
        server.then(say("plain"))
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        results = [
            await place.holdfast("run", "hi"),
            *[await place.holdfast(*words) for words in (("doctor",), ("config",), ("--help",))],
        ]
    for result in results:
        assert "\x1b" not in result.out + result.err


async def test_a_pipe_beside_a_terminal_has_only_the_answer(place: Place) -> None:
    reading, writing = os.pipe()
    async with terminal(place, "run", "-q", "list the files here", stdout=writing) as screen:
        os.close(writing)
        assert await screen.process.wait() == 0
    answer = os.read(reading, 1 << 16)
    os.close(reading)
    assert answer.strip()
    assert b"\x1b" not in answer
