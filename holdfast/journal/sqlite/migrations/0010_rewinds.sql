-- Rewinds that a crash has cut are found at the start. There are few of them.
CREATE INDEX events_of_rewinds ON events (stream, kind, seq)
WHERE kind IN ('session.rewinding', 'session.rewound');
