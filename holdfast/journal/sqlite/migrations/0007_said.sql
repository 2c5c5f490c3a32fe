-- Which words were last taken under a platform's own name for a message: an edit that changes none is none.

CREATE TABLE said (
    place       TEXT NOT NULL,  -- the key of the chat and thread
    message_id  TEXT NOT NULL,
    digest      TEXT NOT NULL,
    at          REAL NOT NULL,
    PRIMARY KEY (place, message_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX said_by_age ON said (at);
