"""The plan of a command line, made before anything runs: its directory, programs and files.

Promises: an approval covers exactly the plan and nothing else: the words or the script, the
directory, the path of each program, the content of the files that the line names literally, and
complete snapshots of the trees that commands can write to. Making a plan takes time in proportion
to the length of the line.

Theory: the text of a line does not tell which files it will read, so the snapshots of the trees
(fs/tree.py) are what protects an approval. The named files matter for permissions that are valid
for more than one call, for trees that are too big for a snapshot, and for files outside of the
trees. Finding them is a guess, which may find too many files but not too few.
"""

import os
import re
import shlex
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress

from holdfast.core.approval.approval import Level
from holdfast.core.approval.execution import BUILTINS, Opaque, Parsed
from holdfast.core.approval.rules import OWN, SYSTEM
from holdfast.core.types import Value
from holdfast.errors import ToolFailed
from holdfast.tools.exec.shell import parse, serialise
from holdfast.tools.fs import tree
from holdfast.tools.fs.roots import below
from holdfast.tools.sandbox.sandbox import CommandProfile
from holdfast.tools.tool import Context

_HASHED = 64 * 2**20  # bytes of all files together; further files are known by inode and times
_WORDS = 4_000  # words and parts of words of a line that are checked as file names
_PLACES = 16  # directories in which they are looked up
_PART = re.compile(r"[^\s'\"`$;&|<>(){}*?=\\]+")
_INNER = re.compile(r"[^:,@#]+")  # in `test.py::name`, `lib:x.jar`, `a,b`, `@file`, `path#name`
# Commands cannot write there, or the files change all the time while the user decides.
_ELSEWHERE = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc"),
    *("/proc", "/sys", "/dev", "/run", "/var/log"),
)


class CommandPlan(Value):
    """The commands, programs and directory of one call."""

    what: Parsed | Opaque
    programs: Mapping[str, str]
    bash: str
    cwd: str
    profile: CommandProfile
    home: str  # home directory that commands of this workspace share; empty: there is none
    moved: bool  # the session's current directory no longer exists

    @property
    def text(self) -> str:
        if isinstance(self.what, Opaque):
            return self.what.text
        return serialise(self.what, self.programs)

    @property
    def roots(self) -> tuple[str, ...]:
        """The directories that commands can write to."""
        return (self.profile.workspace, *([self.home] if self.home else []))

    def argv(self, before: str = "") -> tuple[str, ...]:
        return (self.bash, "--noprofile", "--norc", "-c", before + self.text)


def place(context: Context, workdir: str) -> tuple[str, bool]:
    """Return the directory to run in, and whether the session's current directory is gone."""
    workspace = os.path.realpath(context.workspace)
    cwd = os.path.realpath(context.cwd)
    moved = not (below(cwd, workspace) and os.path.isdir(cwd))
    cwd = workspace if moved else cwd
    if not workdir:
        return cwd, moved
    wanted = real(os.path.join(cwd, workdir))
    if not below(wanted, workspace):
        raise ToolFailed(f"workdir {workdir!r} is not in the workspace {workspace}.")
    if not os.path.isdir(wanted):
        raise ToolFailed(f"workdir {workdir!r} is not a directory.")
    return wanted, moved


def real(path: str) -> str:
    """Resolve links if possible; some (`/proc/1/exe`) we are not permitted to read."""
    try:
        return os.path.realpath(path)
    except OSError:
        return os.path.abspath(path)


def _programs(what: Parsed | Opaque, path: str) -> dict[str, str]:
    """Return the path of each program.

    A name with a slash is a path already. It may be relative to a directory other than ours.
    """
    if isinstance(what, Opaque):
        return {}
    names = {argv[0] for argv in what.commands} - BUILTINS
    found = {n: n if "/" in n else shutil.which(n, path=path) for n in names}
    return {n: where for n, where in found.items() if where and os.path.isabs(where)}


def make(
    command: str, cwd: str, profile: CommandProfile, path: str, home: str, *, moved: bool
) -> CommandPlan:
    """CommandPlan `command`, with programs searched on `path`. Reads the disk."""
    what = parse(command)
    bash = _bash(what, path)
    if bash is None:
        raise ToolFailed("No command can run here, because bash is not installed.")
    return CommandPlan(what, _programs(what, path), bash, cwd, profile, home, moved)


def _bash(what: Parsed | Opaque, path: str) -> str | None:
    """Find bash: the user's own for a script, the system's for literal words.

    Every bash reads literal words in the same way.
    """
    system = os.pathsep.join(OWN) if isinstance(what, Parsed) else ""
    return shutil.which("bash", path=system) or shutil.which("bash", path=path)


