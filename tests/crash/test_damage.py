"""A journal with damaged bytes in it: what is damaged drops, the rest is there."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash.evidence import NOTE, begun, facts, user_texts
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
