"""The end of one run, asked for by somebody. Words of a run that had not begun are theirs again.

A stop whose answer was lost may come again under its name. The run is over then, and what nobody
has read of it is told once more: the journal has it.
"""

from collections.abc import Awaitable, Callable

from holdfast.core import session
from holdfast.core.chats import UpdateTaken
from holdfast.core.inbox import InputAdmitted, InputSuperseded
from holdfast.core.intents import Principal, Stop, Stopping
from holdfast.core.run import RunStarted
from holdfast.core.types import InputId, RunId, SessionKey
from holdfast.engine.reads import PAGE, no_such_run
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import Refused
from holdfast.journal.journal import Journal

_OVER = frozenset({"run_ended", "run_not_found"})


class Stops:
    """Ends runs."""

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
        """Ask for its end, durably; or say why not."""
        try:
            async with self._sessions.hold(
                await self._unfinished(intent.by, intent.run_id)
            ) as held:
                return await self._stop(held, intent)
        except Refused as refused:
            if refused.code not in _OVER or not await self._came_before(intent):
                raise
        return Stopping(intent.run_id, await self._unread(intent.run_id))

    async def _stop(self, held: Held | None, intent: Stop) -> Stopping:
        now = held.session.runs.get(intent.run_id) if held else None
        if held is None or now is None:
            if held is not None and held.said is not None:
                await held.said.wait()  # its end may be on its way to the disk
            raise no_such_run(intent.run_id, "It has ended.")
        if intent.unless_begun and now.driven:
            raise Refused("run_begun", f"Run {intent.run_id} has begun. Nothing changed.")
        unread: tuple[str, ...] = ()
        if not now.stop_reason:
            if not now.driven:
                unread = tuple(held.session.inputs[i].admitted.text for i in now.unread)
            facts = session.stop(held.session, intent.run_id, intent.reason)
            taken = () if intent.came is None else (UpdateTaken(came=intent.came),)
            await self._sessions.append(held, *facts, *taken).wait()
        return Stopping(intent.run_id, unread)

    async def _came_before(self, intent: Stop) -> bool:
        came = intent.came
        return came is not None and await self._journal.seen(came.channel, came.external_id)

    async def _unread(self, run_id: RunId) -> tuple[str, ...]:
        """The words of a run that was stopped before it began; else none."""
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
