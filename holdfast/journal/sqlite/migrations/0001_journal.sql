-- The journal. `events` is the truth; every other table is made from it, except that
-- `deltas` are events nothing is decided by, kept apart so that they can be forgotten.

CREATE TABLE sessions (
    stream      INTEGER PRIMARY KEY,
    owner       TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    workspace   TEXT NOT NULL,
    platform    TEXT NOT NULL,
    created_at  REAL NOT NULL,
    floor       INTEGER NOT NULL DEFAULT 0,  -- numbers up to here may have been shown before a power cut
    UNIQUE (owner, session_id)
) STRICT;

CREATE TABLE events (
    stream   INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    owner    TEXT NOT NULL,
    run_id   TEXT,
    at       REAL NOT NULL,
    kind     TEXT NOT NULL,
    version  INTEGER NOT NULL,
    data     BLOB NOT NULL,
    blob     TEXT,                           -- where data is, when it is too big for a row
    PRIMARY KEY (stream, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE deltas (
    stream   INTEGER NOT NULL,
    seq      INTEGER NOT NULL,
    owner    TEXT NOT NULL,
    run_id   TEXT NOT NULL,
    at       REAL NOT NULL,
    kind     TEXT NOT NULL,
    turn     INTEGER NOT NULL,
    text     TEXT NOT NULL
) STRICT;  -- in order of arrival: a thousand streams at once would touch a thousand pages

CREATE INDEX deltas_by_stream ON deltas (stream, seq);

CREATE TABLE runs (
    run_id      TEXT PRIMARY KEY,
    owner       TEXT NOT NULL,
    stream      INTEGER NOT NULL,
    first_seq   INTEGER NOT NULL,
    ended_seq   INTEGER,
    status      TEXT NOT NULL,
    stopping    INTEGER NOT NULL,
    created_at  REAL NOT NULL,
    updated_at  REAL NOT NULL,
    model       TEXT NOT NULL,
    last_event  TEXT NOT NULL,
    pruned      INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;  -- run ids rise with time, so neighbours are neighbours

CREATE INDEX runs_unfinished ON runs (stream) WHERE ended_seq IS NULL;
CREATE INDEX runs_unpruned ON runs (updated_at) WHERE ended_seq IS NOT NULL AND pruned = 0;

CREATE TABLE request_keys (
    owner        TEXT NOT NULL,
    route        TEXT NOT NULL,
    key          TEXT NOT NULL,
    fingerprint  TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    at           REAL NOT NULL,
    PRIMARY KEY (owner, route, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX request_keys_by_age ON request_keys (at);

CREATE TABLE machine (
    boot_id  TEXT NOT NULL
) STRICT;
