"""Starting up: the budget is a ratio to the bare interpreter, measured in the same run."""

import resource
import subprocess
import sys

import holdfast

ROUNDS = 7


def ratio(*args: str) -> float:
    """CPU time of the cheapest of several starts, as a multiple of the bare interpreter's.

    CPU time, and both in turn: the machine may be busy with other tests.
    """
    pairs = [(_cpu(*args), _cpu("-c", "pass")) for _ in range(ROUNDS)]
    return min(ours for ours, _ in pairs) / min(bare for _, bare in pairs)


def _cpu(*args: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_the_version_costs_at_most_three_bare_interpreters() -> None:
    assert ratio("-m", "holdfast", "--version") <= 3


def test_the_help_costs_at_most_six_bare_interpreters() -> None:
    assert ratio("-m", "holdfast", "--help") <= 6


def test_the_version_is_the_packages() -> None:
    for option in ("--version", "-V"):
        command = [sys.executable, "-m", "holdfast", option]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert said == f"holdfast {holdfast.__version__}\n"


def test_importing_the_package_imports_nothing_of_others() -> None:
    code = (
        "import sys; import holdfast, holdfast.__main__; "
        "print(*{m.partition('.')[0] for m in sys.modules} & {'aiohttp', 'anyio', 'msgspec'})"
    )
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.strip() == ""
