"""What the gateway says in chats of its own accord: that it goes, and that it is back.

It never waits long for the disk, and never for a platform: what is said is in the outbox.
"""

import logging
from collections.abc import Iterable
from secrets import token_hex

import anyio

from holdfast.core import notices
from holdfast.core.lifecycle import Reason, Recorded
from holdfast.core.types import RunId
from holdfast.engine.chats import Chats
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict

log = logging.getLogger(__name__)

WARN_S = 0.3  # for the warnings to reach the disk


async def warn(
    chats: Chats, sessions: Sessions, running: Iterable[RunId | None], reason: Reason
) -> None:
    """Queue a warning for every chat with a run at work, if that can be done now."""
    found = [sessions.running(run_id) for run_id in running if run_id is not None]
    busy = [at for f in found if f is not None and (at := f[1].origin.address) is not None]
    try:
        with anyio.move_on_after(WARN_S, shield=True):
            async with chats.hold() as book:
                said = notices.warnings(busy, reason, book.now.chats, token_hex(8))
                pending = book.add(said)
            if pending is not None:
                await pending.wait()
    except (JournalUnavailable, Conflict):
        log.warning("chats could not be warned")


async def say_back(chats: Chats, clock: Clock, before: Recorded) -> None:
    """Queue word of the return for whoever is to hear it."""
    try:
        async with chats.hold() as book:
            facts = notices.returned(book.now.chats, before, clock.now(), token_hex(8))
            book.add(facts)
    except (JournalUnavailable, Conflict):
        log.warning("nobody could be told that the gateway is back")
