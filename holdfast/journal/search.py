"""The full-text search index of sessions.

It is a separate file beside the journal and made only from the journal: no decision depends on
it, and nothing is lost with it. It may be missing, damaged, of another version or not up to date.
If it is damaged, methods raise `Damaged`: `discard` it and index everything again. It is brought
up to date before a search (engine/admin/search.py): for each session it has the number of the
last indexed fact, and the journal's time of the last change.

It indexes messages of users and models, and titles, but not the output of tools, and nothing that
was undone: after an undo or a redo, the session is indexed again. Case and the
accents of Latin letters are ignored. Chinese and Japanese have no spaces between words, so each
character is indexed as a word, separated by an invisible character. A query consists of words,
never of FTS5 syntax: each word is quoted, and matches words that begin with it.

Blocks: call it from a worker thread, one call at a time.
"""

import os
import re
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.core.events import Record
from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.messages import Assistant, User
from holdfast.core.run.run import ModelAnswered
from holdfast.core.session.rewind import Timeline
from holdfast.core.session.rewound import Rewound
from holdfast.core.session.session import SessionReset, SessionSeeded, SessionTitled, Undone
from holdfast.core.types import Fact, Owner, RunId, SessionId, Value
from holdfast.errors import HoldfastError, JournalUnavailable
from holdfast.journal.journal import SessionRow

FILE = "search.db"
VERSION = 2

# The facts that are indexed, and those that say what of it was undone.
_REWINDS = (Undone, Rewound)
FACTS: tuple[type[Fact], ...] = (
    *(InputAdmitted, ModelAnswered, SessionTitled, SessionSeeded),
    *(InputPromoted, SessionReset, *_REWINDS),
)

# The marks around a hit in a snippet.
BEFORE, AFTER = "⟦", "⟧"

LONGEST = 200_000  # characters of one message that are indexed
SNIPPET = 300  # characters
TERMS = 16  # words in one query

_APART = "\u200b"
_ALONE = "[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]"
_BETWEEN = re.compile(f"(?<={_ALONE})(?=\\w)|(?<=\\w)(?={_ALONE})")

_SCHEMA = f"""
CREATE TABLE sessions (
    id          INTEGER PRIMARY KEY,
    owner       TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    created_at  REAL NOT NULL,   -- another session of the same name begins at another time
    changed_at  REAL NOT NULL,
    seq         INTEGER NOT NULL,
    title       TEXT NOT NULL,
    titled      INTEGER,         -- the row of the title in `said`
    UNIQUE (owner, session_id)
) STRICT;
CREATE TABLE caught_up (
    owner  TEXT PRIMARY KEY,
    at     REAL NOT NULL
) STRICT;
CREATE VIRTUAL TABLE said USING fts5(
    text, session UNINDEXED, role UNINDEXED, at UNINDEXED,
    tokenize = 'unicode61 remove_diacritics 2', prefix = '2'
);
PRAGMA user_version = {VERSION};
"""
# A hit from today counts three times as much as a very old one, one from two weeks ago twice.
_SEARCH = """
WITH hits AS MATERIALIZED (
    SELECT rowid AS number, session, role, at, bm25(said) AS rank FROM said WHERE said MATCH :words
), best AS (
    SELECT number, session, role, hits.at AS at, min(
        rank * (1 + 2 / (1 + max(0, :now - hits.at) / 1209600.0)) * iif(role = 'title', 2, 1)
    ) AS rank
    FROM hits JOIN sessions ON sessions.id = session
    WHERE owner = :owner GROUP BY session
)
SELECT number, session_id, title, role, best.at
FROM best JOIN sessions ON sessions.id = session ORDER BY rank, best.at DESC LIMIT :limit
"""
_SNIPPET = "SELECT snippet(said, 0, ?, ?, '…', 24) FROM said WHERE said MATCH ? AND rowid = ?"
_KNOWN = "SELECT created_at, changed_at, seq FROM sessions WHERE owner = ? AND session_id = ?"
_FIND = "SELECT id, titled FROM sessions WHERE owner = ? AND session_id = ?"
_TAKE = """
INSERT INTO sessions (owner, session_id, created_at, changed_at, seq, title)
VALUES (?, ?, ?, ?, ?, '')
ON CONFLICT (owner, session_id) DO UPDATE SET changed_at = excluded.changed_at, seq = excluded.seq
"""
_TITLE = "UPDATE sessions SET title = ?, titled = ? WHERE id = ?"
_ADD_TEXT = "INSERT INTO said VALUES (?, ?, ?, ?)"

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})


