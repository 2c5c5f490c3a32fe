"""Notices that the gateway sends on its own: that it stops, and that it is back.

They never wait long for the disk, and never for a platform: the outbox sends them.
"""

import logging
from collections.abc import Iterable
from secrets import token_hex

import anyio

from holdfast.core.chat import notices
from holdfast.core.life.lifecycle import Reason, Recorded
from holdfast.core.types import RunId
from holdfast.engine.chats.book import ChatBook
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable

log = logging.getLogger(__name__)

WARN_S = 0.3  # for the warnings to reach the disk


async def warn(
    book: ChatBook, sessions: Sessions, running: Iterable[RunId | None], reason: Reason
) -> None:
    """Queue a warning for every chat with a run at work, if that can be done now."""
    found = [sessions.running(run_id) for run_id in running if run_id is not None]
    busy = [at for f in found if f is not None and (at := f[1].origin.address) is not None]
    try:
        with anyio.move_on_after(WARN_S, shield=True):
            async with book.write() as writing:
                said = notices.warnings(busy, reason, writing.now.chats, token_hex(8))
                await writing.record(*said)
    except JournalUnavailable:
        log.warning("chats could not be warned")


async def say_back(book: ChatBook, clock: Clock, before: Recorded) -> None:
    """Queue the notice that the gateway is back, for the chats that should get it."""
    try:
        async with book.write() as writing:
            facts = notices.returned(writing.now.chats, before, clock.now(), token_hex(8))
            writing.add(facts)
    except JournalUnavailable:
        log.warning("the notice that the gateway is back could not be queued")
