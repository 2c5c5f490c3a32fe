"""What was typed is there again, also from several terminals at once, and nothing that should not."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.tui.input import history
from holdfast.cli.tui.input.history import KEPT, MOST, InputHistory
from holdfast.cli.tui.input.paste import REMEMBERED, Pastes
from holdfast.core.redaction import Redactor

pytestmark = pytest.mark.anyio

NOTHING = Redactor(())
CHILD = """
import sys
from pathlib import Path
from holdfast.cli.tui.input.history import InputHistory
from holdfast.core.redaction import Redactor
name, files, lines = sys.argv[1], sys.argv[2:-1], int(sys.argv[-1])
histories = [InputHistory(Path(file), Redactor(())) for file in files]
print("ready", flush=True)
sys.stdin.readline()
for line in range(lines):
    for history in histories:
        history.append_string(f"{name} {line}")
"""


def opened(home: Path) -> InputHistory:
    return InputHistory(home / history.FILE, NOTHING)


async def loaded(of: InputHistory) -> list[str]:
    """What it holds, oldest first."""
    return [text async for text in of.load()][::-1]


async def test_a_typed_line_is_there_in_the_next_terminal(tmp_path: Path) -> None:
    first = opened(tmp_path)
    for text in ("one", "two\nlines", "drei · 漢"):
        first.append_string(text)
    assert first.get_strings() == ["one", "two\nlines", "drei · 漢"]
    assert await loaded(opened(tmp_path)) == ["one", "two\nlines", "drei · 漢"]
    lines = (tmp_path / history.FILE).read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == ["one", "two\nlines", "drei · 漢"]
    assert stat.S_IMODE((tmp_path / history.FILE).stat().st_mode) == 0o600


async def test_a_line_typed_before_the_file_is_loaded_is_there_once_and_last(
    tmp_path: Path,
) -> None:
    opened(tmp_path).append_string("before")
    second = opened(tmp_path)
    second.append_string("now")
    assert await loaded(second) == ["before", "now"]
    assert await loaded(second) == ["before", "now"]
    second.append_string("later")
    assert await loaded(second) == ["before", "now", "later"]


async def test_some_lines_are_not_kept(tmp_path: Path) -> None:
    typed = opened(tmp_path)
    for text in ("a", "a", " secret", "a", "b", "", "\n", "a"):
        typed.append_string(text)
    assert typed.get_strings() == ["a", "b", "a"]
    opened(tmp_path).append_string("a")  # by another terminal, which does not know
    assert await loaded(opened(tmp_path)) == ["a", "b", "a"]


async def test_known_secrets_are_never_written(tmp_path: Path) -> None:
    typed = InputHistory(tmp_path / history.FILE, Redactor(["sk-very-secret"]))
    typed.append_string("use sk-very-secret please")
    assert typed.get_strings() == ["use [redacted] please"]
    assert b"very-secret" not in (tmp_path / history.FILE).read_bytes()
    assert await loaded(opened(tmp_path)) == ["use [redacted] please"]


async def test_damaged_lines_are_skipped_and_the_next_line_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    path.write_bytes(b'"good"\nnonsense\n{"a": 1}\n\xff\xfe\n\n"also"\n"torn')
    opened(tmp_path).append_string("new")
    assert await loaded(opened(tmp_path)) == ["good", "also", "new"]


async def test_a_history_that_cannot_be_kept_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / history.FILE).mkdir()
    typed = opened(tmp_path)
    typed.append_string("hello")
    assert await loaded(typed) == ["hello"]
    nowhere = opened(tmp_path / "no" / "such")
    nowhere.append_string("hello")
    assert await loaded(nowhere) == ["hello"]


async def test_a_long_history_is_made_short_when_it_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / history.FILE
    history.append(path, [f"line {n}" for n in range(MOST)])
    assert len(await loaded(opened(tmp_path))) == MOST
    assert path.read_bytes().count(b"\n") == MOST
    opened(tmp_path).append_string("one more")
    assert (await loaded(opened(tmp_path)))[-1] == "one more"
    kept = await loaded(opened(tmp_path))
    assert kept == [*(f"line {n}" for n in range(MOST - KEPT + 1, MOST)), "one more"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [history.FILE]


def test_two_terminals_lose_nothing_even_while_a_third_makes_it_short(tmp_path: Path) -> None:
    files = [tmp_path / f"{n}.jsonl" for n in range(20)]
    for file in files:
        history.append(file, [f"old {n}" for n in range(MOST + 1)])
    lines = 40
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, name, *map(str, files), str(lines)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("left", "right")
    ]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    for file in files:
        history.read(file)
    for child in children:
        child.communicate()
        assert child.returncode == 0
    for file in files:
        kept = history.read(file)
        assert file.read_bytes().count(b"\n") < MOST
        for name in ("left", "right"):
            # In order, each once; a line that met the change may stand there twice.
            mine = list(dict.fromkeys(text for text in kept if text.startswith(name)))
            assert sorted(mine) == sorted(f"{name} {n}" for n in range(lines))


async def test_pasted_text_is_kept_as_text_if_it_is_short_and_never_as_a_label(
    tmp_path: Path,
) -> None:
    pastes = Pastes()
    typed = InputHistory(tmp_path / history.FILE, NOTHING, pastes.remembered)
    text = "x\n" * 9
    short, long = pastes.paste(text), pastes.paste("y" * (REMEMBERED + 1))
    typed.append_string(f"see {short}{long}")
    assert typed.get_strings() == [f"see {short}{long}"]  # here they still mean something
    kept = await loaded(opened(tmp_path))
    assert kept == [f"see {text}[pasted text 2 · {REMEMBERED + 1} characters, not kept]"]


async def test_a_very_long_line_is_kept_only_in_memory(tmp_path: Path) -> None:
    typed = opened(tmp_path)
    typed.append_string("x" * (history.LONGEST + 1))
    assert len(typed.get_strings()) == 1
    assert await loaded(opened(tmp_path)) == []


@given(texts=st.lists(st.text()))
def test_every_written_line_is_read(
    texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("history") / history.FILE
    for text in texts:
        history.append(path, [text])
    different = [a for a, b in zip(texts, [None, *texts], strict=False) if a != b]
    assert history.read(path) == different
