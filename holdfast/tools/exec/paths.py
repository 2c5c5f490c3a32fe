"""Resolve the words of a command line that could be paths in the workspace.

The approval rules judge text, and a link can make the text misleading (`slash -> /`, then
`cat slash/etc/passwd`). So every word is resolved as a path below the workspace, by the kernel if
possible. A word that leads out of the workspace, ends in a device, a socket or a pipe, or cannot
be resolved is `ASTRAY`, and the user is asked. If the line changes its directory, words are
resolved from every directory it could be in. If there are too many of those, no word is resolved,
and the user is asked too.

A file that a redirection writes must be one that `write_file` would write unasked: an ordinary
file in the workspace, or none yet, that no program runs by itself. No link may lead to it.

A change between this check and the start of the command is detected when the hash is computed
again. Changes after that are contained by the sandbox.
"""

import os
import stat
from pathlib import Path

from holdfast.core.approval import autorun
from holdfast.core.approval.execution import NOT_ORDINARY, OUTSIDE, Opaque, Parsed, Seen
from holdfast.errors import ToolFailed
from holdfast.tools.fs.openat import beneath, descriptor, open_root, walk
from holdfast.tools.fs.roots import below
from holdfast.tools.fs.workspace import FileGate

PLACES = 16  # directories that a line could be in, with each `cd` executed or not
_NAME = 255  # maximum bytes of a file name, on every file system
_LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC
_WORST = (Seen.ASTRAY, Seen.DIRECTORY, Seen.FILE, Seen.MISSING)  # needs most care first


def follow(what: Parsed | Opaque, cwd: str, workspace: str) -> dict[str, Seen]:
    """Return each word that could be a path in the workspace, and what it is. Reads the disk."""
    if isinstance(what, Opaque):
        return {}
    read = [redirect.target for redirect in what.redirections if redirect.reads]
    words = sorted({*read, *(word for argv in what.commands for word in argv[1:])})
    inside = [word for word in words if _is_inside(word, workspace)]
    places = _places(what, cwd)
    if len(places) > PLACES:
        return {}
    try:
        root = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:  # it is created when the first command starts
        return dict.fromkeys(inside, Seen.MISSING)
    except OSError:
        return {}
    with descriptor(root):
        return {word: _worst(root, workspace, places, word) for word in inside}


def targets(what: Parsed | Opaque, cwd: str, workspace: str) -> dict[str, str]:
    """Return each file that a redirection writes, and why to ask for it, if so. Reads the disk."""
    if isinstance(what, Opaque) or not what.writes:
        return {}
    wanted = {redirect.target for redirect in what.redirections if redirect.writes}
    places = _places(what, cwd)
    if len(places) > PLACES:
        return dict.fromkeys(wanted, NOT_ORDINARY)
    if not os.path.lexists(workspace):  # it is created when the first command starts
        return {word: _why_asked_by_name(word, places, workspace) for word in wanted}
    try:
        with FileGate(Path(workspace)) as gate, descriptor(open_root(workspace)) as root:
            found = {word: _why_asked(gate, root, workspace, places, word) for word in wanted}
    except (ToolFailed, OSError):
        return dict.fromkeys(wanted, NOT_ORDINARY)
    return found


def _why_asked(gate: FileGate, root: int, workspace: str, places: set[str], word: str) -> str:
    """Return why to ask before `word` is written, in any directory that the line could be in."""
    if why := _why_asked_by_name(word, places, workspace):
        return why
    for place in sorted(places):
        path = os.path.relpath(os.path.join(place, word), workspace)
        if not _is_ordinary(root, path):
            return NOT_ORDINARY
        try:
            real, why = gate.why_asked(path)
        except ToolFailed:
            return NOT_ORDINARY
        if why or real != path:
            return why or NOT_ORDINARY
    return ""


def _why_asked_by_name(word: str, places: set[str], workspace: str) -> str:
    """Return the same, as far as the name tells."""
    full = [os.path.join(place, word) for place in sorted(places)]
    if not _is_inside(word, workspace) or not all(below(path, workspace) for path in full):
        return OUTSIDE
    reasons = (autorun.why_asked(os.path.relpath(path, workspace)) for path in full)
    return next(filter(None, reasons), "")


def _is_ordinary(root: int, path: str) -> bool:
    """Return whether it is a regular file with one name, or none yet, and no link leads to it."""
    try:
        fd = walk(root, path, _LOOK)
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    with descriptor(fd):
        state = os.fstat(fd)
    return stat.S_ISREG(state.st_mode) and state.st_nlink == 1


def _is_inside(word: str, workspace: str) -> bool:
    """Return whether the text of the path stays inside the workspace, links not considered."""
    if not word or ".." in word.split("/"):
        return False
    return not word.startswith("/") or below(word, workspace)


def _places(what: Parsed, cwd: str) -> set[str]:
    """Return every directory the line could be in: a `cd` can fail, be skipped or be in a pipe."""
    places = {cwd}
    for argv in what.commands:
        if argv[0] == "cd" and len(places) <= PLACES:
            places |= {os.path.join(place, *argv[1:]) for place in places}
    return places


def _worst(root: int, workspace: str, places: set[str], word: str) -> Seen:
    """Return what `word` is, in the directory where that needs the most care."""
    paths = {os.path.relpath(os.path.join(place, word), workspace) for place in places}
    return min((_look(root, path) for path in paths), key=_WORST.index)


def _look(root: int, path: str) -> Seen:
    if any(len(os.fsencode(part)) > _NAME for part in path.split("/")):
        return Seen.MISSING  # too long for a file name, for example the text of a script
    try:
        fd = beneath(root, path, _LOOK)
    except FileNotFoundError:
        return Seen.MISSING
    except OSError:
        return Seen.ASTRAY
    with descriptor(fd):
        mode = os.fstat(fd).st_mode
    if stat.S_ISDIR(mode):
        return Seen.DIRECTORY
    return Seen.FILE if stat.S_ISREG(mode) else Seen.ASTRAY
