"""What a command changed in its workspace: found exactly, with both versions; or said why not."""

import os
import random
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.run.files import ChangeKind
from holdfast.tools.fs.openat import descriptor
from holdfast.tools.snapshot.scan import TICK_NS
from holdfast.tools.snapshot.snapshots import (
    BESIDE,
    LOADED,
    NOT_KEPT,
    NOT_RECORDED,
    gap_note,
    notes,
    usage,
)
from holdfast.tools.snapshot.watch import watch_for
from tests.behaviour.hands import until
from tests.tools.snapshot.places import Place, place, small, state

pytestmark = pytest.mark.anyio

CREATED, REPLACED, DELETED = ChangeKind.CREATED, ChangeKind.REPLACED, ChangeKind.DELETED


def kinds(found: object) -> dict[str, ChangeKind]:
    return {change.path: change.kind for change in found.changes}  # type: ignore[attr-defined]


@pytest.mark.promise("SNAP-01")
async def test_created_changed_deleted_and_renamed_files_are_found(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        it.put("kept/same.txt")
        it.put("a.txt", "one\ntwo\n")
        it.put("gone.txt", "bye\n")
        it.put("deep/er/old.txt", "moves\n")

        def act() -> None:
            it.put("a.txt", "one\nTWO\nthree\n")
            (it.work / "gone.txt").unlink()
            (it.work / "deep/er/old.txt").rename(it.work / "new.txt")
            it.put("fresh/folder/x.txt", "x\n")

        found = await it.during(act)
        assert kinds(found) == {
            "a.txt": REPLACED,
            "gone.txt": DELETED,
            "deep/er/old.txt": DELETED,
            "new.txt": CREATED,
            "fresh/folder/x.txt": CREATED,
        }
        by_path = {change.path: change for change in found.changes}
        assert it.content(by_path["a.txt"]) == (b"one\ntwo\n", b"one\nTWO\nthree\n")
        assert (by_path["a.txt"].added, by_path["a.txt"].removed) == (2, 1)
        assert it.content(by_path["gone.txt"]) == (b"bye\n", None)
        assert it.content(by_path["new.txt"]) == (None, b"moves\n")
        assert notes(found) == []


@pytest.mark.promise("SNAP-01")
async def test_a_mode_a_link_and_a_binary_file_are_found(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        it.put("run.sh").chmod(0o644)
        it.put("pic", b"\0\1\2")
        (it.work / "link").symlink_to("run.sh")
        (it.work / "turns").symlink_to("run.sh")

        def act() -> None:
            (it.work / "run.sh").chmod(0o755)
            it.put("pic", b"\0\1\3")
            (it.work / "link").unlink()
            (it.work / "link").symlink_to("/etc/passwd")
            (it.work / "turns").unlink()
            it.put("turns", "plain\n")

        found = {change.path: change for change in (await it.during(act)).changes}
        assert set(found) == {"run.sh", "pic", "link", "turns"}
        mode = found["run.sh"]
        assert stat.S_IMODE(mode.mode_before) == 0o644
        assert stat.S_IMODE(mode.mode_after) == 0o755
        assert mode.before == mode.after
        assert found["pic"].binary
        assert it.content(found["link"]) == (b"run.sh", b"/etc/passwd")
        assert stat.S_ISLNK(found["link"].mode_after)
        assert it.content(found["turns"]) == (b"run.sh", b"plain\n")
        assert stat.S_ISREG(found["turns"].mode_after)


async def test_a_command_that_changes_nothing_has_no_changes(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        file = it.put("a.txt")

        def act() -> None:
            file.read_text()
            os.utime(file, (1, 1))  # a touch is no change of the content
            it.put("a.txt")
            it.put("temporary").unlink()

        found = await it.during(act)
        assert (found.changes, found.lost, found.gap) == ((), (), "")


@pytest.mark.promise("SNAP-02")
async def test_what_another_hand_changes_between_commands_belongs_to_no_command(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as it:
        it.put("a.txt", "first\n")
        it.put("b.txt", "first\n")
        it.put("d/gone.txt")
        await it.during(lambda: it.put("c.txt"), "one")
        it.put("a.txt", "a person's\n")
        it.put("person.txt")
        shutil.rmtree(it.work / "d")
        found = await it.during(lambda: it.put("a.txt", "the command's\n"), "two")
        (change,) = found.changes
        assert it.content(change) == (b"a person's\n", b"the command's\n")


@pytest.mark.promise("SNAP-02")
async def test_a_change_by_a_second_link_is_found(tmp_path: Path) -> None:
    """The kernel does not report it as a change of the file's directory."""
    async with place(tmp_path) as it:
        it.put("a/file", "old\n")
        (it.work / "b").mkdir()
        await it.during(lambda: None, "one")

        def act() -> None:
            os.link(it.work / "a/file", it.work / "b/second")
            (it.work / "b/second").write_text("new\n")
            (it.work / "b/second").unlink()

        (change,) = (await it.during(act, "two")).changes
        assert (change.path, *it.content(change)) == ("a/file", b"old\n", b"new\n")


@pytest.mark.promise("SNAP-02")
async def test_a_change_that_nobody_reported_before_a_command_is_not_its_work(
    tmp_path: Path,
) -> None:
    async with place(tmp_path) as it:
        os.link(it.put("file", "old\n"), tmp_path / "outside")
        await it.during(lambda: None, "one")
        (tmp_path / "outside").write_text("by a person, through a link from outside\n")
        written = time.time_ns()
        await until(lambda: time.time_ns() > written + 2 * TICK_NS)
        assert (await it.during(lambda: None, "two")).changes == ()
        (change,) = (await it.during(lambda: it.put("file", "new\n"), "three")).changes
        assert it.content(change)[0] == b"by a person, through a link from outside\n"


async def test_a_directory_that_is_moved_and_replaced_is_followed(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        it.put("a/sub/x.txt", "a\n")
        it.put("b/sub/x.txt", "b\n")
        await it.during(lambda: None, "one")

        def swap() -> None:
            (it.work / "a").rename(it.work / "c")
            (it.work / "b").rename(it.work / "a")

        assert kinds(await it.during(swap, "two")) == {
            "a/sub/x.txt": REPLACED,
            "b/sub/x.txt": DELETED,
            "c/sub/x.txt": CREATED,
        }
        it.put("c/sub/x.txt", "by a person\n")  # its directory is watched under its new name
        it.put("a/sub/y.txt", "by a person\n")
        (change,) = (await it.during(lambda: it.put("c/sub/x.txt", "end\n"), "three")).changes
        assert it.content(change)[0] == b"by a person\n"


@pytest.mark.promise("SNAP-03")
async def test_repositories_dependencies_and_ignored_files_are_left_out(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        it.put(".gitignore", "build/\n*.log\n!keep.log\n/only-here\ndocs/**/tmp\n")
        it.put("src/.gitignore", "generated.*\n")
        it.put(".git/config")
        it.put(".env", "TOKEN=1\n")

        def act() -> None:
            for path in (
                ".git/config .git/hooks/x node_modules/a/b.js sub/node_modules/c build/out lib.log "
                "only-here docs/a/b/tmp src/generated.py src/__pycache__/m.pyc"
            ).split():
                it.put(path, "new\n")
            for (
                path
            ) in "keep.log sub/only-here docs/page src/main.py .env other/generated.py".split():
                it.put(path, "new\n")

        found = await it.during(act)
        assert sorted(kinds(found)) == sorted(
            "keep.log sub/only-here docs/page src/main.py .env other/generated.py".split()
        )


@pytest.mark.promise("SNAP-03")
async def test_a_file_that_is_no_longer_ignored_was_not_created(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        it.put(".gitignore", "secret.txt\nplain\n")
        it.put("secret.txt", "the user's\n")
        it.put("plain/file", "the user's\n")
        it.put("known.txt", "old\n")

        def act() -> None:
            it.put(".gitignore", "known.txt\n")
            it.put("known.txt", "new\n")
            it.put("other.txt", "new\n")  # so that the directory is listed again

        found = await it.during(act)
        assert "secret.txt" not in kinds(found)
        assert kinds(found)["known.txt"] == REPLACED  # what is known stays known


@pytest.mark.promise("SNAP-03")
async def test_what_cannot_be_restored_is_named(tmp_path: Path) -> None:
    async with place(tmp_path, **small(large=1000)) as it:
        it.put("big.bin", b"x" * 2000)
        it.put("same.bin", b"x" * 2000)
        it.put("grows.txt", "small\n")
        it.put("node_modules/left-pad/index.js")

        def act() -> None:
            it.put("big.bin", b"y" * 2000)
            it.put("grows.txt", b"z" * 2000)
            it.put("ok.txt")
            shutil.rmtree(it.work / "node_modules")

        found = await it.during(act)
        assert kinds(found) == {"ok.txt": CREATED}
        assert sorted(found.lost) == ["big.bin", "grows.txt", "node_modules/"]
        (said,) = notes(found)
        assert said.startswith(NOT_KEPT)
        assert "node_modules/" in said


async def test_names_that_are_no_text_are_named_and_not_recorded(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        bad = os.path.join(os.fsencode(it.work), b"caf\xe9")

        def act() -> None:
            with open(bad, "wb") as file:
                file.write(b"x")

        found = await it.during(act)
        assert found.changes == ()
        assert found.lost == ("caf\ufffd",)
        assert all(said.isprintable() for said in notes(found))


async def test_devices_pipes_and_links_are_not_opened(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "secret").write_text("mine\n")
        os.mkfifo(it.work / "pipe")
        (it.work / "way-out").symlink_to(outside)
        found = await it.during(lambda: (outside / "secret").write_text("changed\n"))
        assert (found.changes, found.gap) == ((), "")


@pytest.mark.promise("SNAP-04")
@pytest.mark.parametrize("limit", [{"files": 5}, {"size": 50}], ids=["files", "bytes"])
async def test_a_workspace_that_is_too_big_is_given_up_and_said_so(
    tmp_path: Path, limit: dict[str, int]
) -> None:
    async with place(tmp_path, **small(**limit)) as it:
        for n in range(20):
            it.put(f"{n}.txt", "12345\n")
        found = await it.during(lambda: None)
        assert found.changes == ()
        assert found.gap
        assert notes(found) == [gap_note(found.gap)]
        assert notes(found)[0].startswith(NOT_RECORDED)


@pytest.mark.promise("SNAP-04")
async def test_a_look_without_time_is_given_up_and_the_next_one_goes_on(tmp_path: Path) -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1  # for each file and directory
        return now

    async with place(tmp_path, **small(seconds=12), monotonic=clock) as it:
        for n in range(20):
            it.put(f"{n}.txt", "12345\n")
        first = await it.during(lambda: None, "one")
        assert first.gap
        calls = 2
        while (found := await it.during(lambda: it.put("x.txt"), f"call {calls}")).gap:
            calls += 1
            assert calls < 10_000  # files of the last clock tick are read again
        assert kinds(found) == {"x.txt": CREATED}


async def test_an_unchanged_workspace_is_not_walked_before_a_command(tmp_path: Path) -> None:
    looked = 0

    def clock() -> float:
        nonlocal looked
        looked += 1
        return 0.0

    async with place(tmp_path, monotonic=clock) as it:
        for n in range(200):
            it.put(f"d{n}/x")
        with descriptor(os.open(it.work, os.O_RDONLY)) as root:
            if (watch := watch_for(root)) is None:
                pytest.skip("this file system does not tell what changes")
            watch.close()
        made = time.time_ns()
        await until(lambda: time.time_ns() > made + 2 * TICK_NS)
        await it.during(lambda: None, "one")
        looked = 0
        await it.snapshots.begin(it.context("two"))
        assert looked < 5
        it.put("d7/x", "new\n")
        (change,) = (await it.snapshots.finish(it.context("two"))).changes
        assert change.path == "d7/x"
        assert looked > 200


async def test_more_changes_than_can_be_kept_are_said(tmp_path: Path) -> None:
    async with place(tmp_path, **small(changes=3)) as it:
        found = await it.during(lambda: [it.put(f"{n}") for n in range(5)])
        assert (found.changes, bool(found.gap)) == ((), True)
        again = await it.during(lambda: it.put("1", "changed\n"), "two")
        assert kinds(again) == {"1": REPLACED}


async def test_many_workspaces_at_once_are_told_apart(tmp_path: Path) -> None:
    """More of them than are kept in memory: what was let go is loaded from its store."""
    async with place(tmp_path) as it:

        async def work(n: int) -> None:
            folder = tmp_path / f"work-{n}"
            folder.mkdir()
            (folder / "file").write_text("0")
            for step in range(1, 4):
                context = it.context(f"{n} {step}", folder)
                assert await it.snapshots.begin(context) == ""
                (folder / "file").write_text(f"{n} {step}")
                (change,) = (await it.snapshots.finish(context)).changes
                it.snapshots.settled(context)
                before = f"{n} {step - 1}" if step > 1 else "0"
                assert it.content(change) == (before.encode(), f"{n} {step}".encode())

        async with anyio.create_task_group() as tasks:
            for n in range(3 * LOADED):
                tasks.start_soon(work, n)
        assert usage(it.home).count == 3 * LOADED


async def test_commands_side_by_side_share_no_change(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        long, short = it.context("long"), it.context("short")
        await it.snapshots.begin(long)
        it.put("by-long")
        await it.snapshots.begin(short)
        it.put("by-short")
        ended = await it.snapshots.finish(short)
        it.snapshots.settled(short)
        assert kinds(ended) == {"by-short": CREATED}
        assert notes(ended) == [BESIDE]
        it.put("by-long", "more\n")
        assert kinds(await it.snapshots.finish(long)) == {"by-long": CREATED}


@pytest.mark.promise("SNAP-05")
async def test_nothing_of_the_workspace_is_touched(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        it.put(".git/config", "[core]\n\tfsmonitor = touch /tmp/evil\n")
        it.put(".gitattributes", "* filter=evil\n")
        it.put("a.txt")
        before = state(it.work)
        times = {path: os.lstat(it.work / path).st_ctime_ns for path in before}
        await it.during(lambda: None)
        assert state(it.work) == before
        assert times == {path: os.lstat(it.work / path).st_ctime_ns for path in before}


UNWATCHED = {"watch": lambda root: None}  # as where the system cannot tell what changed


@pytest.mark.promise("SNAP-01")
@pytest.mark.parametrize("settings", [{}, UNWATCHED], ids=["watched", "unwatched"])
@pytest.mark.parametrize("seed", range(6))
async def test_random_work_of_commands_and_people_is_told_apart(
    tmp_path: Path, seed: int, settings: dict[str, Any]
) -> None:
    chance = random.Random(seed)
    async with place(tmp_path, **settings) as it:
        for step in range(25):
            _anything(it, chance)  # by a person
            before = state(it.work)
            found = await it.during(lambda: _anything(it, chance), f"call {step}")
            after = state(it.work)
            changed = {p for p in {*before, *after} if before.get(p) != after.get(p)}
            assert {change.path for change in found.changes} == changed
            for change in found.changes:
                old, new = before.get(change.path), after.get(change.path)
                assert it.content(change) == (old and old[1], new and new[1])
                assert (change.mode_before, change.mode_after) == (
                    old[0] if old else 0,
                    new[0] if new else 0,
                )


def _anything(it: Place, chance: random.Random) -> None:
    """Change something, or a few things."""
    for _ in range(chance.randrange(4)):
        folder = it.work / chance.choice(["a", "b", "a/c", "b/d"])
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / chance.choice("xyz")
        match chance.randrange(7):
            case 0 | 1:
                _clear(file)
                file.write_text(f"{chance.random()}\n")
            case 2:
                _clear(file)
            case 3:
                _clear(file)
                file.symlink_to(chance.choice(["x", "nowhere"]))
            case 4 if file.is_file() and not file.is_symlink():
                file.chmod(chance.choice([0o644, 0o755]))
            case 5:
                target = it.work / chance.choice(["a", "b", "e"]) / "moved"
                if not target.exists() and target.parent.is_dir() and folder not in target.parents:
                    folder.rename(target)
            case _:
                shutil.rmtree(folder)


def _clear(file: Path) -> None:
    if file.is_symlink() or file.exists():
        file.unlink()


async def test_the_store_of_a_workspace_that_is_not_used_is_removed(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        await it.during(lambda: it.put("a.txt"))
        assert usage(it.home).count == 1
        newest = max(p.stat().st_mtime for p in (it.home / "snapshots").iterdir())
        assert (await it.snapshots.prune(newest - 1)).count == 0
        assert (await it.snapshots.prune(newest + 1)).count == 1
        assert usage(it.home).count == 0
