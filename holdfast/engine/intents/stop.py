"""Stop one run. The inputs of a run that had not begun are given back to the caller.

A stop whose answer was lost may come again under its name. The run is over then, and its unread
inputs are read from the journal.
"""

from collections.abc import Awaitable, Callable

from holdfast.core.chat.chats import UpdateTaken
from holdfast.core.inbox import InputAdmitted, InputSuperseded
from holdfast.core.intents import Principal, Stop, Stopping
from holdfast.core.run.run import RunStarted
from holdfast.core.session import session
from holdfast.core.types import InputId, RunId, SessionKey
from holdfast.engine.reads import PAGE, no_such_run
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import Refused
from holdfast.journal.journal import Journal

_OVER = frozenset({"run_ended", "run_not_found"})


class Stops:
    """Stops runs."""

    def __init__(
        self,
        sessions: Sessions,
        journal: Journal,
        unfinished: Callable[[Principal, RunId], Awaitable[SessionKey]],
    ) -> None:
        self._sessions = sessions
        self._journal = journal
        self._unfinished = unfinished  # the session of a run that has not ended

    async def stop(self, intent: Stop) -> Stopping:
        """Record the stop, durably; or refuse it."""
        try:
            async with self._sessions.load(
                await self._unfinished(intent.by, intent.run_id)
            ) as loaded:
                return await self._stop(loaded, intent)
        except Refused as refused:
            if refused.code not in _OVER or not await self._came_before(intent):
                raise
        return Stopping(intent.run_id, await self._unread(intent.run_id))

    async def _stop(self, loaded: LoadedSession | None, intent: Stop) -> Stopping:
        now = loaded.session.runs.get(intent.run_id) if loaded else None
        if loaded is None or now is None:
            if loaded is not None:
                await loaded.landed()  # its end may be on its way to the disk
            raise no_such_run(intent.run_id, "It has ended.")
        if intent.unless_begun and now.driven:
            raise Refused("run_begun", f"Run {intent.run_id} has begun. Nothing changed.")
        unread: tuple[str, ...] = ()
        if not now.stop_reason:
            if not now.driven:
                unread = tuple(loaded.session.inputs[i].admitted.text for i in now.unread)
            facts = session.stop(loaded.session, intent.run_id, intent.reason)
            taken = () if intent.came is None else (UpdateTaken(came=intent.came),)
            self._sessions.append(loaded, *facts, *taken)
        await loaded.landed()  # also where another has asked for it, a moment ago
        return Stopping(intent.run_id, unread)

    async def _came_before(self, intent: Stop) -> bool:
        came = intent.came
        return came is not None and await self._journal.seen(came.channel, came.external_id)

    async def _unread(self, run_id: RunId) -> tuple[str, ...]:
        """The unread inputs of a run that was stopped before it began."""
        if (row := await self._journal.run(run_id)) is None:
            return ()
        said, unread, after = dict[InputId, str](), list[InputId](), 0
        while page := await self._journal.records(row.stream, run_id, after, PAGE):
            for fact in (record.fact for record in page):
                match fact:
                    case InputAdmitted():
                        said[fact.input_id] = fact.text
                    case InputSuperseded():
                        unread.append(fact.input_id)
                    case RunStarted():
                        return ()
                    case _:
                        pass
            after = page[-1].seq
        return tuple(said[i] for i in unread if i in said)
