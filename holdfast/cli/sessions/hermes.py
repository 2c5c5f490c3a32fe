"""Read the sessions of hermes-agent. Nothing is ever written there.

Its data, in `~/.hermes` and, per profile, in `~/.hermes/profiles/NAME`:

* `state.db`, SQLite, usually in WAL mode. `sessions`: id, source (cli, telegram, …), title,
  started_at (seconds since the epoch), cwd, model, and much about costs. `messages`: id (their
  order), session_id, role, content, tool_call_id, tool_calls (a JSON list of calls as the chat
  completions API has them), timestamp, active. Older versions lack
  title, cwd and active. A row with active = 0 was undone, or is part of a summary that is itself
  active; hermes neither resumes nor exports it, and we skip it too.
  Content that is not plain text is JSON after a NUL (or \\x01) and "json:": a list of parts.
  Roles are user, assistant, tool and system; `session_meta` and similar rows are bookkeeping.
* `sessions/ID.jsonl`, written by gateways before the database existed, and later for what could not
  be written to it: one message per line as above, tool_calls as plain JSON, timestamp in ISO
  form; the first line may be a `session_meta` with the model and the platform.
* `sessions/session_ID.json`, a snapshot of a terminal: session_id, model, platform,
  session_start (ISO), messages. `sessions/sessions.json` is an index, not a session.
* `hermes sessions export` writes one line of JSON per session: the columns of its row, and
  `messages`.

The database has priority: a file is read only if the database has no messages of its session.
Rows that cannot be read are skipped and counted. hermes-agent may be running: the database is
opened read-only. Only if there is no WAL it is opened as immutable, because opening it otherwise
would create files beside it.
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from holdfast.api.schema.sessions import ImportRequest, MessageObject, ToolCallObject, ToolFunction
from holdfast.core.types import Value

DATABASE = "state.db"

_PACKED = ("\0json:", "\x01json:")
_TEXT = frozenset({"text", "input_text", "output_text"})
_KEPT = frozenset({"user", "assistant", "tool", "system"})
_BOOKS = re.compile(r"session_\w+|unknown")  # roles of rows that are not messages
_FOREIGN = re.compile(r"[^A-Za-z0-9_.:@+=~-]")
_LONGEST_ID = 200
_NOT_SESSIONS = frozenset({"sessions.json"})

Row = Mapping[str, Any]


class Old(Value):
    """A session of hermes-agent, ready to import."""

    session: ImportRequest
    damaged: int  # messages, or parts of some, that could not be read


class NotHermes(Exception):
    """The path holds no data of hermes-agent, or cannot be read; the text says why."""


def is_home(path: Path) -> bool:
    """Return true if hermes-agent keeps data there."""
    return path.is_dir() and ((path / DATABASE).is_file() or (path / "sessions").is_dir())


def read(path: Path) -> Iterator[Old | NotHermes]:
    """Yield the sessions in a home, a directory or a file, each once, and the failures."""
    seen: set[str] = set()
    for file in _files(path):
        try:
            for one in _database(file) if file.suffix == ".db" else _written(file):
                if one.session.messages and one.session.session_id not in seen:
                    seen.add(one.session.session_id)
                    yield one
        except (sqlite3.Error, OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            yield NotHermes(f"{file}: {error}")


def count(path: Path) -> int:
    """Return about how many sessions there are."""
    return sum(_rows_in(file) if file.suffix == ".db" else 1 for file in _files(path))


def _files(path: Path) -> list[Path]:
    """Return the files that may hold sessions, databases first."""
    if not path.is_dir():
        return [path]
    homes = [path, *sorted(p for p in path.glob("profiles/*") if is_home(p))]
    databases = [file for home in homes if (file := home / DATABASE).is_file()]
    below = [path, *(home / "sessions" for home in homes)]
    written = [
        file
        for directory in below
        for file in sorted((*directory.glob("session_*.json"), *directory.glob("*.jsonl")))
        if file.name not in _NOT_SESSIONS and file.is_file()
    ]
    return databases + written


def _connect(path: Path) -> sqlite3.Connection:
    still = not Path(f"{path}-wal").exists()
    uri = f"file:{quote(str(path.absolute()))}?mode=ro{'&immutable=1' if still else ''}"
    connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return connection


def _rows_in(path: Path) -> int:
    try:
        with closing(_connect(path)) as connection:
            return int(connection.execute("SELECT count(*) FROM sessions").fetchone()[0])
    except sqlite3.Error:
        return 0


def _database(path: Path) -> Iterator[Old]:
    with closing(_connect(path)) as connection:
        columns = {row["name"] for row in connection.execute("PRAGMA table_info(messages)")}
        active = "AND active IS NOT 0" if "active" in columns else ""
        sql = f"SELECT * FROM messages WHERE session_id = ? {active} ORDER BY id"
        for row in connection.execute("SELECT * FROM sessions ORDER BY started_at").fetchall():
            session = dict(row)
            messages, damaged = _rows(connection, sql, session.get("id"))
            yield _old(session, messages, damaged)


def _rows(connection: sqlite3.Connection, sql: str, session: object) -> tuple[list[Row], int]:
    """Return the messages of a session, up to where the file is damaged."""
    rows: list[Row] = []
    try:
        for row in connection.execute(sql, (session,)):
            rows.append(dict(row))
    except sqlite3.DatabaseError:
        return rows, 1
    return rows, 0


def _written(path: Path) -> Iterator[Old]:
    """Yield the sessions in a file: a snapshot, an export, or one message per line."""
    content = path.read_bytes()
    if path.suffix == ".json":
        yield _old(_mapping(_decoded(content)), (), 0)
        return
    meta: dict[str, Any] = {"id": path.stem}
    messages: list[Row] = []
    damaged = 0
    for line in content.split(b"\n"):
        if not line.strip():
            continue
        try:
            row = _mapping(_decoded(line))
        except msgspec.DecodeError:
            damaged += 1
            continue
        if "messages" in row:
            yield _old(row, (), 0)
        elif row.get("role") == "session_meta":
            meta |= {"started_at": row.get("timestamp"), "platform": row.get("platform")}
        else:
            messages.append(row)
    yield _old(meta, messages, damaged)


def _decoded(content: str | bytes) -> object:
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise msgspec.DecodeError("no object")
    return value


def _old(session: Row, rows: Sequence[Row], damaged: int) -> Old:
    given = session.get("messages")
    rows = [*rows, *(r for r in given if isinstance(r, dict))] if isinstance(given, list) else rows
    messages: list[MessageObject] = []
    for row in rows:
        said, bad = _said(row)
        damaged += bad
        messages += said
    cwd = session.get("cwd")
    began = _time(session.get("started_at") or session.get("session_start"))
    times = list(filter(None, (_time(row.get("timestamp")) for row in rows)))
    brought = ImportRequest(
        session_id=_named(str(session.get("id") or session.get("session_id") or "")),
        messages=tuple(messages),
        source=f"hermes-agent ({session.get('source') or session.get('platform') or 'unknown'})",
        title=" ".join(str(session.get("title") or "").split()) or None,
        created_at=began or min(times, default=None),
        updated_at=max(times, default=_time(session.get("last_updated"))) or None,
        workspace=cwd if isinstance(cwd, str) and cwd else None,
    )
    return Old(brought, damaged)


def _named(given: str) -> str:
    """Return our id for it. Characters that we do not allow are replaced; a hash keeps it unique."""
    clean = _FOREIGN.sub("_", given)[:_LONGEST_ID]
    return f"hermes-{clean}" if clean == given else f"hermes-{clean}-{_hash(given)}"


def _hash(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:8]


def _time(given: object) -> float:
    """Return a time in seconds; 0 if it is unknown."""
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given).timestamp()
        except (ValueError, OverflowError, OSError):
            return 0.0
    sane = isinstance(given, float | int) and 0 < given < 32_503_680_000  # the year 3000
    return float(given) if sane and isinstance(given, float | int) else 0.0


def _said(row: Row) -> tuple[list[MessageObject], int]:
    """Return the message in a row, if it is one, and how many parts are damaged."""
    role = str(row.get("role") or "")
    if _BOOKS.fullmatch(role):
        return [], 0
    if role not in _KEPT:
        return [], 1
    text, bad = _text(row.get("content"))
    if role == "tool":
        call_id = row.get("tool_call_id")
        if not isinstance(call_id, str) or not call_id:
            return [], 1
        return [MessageObject(role=role, content=text, tool_call_id=call_id)], bad
    calls: tuple[ToolCallObject, ...] = ()
    if role == "assistant":
        calls, wrong = _calls(row.get("tool_calls"))
        bad += wrong
    if not text.strip() and not calls:
        return [], bad
    return [MessageObject(role=role, content=text, tool_calls=calls or None)], bad


def _text(content: object) -> tuple[str, int]:
    """Return the text of a message; other parts are named."""
    if isinstance(content, str) and content.startswith(_PACKED):
        try:
            content = _decoded(content.partition(":")[2])
        except msgspec.DecodeError:
            return "", 1
    match content:
        case None:
            return "", 0
        case str():
            return content, 0
        case list():
            return "\n".join(filter(None, map(_part, content))), 0
        case dict():
            return _part(content), 0
        case bytes():
            return content.decode("utf-8", "replace"), 0
        case _:
            return str(content), 0


def _part(part: object) -> str:
    match part:
        case str():
            return part
        case {"type": str(kind), "text": str(text)} if kind in _TEXT:
            return text
        case {"text": str(text)} | {"content": str(text)}:
            return text
        case {"type": str(kind)}:
            return f"[{'image' if 'image' in kind else kind}]"
        case _:
            return ""


def _calls(given: object) -> tuple[tuple[ToolCallObject, ...], int]:
    """Return the calls of a message, and how many are damaged."""
    if isinstance(given, str | bytes):
        try:
            given = _decoded(given) if given.strip() else None
        except msgspec.DecodeError:
            return (), 1
    if not given:
        return (), 0
    if not isinstance(given, list):
        return (), 1
    calls = [call for one in given if (call := _call(one)) is not None]
    return tuple(calls), len(given) - len(calls)


def _call(given: object) -> ToolCallObject | None:
    match given:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": arguments}} | {
            "call_id": str(call_id),
            "function": {"name": str(name), "arguments": arguments},
        } if call_id and name:
            pass
        case _:
            return None
    if not isinstance(arguments, str):
        try:
            arguments = msgspec.json.encode(arguments).decode()
        except RecursionError:
            return None
    return ToolCallObject(call_id, ToolFunction(name, arguments))
