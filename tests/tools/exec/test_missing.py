"""A command that failed because a program is not there says so, and what to do."""

import subprocess

import pytest

from holdfast.tools.exec.missing import INSTEAD, NOT_FOUND, hint, missing_program

pytestmark = pytest.mark.promise("SAY-05")


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("bash: line 1: rg: command not found\n", "rg"),
        ("bash: rg: command not found", "rg"),
        ("/bin/sh: 1: rg: not found", "rg"),
        ("sh: 1: rg: not found", "rg"),
        ("zsh: command not found: rg", "rg"),
        ("./build.sh: line 3: cmake: command not found", "cmake"),
        ("building\nbash: line 1: g++: command not found\n", "g++"),
        ("nothing was found", ""),
        ("page: not found in /srv", ""),
        ("", ""),
    ],
)
def test_the_program_is_read_from_the_shell_s_message(output: str, name: str) -> None:
    assert missing_program(NOT_FOUND, output) == name
    assert missing_program(1, output) == "", "another exit code is another reason"


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_it_is_how_the_shells_here_say_it(shell: str) -> None:
    done = subprocess.run(
        [shell, "-c", "no-such-program-here x"], capture_output=True, text=True, check=False
    )
    assert missing_program(done.returncode, done.stderr) == "no-such-program-here"


def test_the_hint_names_what_to_use_instead() -> None:
    assert INSTEAD["rg"] in hint("rg")
    assert "frobnicate" in hint("frobnicate")
