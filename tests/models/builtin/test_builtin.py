"""The built-in model: its process is started, shared, ended, and replaced if it dies."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.config.home import find_home
from holdfast.core.messages import Assistant, Message, ToolResult, User
from holdfast.errors import Rejected, Transient
from holdfast.models.builtin import builtin, child, protocol, server
from holdfast.models.builtin.builtin import Builtin
from holdfast.models.builtin.child import Loading, ModelProcess, ProcessLimits
from holdfast.models.builtin.parts import ModelFolder
from holdfast.models.model import Answer, Piece, Request, ToolSpec
from tests.fakes import llama

pytestmark = pytest.mark.anyio

TOOLS = tuple(
    ToolSpec(name, "", {"type": "object", "properties": {"path": {"type": "string"}}})
    for name in ("list_files", "read_file")
)
ENOUGH = ProcessLimits(memory_mb=0)


def put_files(home: Path) -> ModelFolder:
    """Make it look as if the model had been fetched."""
    folder = ModelFolder(home)
    folder.library.mkdir(parents=True)
    with folder.model.open("wb") as file:
        file.truncate(folder.files.size)
    return folder


@asynccontextmanager
async def model_of(
    home: Path, *arguments: str, limits: ProcessLimits = ENOUGH
) -> AsyncIterator[tuple[Builtin, ModelProcess]]:
    folder = put_files(home)
    loading = Loading(str(folder.model), (), window=4096, threads=1)
    program = (sys.executable, llama.__file__, *arguments)
    process = ModelProcess(loading, limits, folder.log, program)
    async with aclosing(Builtin(folder, process)) as model:
        yield model, process


async def ask(model: Builtin, text: str) -> str:
    pieces: list[Piece] = [piece async for piece in model.stream(request(text))]
    assert isinstance(pieces[-1], Answer)
    return pieces[-1].text


def request(text: str) -> Request:
    return Request("fake", "", (User(text),), TOOLS)


async def gone(pid: int) -> None:
    """Wait until the process has ended."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with anyio.fail_after(10):
            await anyio.wait_readable(descriptor)
    finally:
        os.close(descriptor)


@pytest.mark.promise("LOCAL-03")
async def test_the_process_starts_with_the_first_request_and_serves_all(tmp_path: Path) -> None:
    async with model_of(tmp_path) as (model, process):
        assert process.pid == 0
        assert await ask(model, "one") == "one"
        first = process.pid
        assert first not in (0, os.getpid())
        assert await ask(model, "two") == "two"
        assert process.pid == first
    await gone(first)


@pytest.mark.promise("LOCAL-03")
async def test_an_idle_process_is_ended_and_the_next_request_starts_another(tmp_path: Path) -> None:
    async with model_of(tmp_path, limits=ProcessLimits(memory_mb=0, idle_s=0.01)) as (
        model,
        process,
    ):
        await ask(model, "one")
        async with process.use():
            first = process.pid
            await ask(model, "two")
            assert process.pid == first, "it is in use"
        await gone(first)
        assert await ask(model, "three") == "three"


@pytest.mark.promise("LOCAL-03")
async def test_a_killed_process_cuts_the_answer_and_is_replaced(tmp_path: Path) -> None:
    async with model_of(tmp_path) as (model, process):
        with pytest.raises(Transient):
            async for _ in model.stream(request("hang")):
                os.kill(process.pid, signal.SIGKILL)
        assert await ask(model, "again") == "again"


@pytest.mark.promise("LOCAL-03")
@pytest.mark.parametrize("program", [server.__file__, llama.__file__], ids=["server", "fake"])
async def test_the_process_ends_with_its_parent_also_if_that_is_killed(program: str) -> None:
    start = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE,"
        " env={}, start_new_session=True); print(p.pid, flush=True); p.wait()"
    )
    argv = [sys.executable, "-c", start, sys.executable, "-I", program]
    async with await anyio.open_process(argv, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(await parent.stdout.receive())
        parent.kill()
    await gone(pid)


REAL = ModelFolder(find_home(os.environ))


@pytest.mark.skipif(not REAL.is_complete, reason="needs the built-in model (models pull builtin)")
async def test_the_real_model_calls_a_tool_and_answers() -> None:
    home = REAL.path.parent
    messages: list[Message] = [User("Which files are in this folder?")]
    tools = list[str]()
    answer: Piece | None = None
    async with aclosing(builtin.create(home, idle_s=60.0, threads=0)) as model:
        for _ in range(protocol.CALLS + 1):
            request = Request("", "", messages, TOOLS)
            answer = [piece async for piece in model.stream(request)][-1]
            assert isinstance(answer, Answer)
            if not answer.calls:
                break
            (call,) = answer.calls
            tools.append(call.tool)
            messages += [
                Assistant("", answer.calls),
                ToolResult(call.call_id, "zebra.txt (3 bytes)"),
            ]
        assert tools[0] == "list_files"
        assert isinstance(answer, Answer)
        assert "zebra" in answer.text.lower()


async def test_the_process_has_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with model_of(tmp_path) as (model, _):
        assert "OPENAI_API_KEY" not in json.loads(await ask(model, "environment"))


@pytest.mark.promise("LOCAL-04")
async def test_too_little_memory_is_said_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 4000000 kB\nMemAvailable:   1000000 kB\n")
    limits = ProcessLimits(memory_mb=1500, root=tmp_path)
    async with model_of(tmp_path, limits=limits) as (model, process):
        with pytest.raises(Rejected, match=r"1\.6 GB of free memory.*1\.0 GB"):
            await ask(model, "hello")
        with pytest.raises(Rejected, match=r"1\.6 GB of free memory.*1\.0 GB"):
            await model.check()
        assert process.pid == 0


@pytest.mark.promise("LOCAL-04")
@pytest.mark.parametrize(("how", "kind"), [("--die", Transient), ("--fail", Rejected)])
async def test_a_process_that_cannot_load_fails_the_request(
    tmp_path: Path, how: str, kind: type[Exception]
) -> None:
    async with model_of(tmp_path, how) as (model, process):
        with pytest.raises(kind, match=r"builtin\.log"):
            await ask(model, "hello")
        assert process.pid == 0


async def test_without_its_files_it_says_how_to_get_them(tmp_path: Path) -> None:
    async with model_of(tmp_path) as (model, _):
        ModelFolder(tmp_path).model.unlink()
        with pytest.raises(Rejected, match="models pull builtin"):
            await ask(model, "hello")
        with pytest.raises(Rejected, match="models pull builtin"):
            await model.check()


async def test_a_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    async with model_of(tmp_path) as (model, process):
        with anyio.move_on_after(0):
            await ask(model, "hello")
        assert process.pid == 0
        assert await ask(model, "again") == "again"


@pytest.mark.promise("LOCAL-03")
def test_it_gets_the_processors_that_were_free_lately_and_at_least_half_of_them() -> None:
    now, there = child.processor_time(), os.cpu_count() or 1
    long_ago = now.total - 1e9
    all_free = child.ProcessorTime(now.free - 1e9, long_ago)
    none_free = child.ProcessorTime(now.free, long_ago)
    assert child.free_processors(all_free) == min(there, child.MOST_THREADS)
    assert child.free_processors(none_free) == min(max(1, there // 2), child.MOST_THREADS)
