"""The terminal tool, by real commands on every rung: what runs, what is told, what is left."""

import hashlib
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from holdfast.core.execution import Opaque, Parsed, Wants, execution_hash
from holdfast.core.process import Cause, name
from holdfast.core.redaction import REDACTED, Redactor
from holdfast.core.run import Origin
from holdfast.core.types import CallId
from holdfast.errors import ToolFailed
from holdfast.tools import spawn, terminal
from holdfast.tools.hands import Hands
from holdfast.tools.sandbox import Level
from holdfast.tools.spawn import Ended
from holdfast.tools.terminal import MAX_OUTPUT, Terminal
from holdfast.tools.tool import Context, Denied, Done, Failed, Judge, Unknown, schema
from tests.fakes.clock import ManualClock
from tests.tools.test_hands import RUN, RUNGS, SECRET, Bare, Desk, desk, fifo, read

pytestmark = pytest.mark.anyio


async def judged(it: Desk, command: str, context: Context | None = None, **asked: Any) -> Judge:
    found = await it.terminal.permit(context or it.context(), Terminal(command, **asked))
    assert isinstance(found, Judge)
    return found


@RUNGS
async def test_output_and_exit_code_are_told(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        found = await it.result("echo out; echo err >&2; pwd; exit 3")
        assert found == {"exit_code": 3, "output": f"out\nerr\n{it.workspace}\n"}


@RUNGS
async def test_what_was_read_as_words_runs_as_words(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        found = await it.result("echo 'a  b' \"c\" && ls /nowhere | cat")
        assert found["output"].startswith("a  b c\n")
        assert "/nowhere" in found["output"]
        assert found["exit_code"] == 0


async def test_a_program_that_is_not_there_fails_like_in_a_shell(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.result("no-such-program --at all")
        assert found["exit_code"] == 127
        assert "no-such-program: command not found" in found["output"]


async def test_line_numbers_in_errors_are_right(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        assert "line 2" in (await it.result("true\nno-such-program"))["output"]


@RUNGS
async def test_the_directory_is_kept_from_one_command_to_the_next(
    tmp_path: Path, rung: str
) -> None:
    async with desk(tmp_path, rung) as it:
        outcome = await it.run("mkdir -p a/b && cd a/b; exit 5")
        assert isinstance(outcome, Done)
        assert outcome.cwd == str(it.workspace / "a" / "b")
        assert read(outcome) == {"exit_code": 5, "output": "", "cwd": outcome.cwd}
        context = it.context("next", cwd=outcome.cwd)
        after = await it.execute(context, Terminal("pwd"))
        assert read(after) == {"exit_code": 0, "output": f"{outcome.cwd}\n"}
        assert isinstance(after, Done)
        assert after.cwd == ""


async def test_what_we_add_to_a_line_does_not_show(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        assert (await it.result("set -x; cd .; exit 3", "one"))["output"] == "+ cd .\n+ exit 3\n"
        found = await it.result("trap 'echo mine' EXIT; false", "two")
        assert found == {"exit_code": 1, "output": "mine\n"}
        found = await it.result("exec seq 1", "three")
        assert found == {"exit_code": 0, "output": "1\n"}


async def test_the_directory_never_leaves_the_workspace(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        (it.workspace / "link").symlink_to("/usr")
        for call, command in enumerate(("cd /usr", "cd link", "cd ..")):
            outcome = await it.run(command, str(call))
            assert isinstance(outcome, Done)
            assert outcome.cwd == ""
            assert "not in the workspace" in read(outcome)["note"]


async def test_a_directory_that_is_gone_is_replaced_by_the_workspace(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        for call, gone in enumerate((it.workspace / "gone", Path("/usr"))):
            context = it.context(str(call), cwd=str(gone))
            outcome = await it.execute(context, Terminal("pwd"))
            assert isinstance(outcome, Done)
            found = read(outcome)
            assert found["output"] == f"{it.workspace}\n"
            assert "gone" in found["note"]
            assert outcome.cwd == str(it.workspace)


async def test_a_command_may_have_a_directory_of_its_own(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        (it.workspace / "sub").mkdir()
        (it.workspace / "file").touch()
        (it.workspace / "link").symlink_to("/usr")
        outcome = await it.run("pwd", workdir="sub")
        assert read(outcome)["output"] == f"{it.workspace}/sub\n"
        assert isinstance(outcome, Done)
        assert outcome.cwd == ""
        for bad in ("..", "/usr", "link", "file", "none"):
            with pytest.raises(ToolFailed, match="workdir"):
                await it.run("pwd", workdir=bad)
            with pytest.raises(ToolFailed, match="workdir"):
                await judged(it, "pwd", workdir=bad)


async def test_long_output_is_shown_from_both_ends(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.result("seq 100000")
        text = found["output"]
        assert text.startswith("1\n2\n3\n")
        assert text.endswith("\n99999\n100000\n")
        assert len(text.encode()) <= MAX_OUTPUT
        head, _, rest = text.partition("\n[… ")
        left, _, tail = rest.partition(" bytes not shown …]\n")
        assert (found["truncated"], found["output_bytes"]) == (True, 588_895)
        assert int(left) + len(head) + len(tail) == 588_895
        lines = [*head.split("\n"), *tail.split("\n")[:-1]]
        assert all(int(a) < int(b) for a, b in zip(lines, lines[1:], strict=False))


async def test_output_that_fits_is_whole_and_binary_is_bounded(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.result(f"yes | head -c {MAX_OUTPUT}", "one")
        assert found == {"exit_code": 0, "output": "y\n" * (MAX_OUTPUT // 2)}
        found = await it.result("head -c 30000 /dev/zero | tr '\\0' '\\377'", "two")
        assert found["truncated"]
        assert len(found["output"].encode()) <= MAX_OUTPUT
        text = (await it.result("head -c 30000 /dev/zero; printf '\\33[1mx'", "three"))["output"]
        assert len(msgspec.json.encode(text)) <= MAX_OUTPUT + 100
        assert text.endswith("\ufffd\x1b[1mx")


@RUNGS
async def test_a_secret_is_in_no_result_wherever_it_is_cut(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        for call, before in enumerate(range(MAX_OUTPUT // 2 - 64 - 30, MAX_OUTPUT // 2 - 60, 7)):
            (it.workspace / "text").write_text(" " * before + f"{SECRET} " * 3000)
            text = (await it.result("cat text", str(call)))["output"]
            assert "sesame" not in text
            assert "the-door" not in text
            assert text.count(REDACTED) > 100


async def test_a_secret_written_in_two_pieces_is_in_no_progress(tmp_path: Path) -> None:
    clock = ManualClock()
    async with desk(tmp_path, clock=clock) as it:
        first, rest = SECRET[:9], SECRET[9:]
        script = f"printf 'begin {first}'; read x < go; printf '{rest} end\\n'; read x < on"
        with fifo(it.workspace / "go") as go, fifo(it.workspace / "on") as on:
            async with anyio.create_task_group() as group:
                group.start_soon(it.run, script)
                await shown(it, clock, "begin ")
                os.write(go, b"\n")
                await shown(it, clock, " end\n")
                os.write(on, b"\n")
        assert "".join(it.said) == f"begin {REDACTED} end\n"
        assert len(it.said) == 2


async def shown(it: Desk, clock: ManualClock, text: str) -> None:
    """Let time pass until it has been told."""
    with anyio.fail_after(20):
        while text not in "".join(it.said):
            await clock.due_within(0.25)
            clock.advance(0.25)
            await anyio.lowlevel.checkpoint()


async def test_what_a_command_says_is_told_on_its_way_and_once(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.result("for i in 1 2 3; do echo $i; sleep 0.3; done; printf 4")
        assert "".join(it.said) == found["output"] == "1\n2\n3\n4"
        assert len(it.said) > 1


@RUNGS
async def test_a_terminal_on_request(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        script = "test -t 0 && test -t 1 && stty size; read line; echo got $line; cat; echo end"
        found = await it.result(script, pty=True, stdin="hello\n")
        assert "24 80" in found["output"]
        assert "got hello" in found["output"]
        assert found["output"].endswith("end\r\n")


@RUNGS
async def test_input_is_given_whole_and_then_ends(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        long = "a line of many\n" * 20_000  # more than a pipe holds
        found = await it.result("cat | tail -c 15; echo end", "one", stdin=long)
        assert found["output"] == "a line of many\nend\n"
        assert (await it.result("cat; echo end", "two"))["output"] == "end\n"
        assert (await it.result("true", "three", stdin=long))["exit_code"] == 0


@RUNGS
async def test_a_command_that_takes_too_long_is_killed_and_its_output_told(
    tmp_path: Path, rung: str
) -> None:
    async with desk(tmp_path, rung) as it:
        found = await it.result("echo begun; sleep 1000", timeout=1)
        assert found["output"] == "begun\n"
        assert found["error"] == "timed out after 1 s"


async def test_a_command_that_takes_too_much_memory_is_killed(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        (limited,) = terminal.tools(it.hands, memory_mb=100)
        greedy = "python3 -I -c 'x = []\nwhile True: x.append(bytes(1) * 2**20)'"
        it.terminal = limited
        found = await it.result(greedy)
        assert found["error"] == "killed: memory"


async def test_a_signal_is_told(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.result("kill -9 $$")
        assert (found["exit_code"], found["signal"]) == (None, signal.SIGKILL)


@RUNGS
@pytest.mark.promise("RUN-14")
async def test_a_stop_ends_the_whole_tree(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        async with anyio.create_task_group() as group:
            group.start_soon(it.run, "(sleep 1000 & echo begun; sleep 1000) | cat")
            with anyio.fail_after(20):
                await it.hands.lines(name(RUN, 1, CallId("call")), 0, ("begun",))
            group.cancel_scope.cancel()
        found = it.spawner.adopt(name(RUN, 1, CallId("call")))
        assert isinstance(found, Ended)
        assert (found.cause, found.survivors) == (spawn.Cause.KILLED, ())
        assert read(await adopted(it))["error"] == "killed"


async def test_a_daemon_that_holds_on_to_everything_does_not_keep_us(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        (it.workspace / "sub").mkdir()
        script = "cd sub; python3 -c 'import os, time; os.fork() or (os.setsid(), time.sleep(99))'"
        with anyio.fail_after(20):
            outcome = await it.run(script)
        assert isinstance(outcome, Done)
        assert outcome.cwd == str(it.workspace / "sub")


async def test_what_is_not_a_directory_is_believed_by_nobody(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        script = "for fd in /proc/$$/fd/*; do echo {} > $fd; done 2>/dev/null; exec true"
        for call, lie in enumerate((f"{it.workspace}/none", "/usr", "'\\377'", "x" * 9000)):
            outcome = await it.run(script.format(lie), str(call))
            assert isinstance(outcome, Done)
            assert outcome.cwd == ""


@RUNGS
async def test_nothing_of_ours_is_in_the_environment(
    tmp_path: Path, rung: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_API_KEY", "x" * 20)
    async with desk(tmp_path, rung) as it:
        names = {line.partition("=")[0] for line in (await it.result("env"))["output"].split("\n")}
        assert "HOLDFAST_API_KEY" not in names
        assert {n for n in names if n.startswith("HOLDFAST")} == {"HOLDFAST_CALL"}
        assert "PATH" in names


@RUNGS
async def test_twenty_commands_run_side_by_side(tmp_path: Path, rung: str) -> None:
    """Each waits for the last: they can only end if all twenty run at once."""
    texts: dict[int, str] = {}
    async with desk(tmp_path, rung) as it:
        for number in range(20):
            os.mkfifo(it.workspace / f"go{number}")

        async def one(number: int) -> None:
            after = f"echo > go{number + 1}" if number < 19 else "true"
            before = f"read x < go{number}" if number else "true"
            script = f"{after} & {before}; wait; echo {number}"
            texts[number] = (await it.result(script, str(number)))["output"]

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(one, number)
    assert texts == {number: f"{number}\n" for number in range(20)}


async def test_a_call_runs_once(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.run("echo x >> count")
        assert isinstance(await it.run("echo x >> count"), Unknown)
        assert (it.workspace / "count").read_text() == "x\n"


async def test_evidence_goes_when_the_result_is_written_down(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        assert it.terminal.settled is not None
        await it.run("true", "one")
        it.terminal.settled(it.context("one"))
        assert it.hands.known() == []
        found = await it.begin("sleep 1000", "two")
        it.terminal.settled(it.context("two"))
        assert [process_id for _, process_id in it.hands.known()] == [found]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"command": " \n"}, "no command"),
        ({"command": "echo \0"}, "NUL"),
        ({"command": "echo \ud800"}, "surrogate"),
        ({"command": "true", "stdin": "\ud800"}, "surrogate"),
        ({"command": "#" * 200_000}, "too long"),
        ({"command": "true", "detach": True}, "background"),
        ({"command": "true", "notify_on_complete": True}, "background"),
        ({"command": "true", "watch_patterns": ["x"]}, "background"),
    ],
)
async def test_bad_arguments_are_refused_before_anybody_is_asked(
    tmp_path: Path, asked: dict[str, Any], why: str
) -> None:
    async with desk(tmp_path) as it:
        with pytest.raises(ToolFailed, match=why):
            await it.terminal.permit(it.context(), Terminal(**asked))
        with pytest.raises(ToolFailed, match=why):
            await it.execute(it.context(), Terminal(**asked))
        assert it.hands.known() == []


@pytest.mark.parametrize(
    "arguments",
    [
        '{"command": "x", "timeout": 0.5}',
        '{"command": "x", "timeout": 3601}',
        '{"comand": "x"}',
        "{}",
    ],
)
def test_arguments_that_do_not_fit_are_not_taken(arguments: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(arguments, type=Terminal)


def test_the_schema_says_what_can_be_asked_for() -> None:
    found = schema(Terminal)
    assert found["required"] == ["command"]
    assert found["additionalProperties"] is False


# What is judged.


@RUNGS
async def test_what_is_judged_is_all_that_decides(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        found = await judged(it, "cat notes | grep x", purpose="to see")
        assert isinstance(found.request.what, Parsed)
        assert found.level is Level[rung]
        assert not found.git_is_safe
        assert set(found.request.programs) == {"cat", "grep"}
        assert all(os.path.isabs(p) for p in found.request.programs.values())
        assert (found.request.cwd, found.request.stdin) == (str(it.workspace), "")
        assert found.request.environment == {}
        assert found.request.purpose == "to see"
        assert found.request.profile == (rung, str(it.workspace))


async def test_a_script_is_judged_as_its_text(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        (it.workspace / "x.py").write_text("1")
        found = await judged(it, "python3 x.py > $HOME/out", pty=True, background=True)
        assert isinstance(found.request.what, Opaque)
        assert found.request.programs == {}
        assert set(found.request.files) == {str(it.workspace / "x.py")}
        assert found.request.wants == Wants(background=True, terminal=True, open_input=True)


async def test_files_that_a_line_names_are_judged_by_content(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        (it.workspace / "sub").mkdir()
        for path in ("run.sh", "data", "sub/inner", "of"):
            (it.workspace / path).write_text(path)
        (it.workspace / "link").symlink_to("/etc/passwd")
        found = await judged(it, "./run.sh data if=of link && cd sub && cat inner none")
        files = found.request.files
        ours = {p: h for p, h in files.items() if p.startswith(str(it.workspace))}
        assert ours == {
            str(it.workspace / path): hashlib.sha256(path.encode()).hexdigest()
            for path in ("run.sh", "data", "sub/inner", "of")
        }
        assert "./run.sh" not in found.request.programs
        (it.workspace / "run.sh").write_text("another")
        then = await judged(it, "./run.sh data if=of link && cd sub && cat inner none")
        assert execution_hash(then.request) != execution_hash(found.request)


async def test_a_program_of_the_workspace_runs_from_where_the_line_has_gone(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as it:
        for folder in (it.workspace, it.workspace / "sub"):
            folder.mkdir(exist_ok=True)
            (folder / "run.sh").write_text(f"#!/bin/sh\necho in {folder.name}\n")
            (folder / "run.sh").chmod(0o755)
        assert (await it.result("cd sub && ./run.sh"))["output"] == "in sub\n"


async def test_big_files_are_judged_by_size_and_time_and_odd_ones_not(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        with (it.workspace / "big").open("wb") as file:
            file.truncate(9 * 2**20)
        os.mkfifo(it.workspace / "pipe")
        found = await judged(it, "cat big pipe sub")
        (print_,) = (h for p, h in found.request.files.items() if p.startswith(str(it.workspace)))
        assert print_.startswith(f"size {9 * 2**20}")


async def test_the_hash_is_the_same_the_next_time(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        first = await judged(one, "cat x", one.context("a"), stdin="in")
        assert first.request.stdin == "in"
    async with desk(tmp_path) as two:
        context = two.context("a", hosts=("good.example",))
        then = await judged(two, "cat x", context, stdin="in")
        assert execution_hash(first.request) == execution_hash(then.request)


async def test_out_of_the_sandbox_is_asked_for_as_such(tmp_path: Path) -> None:
    async with desk(tmp_path, "L1") as it:
        found = await judged(it, "true", unsandboxed=True, detach=True, background=True)
        assert found.level is Level.L0
        assert (found.request.wants.unsandboxed, found.request.wants.detach) == (True, True)
        outside = tmp_path / "outside"
        await it.run(f"echo x > {outside}", "one")
        assert not outside.exists()
        await it.run(f"echo x > {outside}", "two", unsandboxed=True)
        assert outside.exists()


async def test_where_nothing_can_run_nobody_is_asked(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        sandbox = Bare(tmp_path / "home", tmp_path / "user", allow_none=False)
        hands = Hands(it.spawner, sandbox, Redactor([]), it.tasks, ManualClock())
        (none,) = terminal.tools(hands)
        with pytest.raises(ToolFailed, match="No command can run here"):
            await none.permit(it.context(), Terminal("true"))


# In the background.


@pytest.mark.promise("LATE-04")
async def test_where_nothing_can_be_told_later_the_result_says_so(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        context = it.context(origin=Origin(platform="api_server", late=False))
        asked = Terminal("cat", background=True, notify_on_complete=True, watch_patterns=["x"])
        outcome = await it.execute(context, asked)
        found = read(outcome)
        assert (found["status"], found["notify_on_complete"]) == ("running", False)
        assert "poll" in found["notify_unsupported"]
        assert "watch_patterns" not in found
        assert isinstance(outcome, Done)
        assert outcome.background is not None
        assert (outcome.background.notify, outcome.background.watch) == (False, ())
        assert [live.ended for live in it.hands.mine(context.session)] == [None]


@pytest.mark.promise("LATE-04", "LATE-05")
async def test_where_it_can_be_told_later_it_will_be(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        outcome = await it.run(
            "cat", background=True, notify_on_complete=True, watch_patterns=["x", "y"]
        )
        assert read(outcome) == {
            "process_id": name(RUN, 1, CallId("call")),
            "status": "running",
            "notify_on_complete": True,
            "watch_patterns": ["x", "y"],
        }
        assert isinstance(outcome, Done)
        assert outcome.background is not None
        assert (outcome.background.notify, outcome.background.watch) == (True, ("x", "y"))


async def test_a_background_command_outlives_its_call_and_has_no_time_limit(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as it:
        async with anyio.create_task_group() as group:
            begin = partial(it.begin, stdin_open=True)
            group.start_soon(begin, f"echo {SECRET}; read x; echo got $x")
            await anyio.lowlevel.checkpoint()
        process_id = name(RUN, 1, CallId("call"))
        await it.hands.write(process_id, b"it\n")
        ended = await it.hands.ended(process_id)
        assert (ended.exit_code, ended.tail) == (0, f"{REDACTED}\ngot it\n")


async def test_a_background_command_may_have_a_time_limit(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("sleep 1000", timeout=1)
        assert (await it.hands.ended(found)).cause is Cause.TIMEOUT


# After a restart.


async def adopted(it: Desk, command: str = "x", call: str = "call", **asked: Any) -> Any:
    assert it.terminal.adopt is not None
    return await it.terminal.adopt(it.context(call), Terminal(command, **asked))


@pytest.mark.fault("F-06")
async def test_a_result_that_was_written_meanwhile_is_adopted(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        first = await it.run(f"cd /usr; echo {SECRET}; exit 7")
    async with desk(tmp_path) as it:
        await it.hands.sweep()
        found = await adopted(it)
        text = '{"exit_code":7,"output":"[redacted]\\n"}'
        assert found == Done(text, summary="exit code 7")
        assert isinstance(first, Done)
        assert it.terminal.settled is not None
        it.terminal.settled(it.context())
        assert it.hands.known() == []


async def test_a_time_limit_that_was_reached_meanwhile_is_adopted(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.run("sleep 1000", timeout=1)
    async with desk(tmp_path) as it:
        assert read(await adopted(it, timeout=1))["error"] == "timed out after 1 s"


async def test_what_never_began_is_said_to_have_had_no_effect(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await adopted(it)
        assert isinstance(found, Failed)
        assert found.text.startswith("Not started")


GATEWAY = """
import os, sys, time, anyio
from pathlib import Path
from tests.tools.test_hands import desk

async def main(root, command, background):
    async with desk(Path(root), "L0") as it:
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: it.run(command, background=background == "yes"))
            await anyio.sleep_forever()

anyio.run(main, *sys.argv[1:])
"""


async def killed_gateway(root: Path, command: str, background: str = "no") -> None:
    """A gateway in a process of its own is killed while `command` runs."""
    argv = [sys.executable, "-c", GATEWAY, str(root), command, background]
    with fifo(root / "begun") as begun:
        async with await anyio.open_process(argv, cwd=Path(__file__).parents[2]) as process:
            with anyio.fail_after(30):
                await anyio.wait_readable(begun)
            process.kill()


@pytest.mark.fault("F-19")
@pytest.mark.parametrize("background", ["no", "yes"])
async def test_what_died_with_the_gateway_may_have_had_effects(
    tmp_path: Path, background: str
) -> None:
    script = f"echo {SECRET} first; echo > {tmp_path / 'begun'}; sleep 1000"
    await killed_gateway(tmp_path, script, background)
    async with desk(tmp_path) as it:
        await it.hands.sweep()
        found = await adopted(it, background=background == "yes")
        assert isinstance(found, Unknown)
        assert "The gateway ended while this command ran" in found.text
        assert found.text.endswith(f"{REDACTED} first\n")
        assert (await it.hands.ended(name(RUN, 1, CallId("call")))).cause is Cause.RESTART
        assert it.terminal.settled is not None
        it.terminal.settled(it.context())
        assert it.hands.known() == []


async def test_a_background_command_that_ended_meanwhile_is_told_of_later(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as it:
        await it.hands.ended(await it.begin("exit 4"))
    async with desk(tmp_path) as it:
        found = await adopted(it, background=True, notify_on_complete=True)
        assert read(found)["status"] == "running"
        assert found.background.notify
        assert it.terminal.settled is not None
        it.terminal.settled(it.context())
        ended = await it.hands.ended(found.background.process_id)
        assert (ended.cause, ended.exit_code) == (Cause.EXITED, 4)


async def test_a_detached_command_is_attached_again(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.begin("sleep 1000", detach=True)
    async with desk(tmp_path) as it:
        await it.hands.sweep()
        found = await adopted(it, "sleep 1000", background=True, detach=True)
        assert found.background.detach
        assert [live.command for live in it.hands.mine(it.context().session)] == ["sleep 1000"]
        assert (await it.hands.kill(found.background.process_id)).cause is Cause.KILLED
    os.waitpid(-1, 0)  # noqa: ASYNC222 — it has ended; a real successor is not its parent


# The network.

FETCH = (
    "python3 -I -c \"import urllib.request as u; print(u.urlopen('http://new.example/').status)\""
)


@pytest.mark.debian("bwrap")
async def test_a_command_is_held_while_somebody_is_asked_about_a_host(tmp_path: Path) -> None:
    asked, answer = [], anyio.Event()
    async with desk(tmp_path, "L2") as it:

        async def may_reach(host: str) -> bool:
            asked.append(host)
            await answer.wait()
            return False

        context = it.context(may_reach=may_reach)
        async with anyio.create_task_group() as group:

            async def run() -> None:
                assert "403" in read(await it.execute(context, Terminal(FETCH)))["output"]

            group.start_soon(run)
            with anyio.fail_after(20):
                while not asked:
                    await anyio.lowlevel.checkpoint()
            assert it.said == []
            answer.set()
    assert asked == ["new.example"]


async def test_where_hosts_cannot_be_told_apart_commands_run_without(tmp_path: Path) -> None:
    async with desk(tmp_path, "L1") as it:
        context = it.context(hosts=("good.example",))
        assert read(await it.execute(context, Terminal("echo x")))["output"] == "x\n"


@pytest.mark.fault("F-33")
@pytest.mark.parametrize("change", ["script", "directory"])
async def test_what_changes_between_judgement_and_start_does_not_run(
    tmp_path: Path, change: str
) -> None:
    async with desk(tmp_path) as it:
        for place in ("a", "b"):
            (it.workspace / place).mkdir()
            (it.workspace / place / "x.sh").write_text("echo x > ../ran")
        asked = Terminal("sh x.sh", workdir="a")
        judge = await it.terminal.permit(it.context(), asked)
        assert isinstance(judge, Judge)
        context = it.context(execution=execution_hash(judge.request))
        if change == "script":
            (it.workspace / "a" / "x.sh").write_text("echo other > ../ran")
        else:
            (it.workspace / "a").rename(it.workspace / "c")
            (it.workspace / "a").symlink_to("b")
        assert isinstance(await it.terminal.run(context, asked), Denied)
        assert not (it.workspace / "ran").exists()
