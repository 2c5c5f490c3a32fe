"""The seeds that are tried, and the message of a failure.

HOLDFAST_SIM_SEEDS=10000 tries that many, HOLDFAST_SIM_SEED=4711 only that one.
"""

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from typing_extensions import override

from tests.fakes.simloop import SimLoop, simulate
from tests.sim.world import World

W = TypeVar("W", bound=World)

DEFAULT = 60
CHUNK = 30  # seeds of one test: it has a time limit, and others can run beside it


def chunks(default: int = DEFAULT) -> list[range]:
    """The seeds, in tests of some."""
    if one := os.environ.get("HOLDFAST_SIM_SEED"):
        return [range(int(one), int(one) + 1)]
    count = int(os.environ.get("HOLDFAST_SIM_SEEDS", default))
    return [range(n, min(n + CHUNK, count)) for n in range(0, count, CHUNK)]


def play(seed: int, story: Callable[[SimLoop, int], Awaitable[W]]) -> W:
    """Live through the story under that seed. A failure says which it was."""
    with _named(seed), _no_errors() as errors:
        world = simulate(seed, lambda loop: story(loop, seed))
        assert not world.wrong, "\n".join(world.wrong)
        assert not errors, "\n".join(errors)
    return world


@contextmanager
def _named(seed: int) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        test = os.environ.get("PYTEST_CURRENT_TEST", "tests/sim").partition("[")[0]
        told = f"seed {seed}; again: HOLDFAST_SIM_SEED={seed} pytest {test}"
        if not isinstance(error, Exception):  # a time limit, an impatient person
            sys.stderr.write(f"{told}\n")
            raise
        raise AssertionError(f"{told}\n{error}") from error  # pytest shows no notes of a group


class _Errors(logging.Handler):
    """What the engine itself calls an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


@contextmanager
def _no_errors() -> Iterator[list[str]]:
    handler, logger = _Errors(), logging.getLogger()
    logger.addHandler(handler)
    try:
        yield handler.found
    finally:
        logger.removeHandler(handler)
