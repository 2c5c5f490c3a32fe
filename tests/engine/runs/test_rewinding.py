"""Undo, rewind and redo through the front door: messages and files go back and forth together."""

import os
from pathlib import Path

import anyio
import pytest

from holdfast.core.inbox import UpdateRef
from holdfast.core.intents import Submit
from holdfast.core.run.run import RunPhase
from holdfast.core.session.rewind import FileTotal, Rewind
from holdfast.core.session.rewound import FileResult, RewindPlanned, RewindScope, Rewound
from holdfast.core.types import RunId, SessionId
from holdfast.errors import Refused
from holdfast.gateway import DiffQuery
from holdfast.journal.blobs import Blobs
from tests.engine.rewinds import HERE, Killed, bench, results
from tests.engine.workshop import ME, Told, follow, serving, submit

pytestmark = pytest.mark.anyio

FILES, TALK = RewindScope.FILES, RewindScope.CONVERSATION
RESTORED, DELETED = FileResult.RESTORED, FileResult.DELETED


def refused(code: str) -> "pytest.RaisesExc[Refused]":
    return pytest.RaisesExc(Refused, check=lambda error: error.code == code)


@pytest.mark.promise("UNDO-01")
async def test_undo_takes_back_the_last_message_and_what_it_did_to_files(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        last = await b.say("a=2 b=1 c:=1")
        done = await b.go()
        assert (done.text, done.fact.runs) == ("a=2 b=1 c:=1", (last,))
        assert results(done) == {"a": RESTORED, "b": DELETED, "c": DELETED}
        assert (b.files(), await b.said()) == ({"a": "1"}, ["a=1"])
        done = await b.go(redo=True)
        assert results(done) == {"a": RESTORED, "b": RESTORED, "c": RESTORED}
        assert b.files() == {"a": "2", "b": "1", "c": "1"}
        assert await b.said() == ["a=1", "a=2 b=1 c:=1"]


@pytest.mark.promise("UNDO-01")
async def test_files_or_messages_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        await b.say("a=2")
        await b.go(what=FILES)
        assert (b.files(), await b.said()) == ({"a": "1"}, ["a=1", "a=2"])
        await b.go(redo=True)
        await b.go(what=TALK)
        assert (b.files(), await b.said()) == ({"a": "2"}, ["a=1"])
        done = await b.go(what=FILES)
        assert (b.files(), done.fact.runs) == ({"a": "1"}, ())
        await b.go(what=FILES)
        assert b.files() == {}
        with refused("nothing_said"):
            await b.go(what=FILES)


@pytest.mark.promise("UNDO-01")
async def test_points_are_listed_and_each_can_be_gone_back_to(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        runs = [await b.say(text) for text in ("a=1", "hello", "a=2 b:=1", "-b")]
        points = await b.service.library.points(ME, HERE)
        assert [p.run_id for p in points] == runs
        assert [p.number for p in points] == [1, 2, 3, 4]
        one = FileTotal("a", 1, 0)
        assert points[0].files == (one,)
        assert points[1].files == ()
        assert [f.path for f in points[2].files] == ["a", "b"]
        await b.go(point=runs[1])
        assert (b.files(), await b.said()) == ({"a": "1"}, ["a=1"])
        await b.go(point=runs[0])
        assert (b.files(), await b.said()) == ({}, [])
        await b.go(redo=True)
        await b.go(redo=True)
        assert (b.files(), len(await b.said())) == ({"a": "2"}, 4)
        with refused("no_such_point"):
            await b.go(point=RunId("run_elsewhere"))


@pytest.mark.promise("UNDO-02")
async def test_what_another_hand_changed_is_overwritten_only_if_forced(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1 b=1")
        b.edit(a="mine")
        with refused("files_changed"):
            await b.go()
        assert (b.files(), await b.said()) == ({"a": "mine", "b": "1"}, ["a=1 b=1"])
        done = await b.go(force=True)
        assert results(done) == {"a": DELETED, "b": DELETED}
        assert b.files() == {}
        await b.go(redo=True)
        assert b.files() == {"a": "mine", "b": "1"}


@pytest.mark.promise("UNDO-02")
async def test_a_change_by_another_hand_in_between_is_not_overwritten(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        first = await b.say("a=1")
        b.edit(a="mine")
        await b.say("a=2")
        with refused("files_changed"):
            await b.go(point=first)
        await b.go()
        assert b.files() == {"a": "mine"}
        with refused("files_changed"):
            await b.go()


@pytest.mark.promise("UNDO-02")
async def test_a_redo_overwrites_nothing_either(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        await b.go()
        b.edit(a="mine")
        with refused("files_changed"):
            await b.go(redo=True)
        assert (b.files(), await b.said()) == ({"a": "mine"}, [])
        await b.go(redo=True, force=True)
        assert (b.files(), await b.said()) == ({"a": "1"}, ["a=1"])


async def test_a_file_that_is_as_wanted_already_is_no_obstacle(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1 b=1")
        (b.workspace / "a").unlink()
        assert results(await b.go()) == {"a": FileResult.UNCHANGED, "b": DELETED}


@pytest.mark.promise("UNDO-01")
async def test_after_a_new_message_there_is_nothing_to_redo(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        with refused("session_not_found"):
            await b.go()
        await b.say("a=1")
        with refused("nothing_to_redo"):
            await b.go(redo=True)
        await b.go()
        await b.say("b=1")
        with refused("nothing_to_redo"):
            await b.go(redo=True)
        assert b.files() == {"b": "1"}


async def test_nothing_is_undone_during_a_run(tmp_path: Path) -> None:
    model = Told()
    async with serving(tmp_path, model) as service:
        run_id = await submit(service, "hello", HERE)
        asked = await model.asked(1)
        with refused("session_busy"):
            await service.library.rewind(HERE, Rewind(ME))
        asked.answer("hi")
        await follow(service, run_id)
        await service.library.rewind(HERE, Rewind(ME))
        assert await service.messages(ME, HERE) == ()


async def test_a_version_that_is_no_longer_kept_is_said(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1 b=1")
        await b.say("a=2 b=2")
        versions = Blobs(tmp_path)
        versions.path(versions.put(b"1")).unlink()
        with refused("files_changed"):
            await b.go()
        done = await b.go(force=True)
        assert results(done) == {"a": FileResult.GONE, "b": FileResult.GONE}
        assert (b.files(), await b.said()) == ({"a": "2", "b": "2"}, ["a=1 b=1"])


async def test_permissions_and_links_are_restored(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        (b.workspace / "a").chmod(0o750)
        await b.say("a=2")
        assert os.stat(b.workspace / "a").st_mode & 0o777 == 0o750
        await b.say("-a")
        await b.go()
        assert os.stat(b.workspace / "a").st_mode & 0o777 == 0o750
        (b.workspace / "a").unlink()
        (b.workspace / "a").symlink_to("elsewhere")
        with refused("files_changed"):
            await b.go()
        assert os.readlink(b.workspace / "a") == "elsewhere"


@pytest.mark.promise("UNDO-06")
async def test_a_fork_goes_back_to_the_points_of_its_source(tmp_path: Path) -> None:
    fork = SessionId("fork")
    async with bench(tmp_path) as b:
        await b.say("a=1")
        await b.say("a=2 b=1")
        await b.service.library.fork(ME, HERE, "", fork)
        await b.say("b=2", fork)
        with refused("files_changed"):
            await b.go()  # for the source, the fork is another hand
        await b.go(fork)
        assert (b.files(), await b.said(fork)) == ({"a": "2", "b": "1"}, ["a=1", "a=2 b=1"])
        done = await b.go(fork)
        assert (b.files(), done.text) == ({"a": "1"}, "a=2 b=1")
        await b.go(fork, redo=True)
        assert b.files() == {"a": "2", "b": "1"}
        await b.go()
        assert (b.files(), await b.said()) == ({"a": "1"}, ["a=1"])
        assert await b.said(fork) == ["a=1", "a=2 b=1"]


@pytest.mark.promise("UNDO-03")
@pytest.mark.parametrize("dies_at", [3, 4, 5, 6])
@pytest.mark.parametrize("redo", [False, True])
async def test_what_a_kill_has_cut_is_finished_at_the_next_start(
    tmp_path: Path, dies_at: int, redo: bool
) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        await b.say("a=2 b=1 c=1")
        if redo:
            await b.go()
        b.restorer.doom(dies_at)
        with pytest.raises(Killed):
            await b.go(redo=redo)
    async with bench(tmp_path) as b:
        after = {"a": "2", "b": "1", "c": "1"} if redo else {"a": "1"}
        assert (b.files(), len(await b.said())) == (after, 2 if redo else 1)
        await b.go(redo=not redo)
        assert len(b.files()) == (1 if redo else 3)


@pytest.mark.promise("UNDO-03")
async def test_what_is_changed_between_a_kill_and_the_next_start_is_not_overwritten(
    tmp_path: Path,
) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1 b=1 c=1")
        b.restorer.doom(4)
        with pytest.raises(Killed):
            await b.go()
        assert b.files() == {"b": "1", "c": "1"}
        b.edit(a="new", c="mine")
    async with bench(tmp_path) as b:
        assert (b.files(), await b.said()) == ({"a": "new", "c": "mine"}, [])


@pytest.mark.promise("UNDO-03")
async def test_a_message_that_comes_during_a_rewind_waits_for_its_end(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        sent: list[RunId] = []

        def send() -> None:
            sent.append(anyio.from_thread.run(submit, b.service, "a=2", HERE))

        b.restorer.before_restore = send
        await b.go()
        await b.ended(sent[0])
        view = await b.service.run(ME, sent[0])
        assert (view.status, await b.said()) == (RunPhase.COMPLETED, ["a=2"])
        assert b.files() == {"a": "2"}
        found = await b.facts(RewindPlanned, Rewound)
        assert [type(fact) for fact in found] == [RewindPlanned, Rewound]


async def test_the_same_request_is_carried_out_once(tmp_path: Path) -> None:
    came = UpdateRef(channel="/test", external_id="1")
    async with bench(tmp_path) as b:
        await b.say("a=1")
        await b.say("a=2")
        done = await b.go(came=came)
        again = await b.go(came=came)
        assert (again.fact, again.text, again.repeated) == (done.fact, "a=2", True)
        await b.go(redo=True)
        assert (await b.go(came=came)).repeated
        assert (b.files(), len(await b.said())) == ({"a": "2"}, 2)
        await b.go(came=UpdateRef(channel="/test", external_id="2"))
    async with bench(tmp_path) as b:
        b.restorer.doom(3)
        with pytest.raises(Killed):
            await b.go(came=UpdateRef(channel="/test", external_id="3"))
    async with bench(tmp_path) as b:
        assert (await b.go(came=UpdateRef(channel="/test", external_id="3"))).repeated


@pytest.mark.promise("UNDO-05")
async def test_what_was_undone_is_not_among_the_changes_of_the_session(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        last = await b.say("b=1")
        await b.go()
        found = await b.service.diff(ME, DiffQuery(session_id=HERE))
        assert [file.change.path for file in found] == ["a"]
        assert len(await b.service.diff(ME, DiffQuery(run_id=last))) == 1
        settled = await b.service.library.settled(ME, HERE)
        assert settled.messages == await b.service.messages(ME, HERE)
        await b.go(redo=True)
        assert len(await b.service.diff(ME, DiffQuery(session_id=HERE))) == 2


async def test_a_retry_leaves_files_as_they_are(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.say("a=1")
        again = await b.service.send(Submit(ME, "b=1", HERE, instead=True))
        await b.ended(again.run_id)
        assert (b.files(), await b.said()) == ({"a": "1", "b": "1"}, ["b=1"])
        await b.go(what=FILES)
        await b.go(what=FILES)
        assert b.files() == {}