class Damaged(HoldfastError):
    """The file is not an index, or is damaged. Nothing is lost: discard it and build it again."""


class Behind(Value):
    """A session that is not fully indexed."""

    row: SessionRow
    seq: int  # the last indexed fact


class _Text(Value):
    """The text of a message."""

    role: str
    at: float
    text: str


class Hit(Value):
    """A session that matches a query, with its best match."""

    session_id: SessionId
    title: str
    role: str  # "user", "assistant" or "title"
    at: float
    snippet: str


class Index:
    """The index file. Every method may raise `Damaged` or `JournalUnavailable`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, and create it if needed."""
        with _classified_errors():
            os.close(_touch(self._path))
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._opened = connection
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, VERSION):
                raise Damaged(f"the index is of version {version}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")

    def close(self) -> None:
        """Close the file."""
        if self._opened is not None:
            with suppress(sqlite3.Error):
                self._opened.close()
            self._opened = None

    def discard(self) -> None:
        """Delete the index."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")

    def caught_up(self, owner: Owner) -> float:
        """Return the time up to which all changes of the owner are indexed; 0: never."""
        with _classified_errors():
            sql = "SELECT at FROM caught_up WHERE owner = ?"
            row = self._connection.execute(sql, (owner,)).fetchone()
        return 0.0 if row is None else float(row[0])

    def catch_up(self, owner: Owner, at: float) -> None:
        """Record that all changes of the owner up to `at` are indexed."""
        with _classified_errors():
            self._connection.execute("INSERT OR REPLACE INTO caught_up VALUES (?, ?)", (owner, at))

    def behind(self, rows: Sequence[SessionRow]) -> list[Behind]:
        """Return those that have changed since they were indexed."""
        found: list[Behind] = []
        with _classified_errors():
            for row in rows:
                known = self._connection.execute(_KNOWN, row.key).fetchone()
                if known is None or known[0] != row.created_at:
                    found.append(Behind(row, 0))
                elif known[1] != row.changed_at:
                    found.append(Behind(row, known[2]))
        return found

    def take(self, some: Sequence[tuple[Behind, Sequence[Record]]]) -> None:
        """Index the new facts of these sessions, of all or of none."""
        with _classified_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for behind, records in some:
                    self._take(behind, records)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def search(self, owner: Owner, words: str, limit: int, now: float) -> list[Hit]:
        """Return the owner's sessions with a message that has all the words, best match first."""
        if not (asked := query(words)):
            return []
        named = {"words": asked, "owner": owner, "now": now, "limit": limit}
        hits: list[Hit] = []
        with _classified_errors():
            for number, *found, at in self._connection.execute(_SEARCH, named).fetchall():
                marked = (BEFORE, AFTER, asked, number)
                row = self._connection.execute(_SNIPPET, marked).fetchone()
                session_id, title, role = found
                hits.append(Hit(session_id, title, role, at, _line(row[0])))
        return hits

    @property
    def _connection(self) -> sqlite3.Connection:
        assert self._opened is not None
        return self._opened

    def _take(self, behind: Behind, records: Sequence[Record]) -> None:
        row, execute = behind.row, self._connection.execute
        news = [r for r in records if r.seq > behind.seq]
        rewound = any(isinstance(r.fact, _REWINDS) for r in news)
        if rewound:
            news = list(records)
        if rewound or behind.seq == 0:
            self._forget(row)
        undone = _undone(records)
        seq = news[-1].seq if news else behind.seq
        execute(_TAKE, (*row.key, row.created_at, row.changed_at, seq))
        session, titled = execute(_FIND, row.key).fetchone()
        texts = [text for record in news for text in _texts(record, undone) if text.text.strip()]
        rows = [(_prepared(w.text), session, w.role, w.at) for w in texts]
        self._connection.executemany(_ADD_TEXT, rows)
        titles = [record for record in news if isinstance(record.fact, SessionTitled)]
        if titles:
            self._rename(session, titled, titles[-1])

    def _rename(self, session: int, titled: int | None, record: Record) -> None:
        """Replace the title of a session; an empty one is removed."""
        assert isinstance(record.fact, SessionTitled)
        title, execute = record.fact.title, self._connection.execute
        execute("DELETE FROM said WHERE rowid = ?", (titled,))
        row = (_prepared(title), session, "title", record.at)
        number = execute(_ADD_TEXT, row).lastrowid if title else None
        execute(_TITLE, (title, number, session))

    def _forget(self, row: SessionRow) -> None:
        """Delete an earlier session of the same name."""
        if (known := self._connection.execute(_FIND, row.key).fetchone()) is not None:
            self._connection.execute("DELETE FROM said WHERE session = ?", known[:1])
            self._connection.execute("DELETE FROM sessions WHERE id = ?", known[:1])


