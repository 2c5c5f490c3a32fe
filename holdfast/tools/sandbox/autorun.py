"""Protect files that make the user's programs run code (core/approval/autorun.py) from commands.

Before a command starts, `look` finds these files (autorun files) in the workspace.

Existing ones are sealed if the sandbox can do that: they are mounted read-only in the command's
view. They are mounted by file descriptor, so that a link swapped in meanwhile is not followed. The
git repository around a sealed file and every directory on the path to it are mounted too, so that
they cannot be renamed. A sealed file that is not part of a repository can be renamed together with
its directory; what the command then puts in its place is moved away afterwards. The number of
seals is limited. Files nearest to the root and with exactly a name of the table come first,
because a command can create any number of other files.

A file that does not exist yet cannot be sealed without creating it. So `settle` looks again when
the command has ended. Files that git would run without asking (a hook, a setting that names a
program) are moved away. The result of a normal `git init` or `git clone` stays. Other files are moved
away too if they are new in a place that the user's programs may trust already: the workspace
itself, or a repository that was there before. Elsewhere, as in a clone, they are reported, because
editors and direnv ask before they trust a new directory. They are only reported after a command in
the background too: while it ran, the user may have opened the directory in an editor. A directory that the command has made unreadable is made readable for this check, because git can
use a directory that it cannot list.

The state before the command is recorded before it starts (`Before`). So if the gateway is killed,
the next gateway can settle the command. Settling again after an interruption gives the same
result.

A search goes breadth first and is limited, so that files near the workspace's root are always
found. It follows no link.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from secrets import token_hex
from typing import Self

import msgspec

from holdfast.core.approval import autorun
from holdfast.core.types import Value
from holdfast.tools.fs.openat import descriptor, open_root, walk
from holdfast.tools.fs.workspace import shown
from holdfast.tools.sandbox.autorun_paths import (
    ASIDE,
    DIRECTORY,
    HELD,
    AutorunKind,
    AutorunPaths,
    FoundPath,
    join,
    look,
    make_accessible,
)

MOVED_AWAY = "These files of the command were renamed"
NEW_AUTORUN = "The command created or changed these files"
NAMED = 20  # files that a note names
MAX_SEALS = 160  # each is a mount and a descriptor

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Before(Value):
    """The state before a command, with which any gateway can settle it."""

    workspace: str
    seen: AutorunPaths
    sealed: frozenset[str]
    brief: bool = False  # in the foreground: what is new afterwards is hardly the user's own work

    def settle(self) -> "LeftByCommand":
        """Move away or report what the ended command left."""
        return settle(self.workspace, self.seen, self.sealed, brief=self.brief)

    def encode(self) -> bytes:
        """Encode as JSON, with `json`, because msgspec cannot encode names that are not UTF-8."""
        return json.dumps(msgspec.to_builtins(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode the result of `encode`. Raises `ValueError` if `data` is anything else."""
        return msgspec.convert(json.loads(data), type=cls)


class Seal(Value):
    """A path to mount over itself. `fd` is the file itself, even if its path changes meanwhile."""

    path: str
    fd: int
    writable: bool  # mounted only so that it cannot be renamed


class LeftByCommand(Value):
    """The autorun files that a command left: moved away (from, to), and created or changed."""

    held: tuple[tuple[str, str], ...] = ()
    made: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """Yield notes for the model, which should tell the user."""
        if self.held:
            moved = _listed([f"{_shown(path)} (now {_shown(now)})" for path, now in self.held])
            yield (
                f"{MOVED_AWAY}: {moved}. The user's programs would have run what they name. "
                "Tell the user; only the user can move them back."
            )
        if self.made:
            yield (
                f"{NEW_AUTORUN}: {_listed([*map(_shown, self.made)])}. They can run code as soon as "
                "the user opens or enters the directory. Tell the user to look at them first."
            )


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _shown(path: str) -> str:
    return shown(os.fsencode(path).decode(errors="replace"))  # a name may be invalid UTF-8


def seals(workspace: str, seen: AutorunPaths) -> list[Seal]:
    """Return what to mount, outermost first. The caller closes the descriptors."""
    wanted = _wanted(seen)
    opened: list[Seal] = []
    try:
        root = open_root(workspace)
    except OSError:
        return []
    with descriptor(root):
        for path in sorted(wanted, key=lambda path: path.count("/")):
            with suppress(OSError):  # deleted since it was found
                fd = walk(root, path, os.O_PATH | os.O_CLOEXEC)
                if stat.S_ISLNK(os.fstat(fd).st_mode):
                    os.close(fd)
                else:
                    opened.append(Seal(path, fd, wanted[path]))
    return opened


def _wanted(seen: AutorunPaths) -> dict[str, bool]:
    """Choose paths up to the limit; the value is True for one that only must not be renamed."""
    wanted: dict[str, bool] = {}
    for path in sorted(seen.found, key=autorun.rank):
        kind = seen.found[path].kind
        if kind in (AutorunKind.HOOK, AutorunKind.INNER):
            continue
        ways = [] if kind is AutorunKind.OTHER else [w for w in _ways(path) if w not in wanted]
        if len(wanted) + len(ways) < MAX_SEALS:
            wanted |= {**dict.fromkeys(ways, True), path: False}
    return wanted


