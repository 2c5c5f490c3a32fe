"""The embedded store: SQLite in WAL mode with one writer thread and group commit."""
