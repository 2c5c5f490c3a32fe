"""Streams of events, cut into events and read one by one.

An event is one line: the `data:` lines of server-sent events, or whole lines (NDJSON). A stream
that ends before its reader has seen the end of the answer was cut, even if the connection was
closed properly; a stream that breaks after it has lost nothing. Nothing here does I/O.
"""

from enum import Enum
from typing import Protocol

import msgspec

from holdfast.models.building import Building, Lines
from holdfast.models.model import Answer, Reasoning, Request, Text
from holdfast.models.peer import Peer


class Progress(Enum):
    """How far an answer has arrived."""

    MORE = "more"
    WHOLE = "whole"  # complete, except perhaps for its usage
    DONE = "done"  # no more data is expected


class Reader(Protocol):
    """The reader of one wire format. It adds what it reads to `building`."""

    building: Building

    def take(self, event: bytes) -> Progress:
        """Read one event, which is not empty. Errors of the decoder are handled by the caller."""
        ...


class EventParser:
    """The parser of one answer: `prefix` begins the lines that count."""

    def __init__(self, peer: Peer, reader: Reader, prefix: bytes = b"data:") -> None:
        self.whole = False
        self.done = False
        self._ended = False  # the reader has seen the end of the answer
        self._peer = peer
        self._reader = reader
        self._prefix = prefix
        self._lines = Lines(peer)

    def feed(self, data: bytes) -> list[Text | Reasoning]:
        """Add `data`, and return the new pieces."""
        for line in self._lines.feed(data):
            self._take(line)
        return self._reader.building.flush()

    def end(self) -> list[Text | Reasoning]:
        """End the stream, and return the last pieces."""
        if not self._ended:
            self._take(self._lines.rest())
        if not self._ended:
            raise self._peer.cut("ended its answer before it was complete")
        return self._reader.building.flush()

    def answer(self, request: Request) -> Answer:
        """Return the complete answer, with call ids that are new in this conversation."""
        return self._reader.building.answer(request)

    def _take(self, line: bytes) -> None:
        if self.done or not line.startswith(self._prefix):
            return
        event = line[len(self._prefix) :].strip()
        if not event or event == b"[DONE]":
            return
        try:
            progress = self._reader.take(event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._peer.cut("sent a malformed chunk") from error
        self.whole = self._ended = self._ended or progress is not Progress.MORE
        self.done = progress is Progress.DONE
