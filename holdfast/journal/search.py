"""The search index: sessions by the words that were said in them.

A file of its own beside the journal, made from it and never more than that: nothing is decided
by it, and nothing is lost with it. It may be missing, damaged, of another version or behind.
What is wrong with it is `Damaged`: `discard` it and take everything in again. What it is behind
is taken in when somebody asks (engine/finder.py): each session has the number of its last fact
that is in here, and what the journal said of its last change.

Words are people's, the model's and titles; not what tools put out. Case does not count, nor do
the accents of Latin letters. Chinese and Japanese have no spaces between words, so there each
character is one, kept apart by a sign that is not seen. What somebody asks for is words, never
the language of the index: each is quoted, and found where a word begins with it.

Blocks: call it from a worker thread, one at a time.
"""

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from holdfast.core.events import Record
from holdfast.core.inbox import InputAdmitted
from holdfast.core.messages import Assistant, Message, User
from holdfast.core.run import ModelAnswered
from holdfast.core.session import SessionSeeded, SessionTitled
from holdfast.core.types import Fact, Owner, SessionId, Value
from holdfast.errors import HoldfastError, JournalUnavailable

FILE = "search.db"
VERSION = 1

# The facts that words are taken from.
FACTS: tuple[type[Fact], ...] = (InputAdmitted, ModelAnswered, SessionTitled, SessionSeeded)

# What a hit stands between in a snippet.
BEFORE, AFTER = "⟦", "⟧"

LONGEST = 200_000  # characters of one message that can be found
SNIPPET = 300  # characters
TERMS = 16  # that somebody may ask for at once

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
    titled      INTEGER,         -- where the title stands among what was said
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
# A hit of today counts three times as much as one of long ago, one of two weeks ago twice.
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
VALUES (:owner, :session_id, :created_at, :changed_at, :seq, '')
ON CONFLICT (owner, session_id) DO UPDATE SET changed_at = :changed_at, seq = :seq
"""
_TITLE = "UPDATE sessions SET title = ?, titled = ? WHERE id = ?"
_SAY = "INSERT INTO said VALUES (?, ?, ?, ?)"

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR})


class Damaged(HoldfastError):
    """The file is no index, or not whole. Nothing is lost: discard it and begin anew."""


class Place(Value):
    """A session as the journal has it."""

    owner: Owner
    session_id: SessionId
    stream: int
    created_at: float
    changed_at: float


class Behind(Value):
    """A session of which not everything is in the index."""

    place: Place
    seq: int  # the last fact that is


class _Words(Value):
    """One message, or a title."""

    role: str
    at: float
    text: str


class _News(Value):
    """What is to be taken in of one session."""

    of: Behind
    seq: int  # of the last fact it was made of
    said: Sequence[_Words]
    title: _Words | None  # None: it is as it was; without words: it has none any more


class Hit(Value):
    """A session in which the words were found, and where best."""

    session_id: SessionId
    title: str
    role: str  # "user", "assistant" or "title"
    at: float
    snippet: str


class Index:
    """The file. What is wrong with it, or with the disk, is raised by whatever comes upon it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None

    def open(self) -> None:
        """Have the file, made if it is not there."""
        with _told_apart():
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
        """Let go of the file."""
        if self._opened is not None:
            with suppress(sqlite3.Error):
                self._opened.close()
            self._opened = None

    def discard(self) -> None:
        """Forget all of it."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                os.unlink(f"{self._path}{suffix}")

    def caught_up(self, owner: Owner) -> float:
        """The latest change up to which nothing of the owner's is missing; 0: never looked."""
        with _told_apart():
            sql = "SELECT at FROM caught_up WHERE owner = ?"
            row = self._connection.execute(sql, (owner,)).fetchone()
        return 0.0 if row is None else float(row[0])

    def catch_up(self, owner: Owner, at: float) -> None:
        """Nothing of the owner's is missing that was changed up to `at`."""
        with _told_apart():
            self._connection.execute("INSERT OR REPLACE INTO caught_up VALUES (?, ?)", (owner, at))

    def behind(self, places: Sequence[Place]) -> list[Behind]:
        """Which of these have changed since they were taken in."""
        found: list[Behind] = []
        with _told_apart():
            for place in places:
                named = (place.owner, place.session_id)
                row = self._connection.execute(_KNOWN, named).fetchone()
                if row is None or row[0] != place.created_at:
                    found.append(Behind(place, 0))
                elif row[1] != place.changed_at:
                    found.append(Behind(place, row[2]))
        return found

    def take(self, some: Sequence[tuple[Behind, Sequence[Record]]]) -> None:
        """Take in what these sessions' facts hold that is new: of all of them, or of none."""
        with _told_apart():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for behind, records in some:
                    self._take(_news(behind, records))
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def search(self, owner: Owner, words: str, limit: int, now: float) -> list[Hit]:
        """The owner's sessions in which one message has all the words; newest and best first."""
        if not (asked := query(words)):
            return []
        named = {"words": asked, "owner": owner, "now": now, "limit": limit}
        hits: list[Hit] = []
        with _told_apart():
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

    def _take(self, news: _News) -> None:
        place, execute = news.of.place, self._connection.execute
        if news.of.seq == 0:
            self._forget(place)
        row = {
            "owner": place.owner,
            "session_id": place.session_id,
            "created_at": place.created_at,
            "changed_at": place.changed_at,
            "seq": news.seq,
        }
        execute(_TAKE, row)
        session, titled = execute(_FIND, (place.owner, place.session_id)).fetchone()
        rows = [(_prepared(w.text), session, w.role, w.at) for w in news.said]
        self._connection.executemany(_SAY, rows)
        if (title := news.title) is not None:
            execute("DELETE FROM said WHERE rowid = ?", (titled,))
            said = (_prepared(title.text), session, title.role, title.at)
            number = execute(_SAY, said).lastrowid if title.text else None
            execute(_TITLE, (title.text, number, session))

    def _forget(self, place: Place) -> None:
        """Whatever went by that name before is another session."""
        named = (place.owner, place.session_id)
        if (row := self._connection.execute(_FIND, named).fetchone()) is not None:
            self._connection.execute("DELETE FROM said WHERE session = ?", row[:1])
            self._connection.execute("DELETE FROM sessions WHERE id = ?", row[:1])


