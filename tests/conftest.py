"""What every test has around it: the leak fence, its limits, the promises it proves, its own loop.

And what many share: a gateway process with a scripted model.
"""

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.fakes import forks
from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer, serve

settings.register_profile("holdfast", deadline=None)  # a busy machine is no fault of an example
settings.load_profile("holdfast")

pytest_plugins = ["tests.fence", "tests.limits", "tests.promises_plugin"]


@pytest.fixture
def anyio_backend() -> str:
    """Asyncio. Of a test's own scope: no two tests share a loop, so none leaks into the next."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def signals() -> Iterator[None]:
    """Let the processes of tests hear every signal, also if `nohup` or `&` started the suite.

    A process inherits which signals are ignored, but not which are caught.
    """
    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session", autouse=True)
def forking(signals: None) -> Iterator[None]:
    """Let tests start `holdfast` quickly."""
    with forks.forking():
        yield


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    """A scripted model server."""
    async with serve() as server:
        yield server


@pytest.fixture
async def it(tmp_path: Path, model: ModelServer) -> AsyncIterator[GatewayProcess]:
    """A gateway process that uses it."""
    async with gateway(tmp_path, model.base_url) as process:
        yield process