def query(words: str) -> str:
    """Return the FTS5 query for `words`; empty if there is no word in it."""
    clean = words.replace("\0", " ").encode(errors="replace").decode()
    terms = [term for term in clean.split() if any(map(str.isalnum, term))]
    return " AND ".join(map(_term, terms[:TERMS]))


def _term(word: str) -> str:
    """Return the FTS5 term for a word. An exact match ranks higher than a longer word.

    A single letter matches only itself, because too many words begin with it.
    """
    quoted = '"{}"'.format(_apart(word).replace('"', '""'))
    return quoted if len(word) == 1 and word.isascii() else f"({quoted} OR {quoted}*)"


def _undone(records: Sequence[Record]) -> frozenset[RunId]:
    """Return the runs whose messages do not count."""
    if not any(isinstance(r.fact, _REWINDS) for r in records):
        return frozenset()
    line = Timeline()
    for record in records:
        line.add(record.fact, record.at)
    return frozenset(line.undone)


def _texts(record: Record, undone: Collection[RunId]) -> Iterator[_Text]:
    """Yield the messages of a fact that count."""
    match fact := record.fact:
        case InputAdmitted() if not _is_notice(fact) and fact.run_id not in undone:
            yield _Text("user", record.at, fact.text)
        case ModelAnswered() if fact.run_id not in undone:
            yield _Text("assistant", record.at, fact.text)
        case SessionSeeded():
            cut = [point.position for point in fact.points if point.run_id in undone]
            for message in fact.messages[: min(cut, default=None)]:
                if isinstance(message, User | Assistant):
                    role = "user" if isinstance(message, User) else "assistant"
                    yield _Text(role, fact.said_at or record.at, message.text)
        case _:
            pass


def _is_notice(admitted: InputAdmitted) -> bool:
    """Tell if the input is about the end of a process or a task: no user wrote it."""
    process, task = admitted.metadata.get("process_id"), admitted.metadata.get("task_id")
    return bool(
        (process and admitted.text.startswith(f"[Background process {process} "))
        or (task and admitted.text.startswith(f"[Task {task} "))
    )


def _prepared(text: str) -> str:
    return _apart(text[:LONGEST].replace("\0", " "))


def _apart(text: str) -> str:
    return text if text.isascii() else _BETWEEN.sub(_APART, text)


def _line(snippet: str) -> str:
    """Return a snippet as one line of limited length that includes its first hit."""
    line = " ".join(snippet.replace(_APART, "").split())
    if len(line) <= SNIPPET:
        return line
    begin = max(0, line.find(BEFORE) - SNIPPET // 3)
    cut = line[begin : begin + SNIPPET]
    # A hit that is cut off gets its closing mark again.
    return ("…" if begin else "") + cut + (AFTER if cut.count(BEFORE) > cut.count(AFTER) else "…")


def _touch(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


@contextmanager
def _classified_errors() -> Iterator[None]:
    """Raise `Damaged` for errors that a new index solves, and `JournalUnavailable` for others."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _DAMAGED:
            raise Damaged(f"the index is damaged: {error}") from error
        raise JournalUnavailable(f"the search index cannot be used: {error}") from error
    except OSError as error:
        raise JournalUnavailable(f"the search index cannot be used: {error.strerror}") from error
