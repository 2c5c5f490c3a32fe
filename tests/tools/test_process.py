"""The process tool: list, read, feed and kill a session's background processes."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace

from holdfast.core.redaction import REDACTED
from holdfast.core.run.process import ProcessEnd, ProcessEnded
from holdfast.core.types import Owner, ProcessId, SessionId, SessionKey
from holdfast.errors import ToolFailed
from holdfast.tools import process
from holdfast.tools.exec import shim
from holdfast.tools.exec.commands import NO_MORE_INPUT
from holdfast.tools.process import MAX_OUTPUT, TAIL_ONLY, WRITE_S, ProcessArguments
from holdfast.tools.tool import Outcome, ToolAllowed, Unknown, schema
from tests.fakes.clock import ManualClock
from tests.tools.exec.test_commands import RUNGS, SECRET, Desk, desk, read

pytestmark = pytest.mark.anyio


async def ask(it: Desk, action: str, process_id: str = "", **more: Any) -> dict[str, Any]:
    return read(await outcome(it, action, process_id, **more))


async def outcome(it: Desk, action: str, process_id: str = "", **more: Any) -> Outcome:
    (tool,) = process.tools(it.hands)
    asked = msgspec.convert({"action": action, "process_id": process_id, **more}, ProcessArguments)
    return await tool.run(it.context("look"), asked)


def write_down(it: Desk, ended: ProcessEnded) -> None:
    """What the engine does when a process has ended."""
    found = it.processes[ended.process_id]
    it.processes[ended.process_id] = replace(found, ended=ended)


@RUNGS
async def test_a_process_is_polled_written_to_and_waited_for(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        found = await it.begin("echo hello; read x; echo got $x; cat; exit 3", stdin_open=True)
        await it.hands.lines(found, 0, ("hello",))
        first = await ask(it, "poll", found)
        assert (first["status"], first["output"]) == ("running", "hello\n")
        assert "exit_code" not in first
        assert (await ask(it, "poll", found))["output"] == ""
        assert (await ask(it, "write", found, text=SECRET))["written_bytes"] == len(SECRET) + 1
        await ask(it, "write", found, text="raw", enter=False)
        await ask(it, "close", found)
        end = await ask(it, "wait", found)
        assert (end["status"], end["exit_code"], end["how"]) == ("ended", 3, "exit code 3")
        assert end["output"] == f"hello\ngot {REDACTED}\nraw"
        last = await ask(it, "poll", found)
        assert (last["status"], last["exit_code"]) == ("ended", 3)
        assert last["output"] == f"got {REDACTED}\nraw"


@RUNGS
async def test_a_process_is_killed_with_all_it_started(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        found = await it.begin("(sleep 1000 & echo begun; sleep 1000) | cat; true")
        await it.hands.lines(found, 0, ("begun",))
        end = await ask(it, "kill", found)
        assert (end["status"], end["how"], end["output"]) == (
            "ended",
            "killed on request",
            "begun\n",
        )
        assert await ask(it, "kill", found) == end


async def test_a_wait_that_takes_too_long_says_so(tmp_path: Path) -> None:
    clock = ManualClock()
    async with desk(tmp_path, clock=clock) as it:
        found = await it.begin("sleep 1000", stdin_open=True)
        async with anyio.create_task_group() as group:

            async def later() -> None:
                await clock.due_within(60)
                clock.advance(60)

            group.start_soon(later)
            got = await ask(it, "wait", found)
        assert (got["status"], got["timed_out"]) == ("running", True)


async def test_all_of_a_log_can_be_read_page_by_page(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("seq 20000")
        await it.hands.ended(found)
        text, at = "", 0
        while True:
            page = await ask(it, "log", found, offset=at)
            assert len(page["output"]) <= MAX_OUTPUT + 100  # what might have been a secret
            if not page["output"]:
                break
            text, at = text + page["output"], page["next_offset"]
        assert text == "".join(f"{n}\n" for n in range(1, 20001))
        assert at == page["output_bytes"]
        last = await ask(it, "log", found, offset=-6, limit=5)
        assert (last["output"], last["offset"]) == ("20000", at - 6)


async def test_a_poll_of_much_output_shows_the_last_of_it(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("seq 100000")
        await it.hands.ended(found)
        got = await ask(it, "poll", found)
        assert got["output"].endswith("\n100000\n")
        assert len(got["output"]) == MAX_OUTPUT
        assert got["not_shown_bytes"] == 588_895 - MAX_OUTPUT


async def test_dropped_output_is_skipped_in_a_log(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin(f"yes | head -c {shim.KEPT + 2**20}")
        await it.hands.ended(found)
        got = await ask(it, "log", found, offset=shim.HEAD)
        assert got["offset"] > shim.HEAD
        assert set(got["output"]) == set("y\n")


async def test_a_secret_in_pieces_is_in_no_poll(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("cat", stdin_open=True)
        texts = []
        for piece in (f"a {SECRET[:9]}", SECRET[9:], " b\n"):
            before = it.hands.output(found).size
            await it.hands.write(found, piece.encode())
            with anyio.fail_after(20):
                while it.hands.output(found).size == before:
                    await anyio.lowlevel.checkpoint()
            texts.append((await ask(it, "poll", found))["output"])
        assert texts == ["a ", REDACTED, " b\n"]


async def test_the_list_has_the_sessions_processes(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        assert await ask(it, "list") == {"processes": []}
        one = await it.begin("exit 2", "one")
        two = await it.begin("cat", "two", stdin_open=True)
        await it.hands.ended(one)
        first, second = (await ask(it, "list"))["processes"]
        assert (first["process_id"], first["command"]) == (one, "exit 2")
        assert (first["status"], first["exit_code"]) == ("ended", 2)
        assert (second["process_id"], second["status"]) == (two, "running")
        assert second["runtime_s"] >= 0


async def test_a_process_that_the_journal_does_not_have_yet_is_known(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("cat", stdin_open=True)
        it.processes.clear()
        assert (await ask(it, "poll", found))["status"] == "running"
        (only,) = (await ask(it, "list"))["processes"]
        assert (only["process_id"], only["command"]) == (found, "cat")


async def test_a_process_of_another_session_is_not_found(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        mine = await it.begin("cat", "mine", stdin_open=True)
        other = SessionKey(Owner("operator"), SessionId("other"))
        (tool,) = process.tools(it.hands)
        context = it.context(session=other, processes={})
        for action in ("poll", "log", "wait", "kill", "write", "close"):
            asked = msgspec.convert({"action": action, "process_id": mine}, ProcessArguments)
            with pytest.raises(ToolFailed, match="It has: none"):
                await tool.run(context, asked)
        with pytest.raises(ToolFailed, match=mine):
            await outcome(it, "poll", "proc_unknown")
        assert (await ask(it, "poll", mine))["status"] == "running"


async def test_an_ended_process_accepts_no_input(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("true")
        await it.hands.ended(found)
        for action in ("write", "close"):
            with pytest.raises(ToolFailed, match="no input"):
                await outcome(it, action, found)


@RUNGS
@pytest.mark.fault("F-33")
async def test_input_from_the_start_cannot_be_cut_or_extended(tmp_path: Path, rung: str) -> None:
    """A pipe takes 64 KiB: closed then, the last line would end where the model wants it to."""
    line = "echo evil > effect"
    stdin = line.rjust(2**16, "\n") + "-less; echo good > effect\n"
    async with desk(tmp_path, rung) as it:
        found = await it.begin("echo up; until test -e go; do sleep 0.05; done; bash", stdin=stdin)
        await it.hands.lines(found, 0, ("up",))
        for action in ("close", "write"):
            with pytest.raises(ToolFailed, match=NO_MORE_INPUT):
                await outcome(it, action, found, text="echo evil > effect")
        (it.workspace / "go").touch()
        assert (await ask(it, "wait", found))["exit_code"] == 0
        assert (it.workspace / "effect").read_text() == "good\n"


async def test_a_write_that_the_process_does_not_read_times_out(tmp_path: Path) -> None:
    clock = ManualClock()
    async with desk(tmp_path, clock=clock) as it:
        found = await it.begin("sleep 1000", stdin_open=True)
        async with anyio.create_task_group() as group:

            async def later() -> None:
                await clock.due_within(WRITE_S)
                clock.advance(WRITE_S)

            group.start_soon(later)
            got = await outcome(it, "write", found, text="x" * 200_000)
        assert isinstance(got, Unknown)


async def test_after_a_restart_an_end_is_read_from_the_journal(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("seq 2000; exit 5")
        ended = await it.hands.ended(found)
        journal = it.processes
    async with desk(tmp_path) as it:
        it.processes = journal
        write_down(it, ended)
        assert (await ask(it, "wait", found))["exit_code"] == 5
        assert (await ask(it, "log", found, limit=4))["output"] == "1\n2\n"
        it.hands.forget(found)
        got = await ask(it, "poll", found)
        assert (got["status"], got["exit_code"], got["output"]) == ("ended", 5, ended.tail)
        assert (await ask(it, "log", found))["note"] == TAIL_ONLY
        assert (await ask(it, "kill", found))["output"] == ended.tail
        (only,) = (await ask(it, "list"))["processes"]
        assert only["status"] == "ended"


async def test_the_journals_record_of_the_end_has_priority(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("sleep 1000", stdin_open=True)
        await it.hands.kill(found)
        write_down(it, ProcessEnded(process_id=found, cause=ProcessEnd.RESTART))
        assert (await ask(it, "poll", found))["how"] == "killed by the restart of the gateway"


async def test_after_a_crash_every_action_but_input_is_repeated(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("cat", stdin_open=True)
        (tool,) = process.tools(it.hands)
        assert tool.adopt is not None
        for action in ("write", "close"):
            asked = msgspec.convert({"action": action, "process_id": found}, ProcessArguments)
            assert isinstance(await tool.adopt(it.context("look"), asked), Unknown)
        assert it.hands.output(found).size == 0
        for action, status in (("poll", "running"), ("kill", "ended"), ("wait", "ended")):
            asked = msgspec.convert({"action": action, "process_id": found}, ProcessArguments)
            assert read(await tool.adopt(it.context("look"), asked))["status"] == status
        assert isinstance(await tool.permit(it.context(), ProcessArguments("list")), ToolAllowed)


def test_the_schema_lists_all_arguments() -> None:
    found = schema(ProcessArguments)
    assert found["required"] == ["action"]
    assert found["additionalProperties"] is False


def test_the_preview_is_one_line() -> None:
    assert (
        process.preview(ProcessArguments("write", ProcessId("proc_1"), "a\nb"))
        == "write proc_1 'a\\nb'"
    )
    assert process.preview(ProcessArguments("list")) == "list"
