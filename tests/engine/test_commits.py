"""Commits: records go to the subscribers of their type."""

from pathlib import Path

import pytest

from holdfast.core.events import Record
from holdfast.core.run.run import RunStarted
from holdfast.core.session.session import SessionOpened, SessionTitled
from holdfast.core.types import OPERATOR, SessionId, SessionKey
from holdfast.engine.commits import Commits
from holdfast.engine.sessions import Sessions
from tests.engine.workshop import journaled
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

KEY = SessionKey(OPERATOR, SessionId("s"))
OPENED = SessionOpened(session_id="s", workspace="/w", platform="test")
TITLED = SessionTitled(title="it", by=OPERATOR)


async def test_a_record_goes_to_the_subscribers_of_its_type(tmp_path: Path) -> None:
    published: list[Record] = []
    first: list[Record] = []
    second: list[Record] = []
    async with journaled(tmp_path) as journal:
        commits = Commits(journal, published.extend)
        commits.subscribe((SessionTitled,), first.append)
        commits.subscribe((SessionTitled, SessionOpened), second.append)
        commits.subscribe((RunStarted,), first.append)
        sessions = Sessions(journal, ManualClock())
        await sessions.append(sessions.create(KEY), OPENED, TITLED).wait()
    assert [r.fact for r in published] == [OPENED, TITLED]
    assert [r.fact for r in first] == [TITLED]
    assert [r.fact for r in second] == [OPENED, TITLED]


async def test_a_subscriber_that_raises_keeps_no_other_from_the_record(tmp_path: Path) -> None:
    got: list[Record] = []

    def stumble(record: Record) -> None:
        raise ValueError(record)

    async with journaled(tmp_path) as journal:
        commits = Commits(journal, lambda records: None)
        commits.subscribe((SessionOpened,), stumble)
        commits.subscribe((SessionOpened, SessionTitled), got.append)
        sessions = Sessions(journal, ManualClock())
        await sessions.append(sessions.create(KEY), OPENED, TITLED).wait()
    assert [r.fact for r in got] == [OPENED, TITLED]
