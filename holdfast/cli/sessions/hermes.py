"""Sessions of hermes-agent, read as it left them. Nothing is ever written there.

What it keeps, in `~/.hermes` and, per profile, in `~/.hermes/profiles/NAME`:

* `state.db`, SQLite, usually in WAL mode. `sessions`: id, source (cli, telegram, …), title,
  started_at (seconds since the epoch), cwd, model, and much about costs. `messages`: id (their
  order), session_id, role, content, tool_call_id, tool_calls (a JSON list of calls as the chat
  completions API has them), timestamp, active. Columns came over the versions: of those above
  title, cwd and active may be missing. A row with active = 0 was taken back, or stands in a
  summary that is active itself; hermes neither resumes nor exports it, and we leave it, too.
  Content that is no plain text is JSON behind a NUL (or \\x01) and "json:": a list of parts.
  Roles are user, assistant, tool and system; `session_meta` and the like are book-keeping.
* `sessions/ID.jsonl`, of gateways before there was the database, and since then what could not
  be written to it: one message a line as above, tool_calls not packed again, timestamp in ISO
  form; the first line may be a `session_meta` with the model and the platform.
* `sessions/session_ID.json`, a snapshot by terminals: session_id, model, platform,
  session_start (ISO), messages. `sessions/sessions.json` is an index and no session.
* `hermes sessions export` writes one line of JSON for each session: the columns of its row,
  and `messages`.

The database counts first: a file is read only for a session that it has no messages of. Rows
that make no sense are left out and counted. It may be at work meanwhile: the database is opened
read-only; only where there is no WAL is it taken to stand still, because to open it otherwise
would make files beside it.
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

from holdfast.cli.wire_sessions import Called, Function, Import, Said
from holdfast.core.types import Value

DATABASE = "state.db"

_PACKED = ("\0json:", "\x01json:")
_TEXT = frozenset({"text", "input_text", "output_text"})
_KEPT = frozenset({"user", "assistant", "tool", "system"})
_BOOKS = re.compile(r"session_\w+|unknown")  # roles of rows that are no messages
_FOREIGN = re.compile(r"[^A-Za-z0-9_.:@+=~-]")
_LONGEST_ID = 200
_NOT_SESSIONS = frozenset({"sessions.json"})

Row = Mapping[str, Any]


class Old(Value):
    """A session of hermes-agent, as it is brought in."""

    session: Import
    damaged: int  # messages, or parts of some, that could not be read


class Unreadable(Exception):
    """What is there is nothing of hermes-agent's, or cannot be read; says why."""


def is_home(path: Path) -> bool:
    """Whether hermes-agent keeps anything there."""
    return path.is_dir() and ((path / DATABASE).is_file() or (path / "sessions").is_dir())


def read(path: Path) -> Iterator[Old | Unreadable]:
    """Its sessions in a home, a directory of sessions, or a file; each once, and what failed."""
    seen: set[str] = set()
    for file in _files(path):
        try:
            for one in _database(file) if file.suffix == ".db" else _written(file):
                if one.session.messages and one.session.session_id not in seen:
                    seen.add(one.session.session_id)
                    yield one
        except (sqlite3.Error, OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            yield Unreadable(f"{file}: {error}")


def count(path: Path) -> int:
    """About how many there are."""
    return sum(_rows_in(file) if file.suffix == ".db" else 1 for file in _files(path))


def _files(path: Path) -> list[Path]:
    """What may hold sessions, databases first."""
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
    """A session's messages, up to where the file is damaged."""
    rows: list[Row] = []
    try:
        for row in connection.execute(sql, (session,)):
            rows.append(dict(row))
    except sqlite3.DatabaseError:
        return rows, 1
    return rows, 0


def _written(path: Path) -> Iterator[Old]:
    """The sessions in a file: a snapshot, an export, or one message a line."""
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
    messages: list[Said] = []
    for row in rows:
        said, bad = _said(row)
        damaged += bad
        messages += said
    cwd = session.get("cwd")
    began = _time(session.get("started_at") or session.get("session_start"))
    times = list(filter(None, (_time(row.get("timestamp")) for row in rows)))
    brought = Import(
        session_id=_named(str(session.get("id") or session.get("session_id") or "")),
        messages=tuple(messages),
        source=f"hermes-agent ({session.get('source') or session.get('platform') or 'unknown'})",
        title=" ".join(str(session.get("title") or "").split()),
        created_at=began or min(times, default=0.0),
        updated_at=max(times, default=_time(session.get("last_updated"))),
        workspace=cwd if isinstance(cwd, str) else "",
    )
    return Old(brought, damaged)


def _named(given: str) -> str:
    """Its id in ours. What our ids cannot hold is replaced, and told apart by a hash."""
    clean = _FOREIGN.sub("_", given)[:_LONGEST_ID]
    return f"hermes-{clean}" if clean == given else f"hermes-{clean}-{_hash(given)}"


def _hash(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()[:8]


def _time(given: object) -> float:
    """When; 0 if that cannot be known."""
    if isinstance(given, str):
        try:
            given = datetime.fromisoformat(given).timestamp()
        except (ValueError, OverflowError, OSError):
            return 0.0
    sane = isinstance(given, float | int) and 0 < given < 32_503_680_000  # the year 3000
    return float(given) if sane and isinstance(given, float | int) else 0.0


def _said(row: Row) -> tuple[list[Said], int]:
    """The message a row is, if it is one, and how much of it makes no sense."""
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
        return [Said(role=role, content=text, tool_call_id=call_id)], bad
    calls: tuple[Called, ...] = ()
    if role == "assistant":
        calls, wrong = _calls(row.get("tool_calls"))
        bad += wrong
    if not text.strip() and not calls:
        return [], bad
    return [Said(role=role, content=text, tool_calls=calls)], bad


def _text(content: object) -> tuple[str, int]:
    """The words of a message; what is not words is named."""
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


def _calls(given: object) -> tuple[tuple[Called, ...], int]:
    """The calls of a message, and how many make no sense."""
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


def _call(given: object) -> Called | None:
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
    return Called(call_id, Function(name, arguments))
