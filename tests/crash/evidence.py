"""Observations from outside: rows of the journal, counted effects, requests to the model."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.run.call import UNKNOWN_TEXT
from tests.fakes.gateway import TERMINAL, GatewayProcess, Stream
from tests.fakes.model_server import ModelServer

THOROUGH = os.environ.get("CI") == "true"  # there, every point; elsewhere, some of them
NOTE = "[System note:"
UNKNOWN = UNKNOWN_TEXT[:15]


def count(name: str, few: int, many: int) -> int:
    """How often: as the variable `name` says, else `many` in CI and `few` elsewhere."""
    return int(os.environ.get(name) or (many if THOROUGH else few))


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Whatever fails meanwhile says where it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(where)
        raise


def facts(home: Path, *kinds: str, run_id: str = "") -> list[dict[str, Any]]:
    """What the journal holds of these kinds (or all), in the order of each stream."""
    with closing(sqlite3.connect(f"file:{home}/journal.db?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT at, data FROM events ORDER BY stream, seq").fetchall()
    found = [{"at": at, **msgspec.json.decode(data)} for at, data in rows]
    return [
        f
        for f in found
        if (not kinds or f["kind"] in kinds) and (not run_id or f.get("run_id") == run_id)
    ]


def unfinished(home: Path) -> list[str]:
    """The runs that have not ended."""
    with closing(sqlite3.connect(f"file:{home}/journal.db?mode=ro", uri=True)) as journal:
        rows = journal.execute("SELECT run_id FROM runs WHERE ended_seq IS NULL").fetchall()
    return [str(row[0]) for row in rows]


def lines(path: Path, tag: str = "") -> list[str]:
    """The effects counted in `path`, of one tag if given."""
    written = path.read_text().splitlines() if path.exists() else []
    return [line for line in written if not tag or line.split()[0] == tag]


def ask_for(tool: str, **arguments: str | Path) -> str:
    """Words that make the scripted model call `tool`."""
    encoded = msgspec.json.encode({k: str(v) for k, v in arguments.items()}).decode()
    return f"tool:{tool} {encoded}"


def results(model: ModelServer) -> list[str]:
    """Every tool result the model was shown in its last request."""
    messages = model.requests[-1].body["messages"]
    return [str(m["content"]) for m in messages if m["role"] == "tool"]


def user_texts(model: ModelServer, request: int = -1) -> list[str]:
    """What the user said, as the model read it in one of its requests."""
    messages = model.requests[request].body["messages"]
    return [str(m["content"]) for m in messages if m["role"] == "user"]


def endings(stream: Stream) -> list[str]:
    """The terminal events of a stream."""
    return [name for name in stream.names if name in TERMINAL]


async def begun(it: GatewayProcess, run_id: str, event: str = "tool.started") -> Stream:
    """What readers saw until `event`; what it announces has really begun by then."""
    stream = await it.events(run_id, until=event)
    assert event in stream.names, stream.names
    await it.get("/health")  # the loop has gone round since
    return stream
