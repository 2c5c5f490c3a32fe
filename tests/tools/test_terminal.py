"""The terminal tool, with real commands at every sandbox level."""

import hashlib
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from holdfast.core.approval.approval import Level
from holdfast.core.approval.execution import Opaque, Parsed, Wants, execution_hash
from holdfast.core.redaction import REDACTED, Redactor
from holdfast.core.run.process import ProcessEnd, id_for
from holdfast.core.run.run import Origin
from holdfast.core.session.answers import CHANGED_TEXT
from holdfast.core.types import CallId
from holdfast.errors import ToolFailed
from holdfast.tools import terminal
from holdfast.tools.exec import record
from holdfast.tools.exec.commands import Commands
from holdfast.tools.exec.record import Ended, ExitCause
from holdfast.tools.exec.spawn import Execution
from holdfast.tools.sandbox.sandbox import Sandbox
from holdfast.tools.snapshot.scan import SnapshotLimits
from holdfast.tools.snapshot.snapshots import NOT_RECORDED, Snapshots
from holdfast.tools.terminal_arguments import TerminalArguments
from holdfast.tools.terminal_result import MAX_OUTPUT, MOVED, WENT_ON
from holdfast.tools.tool import Context, Done, Judge, ToolDenied, ToolFailure, Unknown, schema
from tests.behaviour.hands import until
from tests.fakes.clock import ManualClock
from tests.tools.exec.test_commands import RUN, RUNGS, SECRET, Bare, Desk, desk, fifo, read
from tests.tools.exec.test_spawn import keeper, parent

pytestmark = pytest.mark.anyio


async def judged(it: Desk, command: str, context: Context | None = None, **asked: Any) -> Judge:
    found = await it.terminal.permit(context or it.context(), TerminalArguments(command, **asked))
    assert isinstance(found, Judge)
    return found


@RUNGS
async def test_output_and_exit_code_are_in_the_result(tmp_path: Path, rung: str) -> None:
    async with desk(tmp_path, rung) as it:
        found = await it.result("echo out; echo err >&2; pwd; exit 3")
        assert found == {"exit_code": 3, "output": f"out\nerr\n{it.workspace}\n"}


@RUNGS
async def test_literal_words_run_as_parsed(tmp_path: Path, rung: str) -> None:
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
        after = await it.execute(context, TerminalArguments("pwd"))
        assert read(after) == {"exit_code": 0, "output": f"{outcome.cwd}\n"}
        assert isinstance(after, Done)
        assert after.cwd == ""


async def test_our_addition_to_the_line_is_invisible(tmp_path: Path) -> None:
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
            outcome = await it.execute(context, TerminalArguments("pwd"))
            assert isinstance(outcome, Done)
            found = read(outcome)
            assert found["output"] == f"{it.workspace}\n"
            assert MOVED in found["note"]
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


