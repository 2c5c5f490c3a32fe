"""Hands that have nothing to do, for engines whose tools start no process."""

from collections.abc import Sequence

import anyio

from holdfast.core.approval.approval import Level, Posture
from holdfast.core.run.process import ProcessEnd, ProcessEnded
from holdfast.core.types import ProcessId, SessionKey


class IdleHands:
    """Counts how often it is told to end everything."""

    def __init__(self) -> None:
        self.killed = 0
        self.level = Level.L2
        self.ends: dict[ProcessId, ProcessEnded] = {}
        self.traces: list[tuple[SessionKey, ProcessId]] = []
        self.forgotten: list[ProcessId] = []
        self._changed = anyio.Event()

    async def posture(self) -> Posture:
        return Posture(self.level, (), (), f"{self.level.name}: pretended")

    def known(self) -> list[tuple[SessionKey, ProcessId]]:
        return list(self.traces)

    async def sweep(self) -> None:
        """Nothing was left."""

    def end(self, process_id: ProcessId, *, cause: ProcessEnd = ProcessEnd.EXITED) -> None:
        """Let a process end."""
        code = 0 if cause is ProcessEnd.EXITED else None
        self.ends[process_id] = ProcessEnded(
            process_id=process_id, cause=cause, exit_code=code, tail="its last words"
        )
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    async def ended(self, process_id: ProcessId) -> ProcessEnded:
        while process_id not in self.ends:
            await self._changed.wait()
        return self.ends[process_id]

    async def lines(
        self, process_id: ProcessId, after: int, patterns: Sequence[str]
    ) -> tuple[str, int]:
        await anyio.sleep_forever()
        raise AssertionError

    async def kill(self, process_id: ProcessId) -> ProcessEnded:
        self.end(process_id, cause=ProcessEnd.KILLED)
        return self.ends[process_id]

    def last_output(self, process_id: ProcessId, limit: int) -> str:
        return self.ends[process_id].tail if process_id in self.ends else "at work\n"

    async def publish(self, process_id: ProcessId, port: int, host_port: int) -> int:
        return host_port or port

    def close_port(self, process_id: ProcessId, port: int) -> None:
        """None is open."""

    def rest(self, session: SessionKey) -> None:
        """Nothing is held."""

    async def kill_all(self) -> None:
        self.killed += 1

    def forget(self, process_id: ProcessId) -> None:
        self.forgotten.append(process_id)
