"""Late news: what happens in a session beside the runs that its terminal has asked for."""

import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from holdfast.cli.line.chat import SINCE, TO_CONTINUE
from holdfast.cli.run import notes
from tests.cli import Place, Terminal, terminal
from tests.cli.door import EARLIER, REQUEST, RUN, Door
from tests.fakes.gateway import ROOT, GatewayProcess, Stream, gateway, read_events
from tests.fakes.model_server import (
    DONE,
    ModelServer,
    Wait,
    call,
    calls,
    finish,
    say,
    stream,
    token,
)

pytestmark = pytest.mark.anyio


UNASKED = '[approval]\nmode = "sandboxed"\n'  # nobody is asked about what is told of here


@pytest.fixture
def place(tmp_path: Path, model: ModelServer) -> Place:
    place = Place(tmp_path)
    place.environ |= {"PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": model.base_url}
    place.environ |= {"HOLDFAST_MODEL": "openai/fake", "OPENAI_API_KEY": "sk-test"}
    place.configure(UNASKED)
    return place


@pytest.fixture
async def it(tmp_path: Path, model: ModelServer) -> AsyncIterator[GatewayProcess]:
    async with gateway(tmp_path, model.base_url, UNASKED) as process:
        yield process


def background(command: str) -> str:
    arguments = f'{{"command": "{command}", "background": true, "notify_on_complete": true}}'
    return f"tool:terminal {arguments}"


async def leave(screen: Terminal) -> str:
    """Leave the conversation; its last words."""
    await screen.type("/quit\n")
    said = await screen.read_until(TO_CONTINUE)
    if not said.endswith("\n"):
        said += await screen.read_until("\n")
    assert await screen.process.wait() == 0
    return said


def session(said: str) -> str:
    """The session that last words name."""
    return said.rpartition("--session ")[2].strip()


async def hear(it: GatewayProcess, session_id: str, event: str) -> None:
    """Return when the session has told of that."""
    async with it.http.get(f"{it.url}/api/sessions/{session_id}/events") as response:
        await read_events(response, Stream(200), until=event)


