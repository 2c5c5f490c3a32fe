"""The memory that programs can still get: what the machine has free, or less if a cgroup limits us.

A container or a service manager limits memory by cgroups, and `/proc/meminfo` does not know of it.
Every cgroup above ours may have a limit, in version 2 (one tree) and in version 1 (a tree for
memory). In a container the path of our cgroup may be the host's; then its parents, up to the root
of what is mounted, are still ours.
"""

from collections.abc import Iterator
from pathlib import Path

from holdfast.core.types import Value

ROOT = Path("/")


class _Version(Value):
    """Where a version of cgroups keeps its figures."""

    mount: str
    limit: str
    used: str
    cache: str  # the name, in memory.stat, of what is given back when it is needed


_V2 = _Version("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Version(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


def free_memory(root: Path = ROOT) -> int | None:
    """Return how many bytes programs can still get; None: not known."""
    found = [*_free_of_machine(root), *_free_of_groups(root)]
    return min(found, default=None)


def _free_of_machine(root: Path) -> Iterator[int]:
    kilobytes = _table(root / "proc/meminfo").get("MemAvailable")
    if kilobytes is not None:
        yield kilobytes << 10


def _free_of_groups(root: Path) -> Iterator[int]:
    """Yield what is left to each cgroup that we are in, if it has a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" or "memory" in controllers.split(","):
            version = _V2 if number == "0" else _V1
            mount = root / version.mount
            ours = mount / path.strip().lstrip("/")
            for group in (ours, *ours.parents):
                yield from _left(group, version)
                if group == mount:
                    break


def _left(group: Path, version: _Version) -> Iterator[int]:
    limit, used = (_text(group / name).strip() for name in (version.limit, version.used))
    if limit.isdecimal() and used.isdecimal():  # a limit of version 2 may be "max"
        cache = _table(group / "memory.stat").get(version.cache, 0)
        yield max(0, int(limit) - max(0, int(used) - cache))


def _table(path: Path) -> dict[str, int]:
    """Return the lines of a file that are a name and a number."""
    lines = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if words[1:] and words[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
