"""A hint where a command failed because a program is not there, for the model and the person."""

import re

# The shell's own message, in the form of bash, dash and zsh.
_NOT_FOUND = re.compile(
    r"^(?:\S+: (?:line )?\d+: |(?:/\S+/)?(?:ba|da|z)?sh: (?:\d+: )?)?(?:command not found: )?"
    r"(?P<name>[\w.+-]{1,60})(?:: (?:command )?not found)?$"
)
_MARK = re.compile(r"(command )?not found")
NOT_FOUND = 127  # the shell's exit code
INSTEAD = {  # what most machines have in its place
    "rg": "grep -rn",
    "ag": "grep -rn",
    "fd": "find",
    "fdfind": "find",
    "bat": "cat",
    "exa": "ls -l",
    "eza": "ls -l",
    "tree": "find",
    "python": "python3",
    "pip": "python3 -m pip",
    "pip3": "python3 -m pip",
    "pytest": "python3 -m pytest",
    "wget": "curl -O",
    "jq": "python3 -m json.tool, or a short Python script",
    "http": "curl",
    "docker-compose": "docker compose",
}


def missing_program(exit_code: int | None, output: str) -> str:
    """Return the name of the program that the shell did not find; empty: that is not the reason."""
    if exit_code != NOT_FOUND:
        return ""
    for line in reversed(output.strip().splitlines()[-20:]):
        if _MARK.search(line) and (found := _NOT_FOUND.match(line.strip())):
            return found["name"]
    return ""


def hint(name: str) -> str:
    """Say what to do without that program."""
    other = f"Use {INSTEAD[name]} instead" if name in INSTEAD else "Use another program"
    return (
        f"{name} is not installed where this command ran, or not on its PATH. {other}, or ask the "
        "user to install it. A program in the user's home is not visible in the sandbox."
    )