def keeps_off_links(programs: Mapping[str, str], level: Level) -> bool:
    """Return whether `grep -r` follows no link. GNU's does not; the one of busybox does.

    In a container it is the image's, which is not known.
    """
    if level is Level.L3:
        return False
    grep = programs.get("grep", "/bin/grep")
    return sys.platform == "linux" and os.path.basename(os.path.realpath(grep)) == "grep"


def files(plan: CommandPlan, own: str = "") -> dict[str, str]:
    """Hash the programs outside of the system's directories and the files named by words. Blocks.

    The gateway's `own` home is left out, because it changes with every decision.
    """
    programs = (plan.bash, *plan.programs.values())
    files = {p for p in programs if os.path.dirname(p) not in SYSTEM}
    left, prints = _HASHED, dict[str, str]()
    for path in _named(plan):
        if not _is_elsewhere(where := real(path), plan, own):
            files.add(where)
        elif any(below(path, root) for root in plan.roots):  # through a link that can be replaced
            prints[path] = f"leads to {where}"
    for path in sorted(files):
        print_, size = _fingerprint(os.path.realpath(path), left)  # a program may be a link
        left -= size
        if print_:
            prints[path] = print_
    return prints


def _is_elsewhere(path: str, plan: CommandPlan, own: str) -> bool:
    if any(below(path, root) for root in (plan.profile.workspace, plan.home) if root):
        return False
    return any(below(path, root) for root in (*_ELSEWHERE, own) if root)


def _named(plan: CommandPlan) -> Iterator[str]:
    """Yield the files that a word may name, in `cwd` or in a directory named by another word."""
    words = [_at_home(word, plan) for word in _words(plan.what)]
    places = _places(words, plan.cwd)
    paths = dict.fromkeys(os.path.join(place, word) for place in places for word in words)
    yield from (path for path in paths if stat.S_ISREG(_mode(path)))


def _places(words: list[str], cwd: str) -> list[str]:
    """Return `cwd` and the directories that words name, there or below one named before."""
    places = {cwd: cwd}  # without links → as named
    for word in words:
        for place in tuple(places.values()):
            path = os.path.join(place, word)
            if len(places) < _PLACES and stat.S_ISDIR(_mode(path)):
                places.setdefault(real(path), path)
    return list(places.values())


def _words(what: Parsed | Opaque) -> list[str]:
    """Return everything that could be a file name: words, and parts of words."""
    if isinstance(what, Parsed):
        words = [word for argv in what.commands for word in argv]
        words += [redirect.target for redirect in what.redirections if redirect.reads]
        words += [value for of_one in what.variables for _, value in of_one]
    else:
        words = _split(what.text)
    parts = dict.fromkeys(part for word in words for part in (word, *_PART.findall(word)))
    found = list(dict.fromkeys(piece for part in parts for piece in (part, *_pieces(part))))
    if len(found) > _WORDS:
        raise ToolFailed("The command is too long to check; write it to a file and run that.")
    return found


def _pieces(part: str) -> Iterator[str]:
    """Yield the value that is attached to a short flag, and what stands between separators."""
    if part.startswith("-") and not part.startswith("--"):
        yield part[2:]
    yield from _INNER.findall(part)


def _split(text: str) -> list[str]:
    """Split a script into words, by quotes and backslashes only."""
    words = shlex.shlex(text, posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    try:
        return list(words)
    except ValueError:  # an unclosed quote
        return _PART.findall(text)


def _at_home(word: str, plan: CommandPlan) -> str:
    if word != "~" and not word.startswith("~/"):
        return word
    confined = plan.home and not plan.profile.unsandboxed
    return (plan.home if confined else os.path.expanduser("~")) + word[1:]


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return 0


def _fingerprint(path: str, most: int) -> tuple[str, int]:
    """Return the sha256 of a regular file and its size.

    Of a bigger file, or one that cannot be opened (another process can keep it shut with a lease),
    return the identity and 0.
    """
    try:
        info = os.stat(path)
    except OSError:
        return "", 0
    if not stat.S_ISREG(info.st_mode):
        return "", 0  # opening a named pipe would release its writer, whose data gets lost
    if info.st_size <= most:
        with suppress(OSError):
            return tree.digest(path, info.st_size), info.st_size
    times = f"{info.st_mtime_ns} {info.st_ctime_ns}"
    return f"size {info.st_size}, inode {info.st_ino}, changed {times}", 0
