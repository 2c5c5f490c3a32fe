"""Shutdown with chats: in time whatever a platform does, and all work continues afterwards."""

import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio
import pytest

from holdfast.commands import status
from tests.crash.chatter import USER, Ends, ends, room, speaker
from tests.crash.evidence import ask_for, facts, user_texts
from tests.fakes.model_server import Ask, Reply, Wait, finish, say, stream, token
from tests.fakes.telegram import Call, Fault, Hold

pytestmark = pytest.mark.anyio

PROMISED_S = 10.0
PATIENCE_S = 60.0
RUNS = 50


def _at_last(ask: Ask) -> Reply:
    """The model in the next life: it has no more wishes."""
    return say("at last")


async def _wedge(over: Ends) -> None:
    """From now on Telegram takes nothing and says nothing: a send hangs there, and a poll."""
    hanging: set[str] = set()

    def swallow(call: Call) -> Fault | None:
        if call.method == "getUpdates" and "sendMessage" not in hanging:
            return None  # else nothing could be heard that is to be answered
        hanging.add(call.method)
        return Hold(after=False)

    over.telegram.weather = swallow
    for method in ("sendMessage", "getUpdates"):
        over.telegram.say(over.telegram.private(USER), "/status")
        await _until(over, partial(hanging.__contains__, method))


def _say(over: Ends, number: int, text: str) -> None:
    """Half of them speak here, half there."""
    if number % 2:
        over.platform.say(room(number), speaker(number), text)
    else:
        over.telegram.say(over.telegram.private(USER + number), text)


def _heard(over: Ends, number: int, text: str) -> bool:
    if number % 2:
        return any(text in shown.text for shown in over.platform.shown(room(number)))
    chat = over.telegram.private(USER + number)
    return any(text in message["text"] for message in over.telegram.sent(chat))


async def _until(over: Ends, done: Callable[[], object]) -> None:
    """Until something is so that the gateway does: it calls nobody."""
    try:
        with anyio.fail_after(PATIENCE_S):
            while not done():
                await over.it.get("/health")
    except TimeoutError:
        calls = [(call.method, call.status) for call in over.telegram.calls[-10:]]
        raise AssertionError(f"{calls}\n" + "\n".join(over.it.lines[-30:])) from None


@pytest.mark.fault("F-16")
@pytest.mark.promise("STOP-05")
@pytest.mark.timeout(180)
async def test_fifty_chats_ten_tools_and_a_wedged_platform_do_not_hold_the_exit(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    tools = [ask_for(tool) for tool in ("hang", "wedge") for _ in range(5)]
    async with ends(tmp_path, RUNS) as over:
        await over.it.start()
        await over.up()
        for number, text in enumerate([*tools, *["stall:3"] * (RUNS - len(tools))]):
            _say(over, number, text)
        await _until(over, lambda: len(over.model.requests) >= RUNS)
        await _until(over, lambda: len(facts(over.it.home, "call.started")) == len(tools))
        await _wedge(over)
        began = time.monotonic()
        over.it.signal(signal.SIGTERM)
        assert await over.it.ended() == 0
        took = time.monotonic() - began
        record_property("exit_with_50_chats_s", round(took, 3))
        assert took <= PROMISED_S, took
        assert len(facts(over.it.home, "run.interrupted")) == RUNS
        over.telegram.weather = lambda _: None
        over.model.otherwise = _at_last
        await over.it.start()
        await over.up()
        await _until(over, lambda: all(_heard(over, n, "at last") for n in range(RUNS)))
        assert _heard(over, 0, status.BUSY_MODE.format(mode="")), "the command is answered too"
        assert len(facts(over.it.home, "run.completed")) == RUNS
        unknown = [f for f in facts(over.it.home, "call.settled") if f["outcome"] == "unknown"]
        assert len(unknown) == len(tools)
        assert not facts(over.it.home, "run.failed", "run.cancelled")


@pytest.mark.promise("STOP-14")
async def test_a_message_during_a_drain_is_answered_after_the_start(
    tmp_path: Path,
) -> None:
    gate = anyio.Event()
    async with ends(tmp_path, 4, "[gateway]\ndrain_s = 30\n") as over:
        over.model.then(stream(token("in "), Wait(gate), token("time"), finish()))
        await over.it.start()
        await over.up()
        _say(over, 0, "hold on")
        await _until(over, lambda: len(over.model.requests) == 1)
        over.it.signal(signal.SIGTERM)
        await over.it.said("1 running, waiting up to 30 s")
        status, refusal = await over.it.post("/v1/runs", {"input": "too late"})
        assert (status, refusal["error"]["code"]) == (503, "gateway_draining")
        said = [f"say:while draining {number}" for number in range(4)]
        for number, text in enumerate(said):  # the first behind what is at work
            _say(over, number, text)
        _say(over, 2, "/status")
        await _until(over, lambda: not (over.telegram.pending or over.platform.pending))
        kept = [f["text"] for f in facts(over.it.home, "input.admitted")]
        assert sorted(kept) == sorted(["hold on", *said])
        await _until(over, lambda: _heard(over, 2, "The gateway is draining."))
        assert len(over.model.requests) == 1, "nothing of it is driven"
        assert over.it.alive
        gate.set()
        assert await over.it.ended() == 0
        assert _heard(over, 0, "in time")
        assert len(facts(over.it.home, "run.started")) == 1
        assert not facts(over.it.home, "run.interrupted")
        await over.it.start()
        await over.up()
        await _until(over, lambda: all(_heard(over, n, f"while draining {n}") for n in range(4)))
        asked = [user_texts(over.model, n)[-1] for n in range(1, len(over.model.requests))]
        assert sorted(asked) == sorted(said)
