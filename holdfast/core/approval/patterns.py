"""Patterns: rules that the operator writes, such as `pytest *` or `git log --oneline`.

A pattern is the beginning of a command in plain words. With `*` as its last word, any further
plain words may follow; without it, the command is exactly this. There are no other signs, no
quotes and no operators: a line with several commands needs a rule for each of them. The rule is a
`CommandRule` for every workspace, so it applies only in the sandbox, at L2 and above.
"""

import re

from holdfast.core.approval.execution import BUILTINS, RESERVED
from holdfast.core.approval.families import runs_code
from holdfast.core.approval.rules import CommandRule
from holdfast.errors import Refused

LONGEST = 200  # characters
ANY = "*"
_WORD = re.compile(r"[A-Za-z0-9_./,:@%+=-]+")
_PROGRAM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
# They run any program that their words name, so a rule for them would be one for everything.
RUNNERS = frozenset(
    "sh bash dash zsh fish ksh csh tcsh busybox env xargs nohup timeout nice ionice setsid stdbuf "
    "time sudo su doas chroot unshare nsenter bwrap watch parallel script ssh find awk gawk "
    "mawk".split()
)


def parse_pattern(text: str) -> CommandRule:
    """Return the rule that `text` stands for; refused with `invalid_pattern`."""
    words = text.split()
    more = words[-1:] == [ANY]
    words = words[:-1] if more else words
    if not words:
        raise _refused("begin it with the name of a program, as in: pytest *")
    exe, *rest = words
    if len(text) > LONGEST or not all(map(_WORD.fullmatch, rest)):
        raise _refused(f"use plain words, and {ANY} only as the last one")
    if not _PROGRAM.fullmatch(exe) or exe in BUILTINS | RESERVED:
        raise _refused("begin it with the name of a program, not with a path or shell syntax")
    if exe in RUNNERS:
        raise _refused(
            f"{exe} runs any program that it is given; to be asked only for what leaves the sandbox, "
            'set mode = "sandboxed" under [approval]'
        )
    return CommandRule(exe=exe, begins=(tuple(rest),), more=more, code=runs_code(exe))


def _refused(why: str) -> Refused:
    return Refused("invalid_pattern", f"This is no pattern for commands: {why}.", param="pattern")
