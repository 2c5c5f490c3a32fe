"""The free memory: the machine's, or what the cgroups leave of it."""

from pathlib import Path

import pytest

from holdfast.models.builtin.memory import free_memory

MB = 1 << 20
MACHINE = {"proc/meminfo": f"MemTotal: {8_000 * 1024} kB\nMemAvailable: {6_000 * 1024} kB\n"}


def v2(path: str, limit: str, used: int, cache: int = 0) -> dict[str, str]:
    group = f"sys/fs/cgroup{path}"
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.current": f"{used * MB}\n",
        f"{group}/memory.stat": f"anon 4096\ninactive_file {cache * MB}\n",
    }


def v1(path: str, limit: int, used: int, cache: int = 0) -> dict[str, str]:
    group = f"sys/fs/cgroup/memory{path}"
    return {
        f"{group}/memory.limit_in_bytes": f"{limit}\n",
        f"{group}/memory.usage_in_bytes": f"{used * MB}\n",
        f"{group}/memory.stat": f"cache 1\ntotal_inactive_file {cache * MB}\n",
    }


def ours(line: str) -> dict[str, str]:
    return {"proc/self/cgroup": line}


@pytest.mark.promise("LOCAL-04")
@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        (MACHINE, 6_000),
        (MACHINE | ours("0::/\n"), 6_000),
        (MACHINE | ours("0::/app\n") | v2("/app", "max", 100), 6_000),
        (MACHINE | ours("0::/app\n") | v2("/app", str(1_000 * MB), 700, 200), 500),
        (MACHINE | ours("0::/app\n") | v2("/app", str(1_000 * MB), 1_200), 0),
        (MACHINE | ours("0::/app\n") | v2("/app", str(64_000 * MB), 10), 6_000),
        # the limit of a parent counts too, and of all the smallest
        (
            MACHINE
            | ours("0::/slice/app\n")
            | v2("/slice", str(2_000 * MB), 1_100)
            | v2("/slice/app", str(1_500 * MB), 100),
            900,
        ),
        # a container: the path is the host's, the tree its own
        (MACHINE | ours("0::/docker/0123\n") | v2("", str(800 * MB), 100), 700),
        (
            MACHINE | ours("5:cpu:/x\n4:memory:/docker/0123\n") | v1("", 900 * MB, 300, 100),
            700,
        ),
        (MACHINE | ours("4:memory,hugetlb:/app\n") | v1("/app", 900 * MB, 300), 600),
        (MACHINE | ours("4:memory:/app\n") | v1("/app", 2**63 - 4096, 300), 6_000),
        (ours("0::/app\n") | v2("/app", str(900 * MB), 300), 600),
    ],
)
def test_the_smaller_of_the_machine_and_its_cgroups_counts(
    tmp_path: Path, files: dict[str, str], free: int | None
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert free_memory(tmp_path) == (None if free is None else free * MB)
