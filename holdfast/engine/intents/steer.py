"""Words for a run that is at work: the answer to what it asks, else guidance for its next turn.

Words whose answer was lost may come again under their name, at once or after a restart, while the
first are on their way to the disk or when the run is long over. They are passed on once.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from secrets import token_hex

from holdfast.core import session, words
from holdfast.core.inbox import Came, InputAdmitted, Mode
from holdfast.core.intents import Principal, Steer, Steered
from holdfast.core.types import Fact, InputId, RunId, SessionKey
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable, Refused
from holdfast.journal.journal import Journal, Pending

KNOWN = 256  # words with a name that may still be on their way to the disk

_NO_MORE = frozenset({"run_not_accepting_steer", "question_not_waiting"})


class Steering:
    """Passes words on to live runs."""

    def __init__(
        self,
        sessions: Sessions,
        journal: Journal,
        unfinished: Callable[[Principal, RunId], Awaitable[SessionKey]],
    ) -> None:
        self._sessions = sessions
        self._journal = journal
        self._unfinished = unfinished  # the session of a run that has not ended
        self._on_their_way: OrderedDict[Came, Pending] = OrderedDict()

    async def steer(self, intent: Steer) -> Steered:
        """Pass them on, durably, or say why not."""
        try:
            await self._pass_on(intent)
        except Refused as refused:
            if refused.code not in _NO_MORE or not await self._came_before(intent.came):
                raise
        return Steered(intent.run_id)

    async def _pass_on(self, intent: Steer) -> None:
        async with self._sessions.hold(await self._session_of(intent)) as held:
            if await self._came_before(intent.came):
                return None
            pending = self._sessions.append(held, *_facts(held, intent)) if held else None
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

    async def _came_before(self, came: Came | None) -> bool:
        """Whether they have been passed on, for good. What is not so now may be decided at once."""
        if came is None:
            return False
        if await self._journal.seen(came.channel, came.external_id):
            return True
        if (pending := self._on_their_way.get(came)) is None:
            return False
        await self._arrive(came, pending)
        return True

    async def _arrive(self, came: Came, pending: Pending) -> None:
        """Return when they are on the disk. What could not be written may come again."""
        try:
            await pending.wait()
        except JournalUnavailable:
            self._on_their_way.pop(came, None)
            raise


def _facts(held: Held, intent: Steer) -> tuple[Fact, ...]:
    now = held.session.runs.get(intent.run_id)
    if now is None or now.stop_reason:
        raise _not_steerable(intent.run_id)
    said = InputAdmitted(
        input_id=InputId(f"in_{token_hex(12)}"),
        run_id=intent.run_id,
        text=intent.text,
        mode=Mode.STEER,
        came=intent.came,
    )
    if (asked := words.question(now, intent.call_id)) is not None:
        return words.answer(held.session, now.id, asked, said)
    if intent.call_id is not None:
        raise Refused("question_not_waiting", "Nobody waits for that answer any more.")
    return (*session.go_on(held.session), said)


def _not_steerable(run_id: RunId) -> Refused:
    return Refused("run_not_accepting_steer", f"Run {run_id} has ended or is being stopped.")
