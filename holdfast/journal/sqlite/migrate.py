"""Run the numbered SQL files once each, in order. There are no downgrades."""

import sqlite3
from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable

from holdfast.errors import Misconfigured
from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite import approvals

# The part of a migration that is done in Python, in the same transaction.
_FILLS: dict[int, Callable[[sqlite3.Connection, Blobs], None]] = {6: approvals.fill}


def newest() -> int:
    """Return the schema number of this version."""
    return int(_files()[-1].name[:4])


def _files() -> list[Traversable]:
    folder = resources.files(__package__) / "migrations"
    return sorted(folder.iterdir(), key=lambda file: file.name)


def migrate(connection: sqlite3.Connection, blobs: Blobs) -> None:
    """Bring the schema up to date; refuse a journal that a newer version has written."""
    done: int = connection.execute("PRAGMA user_version").fetchone()[0]
    files = _files()
    known = newest()
    if done > known:
        raise Misconfigured(
            f"the journal was written by a newer Holdfast (schema {done}, this one knows {known})",
            "install the newer version again, or point HOLDFAST_HOME elsewhere",
        )
    for file in files:
        number = int(file.name[:4])
        if number > done:
            script = file.read_text(encoding="utf-8")
            connection.executescript(f"BEGIN;\n{script}")
            if (fill := _FILLS.get(number)) is not None:
                fill(connection, blobs)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
