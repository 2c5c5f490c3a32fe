-- The approvals that wait for an answer. Made from events, and filled in from the events of
-- unfinished runs when this file is applied (journal/approvals.py).

CREATE TABLE approvals (
    request_id  TEXT PRIMARY KEY,
    run_id      TEXT NOT NULL,
    call_id     TEXT NOT NULL,
    owner       TEXT NOT NULL,
    stream      INTEGER NOT NULL,
    seq         INTEGER NOT NULL,            -- of the event that holds the request
    expires_at  REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_by_expiry ON approvals (expires_at, request_id);
CREATE INDEX approvals_by_run ON approvals (run_id);
