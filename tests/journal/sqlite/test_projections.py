"""Projections: the events alone make them again, as they were."""

import sqlite3
from contextlib import closing
from pathlib import Path

import anyio
import pytest

from holdfast.core.chat.chats import UpdateTaken
from holdfast.core.events import MessageDelta
from holdfast.core.intents import RequestKey, Steer, Submit
from holdfast.core.messages import User
from holdfast.core.run.run import CutCause, RunPhase
from holdfast.core.session.session import SessionSeeded, SessionSuspended, SessionTitled
from holdfast.core.types import RunId, SessionId, SessionKey
from holdfast.errors import IllegalTransition, Rejected
from tests.engine.workshop import (
    ME,
    Told,
    call,
    finished,
    follow,
    journaled,
    reach,
    serving,
    stop,
    submit,
)
from tests.fakes.clock import ManualClock
from tests.journal.conformance_chats import (
    Scribe,
    came,
    live_randomly,
    message,
    names,
    said,
)
from tests.journal.sqlite.rebuild import rebuild

pytestmark = pytest.mark.anyio

TABLES = {
    "runs": "run_id, owner, stream, first_seq, ended_seq, status, stopping, created_at, "
    "updated_at, model, last_event",
    "sessions": "*",
    "request_keys": "*",
    "approvals": "*",
    "cursors": "*",
    "taken": "*",
    "said": "*",
    "outbox": "*",
}


