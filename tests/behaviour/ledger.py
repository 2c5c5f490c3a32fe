"""Read a home from outside: the rows of its journal and its other files."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

TABLES = ("sessions", "runs", "events", "request_keys")


def ask(home: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """What the journal answers, to a reader that cannot change it."""
    with closing(sqlite3.connect(f"file:{home / 'journal.db'}?mode=ro", uri=True)) as journal:
        return journal.execute(sql, parameters).fetchall()


def holdings(home: Path) -> dict[str, int]:
    """How much of everything there is: rows by table, and files that requests could leave."""
    # What the gateway says to itself (the session "/standing") is no request's doing.
    requests = "(SELECT stream FROM sessions WHERE session_id NOT LIKE '/%')"
    counted = {
        table: int(
            ask(
                home,
                f"SELECT count(*) FROM {table}"
                + ("" if table == "request_keys" else f" WHERE stream IN {requests}"),
            )[0][0]
        )
        for table in TABLES
    }
    for folder in ("workspaces", "blobs"):
        counted[folder] = sum(1 for _ in (home / folder).rglob("*"))
    return counted


def change(home: Path, work: Callable[[sqlite3.Connection], object]) -> None:
    """Rewrite the journal of a home that nobody owns just now; how tests let time pass."""
    with closing(sqlite3.connect(home / "journal.db")) as journal, journal:
        work(journal)
