"""Runs the numbered SQL files of a dialect once each, in order. There is no way back."""

import sqlite3
from importlib import resources

from holdfast.errors import Misconfigured


def migrate(connection: sqlite3.Connection, dialect: str) -> None:
    """Bring the schema up to date; refuse a journal that a newer version has written."""
    done: int = connection.execute("PRAGMA user_version").fetchone()[0]
    files = sorted(
        (f for f in (resources.files(__package__) / "migrations" / dialect).iterdir()),
        key=lambda f: f.name,
    )
    newest = int(files[-1].name[:4])
    if done > newest:
        raise Misconfigured(
            f"the journal was written by a newer Holdfast (schema {done}, this one knows {newest})",
            "install the newer version again, or point HOLDFAST_HOME elsewhere",
        )
    for file in files:
        number = int(file.name[:4])
        if number > done:
            script = file.read_text(encoding="utf-8")
            connection.executescript(f"BEGIN;\n{script}\nPRAGMA user_version = {number};\nCOMMIT;")
