"""What every journal must do for lists of sessions. Run through by subclassing `SessionSuite`."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.core.messages import Assistant, Message, User
from holdfast.core.run import run as machine
from holdfast.core.run.run import Parent, RunPhase, RunQueued
from holdfast.core.session.session import (
    ModelChosen,
    SessionReopened,
    SessionReset,
    SessionSeeded,
    SessionSuspended,
    SessionTitled,
)
from holdfast.core.types import CallId, Fact, InputId, Owner, RunId, SessionId, SessionKey
from holdfast.journal.journal import Journal, SessionRow
from tests.journal.conformance import (
    KEY,
    ME,
    RUN,
    accept,
    admitted,
    completed,
    finished,
    opened,
    queued,
)
from tests.journal.conformance_chats import Scribe


def key(name: str, owner: Owner = ME) -> SessionKey:
    return SessionKey(owner, SessionId(name))


def titled(title: str) -> SessionTitled:
    return SessionTitled(title=title, by=ME)


def seeded(*messages: Message, began_at: float = 0.0, said_at: float = 0.0) -> SessionSeeded:
    return SessionSeeded(messages=messages, source="x", began_at=began_at, said_at=said_at)


def run_of_a_child(run_id: RunId = RUN) -> RunQueued:
    parent = Parent(
        session_id=SessionId("p"), run_id=RunId("r"), call_id=CallId("c"), background=False
    )
    return RunQueued(run_id=run_id, input_id=InputId("i"), parent=parent)


async def ids(journal: Journal, limit: int = 10, after: str | None = None) -> list[str]:
    last = None if after is None else key(after)
    return [row.key.session_id for row in await journal.sessions(ME, limit, last)]


class SessionSuite:
    """The promises, one test each."""

    def make(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        """A journal over `directory`, which may hold one already."""
        raise NotImplementedError

    @pytest.fixture
    async def journal(self, tmp_path: Path) -> AsyncIterator[Journal]:
        async with self.make(tmp_path) as made:
            yield made

    async def shown(self, journal: Journal, which: SessionKey = KEY) -> SessionRow:
        found = await journal.session(which)
        assert found is not None
        return found

    async def test_a_session_is_shown_with_its_first_words_and_its_last_times(
        self, journal: Journal
    ) -> None:
        assert await journal.session(KEY) is None
        row = await accept(journal)
        first = SessionRow(
            key=KEY,
            stream=row.stream,
            workspace="/w",
            platform="test",
            status="open",
            title="",
            preview="hi",
            model="m",
            created_at=1.0,
            updated_at=1.0,
            changed_at=1.0,
            unfinished=1,
        )
        assert await self.shown(journal) == first
        facts, run = finished(machine.queue(queued(), 1.0), 2.0)
        await journal.append(row.stream, 3, 2.0, facts, [run]).wait()
        ended = replace(first, updated_at=2.0, changed_at=2.0, unfinished=0)
        assert await self.shown(journal) == ended
        more = RunId("run_2")
        again = (admitted(more, "something else"), replace(queued(more), model="n"))
        waiting = machine.queue(queued(more), 3.0)
        await journal.append(row.stream, 7, 3.0, again, [waiting]).wait()
        later = replace(first, model="n", updated_at=3.0, changed_at=3.0)
        assert await self.shown(journal) == later
        assert await journal.sessions(ME, 10, None) == [later]

    async def test_a_title_is_the_last_one_given_and_does_not_count_as_words(
        self, journal: Journal
    ) -> None:
        scribe = Scribe(journal)
        await scribe.says(titled("one"), titled("two"))
        assert (await self.shown(journal)).title == "two"
        await scribe.says(titled("three"))
        row = await self.shown(journal)
        assert (row.title, row.updated_at, row.changed_at) == ("three", 1.0, 2.0)
        await scribe.says(titled(""))
        assert (await self.shown(journal)).title == ""

    async def test_the_first_words_are_one_line_and_not_too_long(self, journal: Journal) -> None:
        scribe = Scribe(journal)
        await scribe.says(admitted(text=" \n "))
        assert (await self.shown(journal)).preview == ""
        await scribe.says(admitted(RunId("run_2"), "one\n\ttwo  " + "x" * 100_000))
        await scribe.says(admitted(RunId("run_3"), "later"))
        preview = (await self.shown(journal)).preview
        assert preview == f"one two {'x' * 71}…"

    async def test_what_a_session_begins_with_says_when_it_was_said(self, journal: Journal) -> None:
        talk = (Assistant("welcome"), User(" hello\nthere "), User("more"))
        await Scribe(journal, key("old"), 99.0).says(seeded(*talk, began_at=5.0, said_at=7.0))
        row = await self.shown(journal, key("old"))
        assert row.preview == "hello there"
        assert (row.created_at, row.updated_at, row.changed_at) == (5.0, 7.0, 100.0)
        scribe = Scribe(journal, key("fork"), 199.0)
        await scribe.says(seeded())
        await scribe.says(admitted())
        row = await self.shown(journal, key("fork"))
        assert (row.preview, row.created_at, row.updated_at) == ("hi", 200.0, 201.0)

    async def test_the_model_is_that_of_the_last_run_or_chosen_since(
        self, journal: Journal
    ) -> None:
        scribe = Scribe(journal)
        await scribe.says(admitted(), queued())
        await scribe.says(ModelChosen(model="n", by=ME))
        assert (await self.shown(journal)).model == "n"
        await scribe.says(ModelChosen(model="", by=ME))
        assert (await self.shown(journal)).model == ""

    @pytest.mark.parametrize(
        "back",
        [SessionReset(reason="suspended"), SessionReopened(by=ME)],
        ids=["reset", "reopened"],
    )
    async def test_whether_it_is_suspended_is_shown(self, journal: Journal, back: Fact) -> None:
        scribe = Scribe(journal)
        await scribe.says(SessionSuspended(reason="stuck"))
        assert (await self.shown(journal)).status == "suspended"
        await scribe.says(back)
        assert (await self.shown(journal)).status == "open"

    async def test_sessions_are_listed_by_when_they_were_last_spoken_in(
        self, journal: Journal
    ) -> None:
        scribes = {name: Scribe(journal, key(name)) for name in "abcd"}
        for name, at in (("a", 1.0), ("b", 3.0), ("c", 3.0), ("d", 2.0)):
            scribes[name].at = at - 1
            await scribes[name].says(admitted(RunId(f"run_{name}")))
        await Scribe(journal, key("x", Owner("other")), 8.0).says(admitted(RunId("run_x")))
        assert await ids(journal) == ["c", "b", "d", "a"]
        assert await ids(journal, 2) == ["c", "b"]
        assert await ids(journal, 2, "b") == ["d", "a"]
        assert await ids(journal, 2, "c") == ["b", "d"]
        assert await ids(journal, 2, "a") == await ids(journal, 2, "x") == []
        scribes["a"].at = 8.0
        await scribes["a"].says(completed(RunId("run_a")))
        assert await ids(journal) == ["a", "c", "b", "d"]

    async def test_of_everybodys_sessions_each_is_known_by_its_owner_too(
        self, journal: Journal
    ) -> None:
        other = Owner("other")
        mine, theirs, later = key("a"), key("a", other), key("b", other)
        for which, at in ((mine, 1.0), (theirs, 2.0), (later, 3.0)):
            run_id = RunId(f"run_{which.owner}_{which.session_id}")
            await Scribe(journal, which, at - 1).says(admitted(run_id))
        await Scribe(journal, key("/own", other), 8.0).says(titled("hidden"))

        async def keys(limit: int, after: SessionKey | None = None) -> list[SessionKey]:
            return [row.key for row in await journal.sessions(None, limit, after)]

        assert await keys(10) == [later, theirs, mine]
        assert await keys(1) == [later]
        assert await keys(10, theirs) == [mine]
        assert await keys(10, mine) == await keys(10, key("b")) == []

    async def test_the_gateway_s_own_sessions_and_those_of_children_are_not_listed(
        self, journal: Journal
    ) -> None:
        await Scribe(journal, key("/own")).says(titled("mine"))
        await Scribe(journal, key("s~run_1")).says(admitted(), run_of_a_child())
        await Scribe(journal, key("s~run_2")).says(admitted(RunId("run_2")))
        later = Scribe(journal, key("late"))
        await later.says(admitted(RunId("run_3")))
        await later.says(run_of_a_child(RunId("run_3")))
        assert await ids(journal) == ["s~run_2"]
        assert [r.key.session_id for r in await journal.changed_sessions(ME, 0.0)] == ["s~run_2"]
        assert (await self.shown(journal, key("s~run_1"))).preview == "hi"

    async def test_whoever_keeps_up_finds_what_was_imported_and_renamed_too(
        self, journal: Journal
    ) -> None:
        async def changed(since: float) -> list[str]:
            return [r.key.session_id for r in await journal.changed_sessions(ME, since)]

        old = Scribe(journal, key("a"))
        await old.says(admitted(RunId("run_a")))
        await Scribe(journal, key("b"), 9.0).says(seeded(User("x"), began_at=0.5, said_at=0.5))
        assert await ids(journal) == ["a", "b"]
        assert (await changed(0.0), await changed(10.0), await changed(11.0)) == (
            ["b", "a"],
            ["b"],
            [],
        )
        old.at = 10.0
        await old.says(titled("renamed"))
        assert await changed(10.5) == ["a"]
        assert await ids(journal) == ["a", "b"]

    async def test_what_is_shown_is_there_after_opening_again(self, tmp_path: Path) -> None:
        async with self.make(tmp_path) as before:
            row = before.open_stream(KEY)
            facts = (opened(), titled("t"), admitted(), queued())
            run = machine.queue(queued(), 1.0)
            await before.append(row.stream, 0, 1.0, facts, [run]).wait()
            shown = await before.sessions(ME, 10, None)
        async with self.make(tmp_path) as after:
            assert await after.sessions(ME, 10, None) == shown
            assert (shown[0].title, shown[0].unfinished) == ("t", 1)
            assert [r.status for r in await after.unfinished()] == [RunPhase.QUEUED]
