"""Rewinding: sessions go back to a point, and forth again, with their files.

A rewind that touches files is recorded as planned, carried out, and recorded as done. Until it is
done no run of the session starts: a drive, a start and the next rewind finish an open plan first,
in the same way. One rewind at a time works on a session.
"""

import logging
from functools import partial
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from msgspec import field
from msgspec.structs import asdict, replace

from holdfast.core.inbox import UpdateRef
from holdfast.core.session import rewind
from holdfast.core.session.rewind import Point, Rewind, RewindDone, RewindPlan, Timeline
from holdfast.core.session.rewound import FileResult, FileStep, RewindPlanned, Rewound
from holdfast.core.types import Part, RewindId, SessionKey
from holdfast.engine.sessions import RETRY_CONFLICTS, LoadedSession, Sessions
from holdfast.engine.timeline import read_timeline
from holdfast.errors import JournalUnavailable, Refused, ToolFailed
from holdfast.journal.journal import Conflict, Journal
from holdfast.tools.tool import RestoresFiles

log = logging.getLogger(__name__)

RUN_ACTIVE = "A run is active here. Wait for its end, or /stop it first."
KEY_USED = "This `Idempotency-Key` was used for another request. Use a new one."
OTHER_HAND = "changed by another hand since"
NOT_KEPT = "its former version is no longer kept"
NAMED = 10  # files that a refusal names


class Rewinder(Part):
    """Rewinds sessions."""

    _journal: Journal
    _sessions: Sessions
    _files: RestoresFiles
    _locks: WeakValueDictionary[SessionKey, anyio.Lock] = field(default_factory=WeakValueDictionary)

    async def start(self) -> None:
        """Finish what an earlier process left."""
        for key in await self._journal.with_rewinds():
            try:
                async with self._sessions.load(key) as loaded:
                    if loaded is not None:
                        await self.finish(loaded)
            except Exception:
                # One session that cannot be read or written must not keep the others waiting.
                log.exception("rewind not finished", extra={"session_id": key.session_id})

    async def timeline(self, loaded: LoadedSession) -> Timeline:
        """Return the timeline of a session."""
        return await read_timeline(self._journal, loaded.stream)

    async def points(self, key: SessionKey) -> tuple[Point, ...]:
        """Return the points of a session, oldest first."""
        found: tuple[Point, ...] = ()
        async with self._sessions.load(key) as loaded:
            if loaded is not None:
                await loaded.landed()
                found = (await self.timeline(loaded)).points()
        return found

    async def carry_out(self, key: SessionKey, asked: Rewind) -> RewindDone:
        """Rewind the session; durable when this returns."""
        if (trouble := self._journal.state()) != "ok":
            raise JournalUnavailable(trouble, retry_after_s=5)
        with anyio.CancelScope(shield=True):  # once begun it is finished, whoever waits for it
            async with self._lock(key):
                done = await self._carry_out(key, asked)
        return done

    async def finish(self, loaded: LoadedSession) -> None:
        """Finish the rewind that was planned, if there is one."""
        if loaded.session.rewinding is not None:
            async with self._lock(loaded.key):
                await self._finish(loaded)

    def _lock(self, key: SessionKey) -> anyio.Lock:
        return self._locks.setdefault(key, anyio.Lock())

    async def _carry_out(self, key: SessionKey, asked: Rewind) -> RewindDone:
        for _ in range(RETRY_CONFLICTS):
            try:
                async with self._sessions.load_whole(key) as loaded:
                    if loaded is None:
                        raise Refused("nothing_said", rewind.NO_POINT)
                    await self._finish(loaded)
                    done = await self._before(loaded, asked) or await self._try(loaded, asked)
                    if done is not None:
                        return done
            except Conflict:
                continue
        raise JournalUnavailable("the session is busy; try again", retry_after_s=1)

    async def _before(self, loaded: LoadedSession, asked: Rewind) -> RewindDone | None:
        """Return the result of the same request, if it was carried out before."""
        came = asked.came
        if came is None or not await self._journal.seen(came.channel, came.external_id):
            return None
        for record in await self._journal.facts(loaded.stream, (Rewound,), ()):
            fact = record.fact
            if isinstance(fact, Rewound) and fact.rewind_id == _id_of(came):
                text = (await self.timeline(loaded)).text_of(fact.point)
                return RewindDone(fact, text, repeated=True)
        raise Refused("idempotency_key_conflict", KEY_USED)

    async def _try(self, loaded: LoadedSession, asked: Rewind) -> RewindDone | None:
        """Decide and carry out; None: the session has moved on since it was read."""
        if loaded.session.runs:
            raise Refused("session_busy", RUN_ACTIVE)
        await loaded.landed()
        head = loaded.head
        line = await self.timeline(loaded)
        plan = _plan(line, asked)
        steps = await self._steps(loaded, plan)
        if asked.force:
            steps = rewind.forced(steps)
        else:
            _check(steps, asked)
        if loaded.void or loaded.head != head:
            return None
        text = line.text_of(plan.point)
        planned = RewindPlanned(
            rewind_id=_id_of(asked.came),
            point=plan.point,
            by=asked.by.who,
            what=plan.what,
            runs=plan.runs,
            files=steps,
            redo=plan.redo,
            came=asked.came,
        )
        if all(step.result is not FileResult.PLANNED for step in steps):
            done = Rewound(**asdict(planned))
            await self._sessions.append(loaded, done).wait()
            return RewindDone(done, text)
        await self._sessions.append(loaded, planned).wait()  # recorded before its effect
        finished = await self._finish(loaded)
        return None if finished is None else RewindDone(finished, text)

    async def _steps(self, loaded: LoadedSession, plan: RewindPlan) -> tuple[FileStep, ...]:
        if not plan.files:
            return ()
        workspace = Path(loaded.session.workspace)
        blobs = {step.new_blob for step in plan.files if step.new_blob}
        try:
            seen = await anyio.to_thread.run_sync(self._files.look, workspace, plan.paths)
        except ToolFailed as failed:
            raise Refused("workspace_gone", f"{failed} Nothing was undone.") from failed
        kept = await anyio.to_thread.run_sync(self._files.kept, blobs)
        return rewind.steps(plan, seen, kept)

    async def _finish(self, loaded: LoadedSession) -> Rewound | None:
        """Carry out what is planned, and record it. Whatever was done before stays done."""
        if (plan := loaded.session.rewinding) is None:
            return None
        workspace = Path(loaded.session.workspace)
        restore = partial(self._files.restore, workspace, plan.files)
        try:
            files = await anyio.to_thread.run_sync(restore)
        except ToolFailed as failed:
            files = tuple(_failed(step, str(failed)) for step in plan.files)
        done = Rewound(**asdict(plan) | {"files": files, "came": None})
        loaded.transcript = await self._sessions.whole(loaded)
        await self._sessions.append(loaded, done).wait()
        return done


