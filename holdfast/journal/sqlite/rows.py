"""Write many rows with one statement, because each statement releases and takes the GIL."""

import sqlite3
from collections.abc import Sequence
from functools import cache
from itertools import chain

from holdfast.journal.batch import Row

# Rows per statement: few statements, and few different ones, as sqlite3 keeps 128 prepared.
_CHUNKS = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 5, 4, 3, 2, 1)


def write(
    connection: sqlite3.Connection, before: str, rows: Sequence[Row], after: str = ""
) -> None:
    """Execute a statement in which the values of all rows are between `before` and `after`."""
    done = 0
    while left := len(rows) - done:
        size = next(c for c in _CHUNKS if c <= left)
        sql = _statement(before, len(rows[0]), size, after)
        connection.execute(sql, list(chain.from_iterable(rows[done : done + size])))
        done += size


@cache
def _statement(before: str, columns: int, rows: int, after: str) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"{before} VALUES {', '.join([row] * rows)}{after}"
