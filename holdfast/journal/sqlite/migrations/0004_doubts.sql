-- How often it was not known whether a message had been sent, since somebody last looked at it.

ALTER TABLE outbox ADD COLUMN doubts INTEGER NOT NULL DEFAULT 0;
