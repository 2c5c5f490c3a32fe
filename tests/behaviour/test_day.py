"""The day of docs/day.md: 25 steps of ordinary work at a real terminal, each checked as it goes."""

from pathlib import Path

import pytest

from scripts import day
from tests.fakes.emulator import screen

pytestmark = pytest.mark.anyio


@pytest.mark.promise("TERM-20")
@pytest.mark.timeout(300)
async def test_a_day_of_work_needs_nothing_but_the_terminal(tmp_path: Path) -> None:
    walked = await day.walk(tmp_path, screen)
    assert len(walked.screens) == len(day.MORNING + day.AFTERNOON) == 25
