-- How journal time goes on (core/timeline.py): a moment of it on this boot's clock, and what passed
-- over boots, which nobody measured. An `at` of 0 is a journal of before: it has no such moment.

ALTER TABLE machine ADD COLUMN boot_s REAL NOT NULL DEFAULT 0;
ALTER TABLE machine ADD COLUMN at REAL NOT NULL DEFAULT 0;
ALTER TABLE machine ADD COLUMN clock_offset REAL NOT NULL DEFAULT 0;
-- What is doubted (core/doubts.py) until all that follows from it is written down, and since when
-- grants count.
ALTER TABLE machine ADD COLUMN doubt TEXT NOT NULL DEFAULT '';
ALTER TABLE machine ADD COLUMN trusted_since REAL NOT NULL DEFAULT 0;
-- What stands outside of the journal too, and tells a copy that was put back (journal/evidence.py).
ALTER TABLE machine ADD COLUMN commits INTEGER NOT NULL DEFAULT 0;  -- synced ones, counted
ALTER TABLE machine ADD COLUMN file INTEGER NOT NULL DEFAULT 0;     -- the inode of this file; 0: not known
ALTER TABLE machine ADD COLUMN audited INTEGER NOT NULL DEFAULT 0;  -- entries of the audit at the last start

CREATE TABLE downtime (
    until   REAL NOT NULL,
    length  REAL NOT NULL
) STRICT;
