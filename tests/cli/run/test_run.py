"""`holdfast run`: the answer, the exit code, and an owner that may go at any moment."""

import json
import signal
import socket
from collections.abc import AsyncIterator

import pytest

from holdfast.cli.run import notes
from tests.cli import Place, read_all, read_until, terminal
from tests.fakes.model_server import (
    DONE,
    Abort,
    ModelServer,
    Wait,
    call,
    calls,
    finish,
    refuse,
    say,
    serve,
    stream,
)
from tests.fakes.model_server import token as token_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server(place: Place) -> AsyncIterator[ModelServer]:
    async with serve() as server:
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        yield server


async def test_a_piped_line_is_answered_without_any_model(place: Place) -> None:
    (place.work / "notes.txt").write_text("x")
    result = await place.holdfast(stdin=b"list the files here\n")
    assert result.code == 0, result.err
    assert "notes.txt" in result.out
    assert "→ list_files" in result.err
    assert "no model is configured" in result.err
    assert "holdfast setup" in result.err


async def test_the_answer_goes_to_stdout_and_nothing_else_does(
    place: Place, server: ModelServer
) -> None:
    server.then(say("It is done."))
    result = await place.holdfast("run", "do", "it")
    assert (result.code, result.out, result.said) == (0, "It is done.\n", "")
    assert server.requests[0].body["messages"][-1]["content"] == "do it"


async def test_the_pipe_is_context_after_the_words(place: Place, server: ModelServer) -> None:
    await place.holdfast("run", "sum it up", stdin=b"one\ntwo\n")
    assert server.requests[0].body["messages"][-1]["content"] == "sum it up\n\none\ntwo"


async def test_json_is_one_event_a_line_from_start_to_end(
    place: Place, server: ModelServer
) -> None:
    server.then(say("It is done."))
    result = await place.holdfast("run", "do it", "--json")
    events = [json.loads(line) for line in result.out.splitlines()]
    assert (result.code, result.err) == (0, "")
    assert events[0]["event"] == "run.started"
    assert events[-1]["event"] == "run.completed"
    assert events[-1]["output"] == "It is done."
    numbers = [event["seq"] for event in events]
    assert numbers == sorted(set(numbers))

    again = await place.holdfast("runs", events[0]["run_id"])
    assert (again.code, again.out) == (0, "It is done.\n")
    assert (await place.holdfast("runs", "run_nobody_knows")).code == 1


async def test_a_session_is_continued_by_its_name(place: Place, server: ModelServer) -> None:
    await place.holdfast("run", "say:first", "--session", "s1")
    elsewhere = place.root / "elsewhere"
    elsewhere.mkdir()
    result = await place.holdfast("run", "say:second", "--session", "s1", cwd=elsewhere)
    assert (result.code, result.out) == (0, "second\n")
    said = [m["content"] for m in server.requests[-1].body["messages"] if m["role"] != "system"]
    assert said == ["say:first", "first", "say:second"]
    assert f"works in {place.work}" in result.err


async def test_a_model_that_refuses_for_good_is_exit_code_4(
    place: Place, server: ModelServer
) -> None:
    server.then(refuse(401, "wrong key", code="invalid_api_key"))
    result = await place.holdfast("run", "do it")
    assert result.code == 4
    assert result.out == ""
    assert "the run failed" in result.err


async def test_a_model_that_cannot_be_reached_is_exit_code_75(
    place: Place, server: ModelServer
) -> None:
    server.then(refuse(503, "down", headers={"Retry-After": "9999"}))  # it is not tried again
    result = await place.holdfast("run", "do it")
    assert (result.code, result.out) == (75, "")
    assert (await place.holdfast("run", "--quiet", "do it")).code == 0  # it is back


async def test_a_model_whose_server_refuses_the_connection_is_exit_code_75(place: Place) -> None:
    with socket.socket() as closed:  # bound and not listening: connections are refused
        closed.bind(("127.0.0.1", 0))
        place.environ["OPENAI_BASE_URL"] = f"http://127.0.0.1:{closed.getsockname()[1]}/v1"
        result = await place.holdfast("run", "do it")
    assert (result.code, result.out) == (75, "")


HIDDEN = "left \u202eright\u202c \u2066in\u2069 \x9b31m \u200fend"


@pytest.mark.parametrize("how", [(), ("--quiet",), ("--json",)])
async def test_an_answer_cannot_turn_the_text_on_a_terminal_and_a_pipe_gets_it_as_it_is(
    place: Place, server: ModelServer, how: tuple[str, ...]
) -> None:
    server.then(say(HIDDEN), say(HIDDEN))
    async with terminal(place, "run", "go", *how) as screen:
        shown = await screen.read_until("end")
        await screen.process.wait()
    assert not set(shown) & set("\u202e\u202c\u2066\u2069\x9b\u200f")
    piped = await place.holdfast("run", "go", *how)
    if how == ("--json",):
        last = json.loads(piped.out.splitlines()[-1])
        assert last["output"] == HIDDEN and HIDDEN in piped.out
    else:
        assert piped.out == f"{HIDDEN}\n"


