"""Starting up: the budget is a ratio to the bare interpreter, measured in the same run."""

import subprocess
import sys
import time

import holdfast

ROUNDS = 7


def fastest(*args: str) -> float:
    """Seconds of the fastest of several starts."""
    best = 60.0
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - begun)
    return best


def test_the_version_costs_at_most_three_bare_interpreters() -> None:
    assert fastest("-m", "holdfast", "--version") <= 3 * fastest("-c", "pass")


def test_the_help_costs_at_most_six_bare_interpreters() -> None:
    assert fastest("-m", "holdfast", "--help") <= 6 * fastest("-c", "pass")


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
