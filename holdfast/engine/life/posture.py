"""Posture: how well commands are confined here, and whether work may go on at that.

Nothing is driven before the posture is known. If it is weaker than the one at which work went on
last, work is paused until the operator accepts it.
"""

import logging

from holdfast.core.approval.approval import Level, Posture, is_weaker
from holdfast.core.intents import Principal
from holdfast.core.types import Part
from holdfast.engine.clock import Clock
from holdfast.engine.life.gateway_state import StandingRules
from holdfast.engine.permission import check_admin
from holdfast.engine.runs.approvals import Audit
from holdfast.engine.runs.coordinator import Coordinator
from holdfast.errors import JournalUnavailable, Refused, ToolFailed
from holdfast.journal.audit import entry_of
from holdfast.tools.tool import RunsCommands

log = logging.getLogger(__name__)

PROBE_AGAIN_S = 3.0  # after the sandbox of commands could not be tried


class PostureProbe(Part):
    """Finds the posture once, and remembers it."""

    _hands: RunsCommands
    found: Posture | None = None

    async def posture(self) -> Posture:
        """The posture. `Refused` while it cannot be found."""
        if self.found is None:
            try:
                self.found = await self._hands.posture()
            except ToolFailed as unknown:
                raise Refused(
                    "gateway_starting", str(unknown), retry_after_s=PROBE_AGAIN_S
                ) from unknown
        return self.found

    def name(self) -> str:
        """The name of its level, as runs record it. It is known before anything is driven."""
        if self.found is None:
            return ""
        return self.found.level.name if self.found.level else "UNSANDBOXED"


class PostureGate(Part):
    """Lets work begin once the posture is known and accepted."""

    _probe: PostureProbe
    _standing: StandingRules
    _coordinator: Coordinator
    _clock: Clock
    _audit: Audit
    _accepted: bool = False
    paused: str = ""  # why nothing is driven; empty: work goes on

    @property
    def sandbox(self) -> str:
        """The name of the level; empty while it is not known."""
        return "" if self._probe.found is None else self._probe.found.level.name

    @property
    def note(self) -> str:
        """A note on the sandbox, for the operator."""
        if self._probe.found is None:
            return self.paused or "not known yet"
        return self._probe.found.note

    async def begin(self) -> None:
        """Wait for the posture, then let work begin unless commands are confined worse now."""
        level = (await self._find()).level
        self.paused = ""
        if self._accepted:
            return
        before = self._standing.posture
        if is_weaker(before, level):
            assert before is not None
            self.paused = (
                f"commands were confined at {before.name} and now are at {level.name}; "
                "to go on all the same: holdfast sandbox accept"
            )
            log.warning("work is paused", extra={"reason": self.paused})
            return
        await self._go_on(level)

    async def _find(self) -> Posture:
        while True:
            try:
                return await self._probe.posture()
            except Refused as unknown:
                if not self.paused:
                    log.warning("work is held", extra={"reason": str(unknown)})
                self.paused = str(unknown)
            await self._clock.sleep(PROBE_AGAIN_S)

    async def accept(self, by: Principal) -> None:
        """Let work go on at the posture there is. Only the operator may."""
        check_admin(by)
        posture = await self._probe.posture()
        found = {"posture": posture.level.name, "result": posture.note}
        await self._audit(entry_of(by, "sandbox.accepted", **found))
        await self._go_on(posture.level)

    async def _go_on(self, level: Level) -> None:
        self.paused, self._accepted = "", True
        try:
            await self._standing.see(level)
        except JournalUnavailable:
            log.warning("the posture could not be recorded")  # the next start tries again
        self._coordinator.begin()
