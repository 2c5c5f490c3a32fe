"""Background processes, for the people whose sessions they belong to: list, read, kill.

The operator can publish their ports.

The records of processes on disk say which sessions have some; the journal says what is known of
each. A record is kept for a day after the end of its process.
"""

from collections.abc import Sequence

from holdfast.core.approval.approval import Role
from holdfast.core.intents import Principal
from holdfast.core.run.process import BackgroundProcess
from holdfast.core.types import ProcessId, SessionId, SessionKey, Value
from holdfast.engine.permission import check_admin
from holdfast.engine.runs.approvals import Audit
from holdfast.engine.runs.processes import Processes
from holdfast.engine.sessions import Sessions
from holdfast.errors import Refused
from holdfast.gateway import ProcessView
from holdfast.journal.audit import entry_of
from holdfast.tools.tool import RunsCommands

GLANCE = 2 * 1024  # bytes that are searched for the last line
LINE = 200  # characters of it


class ProcessAdmin(Value):
    """Shows and ends background processes."""

    _sessions: Sessions
    _hands: RunsCommands
    _processes: Processes
    _audit: Audit

    async def listed(
        self, by: Principal, session_id: SessionId | None, *, ended: bool
    ) -> Sequence[ProcessView]:
        """Return the processes of a session, or of all visible ones, oldest first."""
        if session_id is None:
            keys = {key for key, _ in self._hands.known() if by.sees(key.owner)}
        else:
            keys = {SessionKey(by.owner, session_id)}
        views = [
            self._view(key, process)
            for key in keys
            for process in await self._of(key)
            if ended or not process.status.final
        ]
        return sorted(views, key=lambda view: (view.process.started_at, view.process.id))

    async def output(self, by: Principal, process_id: ProcessId, limit: int) -> str:
        """Return the last `limit` bytes of its output."""
        found = (await self._find(by, process_id)).process
        kept = found.ended.tail if found.ended else ""
        return self._hands.last_output(process_id, limit) or kept

    async def kill(self, by: Principal, process_id: ProcessId) -> ProcessView:
        """Kill it with all its children, and return how it ended."""
        found = await self._find(by, process_id)
        if Role.RUN not in by.roles:
            raise Refused("admin_only", "You may not end processes here.")
        if not found.process.status.final:
            await self._audit(entry_of(by, "process.killed", what=process_id))
            await self._processes.kill(process_id)
        return await self._find(by, process_id)

    async def publish(
        self, by: Principal, process_id: ProcessId, port: int, host_port: int
    ) -> ProcessView:
        """Publish a port of a process on this machine's loopback. For the operator."""
        check_admin(by)
        found = await self._find(by, process_id)
        await self._audit(entry_of(by, "port.published", what=f"{process_id} {port}"))
        await self._processes.publish(found.key, process_id, port, host_port, by.who)
        return await self._find(by, process_id)

    async def close_port(self, by: Principal, process_id: ProcessId, port: int) -> ProcessView:
        """Close a published port. For the operator."""
        check_admin(by)
        found = await self._find(by, process_id)
        await self._audit(entry_of(by, "port.closed", what=f"{process_id} {port}"))
        await self._processes.close_port(found.key, process_id, port, "closed by the operator")
        return await self._find(by, process_id)

    async def _find(self, by: Principal, process_id: ProcessId) -> ProcessView:
        for key, known in self._hands.known():
            if known == process_id and by.sees(key.owner):
                for process in await self._of(key):
                    if process.id == process_id:
                        return self._view(key, process)
        raise Refused("process_not_found", f"There is no background process {process_id}.")

    async def _of(self, key: SessionKey) -> Sequence[BackgroundProcess]:
        async with self._sessions.load(key) as loaded:
            return tuple(loaded.committed().processes.values()) if loaded else ()

    def _view(self, key: SessionKey, process: BackgroundProcess) -> ProcessView:
        text = self._hands.last_output(process.id, GLANCE)
        if process.ended is not None and not text:
            text = process.ended.tail
        lines = text.strip().splitlines()
        return ProcessView(key, process, lines[-1][-LINE:] if lines else "")
