"""Journals of earlier versions: read by this one exactly as they were, and gone on with."""

import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from holdfast.api import frames, responses
from holdfast.core.approval.approval import Role
from holdfast.core.events import Record
from holdfast.core.intents import DoorCapabilities, Principal, Submit
from holdfast.core.life.timeline import Reading
from holdfast.core.messages import User
from holdfast.core.session.library import PREVIEW, one_line
from holdfast.core.types import OPERATOR, RunId, SessionId
from holdfast.engine.runs.prompt import IMPORTED
from holdfast.engine.service import Service
from holdfast.gateway import Gateway
from holdfast.journal.journal import Journal
from tests.engine.workshop import Told, journaled, parts, running
from tests.fakes.clock import ManualClock
from tests.fixtures.make import shortened
from tests.journal.sqlite.rebuild import rebuild
from tests.journal.sqlite.test_projections import projections

pytestmark = [pytest.mark.anyio, pytest.mark.promise("BACK-11")]

FIXTURES = sorted((Path(__file__).parents[1] / "fixtures").glob("journal-*"))
FROM_FILES = sorted((Path(__file__).parents[1] / "fixtures").glob("imported-*"))
BY = Principal(
    OPERATOR, DoorCapabilities(platform="api_server", answerable=True, late=False), frozenset(Role)
)


class Frozen:
    """A copy of a fixture, and what its gateway said of it."""

    def __init__(self, fixture: Path, home: Path) -> None:
        shutil.copytree(fixture, home)
        self.home = home
        self.seen: dict[str, Any] = msgspec.json.decode((home / "expected.json").read_bytes())
        self.runs: list[dict[str, Any]] = self.seen["runs"]
        self.unfinished = [r for r in self.runs if r["status"] in ("running", "queued")]
        self.asking = [r for r in self.runs if r["status"] == "waiting_for_approval"]
        # Of the time it was made in: nothing of it is old enough to be forgotten.
        self.clock = ManualClock(max(r["updated_at"] for r in self.runs))
        self.reading = Reading("boot", 1.0, self.clock.now())


@pytest.fixture(params=FIXTURES, ids=lambda fixture: str(fixture.name))
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> Frozen:
    return Frozen(request.param, tmp_path / "home")


@pytest.fixture(params=FROM_FILES, ids=lambda fixture: str(fixture.name))
def from_files(request: pytest.FixtureRequest, tmp_path: Path) -> Frozen:
    return Frozen(request.param, tmp_path / "home")


@asynccontextmanager
async def resting(frozen: Frozen) -> AsyncIterator[tuple[Service, Journal]]:
    """A service that has not been started: it reads and changes nothing."""
    async with (
        journaled(frozen.home, now=frozen.reading) as journal,
        anyio.create_task_group() as tasks,
    ):
        yield Service(parts(frozen.home, journal, Told(), clock=frozen.clock), tasks), journal


def _events(records: list[Record]) -> list[str]:
    """As the API names and numbers them."""
    told = [(r.seq, frames.frame(r)) for r in records]
    return [
        f"{seq} {msgspec.json.decode(frame.partition(b'data: ')[2])['event']}"
        for seq, frame in told
        if frame
    ]


async def _run(gateway: Gateway, journal: Journal, run_id: RunId) -> dict[str, Any]:
    view = await gateway.run(BY, run_id)
    row = await journal.run(run_id)
    assert row is not None
    read = await journal.records(row.stream, run_id, 0, 10_000)
    if view.ended_seq is not None:
        async with gateway.follow(BY, run_id, 0) as batches:
            assert batches is not None
            followed = [record async for batch in batches for record in batch]
        assert followed == read
    body = msgspec.json.decode(msgspec.json.encode(responses.run_object(view)))
    return {**shortened(body), "events": _events(read)}


