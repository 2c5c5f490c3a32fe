"""A start that does not trust what it finds: says what follows, before anything goes on.

Until all of it is in the journal the doubt stays noted there, so a crash in the middle changes
nothing; and until then no approval is accepted.
"""

import logging

from holdfast.core.life.evidence import Doubt
from holdfast.core.life.lifecycle import JournalRestored
from holdfast.core.session import doubts
from holdfast.core.types import Value
from holdfast.engine.clock import Clock
from holdfast.engine.life.gateway_state import StandingRules
from holdfast.engine.runs.approvals import Audit
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.audit import AuditEntry
from holdfast.journal.journal import Journal

log = logging.getLogger(__name__)

TRY_AGAIN_S = 0.5
DOUBTED = "the journal is doubted"


class Distrust(Value):
    """Settles what the journal's doubt means, for all sessions."""

    _journal: Journal
    _sessions: Sessions
    _clock: Clock
    _standing: StandingRules
    _audit: Audit

    async def settle(self) -> None:
        """Return when it is written down, however often that fails first."""
        while (doubt := self._journal.doubt) is not None:
            log.warning(DOUBTED, extra={"doubt": doubt})
            try:
                await self._settle(doubt)
                await self._journal.trust()
            except JournalUnavailable as error:
                log.warning("the doubt could not be settled yet", extra={"reason": str(error)})
                await self._clock.sleep(TRY_AGAIN_S)

    async def _settle(self, doubt: Doubt) -> None:
        await self._audit(AuditEntry(kind=f"journal.{doubt}"))
        unfinished = await self._journal.unfinished()
        for key in dict.fromkeys(row.key for row in unfinished):
            await self._sessions.change(
                key, lambda loaded: doubts.settle(loaded.session, doubt) if loaded else ()
            )
        if doubt is Doubt.RESTORED:
            held_back = await self._hold_messages()
            await self._standing.record(JournalRestored(runs=len(unfinished), messages=held_back))
            log.warning("the journal was restored", extra={"runs": len(unfinished)})

    async def _hold_messages(self) -> int:
        """Hold what may have been sent already; how many messages that is."""
        number = 0
        for message in await self._journal.undelivered():
            async with self._sessions.load(message.key) as loaded:
                if loaded is not None and (facts := doubts.hold(message.now)):
                    await self._sessions.append(loaded, *facts).wait()
                    number += 1
        return number
