"""`holdfast sessions diff`, and `/diff` in a terminal's session."""

import json
from pathlib import Path

import pytest

from holdfast.cli.sessions import diff
from holdfast.commands.changes import UNCHANGED
from holdfast.engine.commands.session import NO_SUCH_RUN, SEVERAL_RUNS
from tests.behaviour.terminals import command
from tests.behaviour.test_changes import calls, patch, write
from tests.cli import Place, terminal
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import serve

pytestmark = [pytest.mark.anyio, pytest.mark.promise("EDIT-04")]


async def _edited(it: GatewayProcess) -> list[str]:
    """Two runs of a session `s` that change files; their ids."""
    runs = []
    for text in (
        calls(write("a.txt", "one\n"), write("b.txt", "b\n")),
        calls(patch("a.txt", "one", "two")),
    ):
        runs.append(await it.run(text, session_id="s"))
        await it.finished(runs[-1])
    return runs


async def _say(it: GatewayProcess, *words: str) -> tuple[int, str]:
    said = await it.holdfast("sessions", "diff", *words)
    return said.returncode, said.stdout.decode()


async def test_in_a_pipe_it_is_a_plain_patch_of_the_session_the_run_or_the_path(
    tmp_path: Path,
) -> None:
    async with serve() as model, gateway(tmp_path, model.base_url) as it:
        first, second = await _edited(it)
        code, text = await _say(it, "s")
        assert code == 0 and "\x1b" not in text
        assert (
            text.endswith("--- /dev/null\n+++ b/b.txt\n@@ -0,0 +1 @@\n+b\n")
            and text.count("diff --git") == 2
        )
        for run in ("last", second, second[:-2]):
            code, text = await _say(it, "s", "--run", run)
            assert code == 0 and text.endswith("@@ -1 +1 @@\n-one\n+two\n")
        assert (await _say(it, "s", "--run", first, "--path", "b.txt"))[1].count("diff --git") == 1
        assert (await _say(it, "s", "--run", "run_x"))[0] == 1
        assert (await _say(it, "s", "--run", "run_"))[0] == 2
        code, text = await _say(it, "s", "--stat")
        assert text.splitlines() == [
            " +1 −0 a.txt (new)",
            " +1 −0 b.txt (new)",
            " 2 files changed, +2 −0",
        ]
        code, text = await _say(it, "s", "--json")
        assert [json.loads(line)["path"] for line in text.splitlines()] == ["a.txt", "b.txt"]
        said = await it.holdfast("sessions", "diff", "s", "--path", "none")
        assert (said.returncode, said.stdout) == (0, b"")
        assert diff.UNCHANGED.encode() in said.stderr
        assert (await _say(it))[0] == 1  # no session was used at a terminal here


async def test_an_export_names_the_files_that_a_call_changed(tmp_path: Path) -> None:
    async with serve() as model, gateway(tmp_path, model.base_url) as it:
        await _edited(it)
        for word in ("show", "export"):
            text = (await it.holdfast("sessions", word, "s")).stdout.decode()
            lines = [line for line in text.splitlines() if line.startswith("Changed: ")]
            assert lines == [
                "Changed: `+1 −0 a.txt (new)`",
                "Changed: `+1 −0 b.txt (new)`",
                "Changed: `+1 −1 a.txt`",
            ]


async def test_the_slash_command_shows_the_session_the_last_run_or_a_run(tmp_path: Path) -> None:
    async with serve() as model, gateway(tmp_path, model.base_url) as it:
        first, _ = await _edited(it)
        for words, lines in (
            ("/diff", ["- `+1 −0 a.txt (new)`", "- `+1 −0 b.txt (new)`"]),
            ("/diff last", ["- `+1 −1 a.txt`"]),
            (f"/diff {first}", ["- `+1 −0 a.txt (new)`", "- `+1 −0 b.txt (new)`"]),
        ):
            output = (await command(it, "s", words))["output"]
            assert [line for line in output.splitlines() if line.startswith("- ")] == lines
        assert (await command(it, "s", "/diff run_"))["output"] == SEVERAL_RUNS
        assert (await command(it, "s", "/diff run_x"))["output"] == NO_SUCH_RUN
        assert (await command(it, "new", "/diff"))["output"] == UNCHANGED


async def test_on_a_terminal_it_is_coloured_and_a_long_one_goes_to_the_pager(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    async with serve() as model:
        place.environ |= {
            "HOLDFAST_MODEL": "openai/fake",
            "OPENAI_BASE_URL": model.base_url,
            "OPENAI_API_KEY": "sk-test",
            "PAGER": f"tee {tmp_path}/paged",
        }
        done = await place.holdfast("run", calls(write("a.txt", "one\n")))
        assert done.code == 0, done.err
        async with terminal(place, "sessions", "diff") as short:
            shown = await short.read_until("+one")
        assert "\x1b[32m" in shown and not (tmp_path / "paged").exists()
        await place.holdfast("run", "-c", calls(write("b.txt", "line\n" * 100)))
        async with terminal(place, "sessions", "diff") as long:
            await long.read_until("@@ -0,0 +1,100 @@")
            await long.process.wait()
        assert (tmp_path / "paged").read_text().count("+line") == 100
