"""Steer a run that is at work: answer what it asks, or give guidance for its next turn.

A steer whose answer was lost may come again under its name, at once or after a restart, while the
first is on its way to the disk or when the run is long over. It is passed on once.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from secrets import token_hex

from holdfast.core.inbox import InputAdmitted, Mode, UpdateRef
from holdfast.core.intents import Principal, Steer, Steered
from holdfast.core.session import placement, session
from holdfast.core.types import Fact, InputId, RunId, SessionKey
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable, Refused
from holdfast.journal.journal import Journal, Pending

KNOWN = 256  # words with a name that may still be on their way to the disk

_NO_MORE = frozenset({"run_not_accepting_steer", "question_not_waiting"})


class Steering:
    """Passes messages on to live runs."""

    def __init__(
        self,
        sessions: Sessions,
        journal: Journal,
        unfinished: Callable[[Principal, RunId], Awaitable[SessionKey]],
    ) -> None:
        self._sessions = sessions
        self._journal = journal
        self._unfinished = unfinished  # the session of a run that has not ended
        self._on_their_way: OrderedDict[UpdateRef, Pending] = OrderedDict()

    async def steer(self, intent: Steer) -> Steered:
        """Pass the message on, durably, or refuse it."""
        try:
            await self._pass_on(intent)
        except Refused as refused:
            if refused.code not in _NO_MORE or not await self._came_before(intent.came):
                raise
        return Steered(intent.run_id)

    async def _pass_on(self, intent: Steer) -> None:
        async with self._sessions.load(await self._session_of(intent)) as loaded:
            if await self._came_before(intent.came):
                return None
            pending = self._sessions.append(loaded, *_facts(loaded, intent)) if loaded else None
            if pending is None:
                raise _not_steerable(intent.run_id)
            if intent.came is None:
                return await pending.wait()
            self._on_their_way[intent.came] = pending
            if len(self._on_their_way) > KNOWN:
                self._on_their_way.popitem(last=False)
            return await self._arrive(intent.came, pending)

    async def _session_of(self, intent: Steer) -> SessionKey:
        try:
            return await self._unfinished(intent.by, intent.run_id)
        except Refused as refused:
            if refused.code == "run_ended":
                raise _not_steerable(intent.run_id) from None
            raise

    async def _came_before(self, came: UpdateRef | None) -> bool:
        """Return whether the message was passed on, durably. If not, decide without an await."""
        if came is None:
            return False
        if await self._journal.seen(came.channel, came.external_id):
            return True
        if (pending := self._on_their_way.get(came)) is None:
            return False
        await self._arrive(came, pending)
        return True

    async def _arrive(self, came: UpdateRef, pending: Pending) -> None:
        """Return when they are on the disk. What could not be written may come again."""
        try:
            await pending.wait()
        except JournalUnavailable:
            self._on_their_way.pop(came, None)
            raise


def _facts(loaded: LoadedSession, intent: Steer) -> tuple[Fact, ...]:
    now = loaded.session.runs.get(intent.run_id)
    if now is None or now.stop_reason:
        raise _not_steerable(intent.run_id)
    said = InputAdmitted(
        input_id=InputId(f"in_{token_hex(12)}"),
        run_id=intent.run_id,
        text=intent.text,
        mode=Mode.STEER,
        came=intent.came,
    )
    if (asked := placement.question(now, intent.call_id)) is not None:
        return placement.answer(loaded.session, now.id, asked, said)
    if intent.call_id is not None:
        raise Refused("question_not_waiting", "That question does not wait for an answer any more.")
    return (*session.requeue_interrupted(loaded.session), said)


def _not_steerable(run_id: RunId) -> Refused:
    return Refused("run_not_accepting_steer", f"Run {run_id} has ended or is being stopped.")
