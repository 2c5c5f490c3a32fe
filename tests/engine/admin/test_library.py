"""Sessions as people keep them, over a real journal: whose they are, and what is kept of them."""

from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from holdfast.core.approval.approval import Role
from holdfast.core.events import MessageDelta
from holdfast.core.intents import Principal
from holdfast.core.messages import Assistant, User
from holdfast.core.redaction import Redactor
from holdfast.core.session.library import Imported
from holdfast.core.types import Owner, SessionId
from holdfast.errors import JournalUnavailable, Refused
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.engine.workshop import ME, Told, finished, parts, reach, running, serving
from tests.engine.workshop import submit as say
from tests.fakes.clock import FIRST_BOOT

pytestmark = pytest.mark.anyio

A, B = SessionId("a"), SessionId("b")
OTHER = Principal(Owner("other"), ME.door, ME.roles)
GUEST = replace(ME, roles=ME.roles - {Role.ADMIN})


def brought(name: SessionId = B, text: str = "long ago") -> Imported:
    return Imported(name, "Old", "elsewhere", (User(text),), created_at=5.0)


async def test_sessions_of_other_owners_are_not_found(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        library = service.library
        run_id = await say(service, "mine", "a")
        (await model.asked(1)).answer("yes")
        await finished(service, run_id)
        assert await library.sessions(OTHER, 10, None) == ([], False)
        for asked in (
            library.session(OTHER, A),
            library.settled(OTHER, A),
            library.rename(OTHER, A, "x"),
            library.fork(OTHER, A, "", None),
        ):
            with pytest.raises(Refused) as refused:
                await asked
            assert refused.value.code == "session_not_found"
        made = await library.bring_in(OTHER, brought(A))
        assert (made.preview, made.created_at) == ("long ago", 5.0)
        assert (await library.session(ME, A)).preview == "mine"


async def test_only_an_administrator_brings_sessions_in(tmp_path: Path) -> None:
    async with serving(tmp_path, Told()) as service:
        with pytest.raises(Refused) as refused:
            await service.library.bring_in(GUEST, brought())
        assert refused.value.code == "admin_only"
        assert await service.library.sessions(ME, 10, None) == ([], False)


async def test_of_concurrent_creations_of_one_session_one_succeeds(tmp_path: Path) -> None:
    async with serving(tmp_path, Told()) as service:
        await service.library.bring_in(ME, brought(A))
        made: list[str] = []
        refused: list[str] = []

        async def make(number: int) -> None:
            try:
                if number % 2:
                    await service.library.fork(ME, A, f"fork {number}", B)
                else:
                    await service.library.bring_in(ME, brought(B, f"import {number}"))
                made.append(f"{number}")
            except Refused as late:
                refused.append(late.code)

        async with anyio.create_task_group() as together:
            for number in range(8):
                together.start_soon(make, number)
        assert (len(made), refused) == (1, ["session_exists"] * 7)
        listed, _ = await service.library.sessions(ME, 10, None)
        assert {one.session_id for one in listed} == {A, B}


async def test_a_session_on_its_way_to_the_disk_is_settled_with_a_number(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        await service.library.bring_in(ME, brought(A))
        async with anyio.create_task_group() as together:
            together.start_soon(say, service, "hello", "a")
            await anyio.wait_all_tasks_blocked()
            settled = await service.library.settled(ME, A)
        assert settled.messages == (User("long ago"),)
        async with service.follow_session(ME, A, settled.after) as batches:
            records = await anext(batches)
        assert getattr(records[0].fact, "text", "") == "hello"
        assert len(settled.unfinished) == 1


async def test_a_fork_of_a_busy_session_begins_with_what_its_model_reads(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        first = await say(service, "one", "a")
        (await model.asked(1)).answer("yes")
        await finished(service, first)
        second = await say(service, "two", "a")
        (await model.asked(2)).say("half a")
        await reach(service, second, MessageDelta)
        made = await service.library.fork(ME, A, "", None)
        said = await service.messages(ME, made.session_id)
        assert list(said) == [User("one"), Assistant("yes"), User("two")]
        assert (made.unfinished, made.model) == (0, "told/it")


async def test_no_secret_is_in_a_title_or_in_what_a_session_begins_with(tmp_path: Path) -> None:
    secret = "correct-horse-battery-staple"
    async with serving(tmp_path, Told(), redactor=Redactor([secret])) as service:
        made = await service.library.bring_in(ME, brought(A, f"it is {secret}"))
        renamed = await service.library.rename(ME, A, f"about {secret}")
        said = await service.messages(ME, A)
    assert secret not in f"{made} {renamed} {said}"
    assert secret.encode() not in (tmp_path / "journal.db").read_bytes()
    assert (tmp_path / "journal.db").exists() and renamed.title.startswith("about ")


async def test_no_session_is_created_on_a_nearly_full_disk(tmp_path: Path) -> None:
    path, blobs = tmp_path / "journal.db", Blobs(tmp_path)
    async with serving(tmp_path, Told()) as service:
        await service.library.bring_in(ME, brought(A))
    journal = await SqliteJournal.open(path, blobs, now=FIRST_BOOT, low_water=2**60)
    async with running(parts(tmp_path, journal, Told())) as service:
        for asked in (service.library.bring_in(ME, brought(B)), service.library.fork(ME, A, "", B)):
            with pytest.raises(JournalUnavailable, match="nearly full"):
                await asked
        with pytest.raises(Refused):
            await service.library.session(ME, B)
    await journal.aclose()
    async with serving(tmp_path, Told()) as service:
        assert (await service.library.bring_in(ME, brought(B))).session_id == B
