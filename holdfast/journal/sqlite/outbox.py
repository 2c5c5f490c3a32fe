"""What the journal keeps of chats beside the facts: cursors, updates taken, the outbox.

All of it is committed with the facts that say it, so a cursor never moves without its input
and an input never comes without its cursor. `changes` says what a fact does to these tables;
what a fact means for a delivery is `core.delivery`, and what that does not allow does nothing.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from msgspec.structs import asdict

from holdfast.core import delivery
from holdfast.core.delivery import TRANSITIONS, DeliveryQueued
from holdfast.core.events import Event, Record
from holdfast.core.inbox import Came
from holdfast.core.types import Fact, Owner

_DAY_S = 86_400.0
DONE_S = 6 * _DAY_S  # how much longer than a request key an update is known, or what was sent
DEAD_S = 29 * _DAY_S  # and what was given up

Change = tuple[str, dict[str, Any]]

_MOVE = "INSERT OR REPLACE INTO cursors VALUES (:channel, :cursor)"
_TAKE = "INSERT OR REPLACE INTO taken VALUES (:channel, :external_id, :at)"
_QUEUE = f"""
INSERT OR IGNORE INTO outbox VALUES (
    NULL, :delivery_id, :owner, :stream, :seq, '{delivery.Status.PENDING}',
    0, 0, 0.0, '', '', :at, :at, 0)
"""
_MEANS: dict[type[delivery.Event], str] = {
    delivery.SendStarted: "attempts = attempts + 1",
    delivery.SendAccepted: "external_id = :external_id, reason = ''",
    delivery.SendDeferred: "due_at = :due_at, reason = :reason",
    delivery.SendDoubted: "repeated = 1, doubts = doubts + 1, due_at = :due_at, reason = :reason",
    delivery.SendHeld: "reason = :reason",
    delivery.SendReleased: "attempts = 0, doubts = 0, queued_at = :at",
    delivery.SendAbandoned: "reason = :reason",
}


def _update(event: type[delivery.Event]) -> str:
    moves = {before: after for (before, e), after in TRANSITIONS.items() if e is event}
    (after,) = set(moves.values())
    before = ", ".join(f"'{status}'" for status in moves)
    return (
        f"UPDATE outbox SET status = '{after}', updated_at = :now, {_MEANS[event]} "
        f"WHERE delivery_id = :delivery_id AND status IN ({before})"
    )


_UPDATES: dict[type[Fact], str] = {event: _update(event) for event in get_args(delivery.Event)}
_WITH_CAME = {fact for fact in get_args(Event) if "came" in fact.__struct_fields__}

# All others change nothing here.
CHANGING: frozenset[type[Fact]] = frozenset({DeliveryQueued, *_UPDATES, *_WITH_CAME})


def changes(record: Record, owner: Owner) -> Iterator[Change]:
    """What the record does to these tables."""
    stream, seq, at, fact = record
    came: Came | None = getattr(fact, "came", None)
    if came is not None:
        yield _TAKE, {"channel": came.channel, "external_id": came.external_id, "at": at}
        if came.cursor:
            yield _MOVE, {"channel": came.channel, "cursor": came.cursor}
    elif type(fact) is DeliveryQueued:
        place = {"owner": owner, "stream": stream, "seq": seq, "at": at}
        yield _QUEUE, {"delivery_id": fact.delivery_id, **place}
    elif (update := _UPDATES.get(type(fact))) is not None:
        yield update, {**asdict(fact), "now": at}


def apply(connection: sqlite3.Connection, some: Iterable[Change]) -> None:
    """Change the tables, within the transaction of the facts."""
    for sql, values in some:
        connection.execute(sql, values)


def prune(connection: sqlite3.Connection, keys_before: float) -> None:
    """Forget what is long over. Never a cursor, nor a message that is on its way."""
    over = "DELETE FROM outbox WHERE status = ? AND updated_at < ?"
    connection.execute("DELETE FROM taken WHERE at < ?", (keys_before - DONE_S,))
    connection.execute(over, (delivery.Status.SENT, keys_before - DONE_S))
    connection.execute(over, (delivery.Status.DEAD, keys_before - DEAD_S))
