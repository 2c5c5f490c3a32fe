-- What comes through chats and what goes out to them. Made from events, as all but `deltas` is.

CREATE TABLE cursors (
    channel  TEXT PRIMARY KEY,
    cursor   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE taken (
    channel      TEXT NOT NULL,
    external_id  TEXT NOT NULL,
    at           REAL NOT NULL,
    PRIMARY KEY (channel, external_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX taken_by_age ON taken (at);

CREATE TABLE outbox (
    number       INTEGER PRIMARY KEY,        -- in the order they were queued
    delivery_id  TEXT NOT NULL UNIQUE,
    owner        TEXT NOT NULL,
    stream       INTEGER NOT NULL,
    seq          INTEGER NOT NULL,           -- of the event that holds the message
    status       TEXT NOT NULL,
    attempts     INTEGER NOT NULL,
    repeated     INTEGER NOT NULL,
    due_at       REAL NOT NULL,
    external_id  TEXT NOT NULL,
    reason       TEXT NOT NULL,
    queued_at    REAL NOT NULL,
    updated_at   REAL NOT NULL
) STRICT;

CREATE INDEX outbox_by_status ON outbox (status, updated_at);  -- few are ever neither sent nor dead

-- Which sessions have children whose end they have not been told: few events among many.
CREATE INDEX events_of_children ON events (stream, kind) WHERE kind IN ('child.begun', 'child.ended');
