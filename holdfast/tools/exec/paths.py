"""Resolve the words of a command line that could be paths in the workspace.

The approval rules judge text, and a link can make the text misleading (`slash -> /`, then
`cat slash/etc/passwd`). So every word is resolved as a path below the workspace, by the kernel if
possible. A word that leads out of the workspace, ends in a device, a socket or a pipe, or cannot
be resolved is `ASTRAY`, and the user is asked. If the line changes its directory, words are
resolved from every directory it could be in. If there are too many of those, no word is resolved,
and the user is asked too.

A change between this check and the start of the command is detected when the hash is computed
again. Changes after that are contained by the sandbox.
"""

import os
import stat

from holdfast.core.approval.execution import Opaque, Parsed, Seen
from holdfast.tools.fs.openat import beneath, descriptor
from holdfast.tools.fs.roots import below

PLACES = 16  # directories that a line could be in, with each `cd` executed or not
_NAME = 255  # maximum bytes of a file name, on every file system
_LOOK = getattr(os, "O_PATH", os.O_RDONLY | os.O_NONBLOCK) | os.O_CLOEXEC
_WORST = (Seen.ASTRAY, Seen.DIRECTORY, Seen.FILE, Seen.MISSING)  # needs most care first


def follow(what: Parsed | Opaque, cwd: str, workspace: str) -> dict[str, Seen]:
    """Return each word that could be a path in the workspace, and what it is. Reads the disk."""
    if isinstance(what, Opaque):
        return {}
    words = sorted({word for argv in what.commands for word in argv[1:]})
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
