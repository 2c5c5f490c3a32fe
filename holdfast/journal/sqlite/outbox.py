"""The tables for chats: cursors, recorded updates, message digests and the outbox.

They are committed with their facts, so a cursor never moves without its input, and an input is
never recorded without its cursor. `changes` returns what a fact changes in these tables. The
effect of a fact on a delivery is defined in `core.chat.delivery`; a transition that is not
allowed there changes nothing.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, get_args

from msgspec.structs import asdict

from holdfast.core.chat import delivery
from holdfast.core.chat.delivery import TRANSITIONS, DeliveryQueued
from holdfast.core.events import Event, Record
from holdfast.core.inbox import UpdateRef
from holdfast.core.types import Fact, Owner

_DAY_S = 86_400.0
DONE_S = 6 * _DAY_S  # how much longer than request keys, updates and sent messages are kept
DEAD_S = 29 * _DAY_S  # the same for abandoned messages

Change = tuple[str, dict[str, Any]]

_MOVE = "INSERT OR REPLACE INTO cursors VALUES (:channel, :cursor)"
_TAKE = "INSERT OR REPLACE INTO taken VALUES (:channel, :external_id, :at)"
_SAY = "INSERT OR REPLACE INTO said VALUES (:place, :message_id, :digest, :at)"
_QUEUE = f"""
INSERT OR IGNORE INTO outbox VALUES (
    NULL, :delivery_id, :owner, :stream, :seq, '{delivery.DeliveryStatus.PENDING}',
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

# The only facts that change these tables.
CHANGING: frozenset[type[Fact]] = frozenset({DeliveryQueued, *_UPDATES, *_WITH_CAME})


def changes(record: Record, owner: Owner) -> Iterator[Change]:
    """Yield the changes that a record makes to these tables."""
    stream, seq, at, fact = record
    came: UpdateRef | None = getattr(fact, "came", None)
    if came is not None:
        yield _TAKE, {"channel": came.channel, "external_id": came.external_id, "at": at}
        if came.digest and came.message_id:
            named = {"place": came.place, "message_id": came.message_id}
            yield _SAY, {**named, "digest": came.digest, "at": at}
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
    """Delete old rows, but never a cursor or an undelivered message."""
    over = "DELETE FROM outbox WHERE status = ? AND updated_at < ?"
    connection.execute("DELETE FROM taken WHERE at < ?", (keys_before - DONE_S,))
    connection.execute("DELETE FROM said WHERE at < ?", (keys_before - DONE_S,))
    connection.execute(over, (delivery.DeliveryStatus.SENT, keys_before - DONE_S))
    connection.execute(over, (delivery.DeliveryStatus.DEAD, keys_before - DEAD_S))
