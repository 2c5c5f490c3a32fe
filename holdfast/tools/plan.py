"""What a command line comes to, before anything has happened: where, by which programs, on what.

Promises: an approval holds for exactly this and nothing else: the words or the script, the
directory, where each program was found, and by content the files here that the line names. What
such a file reads or runs in turn is not looked at: that is what the sandbox is for.
"""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping

from holdfast.core.execution import BUILTINS, Opaque, Parsed
from holdfast.core.rules import SYSTEM
from holdfast.core.types import Value
from holdfast.errors import ToolFailed
from holdfast.tools.sandbox import Profile
from holdfast.tools.shell import parse, serialise
from holdfast.tools.tool import Context
from holdfast.tools.view import below

_HASHED = 8 * 2**20  # bigger files are known by size and time
_WORDS = 2_000  # of a line, which are looked at as names of files
_CD = re.compile(r"\bcd\s+([^\s'\"`$;&|<>(){}*?=\\]+)")
_WORD = re.compile(r"(>\s*)?([^\s'\"`$;&|<>(){}*?=\\]+)")


class Plan(Value):
    """What a call comes to, before anything has happened."""

    what: Parsed | Opaque
    programs: Mapping[str, str]
    bash: str
    cwd: str
    profile: Profile
    moved: bool  # the session's own directory is gone

    @property
    def text(self) -> str:
        if isinstance(self.what, Opaque):
            return self.what.text
        return serialise(self.what, self.programs)

    def argv(self, before: str = "") -> tuple[str, ...]:
        return (self.bash, "--noprofile", "--norc", "-c", before + self.text)


def place(context: Context, workdir: str) -> tuple[str, bool]:
    """Where it runs, and whether the session's own directory is gone."""
    workspace = os.path.realpath(context.workspace)
    cwd = os.path.realpath(context.cwd)
    moved = not (below(cwd, workspace) and os.path.isdir(cwd))
    cwd = workspace if moved else cwd
    if not workdir:
        return cwd, moved
    wanted = os.path.realpath(os.path.join(cwd, workdir))
    if not below(wanted, workspace):
        raise ToolFailed(f"workdir {workdir!r} is not in the workspace, {workspace}.")
    if not os.path.isdir(wanted):
        raise ToolFailed(f"workdir {workdir!r} is not a directory.")
    return wanted, moved


def _programs(what: Parsed | Opaque, path: str) -> dict[str, str]:
    """Where each program is. A name with a slash says so itself, and may mean another directory."""
    if isinstance(what, Opaque):
        return {}
    names = {argv[0] for argv in what.commands} - BUILTINS
    found = {n: n if "/" in n else shutil.which(n, path=path) for n in names}
    return {n: where for n, where in found.items() if where and os.path.isabs(where)}


def make(command: str, cwd: str, profile: Profile, path: str, *, moved: bool) -> Plan:
    """What `command` comes to there, with programs looked for on `path`. Looks at files."""
    bash = shutil.which("bash", path=path)
    if bash is None:
        raise ToolFailed("No command can run here: there is no bash.")
    what = parse(command)
    return Plan(what, _programs(what, path), bash, cwd, profile, moved)


def files(plan: Plan) -> dict[str, str]:
    """What it would run or read, by content: foreign programs, and words that name files here."""
    named = (os.path.realpath(path) for path in _named(plan.what, plan.cwd))
    files = {path for path in named if below(path, plan.profile.workspace)}
    files |= {p for p in plan.programs.values() if os.path.dirname(p) not in SYSTEM}
    prints = {path: _fingerprint(path) for path in sorted(files)}
    return {path: print_ for path, print_ in prints.items() if print_}


def _named(what: Parsed | Opaque, cwd: str) -> Iterator[str]:
    if isinstance(what, Opaque):  # as far as words can be told from the rest
        words = [word for into, word in _WORD.findall(what.text) if not into]
        if len(words) > _WORDS:
            raise ToolFailed("The command is too long to look at; write it to a file and run that.")
        places = [cwd, *(os.path.join(cwd, place) for place in _CD.findall(what.text))]
        yield from (os.path.join(place, word) for place in places for word in words)
        return
    places = [cwd]
    for argv in what.commands:
        words = [part for word in argv for part in (word, word.partition("=")[2]) if part]
        yield from (os.path.join(place, word) for place in places for word in words)
        if argv[0] == "cd" and len(argv) == 2:
            places.append(os.path.join(places[-1], argv[1]))


def _fingerprint(path: str) -> str:
    """The sha256 of a regular file; of a big one its size and time; of anything else nothing."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""  # to open a named pipe would let its writer go on, into nothing
        with open(path, "rb", opener=_without_waiting) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                return ""
            if info.st_size > _HASHED:
                return f"size {info.st_size}, changed {info.st_mtime_ns}"
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError):  # a value error: a nul in its name
        return ""


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # for the other end of a pipe, say
