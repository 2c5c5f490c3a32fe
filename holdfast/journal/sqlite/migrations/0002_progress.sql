-- A call's own words on its way are deltas too; these say whose they are.

ALTER TABLE deltas ADD COLUMN call_id TEXT NOT NULL DEFAULT '';
