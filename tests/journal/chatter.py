"""A process that takes updates and queues answers, each in one append, until it is killed.

`python -m tests.journal.chatter DIRECTORY` says the number of each update once it is durable.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import anyio

from holdfast.core.chat.chats import UpdateTaken
from holdfast.core.chat.delivery import SendAccepted, SendStarted
from holdfast.core.types import Fact, SessionId, SessionKey
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.fakes.clock import FIRST_BOOT
from tests.journal.conformance import ME
from tests.journal.conformance_chats import Scribe, came, fate, message, said

UPDATES = 6


async def chatter(journal: Journal, tell: Callable[[int], object] = lambda _: None) -> None:
    """Take `UPDATES` updates, in two sessions by turns, and tell of each that is durable."""
    scribes = [Scribe(journal, SessionKey(ME, SessionId(name))) for name in ("one", "two")]
    for number in range(1, UPDATES + 1):
        first: Fact = said(number) if number % 3 else UpdateTaken(came=came(number))
        answer = f"d{number}"
        sent = fate(SendStarted, answer, 1), fate(SendAccepted, answer, number)
        scribe = scribes[number % 2]
        await scribe.says(first, message(answer, "x" * 1_000 * number))
        tell(number)
        await scribe.says(*sent)


async def main(directory: Path) -> None:
    journal = await SqliteJournal.open(directory / "journal.db", Blobs(directory), now=FIRST_BOOT)
    await chatter(journal, lambda number: os.write(1, b"%d\n" % number))
    await journal.aclose()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
