"""Answers to approvals, from people and from the clock."""

from holdfast.core.approval.approval import ApprovalExpired, ApprovalRequested, Choice, limit_choice
from holdfast.core.chat.chats import UpdateTaken
from holdfast.core.events import Record
from holdfast.core.intents import Answer, Answered
from holdfast.core.session import answers
from holdfast.core.types import SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.commits import Commits
from holdfast.engine.intents.target import Unfinished
from holdfast.engine.life.gateway_state import StandingRules
from holdfast.engine.runs.approvals import Permits
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.engine.timers import Expiries
from holdfast.errors import Refused
from holdfast.journal.journal import Journal


class Answers:
    """Records answers to approvals; expires those that are not answered in time."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        clock: Clock,
        standing: StandingRules,
        permits: Permits,
        unfinished: Unfinished,
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._clock = clock
        self._standing = standing
        self._permits = permits
        self._unfinished = unfinished
        self._expiries = Expiries()

    def subscribe(self, commits: Commits) -> None:
        """Get from the journal what may expire."""
        commits.subscribe((ApprovalRequested,), self._asked)

    def _asked(self, record: Record) -> None:
        assert isinstance(record.fact, ApprovalRequested)
        if (key := self._sessions.key_of(record.stream)) is not None:
            self._expiries.add(record.fact.expires_at, key)

    def notice(self, loaded: LoadedSession) -> None:
        """See to what a session that was brought back waits for."""
        for asked in loaded.session.approvals.values():
            self._expiries.add(asked.requested.expires_at, loaded.key)

    async def watch(self) -> None:
        """For as long as the process lives: expire what is not answered in time."""
        await self._expiries.watch(self._clock, self._expire)

    async def answer(self, intent: Answer) -> Answered:
        """Record an answer, durably; or refuse it."""
        if self._journal.doubt is not None:  # what is asked may be about to be withdrawn
            raise Refused("gateway_starting", "It is starting; try again.", retry_after_s=1)
        try:
            key = await self._unfinished(intent.by, intent.run_id)
        except Refused as refused:
            if refused.code == "run_ended":
                raise _over() from None
            raise
        choice = limit_choice(intent.choice, intent.by.roles)
        given = answers.GivenAnswer(
            *(intent.run_id, choice, intent.by.who, intent.request_id, intent.every),
            reason=intent.reason.strip(),
        )
        async with self._standing.write() as standing, self._sessions.load(key) as loaded:
            if loaded is None or intent.run_id not in loaded.session.runs:
                raise _over()
            await self._note(loaded, intent, choice, "approval.answer")
            try:
                now = self._clock.now()
                facts, resolved = answers.answer(loaded.session, given, now)
            except Refused as refused:
                await self._note(loaded, intent, choice, "approval.refused", refused.code)
                raise
            stands = answers.standing(loaded.session, given, now)
            taken = () if intent.came is None else (UpdateTaken(came=intent.came),)
            pending = self._sessions.append(loaded, *facts, *taken)
            standing.add(stands)
            await pending.wait()
        return Answered(intent.run_id, choice, resolved)

    async def _note(
        self, loaded: LoadedSession, intent: Answer, choice: Choice, kind: str, result: str = ""
    ) -> None:
        """Write an answer to the audit, before it counts."""
        asked = intent.request_id or ("all" if intent.every else "oldest")
        who = f"{intent.by.who} ({intent.by.platform})"
        await self._permits.note(
            kind, loaded, intent.run_id, request_id=asked, choice=choice, rule=who, result=result
        )

    async def _expire(self, key: SessionKey) -> None:
        """Expire the requests of a session whose time is over."""
        async with self._sessions.load(key) as loaded:
            if loaded is None:
                return
            if facts := answers.expire(loaded.session, self._clock.now()):
                await self._sessions.append(loaded, *facts).wait()
                for fact in facts:
                    if isinstance(fact, ApprovalExpired):
                        await self._permits.note(
                            "approval.expired", loaded, fact.run_id, request_id=fact.request_id
                        )


def _over() -> Refused:
    return Refused("approval_not_active", "The run is over.")
