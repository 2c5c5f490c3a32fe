-- The fold of a session at one of its events (core/session/checkpoint.py), so that loading it reads
-- only the events after that one. Made from events; a row that is missing or of another version of
-- the program is not used, and the session is read from its first event.

CREATE TABLE checkpoints (
    stream  INTEGER PRIMARY KEY,
    seq     INTEGER NOT NULL,                -- the last event that it includes
    data    BLOB NOT NULL
) STRICT;