def _schema(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


async def test_there_is_one_of_each_of_the_two_schemas_before_this(tmp_path: Path) -> None:
    async with journaled(tmp_path):
        pass
    this = _schema(tmp_path / "journal.db")
    copies = [Frozen(f, tmp_path / f.name).home / "journal.db" for f in FIXTURES]
    assert {this - 1, this - 2} <= {_schema(copy) for copy in copies}


@pytest.mark.fault("F-14")
async def test_opening_one_brings_its_schema_up_to_date(frozen: Frozen, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    async with journaled(tmp_path / "new"):
        pass
    path = frozen.home / "journal.db"
    new = _schema(tmp_path / "new" / "journal.db")
    assert _schema(path) < new
    async with journaled(frozen.home, now=frozen.reading) as journal:
        assert await journal.cursor("telegram") == ""
        assert await journal.undelivered() == []
    assert _schema(path) == new


@pytest.mark.fault("F-14")
async def test_every_run_reads_as_it_did_with_the_same_numbers(frozen: Frozen) -> None:
    async with resting(frozen) as (service, journal):
        for expected in frozen.runs:
            got = await _run(service, journal, RunId(expected["run_id"]))
            assert {name: got.get(name) for name in expected} == expected


@pytest.mark.fault("F-14")
async def test_every_conversation_reads_as_it_did(frozen: Frozen) -> None:
    async with resting(frozen) as (service, _):
        for name, expected in frozen.seen["sessions"].items():
            messages = await service.messages(BY, SessionId(name))
            got = msgspec.json.decode(
                msgspec.json.encode(list(map(responses.message_object, messages)))
            )
            assert shortened(got) == expected


@pytest.mark.fault("F-14")
async def test_its_projections_can_be_rebuilt(frozen: Frozen) -> None:
    path = frozen.home / "journal.db"
    async with journaled(frozen.home, now=frozen.reading):
        pass  # what it did not keep yet is filled in
    before = projections(path)
    assert await anyio.to_thread.run_sync(rebuild, path) == len(frozen.runs)
    assert projections(path) == before


async def test_its_sessions_are_listed_as_if_they_had_always_been(frozen: Frozen) -> None:
    async with resting(frozen) as (service, _):
        listed, more = await service.library.sessions(BY, 100, None)
    assert not more
    expected = frozen.seen["sessions"]
    assert {one.session_id for one in listed} == set(expected)
    for one in listed:
        first = next(m["content"] for m in expected[one.session_id] if m["role"] == "user")
        runs = [r for r in frozen.runs if r["session_id"] == one.session_id]
        if one.session_id not in ("long", "talk"):  # kept as a hash; begun anew by its caller
            assert one.preview == one_line(first, PREVIEW)
        assert one.unfinished == sum(r in frozen.unfinished + frozen.asking for r in runs)
        assert one.created_at <= min(r["created_at"] for r in runs)
    previews: dict[str, str] = {one.session_id: one.preview for one in listed}
    assert previews["long"] == "long " * 15 + "long…"
    assert previews["talk"] == "say:hello"


async def test_a_pending_approval_is_listed_and_found_by_its_id(frozen: Frozen) -> None:
    async with resting(frozen) as (service, _):
        listed, more = await service.approvals(BY, 100, None)
        assert not more
        assert [w.asked.run_id for w in listed] == [r["run_id"] for r in frozen.asking]
        for expected in frozen.asking:
            asked = expected["approval"]["request_id"]
            found = await service.approval(BY, asked)
            assert found is not None and found.asked.run_id == expected["run_id"]


async def test_a_request_that_was_accepted_then_is_known_now(frozen: Frozen) -> None:
    async with resting(frozen) as (_, journal):
        found = await journal.replay(OPERATOR, "POST /v1/runs", "only-once")
        assert found is not None and found.session_id == "keyed"


async def test_unfinished_runs_continue_and_finished_ones_stay(frozen: Frozen) -> None:
    assert len(frozen.unfinished) == 2
    model = Told()
    async with journaled(frozen.home, now=frozen.reading) as journal:
        made_of = parts(frozen.home, journal, model, clock=frozen.clock)
        async with running(made_of) as service:
            for number, run in enumerate(frozen.unfinished, start=1):
                asked = await model.asked(number)
                asked.answer(f"answer {number}")
                async with service.follow(BY, RunId(run["run_id"]), 0) as batches:
                    assert batches is not None
                    async for _ in batches:
                        pass
            note = model.requests[0].messages[-1]
            assert isinstance(note, User) and note.text.startswith("[System note:")
            for expected in frozen.runs:
                got = await _run(service, journal, RunId(expected["run_id"]))
                before = expected["events"]
                assert got["events"][: len(before)] == before
                if expected not in frozen.unfinished:
                    assert {name: got.get(name) for name in expected} == expected
                    continue
                assert got["status"] == "completed"
                numbers = [int(e.split()[0]) for e in got["events"]]
                assert numbers == sorted(set(numbers))
                if before:
                    went_on = [e.split()[1] for e in got["events"][len(before) :]]
                    assert went_on == ["run.resumed", "message.void", "run.completed"]


@pytest.mark.fault("F-14")
async def test_imported_messages_are_still_read_by_the_model(
    from_files: Frozen,
) -> None:
    """And so is a fork of it; what was said in them reads as it did."""
    model = Told()
    async with journaled(from_files.home, now=from_files.reading) as journal:
        made_of = parts(from_files.home, journal, model, clock=from_files.clock)
        async with running(made_of) as service:
            sessions = from_files.seen["sessions"]
            assert set(sessions) == {"imported", "fork"}
            for number, (name, expected) in enumerate(sessions.items(), start=1):
                said = await service.messages(BY, SessionId(name))
                got = msgspec.json.decode(
                    msgspec.json.encode(list(map(responses.message_object, said)))
                )
                assert got == expected
                await service.send(Submit(BY, "and today?", SessionId(name)))
                asked = await model.asked(number)
                assert IMPORTED in asked.request.system
                asked.answer("yes")