def _plan(line: Timeline, asked: Rewind) -> RewindPlan:
    if asked.redo:
        return line.redo()
    plan = line.rewind(asked.point or line.last_point(asked.what), asked.what)
    if not plan.runs and not plan.files:
        raise Refused("nothing_said", rewind.NO_FILES)
    return plan


def _id_of(came: UpdateRef | None) -> RewindId:
    """Return the id of a rewind: the same for the same request."""
    if came is None:
        return RewindId(f"rew_{token_hex(16)}")
    named = f"{came.channel}\n{came.external_id}".encode("utf-8", "surrogatepass")
    return RewindId(f"rew_{sha256(named).hexdigest()[:32]}")


def _failed(step: FileStep, reason: str) -> FileStep:
    if step.result is not FileResult.PLANNED:
        return step
    return replace(step, result=FileResult.FAILED, reason=reason)


def _check(steps: tuple[FileStep, ...], asked: Rewind) -> None:
    """Refuse a rewind that would leave files as they are, or overwrite another hand's work."""
    why = {FileResult.CHANGED: OTHER_HAND, FileResult.GONE: NOT_KEPT}
    blocked = [
        f"`{step.path}`: {why.get(step.result) or step.reason}"
        for step in steps
        if not step.result.done and step.result is not FileResult.PLANNED
    ]
    if not blocked:
        return
    lines = [f"- {line}" for line in blocked[:NAMED]]
    if len(blocked) > NAMED:
        lines.append(f"- and {len(blocked) - NAMED:,} more")
    word = "redo" if asked.redo else "undo"
    raise Refused(
        "files_changed",
        "\n".join(
            [
                "Nothing was changed, because of these files:",
                *lines,
                f"To overwrite what is changed, add `force` (/{word} force): what is there now is "
                "kept, and can be brought back.",
                *(() if asked.redo else ("To leave all files as they are: /undo conversation.",)),
            ]
        ),
    )
