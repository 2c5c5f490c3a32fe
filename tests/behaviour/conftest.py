"""Fixtures of the terminal tests: a desk with an embedded engine, and one beside a gateway."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.behaviour.desk import Desk, desk


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as it:
        yield it


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, served=True) as it:
        yield it
