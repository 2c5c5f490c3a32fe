"""`holdfast sandbox`: how well commands are confined, and the word that work may go on."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.cli import help
from holdfast.cli.ops import sandbox
from tests.bwrap import hide_package
from tests.cli import Place, read_all, read_until, terminal
from tests.cli.door import RUN, Door
from tests.fakes.model_server import serve

pytestmark = pytest.mark.anyio

HELD = "commands were confined at L2 and now are at L1; to go on all the same: …"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    place = Place(tmp_path)
    async with serve() as server:
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "HOLDFAST_MODEL": "openai/fake"}
        yield place


def weaken(place: Place) -> None:
    """From now on there is no bubblewrap."""
    programs = place.root / "bin"
    programs.mkdir()
    for folder in reversed(os.get_exec_path()):
        for program in Path(folder).glob("*"):
            link = programs / program.name
            link.unlink(missing_ok=True)
            if program.name not in ("bwrap", "podman"):
                link.symlink_to(program)
    place.environ |= {"PATH": str(programs), "PYTHONPATH": hide_package(place.root)}


async def test_without_an_owner_it_is_tried_and_nothing_is_made(place: Place) -> None:
    shown = await place.holdfast("sandbox")
    assert shown.code == 0
    assert shown.out.splitlines()[0] in ("level   L0", "level   L1", "level   L2")
    assert sandbox.TESTED_HERE in shown.err
    found = json.loads((await place.holdfast("sandbox", "show", "--json")).out)
    assert found["level"] == shown.out.split()[1]
    assert found["paused"] == ""
    assert not (place.home / "journal.db").exists()


async def test_the_owner_is_asked_what_it_has_found(place: Place, front: Door) -> None:
    front.health = {"sandbox": {"level": "L1", "note": "L1: Landlock"}, "paused": HELD}
    shown = await place.holdfast("sandbox")
    assert (shown.code, shown.err) == (1, "")
    assert shown.out == f"level   L1\nnote    Landlock\npaused  no work is done: {HELD}\n"
    found = json.loads((await place.holdfast("sandbox", "--json")).out)
    assert found == {"level": "L1", "note": "L1: Landlock", "paused": HELD}


async def test_through_a_pipe_a_run_that_is_held_is_kept_and_the_command_ends_with_75(
    place: Place, front: Door
) -> None:
    front.health["paused"] = HELD
    for args in (("run", "work"), ("run", "work", "--json")):
        held = await place.holdfast(*args)
        assert (held.code, held.out) == (75, "")
        assert held.err == (
            f"holdfast: run {RUN} is kept and held: {HELD}; then: holdfast runs {RUN}\n"
        )


async def test_an_ended_run_is_not_held(place: Place, front: Door) -> None:
    front.health["paused"] = HELD
    front.status = "completed"
    async with place.started("runs", RUN) as process:
        await front.checked.wait()
        front.say("run.completed", output="done")
        assert await read_all(process.stdout) == "done\n"
        assert await process.wait() == 0


async def test_on_a_terminal_a_run_that_is_held_is_told_of_and_waited_for(
    place: Place, front: Door
) -> None:
    front.health["paused"] = HELD
    for args in ((), ("run", "work")):
        async with terminal(place, *args) as screen:
            if not args:
                await screen.read_until("› ")
                await screen.type("work\n")
            assert "… held: commands were confined" in await screen.read_until("stops the run)")
            front.say("run.completed", output="done")
            await screen.read_until("done")
        front.forget()


@pytest.mark.debian("bwrap")
async def test_a_weaker_sandbox_holds_work_until_it_is_accepted(place: Place) -> None:
    assert (await place.holdfast("run", "say:before")).out == "before\n"
    assert json.loads((await place.holdfast("sandbox", "--json")).out)["level"] == "L2"
    weaken(place)
    held = await place.holdfast("run", "say:after")
    assert (held.code, held.out) == (75, "")
    assert "is kept and held: commands were confined at L2 and now are at " in held.err
    assert "holdfast sandbox accept" in held.err
    run_id = held.err.split()[2]
    alone = await place.holdfast("sandbox")
    assert alone.code == 1
    assert "paused  no work is done: commands were confined at L2" in alone.out
    assert sandbox.TESTED_HERE in alone.err
    report = json.loads((await place.holdfast("doctor", "--json")).out)
    check = next(check for check in report["checks"] if check["name"] == "sandbox")
    assert "no work is done: commands were confined at L2" in check["finding"]
    assert "holdfast sandbox accept" in check["next_step"]

    async with place.started("gateway", "run", "--port", "0") as gateway:
        await read_until(gateway.stderr, "ready on")
        shown = await place.holdfast("sandbox")
        assert shown.code == 1
        assert "paused  no work is done: commands were confined at L2" in shown.out
        accepted = await place.holdfast("sandbox", "accept")
        assert accepted.code == 0
        assert accepted.out.startswith("accepted: ")
        assert (await place.holdfast("runs", run_id)).out == "after\n"
        assert (await place.holdfast("sandbox")).code == 0
        gateway.terminate()
        await read_all(gateway.stderr)
    again = await place.holdfast("run", "say:on")
    assert (again.code, again.out) == (0, "on\n")


@pytest.mark.debian("bwrap")
async def test_the_sandbox_can_be_accepted_without_a_gateway(place: Place) -> None:
    nothing = await place.holdfast("sandbox", "accept")
    assert (nothing.code, sandbox.NOT_ON_HOLD in nothing.out) == (0, True)
    weaken(place)
    run_id = (await place.holdfast("run", "say:after")).err.split()[2]
    accepted = await place.holdfast("sandbox", "accept")
    assert accepted.code == 0
    assert sandbox.TO_CONTINUE in accepted.out
    assert (await place.holdfast("runs", run_id)).out == "after\n"


async def test_the_help_says_what_a_level_is_and_what_is_held(place: Place) -> None:
    assert "sandbox" in (await place.holdfast("--help")).out
    text = (await place.holdfast("sandbox", "--help")).out
    assert "holdfast sandbox accept" in text
    assert help.SANDBOX in text
    assert "exit code is 75" in (await place.holdfast("run", "--help")).out
