"""Exiting a real terminal, even if something hangs (HALT-05, HALT-06)."""

import time
from pathlib import Path

import pytest

from holdfast.cli.tui import status
from tests.behaviour.desk import Desk, begin, desk, gated, sleeper
from tests.behaviour.hands import gone, running
from tests.fakes.screen import Screen

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

LEFT_S = 5.0
SAID_S = 1.0


async def _leave(it: Screen, how: str) -> tuple[float, float]:
    """Seconds from the key that leaves to the word about it, and to the end."""
    if how == "/quit":
        await it.type("/quit")
        await it.until("› /quit")
    elif how == "C-c":
        await it.key("C-c")
        await it.until("Ctrl-C again leaves")
    began = time.monotonic()
    await it.key("Enter" if how == "/quit" else how)
    await it.until("Shutting down…")
    said = time.monotonic() - began
    assert await it.ended() == 0
    return said, time.monotonic() - began


def _stubborn() -> tuple[str, str]:
    """A command that no polite signal ends, and what tells its processes from others."""
    command, token = sleeper()
    return f"trap '' TERM INT HUP; while :; do {command}; done", token


@pytest.mark.promise("HALT-05")
@pytest.mark.parametrize("how", ["C-d", "/quit", "C-c"])
async def test_leaving_a_command_that_ignores_every_polite_signal_leaves_nothing_of_it(
    alone: Desk, how: str
) -> None:
    command, token = _stubborn()
    async with alone.terminal() as it:
        await begin(it, command)
        await running(token)
        said, left = await _leave(it, how)
        await gone(token, 1)
    assert said <= SAID_S, said
    assert left <= LEFT_S, left


@pytest.mark.promise("HALT-05", "HALT-06")
@pytest.mark.parametrize("tool", ["cling", "wedge"])
async def test_leaving_a_cleanup_or_a_thread_that_never_ends_takes_its_time_and_no_more(
    alone: Desk, tool: str
) -> None:
    async with alone.terminal() as it:
        await it.say(f"tool:{tool} {{}}")
        await it.until(f"{tool}  ")
        said, left = await _leave(it, "C-d")
        assert status.RUN_KEPT in await it.text()
    assert said <= SAID_S, said
    assert left <= LEFT_S, left


@pytest.mark.promise("HALT-05", "HALT-06")
async def test_leaving_takes_no_longer_if_everything_hangs_at_once(alone: Desk) -> None:
    command, token = _stubborn()
    async with alone.terminal() as it:
        await begin(it, command)
        await running(token)
        for tool in ("cling", "wedge", "explode"):
            await alone.run(f"tool:{tool} {{}}", until="tool.started")
        said, left = await _leave(it, "C-c")
        await gone(token, 1)
    assert said <= SAID_S, said
    assert left <= LEFT_S, left


@pytest.mark.promise("HALT-05")
async def test_leaving_a_gateway_is_at_once_and_what_is_at_work_goes_on(tmp_path: Path) -> None:
    async with desk(tmp_path, served=True) as at:
        reply, gate = gated("on and on")
        at.model.then(reply)
        async with at.terminal() as it:
            await it.say("go")
            await it.until("on and on")
            began = time.monotonic()
            await it.key("C-d")
            assert await it.ended() == 0
            left = time.monotonic() - began
            shown = await it.text()
            assert status.RUN_CONTINUES in shown
            assert "Shutting down" not in shown
        gate.set()
        (run,) = (await at.gateway.get("/v1/runs"))[1]["data"]
        assert (await at.gateway.finished(run["run_id"]))["output"] == "on and on"
    assert left <= LEFT_S, left