def _ways(path: str) -> list[str]:
    """Return the directories above `path`."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: at + 1]) for at in range(len(parts))]


def _within(path: str, others: Iterable[str]) -> bool:
    return any(path.startswith(f"{other}/") for other in others if other)


def settle(
    workspace: str, before: AutorunPaths, sealed: frozenset[str], *, brief: bool = True
) -> LeftByCommand:
    """After a command: move away what git would run because of it, and report the rest.

    The command could not change a sealed file, so a change there is the work of another program
    and stays. The exception: the directory around it is another one now, which only a rename by
    the command explains.
    """
    after = look(workspace, before)
    new = {p: f for p, f in after.found.items() if not _same(before.found.get(p), f)}
    firm = {path for path in sealed if _stayed(path, before, after)}
    harmful = {
        path: found
        for path, found in new.items()
        if not (path in firm or _within(path, firm) or _is_plain(workspace, path, found, after))
    }
    made = [
        p
        for p, found in harmful.items()
        if found.kind is AutorunKind.OTHER
        and p not in sealed
        and not (brief and _is_trusted(p, before))
    ]
    made += sorted(after.closed - before.closed)
    held = _held(before, after)  # moved by a gateway that was killed meanwhile
    try:
        root = open_root(workspace)
    except OSError:
        return LeftByCommand()
    with descriptor(root):
        for path in {path for path, _ in held} - after.found.keys():
            with suppress(OSError):
                _put_back(root, path, before.found.get(path))
        for path in sorted(harmful.keys() - set(made), key=lambda path: -path.count("/")):
            former = before.found.get(path)
            try:
                held.append((path, _hold(root, path, former)))
            except FileNotFoundError:  # deleted since it was found
                pass
            except OSError:
                made.append(path)
    return LeftByCommand(tuple(sorted(held)), tuple(made))


def _is_trusted(path: str, before: AutorunPaths) -> bool:
    """Return whether a new file is where the user's programs may have been told to trust files.

    One that was there before, and could not be sealed, is left: its former content is not known.
    """
    folder = path.rpartition("/")[0]
    roots = {"", *(repository.removesuffix("/.git") for repository in before.repositories)}
    return path not in before.found and folder in roots - {".git"}


def _held(before: AutorunPaths, after: AutorunPaths) -> list[tuple[str, str]]:
    """Return the files that were moved away since the command began."""
    parts = [(path, path.rpartition("/")) for path in after.asides - before.asides]
    names = [(path, parent, ASIDE.fullmatch(name)) for path, (parent, _, name) in parts]
    return [(join(parent, name[1]), path) for path, parent, name in names if name]


def _same(before: FoundPath | None, after: FoundPath) -> bool:
    return before is not None and (before.kind, before.mark) == (after.kind, after.mark)


def _stayed(path: str, before: AutorunPaths, after: AutorunPaths) -> bool:
    """Return whether it is still in the same directory."""
    was, now = before.found.get(path), after.found.get(path)
    return was is not None and now is not None and was.within == now.within


def _is_plain(workspace: str, path: str, found: FoundPath, after: AutorunPaths) -> bool:
    """Return whether it is what git itself creates, and names no program."""
    text = (found.text or b"").decode(errors="replace")
    match found.kind:
        case AutorunKind.CONFIG:
            return found.text is not None and autorun.is_plain_config(text, path.count("/"))
        case AutorunKind.COMMON:
            owner = "/".join(path.split("/")[:-3])  # of OWNER/worktrees/NAME/commondir
            plain = found.text is not None and autorun.is_plain_commondir(text)
            return plain and path.count("/") > 2 and owner in after.repositories
        case AutorunKind.HOOKS | AutorunKind.INNER:
            return found.mark == b""
        case AutorunKind.POINTER:
            return found.text is not None and _leads_to(workspace, path, text) in after.repositories
        case AutorunKind.HOOK | AutorunKind.OTHER:
            return False


def _leads_to(workspace: str, path: str, text: str) -> str:
    """Return the path that a `.git` file points to; "." if it is not in git's own form."""
    target = text.removeprefix("gitdir: ").removesuffix("\n")
    if not text.startswith("gitdir: ") or "\n" in target:
        return "."
    here = os.path.join(workspace, os.path.dirname(path))
    return os.path.relpath(os.path.normpath(os.path.join(here, target)), workspace)


def _hold(root: int, path: str, former: FoundPath | None) -> str:
    """Move it away, and restore what was there before, if that is known; return the new path."""
    parent, _, name = path.rpartition("/")
    aside = f"{name}{HELD}{token_hex(4)}"
    with descriptor(walk(root, parent or ".", DIRECTORY)) as at:
        try:
            os.rename(name, aside, src_dir_fd=at, dst_dir_fd=at)
        except PermissionError:  # a command can close a directory against writing
            make_accessible(root, parent)
            os.rename(name, aside, src_dir_fd=at, dst_dir_fd=at)
    _put_back(root, path, former)
    return join(parent, aside)


def _put_back(root: int, path: str, former: FoundPath | None) -> None:
    """Restore the former file atomically, if its content is known."""
    if former is None or former.text is None:
        return
    parent, _, name = path.rpartition("/")
    with descriptor(walk(root, parent or ".", DIRECTORY)) as at:
        new = f"{name}{HELD}{token_hex(4)}.new"
        with os.fdopen(os.open(new, _NEW, 0o644, dir_fd=at), "wb") as file:
            file.write(former.text)
        os.rename(new, name, src_dir_fd=at, dst_dir_fd=at)
