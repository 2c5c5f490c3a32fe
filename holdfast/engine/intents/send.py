"""Turn intents into facts, or refuse them."""

from typing import assert_never, overload

from holdfast.core.intents import (
    Answer,
    Answered,
    Intent,
    Reply,
    Steer,
    Steered,
    Stop,
    Stopping,
    Submit,
    Submitted,
)
from holdfast.core.types import SessionKey
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.intents.answer import Answers
from holdfast.engine.intents.steer import Steering
from holdfast.engine.intents.stop import Stops
from holdfast.engine.intents.submit import Defaults, Intake
from holdfast.engine.intents.target import Unfinished
from holdfast.engine.life.lifecycle import GatewayLife
from holdfast.engine.reads import Reads
from holdfast.engine.work import Work
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Conflict

RETRY_CONFLICTS = 5


class Intents:
    """Takes every request of a client about sessions and runs."""

    def __init__(self, deps: ServiceDeps, work: Work, reads: Reads, life: GatewayLife) -> None:
        journal, sessions, clock = deps.journal, work.sessions, deps.clock
        unfinished = Unfinished(sessions, reads, work.recovery)
        defaults = Defaults(deps.models, deps.home, deps.workspace_roots)
        self.intake = Intake(journal, sessions, clock, deps.limits, defaults, deps.redactor)
        self._stops = Stops(sessions, journal, unfinished)
        self._steering = Steering(sessions, journal, unfinished)
        self.answers = Answers(journal, sessions, clock, work.standing, work.permits, unfinished)
        self._redactor = deps.redactor
        self._life = life
        self._need = work.need  # resumes a session whose recovery was deferred
        self.intake.subscribe(work.commits)
        self.answers.subscribe(work.commits)
        work.recovery.on_return(self.answers.notice)

    @overload
    async def send(self, intent: Submit) -> Submitted: ...
    @overload
    async def send(self, intent: Stop) -> Stopping: ...
    @overload
    async def send(self, intent: Steer) -> Steered: ...
    @overload
    async def send(self, intent: Answer) -> Answered: ...
    async def send(self, intent: Intent) -> Reply:
        """Turn an intent into facts, or refuse it."""
        if not isinstance(intent, Submit):  # an input is redacted as the fact that it becomes
            intent = self._redactor.cleaned(intent)
        for _ in range(RETRY_CONFLICTS):
            try:
                match intent:
                    case Submit():
                        if intent.session_id is not None:
                            key = SessionKey(intent.by.owner, intent.session_id)
                            await self._need(intent.by, key)
                        return await self.intake.submit(intent, self._life.phase)
                    case Stop():
                        return await self._stops.stop(intent)
                    case Steer():
                        return await self._steering.steer(intent)
                    case Answer():
                        return await self.answers.answer(intent)
                    case _:
                        assert_never(intent)
            except Conflict:
                continue  # the session changed meanwhile: load it and decide again
        raise JournalUnavailable("the session is busy; try again", retry_after_s=1)
