-- What a list of sessions shows. Sessions of before are filled in from their events at the next
-- start (journal/listing.py): those that have never changed.

ALTER TABLE sessions ADD COLUMN title TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN preview TEXT NOT NULL DEFAULT '';    -- the first words
ALTER TABLE sessions ADD COLUMN model TEXT NOT NULL DEFAULT '';      -- of its last run, or chosen since
ALTER TABLE sessions ADD COLUMN status TEXT NOT NULL DEFAULT 'open';
ALTER TABLE sessions ADD COLUMN listed INTEGER NOT NULL DEFAULT 1;   -- 0: the gateway's own, or a child's
ALTER TABLE sessions ADD COLUMN updated_at REAL NOT NULL DEFAULT 0;  -- when it was last spoken in
ALTER TABLE sessions ADD COLUMN changed_at REAL NOT NULL DEFAULT 0;  -- when the journal last took something in

CREATE INDEX sessions_listed ON sessions (owner, updated_at) WHERE listed = 1;
CREATE INDEX sessions_latest ON sessions (updated_at) WHERE listed = 1;  -- everybody's