async def test_an_interrupt_stops_the_run(place: Place, server: ModelServer) -> None:
    server.then(calls(call("list_files", "{}")), stream(token_of("thinking"), Wait()))
    async with place.started("run", "do it") as process:
        await read_until(process.stderr, "→ list_files")
        await server.asked(2)
        process.send_signal(signal.SIGINT)
        err = await read_all(process.stderr)
        assert await process.wait() == 130
    assert "stopping" in err
    assert "the run was stopped" in err


async def test_an_interrupt_is_not_lost_whenever_it_comes(
    place: Place, server: ModelServer
) -> None:
    server.then(stream(token_of("thinking"), Wait()))
    async with place.started("run", "do it") as process:
        await server.asked(1)  # just when the run's id comes back
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130


async def test_a_second_interrupt_leaves_at_once_and_says_how_to_come_back(
    place: Place, server: ModelServer
) -> None:
    server.then(calls(call("list_files", "{}")), stream(token_of("thinking"), Wait()))
    async with place.started("gateway", "run", "--port", "0") as gateway:
        await read_until(gateway.stderr, "ready on")
        async with place.started("run", "do it") as client:
            await read_until(client.stderr, "→ list_files")
            gateway.send_signal(signal.SIGSTOP)
            client.send_signal(signal.SIGINT)
            await read_until(client.stderr, "stopping")
            client.send_signal(signal.SIGINT)
            err = await read_all(client.stderr)
            assert await client.wait() == 130
        gateway.send_signal(signal.SIGCONT)
        run_id = err.rpartition("holdfast runs ")[2].strip()
        listed = await place.holdfast("runs")
        assert listed.out.split()[0] == run_id


async def test_an_owner_that_is_killed_is_replaced_and_the_run_goes_on(
    place: Place, server: ModelServer
) -> None:
    server.then(stream(token_of("half an ans"), Wait()))
    server.then(say("the whole answer"))
    async with place.started("gateway", "run", "--port", "0") as gateway:
        await read_until(gateway.stderr, "ready on")
        async with place.started("run", "do it", "--json") as client:
            out = await read_until(client.stdout, "half an ans")
            gateway.kill()
            out += await read_all(client.stdout)
            assert await client.wait() == 0, await read_all(client.stderr)
    events = [json.loads(line) for line in out.splitlines()]
    assert "message.void" in [event["event"] for event in events]
    assert events[-1]["output"] == "the whole answer"
    assert len(server.requests) == 2

    again = await place.holdfast("runs", events[0]["run_id"])
    assert (again.code, again.out) == (0, "the whole answer\n")
    assert notes.CONNECTION_LOST in again.err


async def test_a_cut_answer_is_not_written_to_a_pipe(place: Place, server: ModelServer) -> None:
    server.then(stream(token_of("half an ans"), Abort()))
    server.then(say("the whole answer"))
    result = await place.holdfast("run", "do it")
    assert (result.code, result.out) == (0, "the whole answer\n")
    assert notes.CONNECTION_LOST in result.err
    assert "attempt 2" in result.err


@pytest.mark.usefixtures("server")
async def test_a_model_that_is_asked_for_and_not_served_is_a_usage_error(place: Place) -> None:
    async with place.started("gateway", "run", "--port", "0") as gateway:
        await read_until(gateway.stderr, "ready on")
        refused = await place.holdfast("run", "hi", "--model", "groq/other")
        assert (refused.code, refused.out) == (2, "")
        assert refused.err == (
            "holdfast: the server of this home uses openai/fake, not groq/other: "
            "leave --model out, or stop that server first\n"
        )
        assert (await place.holdfast("runs")).out == ""
        served = await place.holdfast("run", "say:hi", "--model", "openai/fake")
        assert (served.code, served.out, served.said) == (0, "hi\n", "")
        same = await place.holdfast("run", "say:ho", "--model", "openai/other")
        assert (same.code, same.out, same.said) == (0, "ho\n", "")


@pytest.mark.usefixtures("server")
async def test_a_model_of_the_environment_that_is_not_served_is_only_told(place: Place) -> None:
    async with place.started("gateway", "run", "--port", "0") as gateway:
        await read_until(gateway.stderr, "ready on")
        place.environ["HOLDFAST_MODEL"] = "openai/other"
        result = await place.holdfast("run", "say:hi")
    assert (result.code, result.out) == (0, "hi\n")
    assert result.said == f"{notes.other_model('openai/other', 'openai/fake')}\n"


async def test_a_requested_model_is_used_if_no_server_has_another(
    place: Place, server: ModelServer
) -> None:
    result = await place.holdfast("run", "say:hi", "--model", "openai/other")
    assert (result.code, result.out, result.said) == (0, "hi\n", "")
    assert server.requests[0].body["model"] == "other"


async def test_two_terminals_share_one_engine(place: Place, server: ModelServer) -> None:
    gate = Wait()
    server.then(stream(token_of("first"), gate, finish(), DONE))
    async with place.started("run", "one") as first:
        await server.asked(1)
        second = await place.holdfast("run", "say:second")
        assert (second.code, second.out) == (0, "second\n")
        gate.gate.set()
        assert await first.wait() == 0
