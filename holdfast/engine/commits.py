"""Commits: hand each committed record to those who subscribed to its type of fact.

A record passes once, on the loop, in the order of the journal. A type without subscribers costs
one look-up. A subscriber that raises is logged; the others still get the record.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

from holdfast.core.events import Record
from holdfast.core.types import Fact
from holdfast.journal.journal import Journal

log = logging.getLogger(__name__)

Subscriber = Callable[[Record], None]


class Commits:
    """The subscribers of one journal."""

    def __init__(self, journal: Journal, publish: Callable[[Sequence[Record]], None]) -> None:
        self._publish = publish  # gets every batch as a whole, before the subscribers
        self._subscribers: dict[type[Fact], tuple[Subscriber, ...]] = {}
        journal.on_commit(self._dispatch)

    def subscribe(self, kinds: Iterable[type[Fact]], subscriber: Subscriber) -> None:
        """Call `subscriber` with each committed record whose fact is of one of these types."""
        for kind in kinds:
            self._subscribers[kind] = (*self._subscribers.get(kind, ()), subscriber)

    def _dispatch(self, records: Sequence[Record]) -> None:
        self._publish(records)
        for record in records:
            for subscriber in self._subscribers.get(type(record.fact), ()):
                try:
                    subscriber(record)
                except Exception:
                    log.exception(
                        "a subscriber failed", extra={"stream": record.stream, "seq": record.seq}
                    )
