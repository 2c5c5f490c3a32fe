"""A process that records a request for approval and then its answer, until it is killed.

`python -m tests.journal.asker DIRECTORY` says `asked` and `answered` once each is durable. The
journal of DIRECTORY holds the run already (`prepare`).
"""

import os
import sys
from pathlib import Path

import anyio

from holdfast.journal.blobs import Blobs
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.fakes.clock import FIRST_BOOT
from tests.journal.conformance import KEY, accept
from tests.journal.conformance_approvals import ENDS, requested

ANSWER = ENDS["granted"]


async def _open(directory: Path) -> SqliteJournal:
    return await SqliteJournal.open(directory / "journal.db", Blobs(directory), now=FIRST_BOOT)


async def prepare(directory: Path) -> None:
    """A journal with one accepted run."""
    journal = await _open(directory)
    await accept(journal)
    await journal.aclose()


async def main(directory: Path) -> None:
    journal = await _open(directory)
    row = await journal.stream_of(KEY)
    assert row is not None
    for at, (fact, word) in enumerate([(requested(), b"asked\n"), (ANSWER, b"answered\n")]):
        await journal.append(row.stream, 3 + at, 2.0 + at, [fact], []).wait()
        os.write(1, word)
    await journal.aclose()


if __name__ == "__main__":
    anyio.run(main, Path(sys.argv[1]))