def query(words: str) -> str:
    """What somebody asks for, in the language of the index; empty: there is no word in it."""
    clean = words.replace("\0", " ").encode(errors="replace").decode()
    terms = [term for term in clean.split() if any(map(str.isalnum, term))]
    return " AND ".join(map(_term, terms[:TERMS]))


def _term(word: str) -> str:
    """One of the words: better itself than a longer one. Too much begins with a lone letter."""
    quoted = '"{}"'.format(_apart(word).replace('"', '""'))
    return quoted if len(word) == 1 and word.isascii() else f"({quoted} OR {quoted}*)"


def _news(of: Behind, records: Sequence[Record]) -> _News:
    """What the facts of a session hold that is not in the index yet."""
    said: list[_Words] = []
    title: _Words | None = None
    last = of.seq
    for _, seq, at, fact in records:
        if seq <= of.seq:
            continue
        last = seq
        match fact:
            case InputAdmitted() if not _is_notice(fact):
                said.append(_Words("user", at, fact.text))
            case ModelAnswered():
                said.append(_Words("assistant", at, fact.text))
            case SessionSeeded():
                then = fact.said_at or at
                said += [w for m in fact.messages if (w := _of_message(m, then)) is not None]
            case SessionTitled():
                title = _Words("title", at, fact.title)
            case _:
                pass
    return _News(of, last, [w for w in said if w.text.strip()], title)


def _of_message(message: Message, at: float) -> _Words | None:
    match message:
        case User(text=text):
            return _Words("user", at, text)
        case Assistant(text=text):
            return _Words("assistant", at, text)
        case _:
            return None


def _is_notice(said: InputAdmitted) -> bool:
    """The end of a process or a task comes as an input, too, and nobody has said it."""
    process, task = said.metadata.get("process_id"), said.metadata.get("task_id")
    return bool(
        (process and said.text.startswith(f"[Background process {process} "))
        or (task and said.text.startswith(f"[Task {task} "))
    )


def _prepared(text: str) -> str:
    return _apart(text[:LONGEST].replace("\0", " "))


def _apart(text: str) -> str:
    return text if text.isascii() else _BETWEEN.sub(_APART, text)


def _line(snippet: str) -> str:
    """A snippet as one line, not too long, with its first hit in it."""
    line = " ".join(snippet.replace(_APART, "").split())
    if len(line) <= SNIPPET:
        return line
    begin = max(0, line.find(BEFORE) - SNIPPET // 3)
    cut = line[begin : begin + SNIPPET]
    # A hit that is longer than there is room for keeps its end.
    return ("…" if begin else "") + cut + (AFTER if cut.count(BEFORE) > cut.count(AFTER) else "…")


def _touch(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


@contextmanager
def _told_apart() -> Iterator[None]:
    """Damage can be mended by beginning anew; a disk that is full or read-only can not."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _DAMAGED:
            raise Damaged(f"the index is damaged: {error}") from error
        raise JournalUnavailable(f"the search index cannot be used: {error}") from error
    except OSError as error:
        raise JournalUnavailable(f"the search index cannot be used: {error.strerror}") from error
