"""`holdfast completion`: what the parser knows is what a shell offers."""

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.arguments import parser
from holdfast.cli.complete import Completions, Option, Stand, script, walk
from tests.cli import Place

pytestmark = pytest.mark.anyio

SHELLS = ("bash", "zsh", "fish")


def little() -> argparse.ArgumentParser:
    """A parser with one of everything."""
    top = argparse.ArgumentParser(prog="holdfast")
    top.add_argument("-q", "--quiet", action="store_true", help="it's  quiet")
    commands = top.add_subparsers()
    export = commands.add_parser("export")
    export.add_argument("--format", choices=["markdown", "json"])
    export.add_argument("-o", metavar="FILE")
    export.add_argument("what", choices=["all", "some"])
    export.add_argument("words", nargs="*", metavar="MESSAGE")
    return top


def test_the_parser_is_walked_whole() -> None:
    top, export = walk(little(), "holdfast")
    asked = Option(("-h", "--help"), "show this help message and exit")
    assert top == Stand(
        "holdfast",
        (asked, Option(("-q", "--quiet"), "it's quiet")),
        (Completions(("export",)),),
        ("export",),
    )
    assert export == Stand(
        "holdfast export",
        (
            asked,
            Option(("--format",), "", Completions(("markdown", "json"))),
            Option(("-o",), "", Completions(files=True)),
        ),
        (Completions(("all", "some")), Completions(files=True, endless=True)),
        (),
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_every_command_option_and_choice_stands_in_the_script(shell: str) -> None:
    text = script(shell, parser())
    stands = list(walk(parser(), "holdfast"))
    assert {"holdfast run", "holdfast gateway install", "holdfast setup"} <= {
        s.said for s in stands
    }
    for stand in stands:
        assert f"'{stand.said}" in text
        here = "\n".join(line for line in text.splitlines() if f"'{stand.said}" in line)
        for option in stand.options:
            for name in option.names:
                written = f" {name[2:]}" if shell == "fish" and name[:2] == "--" else name
                written = f"-s {name[1:]}" if shell == "fish" and name[:2] != "--" else written
                assert written in here
        for offer in stand.words:
            assert " ".join(offer.choices) in here


def complete(text: str, *words: str, cwd: Path) -> list[str]:
    """What bash would offer for the last of these words."""
    said = " ".join(f"'{word}'" for word in words)
    asked = f"""{text}
COMP_WORDS=({said}) COMP_CWORD={len(words) - 1} COMPREPLY=()
_holdfast
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "--noprofile", "-uc", asked],
        capture_output=True,
        text=True,
        check=True,
        cwd=cwd,
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("gat",), ["gateway"]),
        (("--qui",), ["--quiet"]),
        (("gateway", "st"), ["start", "stop", "status"]),
        (("gateway", "install", "--f"), ["--force"]),
        (("--model", "gateway", "doc"), ["doctor"]),
        (("--model=gateway", "doc"), ["doctor"]),
        (("--model", "=", "gateway", "doc"), ["doctor"]),
        (("--json", "config", ""), ["show", "path"]),
        (("config", "show", ""), []),
        (("--model", ""), []),
        (("--model", "--qui"), ["--quiet"]),
        (("completion", ""), ["bash", "zsh", "fish"]),
        (("gateway", "run", "--port", "1", "--b"), ["--boot"]),
        (("run", "what", "--qui"), ["--quiet"]),
        (("nonsense", ""), []),
    ],
)
def test_bash_completes_what_can_be_said(
    tmp_path: Path, words: tuple[str, ...], offered: list[str]
) -> None:
    assert complete(script("bash", parser()), "holdfast", *words, cwd=tmp_path) == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash")
def test_bash_completes_the_values_of_options_also_behind_an_equals_sign(tmp_path: Path) -> None:
    text = script("bash", little())
    for words in (("--format", "j"), ("--format", "=", "j")):
        assert complete(text, "holdfast", "export", *words, cwd=tmp_path) == ["json"]
    both = ["markdown", "json"]
    assert complete(text, "holdfast", "export", "--format", "=", cwd=tmp_path) == both
    assert complete(text, "holdfast", "export", "--format", "json", "", cwd=tmp_path) == [
        "all",
        "some",
    ]


async def test_the_command_prints_the_script_and_nothing_else(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for shell in SHELLS:
        result = await place.holdfast("completion", shell)
        assert (result.code, result.err) == (0, "")
        assert result.out == script(shell, parser())
    assert not place.home.exists()


async def test_an_unknown_shell_is_a_usage_error(tmp_path: Path) -> None:
    result = await Place(tmp_path).holdfast("completion", "tcsh")
    assert result.code == 2
