"""Families: the rule that a question offers for a command that people run all day.

A question offers the permission for the family, if the command has one: `pytest …`, `npm run …`,
`make test`, reading git commands. It is shown in full, and only a person gives it. Most of these
programs run code of the workspace, which the model can write. So such a rule is worth as much as
the sandbox, and is offered only where the sandbox protects what runs outside of it.

A command without a family is offered as the exact line. That is right for whatever deletes
(`rm`), leaves the machine (`git push`), installs (`pip install`) or runs other programs by name
(`env`, `xargs`, `sh`).
"""

import re
from collections.abc import Mapping

from holdfast.core.approval.execution import Assignments
from holdfast.core.approval.rules import CommandPlace, CommandRule, covers

_TARGET = re.compile(r"[A-Za-z0-9_][\w./-]*")
Begins = tuple[tuple[str, ...], ...]


def _begins(*texts: str) -> Begins:
    return tuple(tuple(text.split()) for text in texts)


_GIT_READING = CommandRule(
    exe="git",
    begins=_begins(
        *("status", "diff", "log", "show", "blame", "ls-files", "rev-parse", "describe"),
        *("shortlog", "branch --list", "branch --show-current", "stash list"),
    ),
    # Without --output (writes), --no-index, --ext-diff, -O, -S with a file, and --upload-pack.
    flags=frozenset(
        "-s -b -p -n -u -w -a -v -- --short --branch --porcelain --oneline --stat --numstat "
        "--name-only --name-status --cached --staged --patch --no-patch --graph --all --follow "
        "--decorate --reverse --no-merges --abbrev-ref --show-toplevel --others --exclude-standard "
        "--tags --format= --pretty= --since= --until= --author= --grep= --max-count= --date= "
        "--diff-filter=".split()
    ),
)
_GIT_WRITING = CommandRule(
    exe="git",
    begins=_begins("add", "commit"),
    # Hooks are off. Without -F, -t, -c and -C, --pathspec-from-file and --cleanup.
    flags=frozenset(
        "-A -u -a -m -am -q -v -s -n -- --all --update --amend --no-edit --allow-empty --signoff "
        "--message= --verbose --quiet --dry-run --intent-to-add -N".split()
    ),
)

# Programs that run, check or build code of the workspace. Any words may follow: what a flag could
# make them do, the code that they run can do as well.
_CODE: Mapping[str, Begins] = {
    **dict.fromkeys(
        "pytest tox nox jest vitest mocha tsc eslint mypy pyright flake8".split(), ((),)
    ),
    **dict.fromkeys(
        "pylint prettier rspec ctest ninja python python3 node ruby deno".split(), ((),)
    ),
    **dict.fromkeys("npm pnpm yarn bun".split(), _begins("test", "run", "start")),
    "cargo": _begins("test", "build", "check", "clippy", "run", "fmt", "bench", "doc"),
    "go": _begins("test", "build", "vet", "run", "fmt"),
    "mvn": _begins("test", "compile", "package", "verify"),
    "dotnet": _begins("test", "build", "run"),
}
# Programs that read and print, or make directories, with settings of their own. Any words.
_TOOLS: Mapping[str, Begins] = {
    **dict.fromkeys("ruff black isort".split(), ((),)),
    **dict.fromkeys("jq curl tree file which mkdir touch".split(), ((),)),
    "docker": _begins("ps", "images", "logs", "inspect", "compose ps", "compose logs"),
    "npm": _begins("ls", "list", "outdated", "--version"),
    "pip": _begins("list", "show", "freeze", "--version"),
    "pip3": _begins("list", "show", "freeze", "--version"),
}


def runs_code(exe: str) -> bool:
    """Tell if the program is known to run code of the workspace."""
    return exe in _CODE or exe == "make"


def family(
    argv: tuple[str, ...], variables: Assignments, program: str | None, place: CommandPlace
) -> CommandRule | None:
    """Return the rule that covers `argv` and what is like it, for this program and workspace."""
    if program is None or "/" in argv[0]:
        return None
    for rule in _rules(argv):
        bound = CommandRule(
            exe=rule.exe,
            begins=rule.begins,
            more=rule.more,
            flags=rule.flags,
            code=rule.code,
            program=program,
            workspace=place.workspace,
        )
        if covers(bound, argv, variables, program, place):
            return bound
    return None


def _rules(argv: tuple[str, ...]) -> tuple[CommandRule, ...]:
    exe = argv[0]
    if exe == "git":
        return (_GIT_READING, _GIT_WRITING)
    if exe == "make":  # exactly these targets: others may deploy or delete
        targets = all(map(_TARGET.fullmatch, argv[1:]))
        return (CommandRule(exe=exe, begins=(argv[1:],), code=True),) if targets else ()
    table = ((_CODE.get(exe), True), (_TOOLS.get(exe), False))
    return tuple(
        CommandRule(exe=exe, begins=begins, more=True, code=code)
        for begins, code in table
        if begins
    )