async def test_output_is_reported_while_the_command_runs_and_only_once(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.result("for i in 1 2 3; do echo $i; sleep 0.3; done; printf 4")
        assert "".join(it.said) == found["output"] == "1\n2\n3\n4"
        assert len(it.said) > 1


@RUNGS
async def test_a_command_can_run_in_a_pseudo_terminal(tmp_path: Path, rung: str) -> None:
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


GREEDY = {
    # Between the limits of 50 and 100 MB and the fourfold, where its own allocation would fail.
    "anonymous": "import time\nx = bytes(1) * (150 * 2**20)\ntime.sleep(60)",
    "memfd": "import os\nf = os.memfd_create('x')\nwhile True: os.write(f, bytes(2**20))",
    "mapped": "import mmap\nx = []\nwhile True: m = mmap.mmap(-1, 2**20); m.write(bytes(2**20));"
    " x.append(m)",
    "tmp": "f = open('/tmp/x', 'wb')\nwhile True: f.write(bytes(2**20))",
    "shm": "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(bytes(2**20))",
}


@pytest.mark.parametrize(
    ("rung", "kind"),
    [pytest.param("L2", kind, marks=pytest.mark.debian("bwrap")) for kind in GREEDY]
    + [("L1", "memfd"), ("L1", "mapped"), ("L0", "memfd")],
)
async def test_files_in_memory_count_as_memory(tmp_path: Path, rung: str, kind: str) -> None:
    async with desk(tmp_path, rung) as it:
        (it.terminal,) = terminal.tools(it.hands, memory_mb=100)
        found = await it.result(f'python3 -I -c "{GREEDY[kind]}"', timeout=60)
        assert found["error"] == "killed: memory"


@pytest.mark.debian("bwrap")
@pytest.mark.parametrize("where", ["/home", "/dev", "/root", "/var/lib/private"])
async def test_hidden_directories_are_not_writable(tmp_path: Path, where: str) -> None:
    async with desk(tmp_path, "L2") as it:
        found = await it.result(f"echo x > {where}/x; mkdir {where}/y")
        assert found["exit_code"] != 0
        assert (await it.result("echo x > /tmp/x && echo x > /dev/shm/x", "2"))["exit_code"] == 0


@pytest.mark.debian("bwrap")
async def test_a_file_system_in_memory_holds_no_more_than_the_limit(tmp_path: Path) -> None:
    async with desk(tmp_path, "L2") as it:
        sandbox = Sandbox(tmp_path / "home", tmp_path / "user", allow_none=False, memory_mb=8)
        assert (await sandbox.probe()).level is Level.L2
        it.hands = Commands(it.spawner, sandbox, Redactor([]), it.tasks, it.hands.clock)
        (it.terminal,) = terminal.tools(it.hands)
        for place in ("/tmp", "/var/tmp", "/dev/shm"):
            found = await it.result(f"head -c 9000000 /dev/zero > {place}/x", place)
            assert found["exit_code"] != 0


async def test_a_link_that_cannot_be_read_breaks_nothing(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        for call, script in enumerate(
            (
                "readlink /proc/1/exe /proc/2/exe",
                "cat /proc/1/cwd/x",
                "for fd in /proc/$$/fd/*; do echo /proc/1/cwd > $fd; done 2>/dev/null; exec true",
            )
        ):
            assert "exit_code" in await it.result(script, str(call))
        with pytest.raises(ToolFailed):
            await it.result("true", "in", workdir="/proc/1/cwd")


@pytest.mark.fault("F-19")
async def test_the_model_learns_that_a_command_continued_without_gateway_and_shim(
    tmp_path: Path,
) -> None:
    call = id_for(RUN, 1, CallId("call"))
    script = "echo begun; echo > go; sleep 1000 & wait"
    order = Execution(("/bin/sh", "-c", script), str(tmp_path), {"PATH": "/usr/bin:/bin"}, 60.0)
    os.mkfifo(tmp_path / "go")
    async with keeper(tmp_path) as it:
        pid = int(await it.start(call, order))
        (tmp_path / "go").read_bytes()
        spool = record.SpoolReader(next((tmp_path / "calls").iterdir()) / "output")
        await until(lambda: spool.output(0, 100)[0] == b"begun\n")  # a killed shim spools no more
        os.kill(parent(pid), signal.SIGKILL)
        await it.kill()
    assert pid in record.strays(tmp_path / "calls")[call]
    async with desk(tmp_path) as there:
        await there.hands.sweep()
        assert record.strays(tmp_path / "calls") == {}
        outcome = await adopted(there)
        assert isinstance(outcome, Unknown)
        assert outcome.text == WENT_ON + "begun\n"
        assert (await there.hands.ended(call)).cause is ProcessEnd.RESTART


async def test_a_signal_is_reported(tmp_path: Path) -> None:
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
                await it.hands.lines(id_for(RUN, 1, CallId("call")), 0, ("begun",))
            group.cancel_scope.cancel()
        found = it.spawner.adopt(id_for(RUN, 1, CallId("call")))
        assert isinstance(found, Ended)
        assert (found.cause, found.survivors) == (ExitCause.KILLED, ())
        assert read(await adopted(it))["error"] == "killed"


async def test_a_daemon_that_keeps_all_descriptors_open_does_not_delay_the_result(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as it:
        (it.workspace / "sub").mkdir()
        script = "cd sub; python3 -c 'import os, time; os.fork() or (os.setsid(), time.sleep(99))'"
        with anyio.fail_after(20):
            outcome = await it.run(script)
        assert isinstance(outcome, Done)
        assert outcome.cwd == str(it.workspace / "sub")


async def test_a_forged_report_of_the_last_directory_is_ignored(tmp_path: Path) -> None:
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


async def test_the_record_is_removed_when_the_result_is_stored(tmp_path: Path) -> None:
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
        ({"command": " \n"}, "empty"),
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
            await it.terminal.permit(it.context(), TerminalArguments(**asked))
        with pytest.raises(ToolFailed, match=why):
            await it.execute(it.context(), TerminalArguments(**asked))
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
def test_invalid_arguments_are_refused(arguments: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(arguments, type=TerminalArguments)


def test_the_schema_lists_all_arguments() -> None:
    found = schema(TerminalArguments)
    assert found["required"] == ["command"]
    assert found["additionalProperties"] is False


# What is judged.


@RUNGS
async def test_the_approval_request_contains_everything_that_matters(
    tmp_path: Path, rung: str
) -> None:
    async with desk(tmp_path, rung) as it:
        found = await judged(it, "cat notes | grep x", purpose="to see")
        assert isinstance(found.request.what, Parsed)
        assert found.level is Level[rung]
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
        bash = str(tmp_path / "bin" / "bash")  # none of the system's: judged by content as well
        assert set(found.request.files) == {str(it.workspace / "x.py"), bash}
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
        } | {str(it.workspace / "link"): "leads to /etc/passwd"}
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


async def test_huge_files_are_identified_by_times_and_special_files_are_skipped(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as it:
        big = it.workspace / "big"
        with big.open("wb") as file:
            file.truncate(65 * 2**20)
        os.mkfifo(it.workspace / "pipe")
        found = await judged(it, "cat big pipe sub")
        (print_,) = (h for p, h in found.request.files.items() if p.startswith(str(it.workspace)))
        assert print_.startswith(f"size {65 * 2**20}")
        before = big.stat()
        with big.open("r+b") as file:
            file.write(b"x")
        os.utime(big, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (await judged(it, "cat big pipe sub")).request.files != found.request.files


LEASE = """
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has leases")
async def test_a_file_that_another_process_keeps_shut_is_identified_by_times(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as it:
        script = it.workspace / "x.sh"
        found = []
        for text in ("echo good\n", "echo evil\n"):
            script.write_text(text)
            lease = [sys.executable, "-I", "-c", LEASE, str(script)]
            async with await anyio.open_process(lease) as holder:
                assert holder.stdout and holder.stdin
                await holder.stdout.receive()
                found.append((await judged(it, "sh x.sh")).request.files.get(str(script), ""))
                await holder.stdin.aclose()
        assert all(found) and found[0] != found[1]


async def test_files_are_found_where_a_line_goes_to(tmp_path: Path) -> None:
    async with desk(tmp_path, "L1") as it:
        (it.workspace / "sub" / "deep").mkdir(parents=True)
        inner, spaced = it.workspace / "sub" / "deep" / "x.sh", it.workspace / "a b.sh"
        home = Path(it.sandbox.home_of(str(it.workspace)))
        for file in (inner, spaced, home / "h.sh"):
            file.write_text("1")
        for line, file in {
            "pushd sub && cd deep && sh x.sh": inner,
            "cd sub && cd deep && sh x.sh 2>&1": inner,
            "env -C sub/deep sh x.sh": inner,
            "sh -c 'cd sub/deep; sh x.sh'": inner,
            'sh "a b.sh" 2>&1': spaced,
            r"sh a\ b.sh": spaced,
            "sh ~/h.sh": home / "h.sh",
            "sh 0<>sub/deep/x.sh": inner,
            "make -f x.sh -C sub/deep": inner,
            "make -fx.sh -C sub/deep": inner,
            "make -Csub/deep -fx.sh": inner,
            "make --directory=sub/deep --file=x.sh": inner,
            "pytest sub/deep/x.sh::test_it": inner,
            "java -cp lib:sub/deep/x.sh Main": inner,
            "gcc @sub/deep/x.sh": inner,
            "tool a,sub/deep/x.sh,b": inner,
        }.items():
            assert str(file) in (await judged(it, line)).request.files, line


async def test_a_named_link_out_of_the_workspace_is_known_by_where_it_leads(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path) as it:
        link = it.workspace / "tool"
        found = []
        for target in ("/etc/passwd", "/etc/group"):
            link.unlink(missing_ok=True)
            link.symlink_to(target)
            found.append((await judged(it, "sh tool")).request.files[str(link)])
        assert found == ["leads to /etc/passwd", "leads to /etc/group"]


@pytest.mark.parametrize(
    "line", ["cd a;" * 990, "'" * 999, "a/" * 1_000, "sh -c " + "'cd a;'" * 600, "\\" * 90_001]
)
async def test_planning_a_line_is_fast(tmp_path: Path, line: str) -> None:
    async with desk(tmp_path) as it:
        (it.workspace / "a").symlink_to(".")  # every path through it exists
        before = time.process_time()
        await judged(it, line)
        assert time.process_time() - before < 2


async def test_the_hash_is_the_same_the_next_time(tmp_path: Path) -> None:
    async with desk(tmp_path) as one:
        first = await judged(one, "cat x", one.context("a"), stdin="in")
        assert first.request.stdin == "in"
    async with desk(tmp_path) as two:
        context = two.context("a", hosts=("good.example",))
        then = await judged(two, "cat x", context, stdin="in")
        assert execution_hash(first.request) == execution_hash(then.request)


async def test_unsandboxed_and_detach_are_in_the_approval_request(tmp_path: Path) -> None:
    async with desk(tmp_path, "L1") as it:
        found = await judged(it, "true", unsandboxed=True, detach=True, background=True)
        assert found.level is Level.L0
        assert (found.request.wants.unsandboxed, found.request.wants.detach) == (True, True)
        outside = tmp_path / "outside"
        await it.run(f"echo x > {outside}", "one")
        assert not outside.exists()
        await it.run(f"echo x > {outside}", "two", unsandboxed=True)
        assert outside.exists()


async def test_if_no_command_can_run_the_user_is_not_asked(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        sandbox = Bare(tmp_path / "home", tmp_path / "user", allow_none=False)
        hands = Commands(it.spawner, sandbox, Redactor([]), it.tasks, ManualClock())
        (none,) = terminal.tools(hands)
        with pytest.raises(ToolFailed, match="No command can run here"):
            await none.permit(it.context(), TerminalArguments("true"))


# In the background.


@pytest.mark.promise("LATE-04")
async def test_if_later_messages_are_impossible_the_result_says_so(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        context = it.context(origin=Origin(platform="api_server", late=False))
        asked = TerminalArguments(
            "cat", background=True, notify_on_complete=True, watch_patterns=["x"]
        )
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
async def test_if_later_messages_are_possible_the_result_promises_them(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        outcome = await it.run(
            "cat", background=True, notify_on_complete=True, watch_patterns=["x", "y"]
        )
        assert read(outcome) == {
            "process_id": id_for(RUN, 1, CallId("call")),
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
        process_id = id_for(RUN, 1, CallId("call"))
        await it.hands.write(process_id, b"it\n")
        ended = await it.hands.ended(process_id)
        assert (ended.exit_code, ended.tail) == (0, f"{REDACTED}\ngot it\n")


async def test_a_background_command_may_have_a_time_limit(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await it.begin("sleep 1000", timeout=1)
        assert (await it.hands.ended(found)).cause is ProcessEnd.TIMEOUT


@pytest.mark.promise("ASK-03")
async def test_an_unasked_background_command_has_a_time_limit(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        (it.terminal,) = terminal.tools(it.hands, unasked_s=1.0)
        await it.execute(it.context(unasked=True), TerminalArguments("sleep 900", background=True))
        ended = await it.hands.ended(id_for(RUN, 1, CallId("call")))
        assert ended.cause is ProcessEnd.TIMEOUT


@pytest.mark.promise("ASK-03")
@RUNGS
async def test_an_unasked_command_cannot_fill_a_file_whatever_it_is(
    tmp_path: Path, rung: str
) -> None:
    async with desk(tmp_path, rung) as it:
        unasked = it.context("1", unasked=True)
        found = read(await it.execute(unasked, TerminalArguments("echo seen; echo x > made")))
        assert found["exit_code"] != 0 and found["output"].startswith("seen\n")
        piped = TerminalArguments("seq 100000 | tail -n 1")  # the limit is for files only
        found = read(await it.execute(it.context("2", unasked=True), piped))
        assert (found["exit_code"], found["output"]) == (0, "100000\n")
        later = TerminalArguments("echo x > later", background=True)
        await it.execute(it.context("3", unasked=True), later)
        await it.hands.ended(id_for(RUN, 1, CallId("3")))
        written = [it.workspace / name for name in ("made", "later")]
        assert [path.read_text() for path in written if path.exists()] == ["", ""]
        assert (await it.result("cat made; echo x > made; cat made", "4"))["output"] == "x\n"


@pytest.mark.promise("ASK-03")
async def test_an_unasked_command_has_a_memory_limit(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        (it.terminal,) = terminal.tools(it.hands, unasked_mb=50)
        greedy = TerminalArguments(f"python3 -I -c '{GREEDY['anonymous']}'", timeout=60)
        found = read(await it.execute(it.context("1", unasked=True), greedy))
        assert found["error"] == "killed: memory"
        big = TerminalArguments("python3 -I -c 'print(len(bytes(1) * 2**28))'")
        assert read(await it.execute(it.context("2"), big))["output"] == f"{2**28}\n"
        (it.terminal,) = terminal.tools(it.hands, memory_mb=2_000, unasked_mb=50)
        found = read(await it.execute(it.context("3", unasked=True), big))
        assert found["output"] == f"{2**28}\n"


# After a restart.


async def adopted(it: Desk, command: str = "x", call: str = "call", **asked: Any) -> Any:
    assert it.terminal.adopt is not None
    return await it.terminal.adopt(it.context(call), TerminalArguments(command, **asked))


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


async def test_a_command_that_never_started_is_reported_as_without_effect(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        found = await adopted(it)
        assert isinstance(found, ToolFailure)
        assert found.text.startswith("Not started")


GATEWAY = """
import os, sys, time, anyio
from pathlib import Path
from tests.tools.exec.test_commands import desk

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
async def test_a_command_killed_with_the_gateway_is_reported_as_unknown(
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
        assert (await it.hands.ended(id_for(RUN, 1, CallId("call")))).cause is ProcessEnd.RESTART
        assert it.terminal.settled is not None
        it.terminal.settled(it.context())
        assert it.hands.known() == []


async def test_a_background_command_that_ended_meanwhile_is_reported_later(
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
        assert (ended.cause, ended.exit_code) == (ProcessEnd.EXITED, 4)


async def test_a_detached_command_is_attached_again(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        await it.begin("sleep 1000", detach=True)
    async with desk(tmp_path) as it:
        await it.hands.sweep()
        found = await adopted(it, "sleep 1000", background=True, detach=True)
        assert found.background.detach
        assert [live.command for live in it.hands.mine(it.context().session)] == ["sleep 1000"]
        assert (await it.hands.kill(found.background.process_id)).cause is ProcessEnd.KILLED
    os.waitpid(-1, 0)  # noqa: ASYNC222 — it has ended; a real successor is not its parent


# The network.

FETCH = (
    "python3 -I -c \"import urllib.request as u; print(u.urlopen('http://new.example/').status)\""
)


@pytest.mark.debian("bwrap")
async def test_a_command_waits_while_the_user_is_asked_about_a_host(tmp_path: Path) -> None:
    asked, answer = [], anyio.Event()
    async with desk(tmp_path, "L2") as it:

        async def may_reach(host: str) -> bool:
            asked.append(host)
            await answer.wait()
            return False

        context = it.context(may_reach=may_reach)
        async with anyio.create_task_group() as group:

            async def run() -> None:
                assert "403" in read(await it.execute(context, TerminalArguments(FETCH)))["output"]

            group.start_soon(run)
            with anyio.fail_after(20):
                while not asked:
                    await anyio.lowlevel.checkpoint()
            assert it.said == []
            answer.set()
    assert asked == ["new.example"]


async def test_in_a_sandbox_without_host_filter_commands_run_without_network(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, "L1") as it:
        context = it.context(hosts=("good.example",))
        assert read(await it.execute(context, TerminalArguments("echo x")))["output"] == "x\n"


@pytest.mark.fault("F-33")
@pytest.mark.parametrize("change", ["script", "directory"])
async def test_a_command_changed_between_decision_and_start_does_not_run(
    tmp_path: Path, change: str
) -> None:
    async with desk(tmp_path) as it:
        for place in ("a", "b"):
            (it.workspace / place).mkdir()
            (it.workspace / place / "x.sh").write_text("echo x > ../ran")
        asked = TerminalArguments("sh x.sh", workdir="a")
        judge = await it.terminal.permit(it.context(), asked)
        assert isinstance(judge, Judge)
        context = it.context(execution=execution_hash(judge.request))
        if change == "script":
            (it.workspace / "a" / "x.sh").write_text("echo other > ../ran")
        else:
            (it.workspace / "a").rename(it.workspace / "c")
            (it.workspace / "a").symlink_to("b")
        assert isinstance(await it.terminal.run(context, asked), ToolDenied)
        assert not (it.workspace / "ran").exists()


@pytest.mark.fault("F-33")
@pytest.mark.promise("RUN-28")
async def test_a_file_that_changes_right_before_the_start_keeps_it_from_starting(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, "L1") as it:
        (it.workspace / "x.sh").write_text("echo good > ran")
        asked = TerminalArguments("sh x*.sh")
        judge = await it.terminal.permit(it.context(), asked)
        assert isinstance(judge, Judge)
        trees = await judge.look(20, {})
        context = it.context(execution=execution_hash(judge.request), trees=trees)
        (it.workspace / "x.sh").write_text("echo evil > ran")
        assert await it.terminal.run(context, asked) == ToolDenied(CHANGED_TEXT)
        assert not (it.workspace / "ran").exists()
        assert it.hands.known() == []  # nothing was claimed: it can be asked for again


async def test_processes_that_can_change_files_are_counted(tmp_path: Path) -> None:
    async with desk(tmp_path, "L1") as it:
        assert (await judged(it, "make")).request.beside == 0
        process_id = await it.begin("sleep 1000")
        assert (await judged(it, "make")).request.beside == 1
        await it.hands.kill(process_id)
        assert (await judged(it, "make")).request.beside == 0


@pytest.mark.promise("SNAP-04")
async def test_the_model_and_the_user_are_told_that_a_snapshot_gave_up(tmp_path: Path) -> None:
    async with desk(tmp_path) as it:
        snapshots = Snapshots(tmp_path, SnapshotLimits(files=1))
        (it.terminal,) = terminal.tools(it.hands, snapshots=snapshots)
        for name in ("a", "b"):
            (it.workspace / name).touch()
        found = await it.result("echo done; echo x > a")
        assert found["output"] == "done\n"
        assert found["note"].startswith(NOT_RECORDED)
        assert NOT_RECORDED in "".join(it.said)
        await snapshots.aclose()
