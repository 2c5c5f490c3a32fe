"""A journal with damaged bytes: the damaged part is dropped, the rest is readable."""

import re
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import anyio
import pytest

from holdfast.cli.exits import Code
from tests.behaviour import ledger
from tests.behaviour.hands import until
from tests.crash.evidence import NOTE, begun, facts, user_texts
from tests.crash.test_committed_reads import locked
from tests.fakes.gateway import GatewayProcess
from tests.fakes.model_server import ModelServer, Wait, stream, token

pytestmark = pytest.mark.anyio

_CUT_AT = re.compile(rb'"cut_at":([0-9.]{4,})')


def _damage(journal: Path) -> int:
    """Overwrite every `cut_at` in the file, byte by byte, and one row's own time; how many."""
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data, found = journal.read_bytes(), 0
    for match in _CUT_AT.finditer(data):
        start, end = match.span(1)
        data = data[:start] + b'"' + b"?" * (end - start - 2) + b'"' + data[end:]
        found += 1
    journal.write_bytes(data)
    return found


def _damage_row(journal: Path) -> None:
    """The time of one row becomes text, as a flipped bit in its header would make it."""
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'STRICT, WITHOUT', 'WITHOUT') "
            "WHERE name = 'events'"
        )
        connection.commit()
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE events SET at = 'when?' WHERE kind = 'run.interrupted'")
        connection.commit()
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, ') WITHOUT', ') STRICT, WITHOUT') "
            "WHERE name = 'events'"
        )
        connection.commit()


@pytest.mark.promise("BACK-08")
async def test_a_session_whose_time_stamps_are_damaged_goes_on(
    it: GatewayProcess, model: ModelServer
) -> None:
    await it.finished(await it.run("before", session_id="s"))
    model.then(stream(token("half"), Wait()))
    run_id = await it.run("say:whole", session_id="s")
    await begun(it, run_id, "message.delta")
    await it.stop()
    assert _damage(it.home / "journal.db") == 1
    (mark,) = facts(it.home, "run.interrupted")
    assert "?" in mark["cut_at"]
    _damage_row(it.home / "journal.db")
    assert facts(it.home, "run.interrupted")[0]["at"] == "when?"
    await it.start()
    assert (await it.finished(run_id))["output"] == "whole"
    before, cut = user_texts(model)
    assert before == "before" and NOTE in cut and "gateway shutdown" in cut
    assert any("damaged" in line for line in it.lines)
    assert (await it.finished(await it.run("after", session_id="s")))["status"] == "completed"
    _, transcript = await it.get("/api/sessions/s/messages")
    said = [m["content"] for m in transcript["data"] if m["role"] == "user"]
    assert said == ["before", "say:whole", "after"]


@pytest.mark.fault("F-53")
@pytest.mark.parametrize("damaged", ["all", "some"])
async def test_a_journal_that_is_no_database_any_more_is_said_to_be_damaged(
    it: GatewayProcess, damaged: str
) -> None:
    await it.finished(await it.run("before"))
    await it.stop()
    journal = it.home / "journal.db"
    with closing(sqlite3.connect(journal)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = journal.read_bytes()
    good = 4096 if damaged == "some" else 0
    journal.write_bytes(data[:good] + b"\xa5" * (len(data) - good))
    await it.start(wait=False)
    assert await it.ended() == Code.CONFIG
    assert any("damaged" in line and "backup" in line for line in it.lines), it.lines


@pytest.mark.fault("F-53")
async def test_a_lock_of_another_program_is_waited_for_and_told_of(it: GatewayProcess) -> None:
    answers: list[int] = []

    async def post() -> None:
        answers.append((await it.post("/v1/runs", {"input": "hello"}))[0])

    async with anyio.create_task_group() as client:
        with locked(it.home):
            client.start_soon(post)
            with anyio.fail_after(30):
                while (await it.get("/health/detailed"))[1]["checks"]["journal"] == "ok":  # noqa: ASYNC110
                    await anyio.sleep(0.1)  # sleep: nobody tells us of it
            assert (await it.get("/health/ready"))[0] == 503
            status, refused = await it.post("/v1/runs", {"input": "hello"})
            assert (status, refused["error"]["code"]) == (503, "journal_unavailable")
            assert answers == []
    assert answers == [202] and it.alive
    assert (await it.finished(await it.run("after")))["status"] == "completed"


def _has_open(pid: int, path: Path) -> bool:
    """Whether a process has the file open."""
    found = False
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found |= link.readlink() == path
    return found


@pytest.mark.fault("F-53")
async def test_a_start_waits_for_the_lock_of_another_program(it: GatewayProcess) -> None:
    run_id = await it.run("hello")
    done = await it.finished(run_id)
    await it.stop()
    # The start has something to write before it serves: which file the journal is.
    ledger.change(it.home, lambda journal: journal.execute("UPDATE machine SET file = 0"))
    with locked(it.home):
        await it.start(wait=False)
        await until(lambda: _has_open(it.pid, it.home / "journal.db"))
        assert (await it.holdfast("gateway", "status")).returncode != 0  # this takes a while
        assert it.alive
    await it.ready()
    assert await it.status(run_id) == done
    assert (await it.finished(await it.run("after")))["status"] == "completed"
