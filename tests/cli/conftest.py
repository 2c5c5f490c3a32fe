"""What tests of the command line share: a home to run commands in, and a gateway that is played."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli import Place
from tests.cli.door import Door, door


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A home and a working directory."""
    return Place(tmp_path)


@pytest.fixture
async def front(place: Place) -> AsyncIterator[Door]:
    """The operator's socket of that home, answered by the test."""
    async with door(place) as front:
        yield front