@pytest.mark.debian("bwrap")
@pytest.mark.promise("LATE-06")
@pytest.mark.usefixtures("it")
async def test_a_late_end_is_shown_in_the_open_terminal_with_the_run_that_follows(
    place: Place,
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type(background("sleep 1 && echo DONE") + "\n")
        said = await screen.read_until("\n› ")
        assert '"notify_on_complete":true' in said
        name = "proc_" + said.rpartition("proc_")[2].partition('"')[0]
        said = await screen.read_until("]\r\n› ")
        assert f"● background process {name}: exit code 0\r\n" in said
        assert f"echo: [Background process {name} has ended: exit code 0." in said
        assert "another run" not in said
        await screen.type("say:on\n")
        await screen.read_until("on\r\n› ")
        await leave(screen)


@pytest.mark.debian("bwrap")
@pytest.mark.promise("LATE-06")
async def test_late_events_are_shown_at_the_next_start(place: Place, it: GatewayProcess) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("say:before\n")
        await screen.read_until("before\r\n› ")
        await screen.type(background("sleep 1 && echo DONE") + "\n")
        await screen.read_until("\n› ")
        session_id = session(await leave(screen))
    await hear(it, session_id, "process.ended")
    async with terminal(place, "--session", session_id) as screen:
        said = await screen.read_until("]\r\n› ")
        assert re.search(re.escape(SINCE) + r"\r\n● .*: exit code 0\r\n", said)
        assert "before" not in said
        assert "→ terminal" not in said
        await screen.type("say:seen\n")
        await screen.read_until("seen\r\n› ")
        await leave(screen)
    async with terminal(place, "--session", session_id) as screen:
        assert SINCE not in await screen.read_until("› ")


@pytest.mark.debian("bwrap")
@pytest.mark.promise("LATE-06")
async def test_without_an_owner_a_process_ends_with_us_and_the_next_start_tells_so(
    place: Place,
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type(background("sleep 1000") + "\n")
        await screen.read_until("\n› ")
        said = await leave(screen)
        assert f"{notes.PROCESSES_END}\r\n  proc_" in said
        assert ": sleep 1000\r\n" in said
    async with terminal(place, "--session", session(said)) as screen:
        said = await screen.read_until("]\r\n› ")
        assert re.search(r"● background process \S+: killed by the restart", said)
        await leave(screen)


@pytest.mark.debian("bwrap")
async def test_a_single_run_says_that_its_background_process_ends_with_it(place: Place) -> None:
    result = await place.holdfast("run", background("sleep 1000"))
    assert result.code == 0
    assert f"{notes.PROCESSES_END}\n  proc_" in result.err
    assert ": sleep 1000\n" in result.err
    assert "holdfast gateway run" in result.err
    assert notes.PROCESSES_END not in (await place.holdfast("run", "say:hi")).err


@pytest.mark.debian("bwrap")
async def test_several_processes_that_end_with_us_are_told_of_in_one_note(
    place: Place, model: ModelServer
) -> None:
    started = [
        call(
            "terminal", f'{{"command": "sleep 90{n}", "background": true}}', call_id=n, index=int(n)
        )
        for n in "01"
    ]
    model.then(calls(*started), say("both run"))
    told = (await place.holdfast("run", "go")).err
    assert told.count(notes.PROCESSES_END) == told.count("gateway run") == 1
    assert ": sleep 900\n" in told and ": sleep 901\n" in told


@pytest.mark.debian("bwrap")
async def test_one_interrupt_does_not_end_the_processes_that_would_end_with_us(
    place: Place,
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type(background("sleep 1000") + "\n")
        await screen.read_until("\n› ")
        screen.process.send_signal(signal.SIGINT)
        said = await screen.read_until("\n› ")
        assert notes.PROCESSES_END in said and ": sleep 1000\r\n" in said
        assert "Ctrl-C again within 2 s leaves" in said
        await screen.type("say:still here\n")
        await screen.read_until("still here\r\n› ")
        await anyio.sleep(2.1)  # sleep: the time to say it again is what is looked at
        screen.process.send_signal(signal.SIGINT)
        assert "Ctrl-C again" in await screen.read_until("\n› ")
        screen.process.send_signal(signal.SIGINT)
        assert notes.PROCESSES_END not in await screen.read_until(TO_CONTINUE)
        assert await screen.process.wait() == 0


@pytest.mark.debian("bwrap")
@pytest.mark.usefixtures("it")
async def test_a_single_run_says_nothing_where_the_gateway_keeps_the_process(place: Place) -> None:
    result = await place.holdfast("run", background("sleep 1000"))
    assert notes.PROCESSES_END not in result.err


@pytest.mark.debian("bwrap")
@pytest.mark.usefixtures("it")
async def test_a_late_run_asks_like_any_other_and_what_is_typed_meanwhile_is_kept(
    place: Place, model: ModelServer, tmp_path: Path
) -> None:
    effects = tmp_path / "effects"
    gate = Wait()
    started = '{"command": "echo x", "background": true, "notify_on_complete": true}'
    model.then(calls(call("terminal", started)), say("it runs"))
    model.then(calls(call("risky", f'{{"path": "{effects}", "tag": "x"}}')))
    model.then(stream(token("so "), gate, token("be it"), finish(), DONE))
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("go\n")
        assert "● background process" in await screen.read_until("[o]nce  [s]ession  [d]eny ? ")
        await screen.type("o\n")
        await screen.read_until("so ")
        await screen.type("say:typed")
        await screen.read_until("say:typed")  # its echo: the terminal has it
        gate.gate.set()
        await screen.read_until("be it\r\n› say:typed")
        await screen.type(" meanwhile\n")
        await screen.read_until("\r\ntyped meanwhile\r\n› ")
    assert effects.read_text().startswith("x")


async def test_a_run_from_elsewhere_is_shown_as_such_and_can_be_stopped(
    place: Place, it: GatewayProcess, model: ModelServer
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("say:one\n")
        await screen.read_until("one\r\n› ")
        session_id = (await it.get("/v1/runs"))[1]["data"][0]["session_id"]
        model.then(stream(token("from afar"), Wait()))
        run_id = await it.run("work", session_id=session_id)
        said = await screen.read_until("from afar")
        assert f"● another run of this session, {run_id}:\r\n" in said
        screen.process.send_signal(signal.SIGINT)
        await screen.read_until("the run was stopped\r\n› ")
        await leave(screen)


async def test_a_run_that_has_to_end_before_ours_is_shown_and_asks_first(
    place: Place, front: Door
) -> None:
    front.say("run.completed", output="done")
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("one\n")
        await screen.read_until("done\r\n› ")
        front.runs = [RUN, EARLIER]
        await screen.type("two\n")
        await screen.read_until(f"● another run of this session, {EARLIER}:\r\n")
        front.say_earlier("approval.request", **REQUEST)
        await screen.read_until("[d]eny ? ")
        await screen.type("o\n")
        await screen.read_until("approved (once)")
        front.say_earlier("run.completed", output="first that")
        await screen.read_until("first that\r\ndone\r\n› ")
    assert front.answers == [("apr_1", "once")]


async def test_a_line_half_typed_is_shown_again_below_the_news(place: Place, front: Door) -> None:
    front.say("run.completed", output="done")
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("work\n")
        await screen.read_until("done\r\n› ")
        await screen.type("half a lin€")
        await screen.read_until("half a lin€")
        front.tell("process.ended", process_id="proc_1", how="exit code 3")
        await screen.read_until("● background process proc_1: exit code 3\r\n› half a lin€")
        front.tell("process.matched", process_id="proc_2", lines="ready\x1b]0;x\x07\n› not us\n")
        said = await screen.read_until("\r\n› half a lin€")
        assert "● background process proc_2 wrote:\r\n│ ready\r\n│ › not us\r\n" in said
        await screen.type(" more\n")
        await screen.read_until("done\r\n› ")
        assert front.submitted[-1]["input"] == "half a lin€ more"
        await screen.type("not this")
        await screen.read_until("not this")
        front.tell("process.ended", process_id="proc_2", how="exit code 0")
        await screen.read_until("› not this")
        screen.process.send_signal(signal.SIGINT)
        await screen.read_until("\r\n› ")
        await screen.type("but that\n")
        await screen.read_until("done\r\n› ")
        assert front.submitted[-1]["input"] == "but that"
        screen.process.send_signal(signal.SIGINT)
        assert await screen.process.wait() == 0


async def test_an_owner_that_restarts_is_waited_for_in_silence(
    place: Place, it: GatewayProcess
) -> None:
    async with terminal(place) as screen:
        await screen.read_until("› ")
        await screen.type("say:one\n")
        await screen.read_until("one\r\n› ")
        session_id = (await it.get("/v1/runs"))[1]["data"][0]["session_id"]
        await it.kill()
        await it.start()
        await it.run("say:two", session_id=session_id)
        said = await screen.read_until("two\r\n› ")
        assert said.count("\n") == 3  # where the prompt was, whose run it is, what it says
