"""What behaviour tests share: a scripted model server, and a real gateway process before it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.gateway import GatewayProcess, gateway
from tests.fakes.model_server import ModelServer, serve


@pytest.fixture
async def model() -> AsyncIterator[ModelServer]:
    async with serve() as server:
        yield server


@pytest.fixture
async def it(tmp_path: Path, model: ModelServer) -> AsyncIterator[GatewayProcess]:
    async with gateway(tmp_path, model.base_url) as process:
        yield process
