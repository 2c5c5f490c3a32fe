"""The time limit of an async test, which ends it from inside its loop.

pytest-timeout interrupts whatever runs. In an event loop that leaves the test's own task as it is,
its fixtures wait for that task, and the suite with them. So an async test is cancelled before, in
time for its fixtures to clean up; pytest-timeout remains the limit of all other tests, and of
fixtures.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
import pytest

_SHARE = 0.8  # of the limit; the rest is for the fixtures
_LIMIT_S = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[_LIMIT_S] = settings.timeout * _SHARE


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test) and _LIMIT_S in pyfuncitem.stash:
        pyfuncitem.obj = _limited(test, pyfuncitem.stash[_LIMIT_S])
    try:
        return (yield)
    finally:
        pyfuncitem.obj = test


def _limited(
    test: Callable[..., Awaitable[None]], seconds: float
) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def limited(**arguments: object) -> None:
        with anyio.fail_after(seconds):
            await test(**arguments)

    return limited
