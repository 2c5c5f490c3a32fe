"""Words for what the sandbox has blocked, for the model and the person.

They are said only on evidence: the proxy refused a host, or a command that failed wrote, among its
last lines, an error that the sandbox causes. A path is compared with the machine outside: if the
file system is read-only there too, or (L1) the gateway could not write there either, the sandbox is
not the reason.
"""

import os
import re
from collections.abc import Sequence
from enum import StrEnum

from holdfast.core.approval.approval import Level
from holdfast.core.types import Value
from holdfast.tools.fs.roots import below

LINES = 20  # at the end of the output
_PATH = re.compile(r"['\"‘“]?(?P<path>/[^'\"’”:\s]+)")
_READ_ONLY = re.compile(r"Read-only file system|\bEROFS\b")
_DENIED = re.compile(r"Permission denied|\bEACCES\b")
_UNREACHABLE = re.compile(
    r"Network is unreachable|Temporary failure in name resolution|Could not resolve host"
    r"|Name or service not known|\bENETUNREACH\b|\bEAI_AGAIN\b|getaddrinfo ENOTFOUND"
)
_NOT_PERMITTED = re.compile(r"Operation not permitted|\bEPERM\b")

REFUSED = (
    "The sandbox blocked this: connections to {hosts} are not allowed. Tell the user why they are "
    "needed, or go on without them."
)
NO_PROXY = (
    "The sandbox blocked this: commands reach allowed hosts only, through the proxy that "
    "http_proxy names, and this program did not use it. Use one that does (curl, pip, npm, git "
    "over https), or ask the user to run it outside of the sandbox (unsandboxed)."
)
NO_NETWORK = (
    "The sandbox blocked this: commands have no network on this machine (sandbox {level}), not "
    "even with each other. Ask the user to run it outside of the sandbox (unsandboxed)."
)
NO_WRITE = (
    "The sandbox blocked this: {path} is outside of what commands may write to: the workspace, "
    "their home and /tmp."
)
PROTECTED = (
    "The sandbox blocked this: {path} is protected, because other programs run what it says. "
    "Change it with the file tools, which ask the user."
)


class BlockedBy(StrEnum):
    NETWORK = "network"
    WRITE = "write"


class Blocked(Value):
    """What was blocked, and the words for it."""

    what: BlockedBy
    words: str


def find(
    level: Level, exit_code: int | None, output: str, workspace: str, refused: Sequence[str]
) -> Blocked | None:
    """Return what the sandbox blocked of a command at `level`; None: nothing that is known."""
    if refused:
        hosts = ", ".join(dict.fromkeys(refused))
        return Blocked(BlockedBy.NETWORK, REFUSED.format(hosts=hosts))
    if level is Level.L0 or exit_code == 0:
        return None
    lines = output.strip().splitlines()[-LINES:]
    said = "\n".join(lines)
    if _UNREACHABLE.search(said) or (
        level is Level.L1 and "socket" in said and _NOT_PERMITTED.search(said)
    ):
        words = NO_PROXY if level is Level.L2 else NO_NETWORK.format(level=level.name)
        return Blocked(BlockedBy.NETWORK, words)
    return _write(level, lines, workspace)


def _write(level: Level, lines: Sequence[str], workspace: str) -> Blocked | None:
    error = _DENIED if level is Level.L1 else _READ_ONLY
    at = next((n for n, line in enumerate(lines) if error.search(line)), None)
    if at is None:
        return None
    for line in (lines[at], *lines[at + 1 :]):
        paths = [found["path"] for found in _PATH.finditer(line)]
        for path in reversed(paths):
            if _is_blocked(level, path):
                words = PROTECTED if below(os.path.normpath(path), workspace) else NO_WRITE
                return Blocked(BlockedBy.WRITE, words.format(path=path))
    return None


def _is_blocked(level: Level, path: str) -> bool:
    """Return whether the error is the sandbox's: outside of it, there would be another or none."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if level is Level.L1:
        return os.access(path, os.W_OK)
    return not os.statvfs(path).f_flag & os.ST_RDONLY