def projections(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All of them, sorted; empty is what this journal has no table for yet."""
    with closing(sqlite3.connect(path)) as connection:
        there = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema")}
        return {
            table: sorted(connection.execute(f"SELECT {columns} FROM {table}").fetchall())
            if table in there
            else []
            for table, columns in TABLES.items()
        }


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


async def live_through_much(directory: Path) -> dict[RunId, RunPhase]:
    """A journal with a run of every kind; how each of them stands at the end."""
    model, clock = Told(), ManualClock()
    async with serving(directory, model, clock=clock) as service:
        plain = await service.send(
            Submit(ME, "x" * 100_000, request_key=RequestKey("runs", "k", "f"))
        )
        asked = await model.asked(1)
        clock.advance(1)
        asked.say("hello")
        asked.answer("hello")
        await finished(service, plain.run_id)
        failed = await submit(service, "fail", "s")
        (await model.asked(2)).fail(Rejected("no"))
        await finished(service, failed)
        clock.advance(1)
        stopped = await submit(service, "stop me", "s")
        never = await submit(service, "never begun", "s")
        (await model.asked(3)).say("I be")
        await reach(service, stopped, MessageDelta)
        clock.advance(1)
        await stop(service, never)
        await stop(service, stopped)
        await follow(service, stopped)
        steered = await submit(service, "steer me", "s")
        (await model.asked(4)).answer("", call("nothing"))
        asked = await model.asked(5)
        clock.advance(1)
        await service.send(Steer(ME, steered, "left"))
        asked.answer("right")
        (await model.asked(6)).answer("left")
        await finished(service, steered)
        cut = await submit(service, "cut me", "t")
        (await model.asked(7)).say("half a")
        await reach(service, cut, MessageDelta)
        waiting = await submit(service, "wait", "t")
        await service.stop(0, CutCause.SHUTDOWN)
    return {
        plain.run_id: RunPhase.COMPLETED,
        failed: RunPhase.FAILED,
        stopped: RunPhase.CANCELLED,
        never: RunPhase.CANCELLED,
        steered: RunPhase.COMPLETED,
        cut: RunPhase.INTERRUPTED,
        waiting: RunPhase.QUEUED,
    }


async def test_rebuilt_projections_equal_the_originals(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    runs = await live_through_much(tmp_path)
    before = projections(path)
    assert {row[0]: row[5] for row in before["runs"]} == runs
    assert (len(before["sessions"]), len(before["request_keys"])) == (
        4,
        1,
    )  # one is the gateway's own
    execute(path, *(f"DELETE FROM {table}" for table in TABLES))
    assert await anyio.to_thread.run_sync(rebuild, path) == len(runs)
    assert projections(path) == before
    assert await anyio.to_thread.run_sync(rebuild, path) == len(runs)  # and once more
    assert projections(path) == before


async def test_rebuilt_listings_equal_the_originals(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with journaled(tmp_path) as journal:
        old = Scribe(journal, SessionKey(ME.owner, SessionId("old")))
        said = (User("x" * 100_000),)
        await old.says(SessionSeeded(messages=said, source="x", began_at=0.25, said_at=0.5))
        await old.says(SessionTitled(title="one", by=ME.owner))
        await old.says(SessionTitled(title="two", by=ME.owner), SessionSuspended(reason="stuck"))
    before = projections(path)
    execute(path, *(f"DELETE FROM {table}" for table in TABLES))
    await anyio.to_thread.run_sync(rebuild, path)
    assert projections(path) == before
    async with journaled(tmp_path) as journal:
        (row,) = await journal.sessions(ME.owner, 10, None)
        assert (row.title, row.preview, row.status) == ("two", "x" * 79 + "…", "suspended")
        assert (row.created_at, row.updated_at, row.changed_at) == (0.25, 0.5, 3.0)


async def test_old_sessions_get_their_listing_columns_except_damaged_facts(
    tmp_path: Path,
) -> None:
    await live_through_much(tmp_path)
    path = tmp_path / "journal.db"
    before = projections(path)["sessions"]
    plain = "title = '', preview = '', model = '', status = 'open', listed = 1, "
    bare = f"UPDATE sessions SET {plain} updated_at = 0, changed_at = 0"
    execute(path, bare)
    async with journaled(tmp_path):
        pass
    assert projections(path)["sessions"] == before
    damage = "UPDATE events SET data = '{' WHERE kind = 'input.admitted' AND stream > 1"
    execute(path, bare, damage.replace("'{'", "x'7b'"))
    for blob in (tmp_path / "blobs").iterdir():
        blob.unlink()
    async with journaled(tmp_path) as journal:
        listed = await journal.sessions(ME.owner, 10, None)
    assert len(listed) == 3
    assert [row.preview for row in listed] == [""] * 3
    assert all(row.updated_at >= row.created_at and row.model for row in listed)


async def test_a_journal_works_after_a_rebuild(tmp_path: Path) -> None:
    runs = await live_through_much(tmp_path)
    path = tmp_path / "journal.db"
    execute(path, *(f"DELETE FROM {table}" for table in TABLES))
    await anyio.to_thread.run_sync(rebuild, path)
    model = Told()
    async with serving(tmp_path, model) as service:
        for number, (run_id, status) in enumerate(list(runs.items())[-2:], start=1):
            assert status in (RunPhase.INTERRUPTED, RunPhase.QUEUED)
            (await model.asked(number)).answer("done")
            assert (await finished(service, run_id)).status is RunPhase.COMPLETED
        again = Submit(ME, "x" * 100_000, request_key=RequestKey("runs", "k", "f"))
        assert (await service.send(again)).run_id == next(iter(runs))
        assert len(await service.messages(ME, SessionId("t"))) == 4


async def test_numbers_that_may_have_been_seen_are_still_not_used_again(tmp_path: Path) -> None:
    await live_through_much(tmp_path)
    path = tmp_path / "journal.db"
    execute(path, "UPDATE sessions SET floor = 10 * stream")
    before = projections(path)
    await anyio.to_thread.run_sync(rebuild, path)
    assert projections(path) == before


async def test_events_that_cannot_be_leave_the_projections_as_they_are(tmp_path: Path) -> None:
    await live_through_much(tmp_path)
    path = tmp_path / "journal.db"
    execute(path, "DELETE FROM events WHERE kind = 'run.started'")
    before = projections(path)
    with pytest.raises(IllegalTransition):
        await anyio.to_thread.run_sync(rebuild, path)
    assert projections(path) == before


async def test_an_empty_journal_can_be_rebuilt(tmp_path: Path) -> None:
    async with journaled(tmp_path):
        pass
    assert await anyio.to_thread.run_sync(rebuild, tmp_path / "journal.db") == 0


async def chat(directory: Path) -> list[str]:
    """Two chats at once, whose clocks agree; the messages that wait at the end, in order."""
    async with journaled(directory) as journal:
        one = Scribe(journal, SessionKey(ME.owner, SessionId("one")), at=0.0)
        two = Scribe(journal, SessionKey(ME.owner, SessionId("two")), at=0.5)
        await one.says(said(3), said(1, "other"))
        await two.says(said(4), message("d1"))
        await one.says(message("d2", "x" * 100_000))
        await two.says(UpdateTaken(came=came(2)), message("d3"))
        return names(await journal.undelivered())


async def test_rebuilt_chat_tables_equal_the_originals(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    order = await chat(tmp_path)
    before = projections(path)
    assert before["cursors"] == [("other", "1"), ("tg", "2")]
    assert (len(before["taken"]), len(before["outbox"])) == (4, 3)
    execute(path, *(f"DELETE FROM {table}" for table in TABLES))
    await anyio.to_thread.run_sync(rebuild, path)
    assert projections(path) == before
    async with journaled(tmp_path) as journal:
        assert names(await journal.undelivered()) == order == ["d1", "d2", "d3"]


async def test_rebuilt_deliveries_equal_the_originals(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with journaled(tmp_path) as journal:
        assert len(await live_randomly(journal, 7)) == 40
    before = projections(path)
    execute(path, *(f"DELETE FROM {table}" for table in TABLES))
    await anyio.to_thread.run_sync(rebuild, path)
    assert {row[1:] for row in projections(path)["outbox"]} == {row[1:] for row in before["outbox"]}


async def test_a_cursor_that_is_there_is_believed_and_not_the_clocks(tmp_path: Path) -> None:
    async with journaled(tmp_path) as journal:
        fast = Scribe(journal, SessionKey(ME.owner, SessionId("fast")), at=100.0)
        slow = Scribe(journal, SessionKey(ME.owner, SessionId("slow")))
        await fast.says(said(1))
        await slow.says(said(2))
    path = tmp_path / "journal.db"
    await anyio.to_thread.run_sync(rebuild, path)
    assert projections(path)["cursors"] == [("tg", "2")]
    execute(path, "DELETE FROM cursors")
    await anyio.to_thread.run_sync(rebuild, path)
    assert projections(path)["cursors"] == [("tg", "1")]


async def test_within_a_session_messages_keep_their_order_though_the_clock_went_back(
    tmp_path: Path,
) -> None:
    async with journaled(tmp_path) as journal:
        scribe = Scribe(journal, SessionKey(ME.owner, SessionId("s")), at=100.0)
        await scribe.says(message("d1"), said(1))
        scribe.at = 10.0
        await scribe.says(message("d2"), said(2))
    path = tmp_path / "journal.db"
    before = projections(path)
    execute(path, *(f"DELETE FROM {table}" for table in TABLES))
    await anyio.to_thread.run_sync(rebuild, path)
    assert projections(path) == before
    assert before["cursors"] == [("tg", "2")]
