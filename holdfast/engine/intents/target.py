"""The session that an intent about a run is for."""

from holdfast.core.intents import Principal
from holdfast.core.types import RunId, SessionKey
from holdfast.engine.life.recover import Recovery
from holdfast.engine.reads import Reads
from holdfast.engine.sessions import Sessions
from holdfast.errors import Refused


class Unfinished:
    """Finds the session of a run that has not ended, and has it brought back."""

    def __init__(self, sessions: Sessions, reads: Reads, recovery: Recovery) -> None:
        self._sessions = sessions
        self._reads = reads
        self._recovery = recovery

    async def __call__(self, by: Principal, run_id: RunId) -> SessionKey:
        """The session; refused with `run_not_found` or `run_ended`."""
        found = self._sessions.running(run_id)
        if found is not None and by.sees(found[0].key.owner):
            key = found[0].key
        else:
            row = await self._reads.row(by, run_id)
            if row.ended_seq is not None:
                raise Refused("run_ended", f"Run {run_id} has ended: {row.status}.")
            key = row.key
        await self._recovery.need(key)
        return key
