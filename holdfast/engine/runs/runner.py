"""The loop: fold, ask `next_step`, perform it, append the facts.

A new run, a run that continues after a crash and one that waited for days all use this loop. The
difference is in the fold, not here.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence

from holdfast.core.inbox import InputPromoted
from holdfast.core.run import run
from holdfast.core.run.call import Call
from holdfast.core.run.run import MessageVoided, ModelAnswered, Run, RunFailed
from holdfast.core.session import answers, instructions, placement
from holdfast.core.session.instructions import InstructionFile
from holdfast.core.session.session import current, give_up
from holdfast.core.types import Fact, InputId, RunId
from holdfast.engine.runs import outcomes
from holdfast.engine.runs.asking import Asking, GaveUp
from holdfast.engine.runs.calls import Calls
from holdfast.engine.runs.coordinator import Drive
from holdfast.engine.runs.driven import Cut, DrivenRun
from holdfast.engine.runs.outcomes import plain
from holdfast.engine.sessions import LoadedSession, Sessions


class Runner:
    """Drives a session as far as possible; shared by all drives."""

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        asking: Asking,
        posture: Callable[[], str],
        release: Callable[[LoadedSession, RunId], Awaitable[None]],
        find_instructions: Callable[[str], Awaitable[Sequence[InstructionFile]]],
        settle: Callable[[LoadedSession], Awaitable[None]],
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._asking = asking
        self._posture = posture
        self._release = release  # ends the processes and child runs of a stopped run
        self._settle = settle  # finishes a rewind: no run works on files that still change
        self._find_instructions = find_instructions  # for a workspace

    async def drive(self, drive: Drive) -> None:
        """Perform steps until there is nothing to do but wait for another fact."""
        async with self._sessions.load(drive.key) as loaded:
            if loaded is None:
                return
            if loaded.session.rewinding is not None:
                await self._settle(loaded)
            try:
                while (now := current(loaded.session)) is not None:
                    if now.status is run.RunPhase.QUEUED and not drive.admitting():
                        return
                    drive.run_id = now.id
                    at = DrivenRun(self._sessions, loaded, now.id)
                    if not await self._perform(at, now):
                        await loaded.landed()  # else a failed write would go unnoticed
                        return
            except Cut:
                return

    async def _perform(self, at: DrivenRun, now: Run) -> bool:
        """Perform one step; return False if there is nothing to do until another fact arrives."""
        match run.next_step(now):
            case run.StartRun():
                await self._start(at)
            case run.Resume(cause=cause):
                self._resume(at, cause)
            case run.Read(inputs=inputs):
                at.record(*_read(at.id, inputs))
            case run.CallModel(turn=turn):
                await self._take(at, await self._asking.ask(at, now, turn))
            case run.Compact():
                await self._take(at, await self._asking.compact(at, now, "overflow"))
            case run.SettleCalls(calls=calls):
                await self._calls.settle(at, calls)
            case run.AbortCalls(calls=calls):
                await self._abort(at, calls)
            case run.Complete(output=output, incomplete=flaw):
                done = run.RunCompleted(
                    run_id=at.id, output=output, usage=now.usage, incomplete=flaw
                )
                left = answers.withdraw(at.loaded.session, at.id, "the run has ended")
                await at.record(*left, done).wait()
            case run.Cancel(reason=reason):
                await self._release(at.loaded, at.id)
                cancelled = run.RunCancelled(run_id=at.id, reason=reason, usage=now.usage)
                await self._end(at, cancelled, reason)
            case run.Rest():
                return False
        return True

    async def _start(self, at: DrivenRun) -> None:
        """Read the files with instructions, then record the start; or nothing, if all changed."""
        files = await self._find_instructions(at.loaded.session.workspace)
        now = at.now
        step = run.next_step(now) if now is not None else None
        if isinstance(step, run.StartRun):  # it may have been stopped meanwhile
            started = run.RunStarted(run_id=at.id, sandbox=self._posture())
            read = instructions.news(at.loaded.transcript.files, at.id, files)
            at.record(started, *read, *_read(at.id, step.inputs))

    async def _abort(self, at: DrivenRun, calls: Sequence[Call]) -> None:
        """End what the calls of a stopped run left behind, then record how they ended."""
        changed = await self._calls.abort(at, calls)
        if (now := at.now) is not None:  # it may have changed meanwhile
            facts: list[Fact] = [*answers.withdraw(at.loaded.session, at.id, now.stop_reason)]
            for call in now.calls.values():
                facts += changed.get(call.proposal.call_id, ())
                facts.append(outcomes.aborted(at.id, call, self._calls.on_crash(call)))
            at.record(*facts)

    def _resume(self, at: DrivenRun, cause: str) -> None:
        facts: list[Fact] = [run.RunResumed(run_id=at.id, cause=cause)]
        if turn := at.loaded.partial:
            facts.append(MessageVoided(run_id=at.id, turn=turn, reason=cause or "resumed"))
        at.record(*facts)

    async def _end(self, at: DrivenRun, ending: run.RunCancelled | RunFailed, reason: str) -> None:
        """End a run; it reads no more inputs."""
        session = at.loaded.session
        now = session.runs[at.id]
        next_one = placement.requeue_unread(session, now) if isinstance(ending, RunFailed) else ()
        await at.record(*give_up(now, reason), ending, *next_one).wait()

    async def _fail(self, at: DrivenRun, code: str, error: str) -> None:
        usage = at.loaded.session.runs[at.id].usage
        failed = RunFailed(run_id=at.id, code=code, error=plain(error), usage=usage)
        await self._end(at, failed, code)

    async def _take(self, at: DrivenRun, found: ModelAnswered | GaveUp | None) -> None:
        """Record the result of asking the model; None: `next_step` says what to do."""
        match found:
            case ModelAnswered():
                await self._take_answer(at, found)
            case GaveUp(code=code, error=error):
                await self._fail(at, code, error)
            case None:
                return

    async def _take_answer(self, at: DrivenRun, answered: ModelAnswered) -> None:
        """Record the model's answer, with the end of the run if nothing is left to do.

        If the run is being stopped, the answer is dropped.
        """
        if (now := at.now) is None:
            raise Cut
        if now.stop_reason:
            return
        ending = run.end_with(now, answered)
        left = answers.withdraw(at.loaded.session, at.id, "the run has ended") if ending else ()
        pending = at.record(answered, *left, *ending)
        if ending:
            await pending.wait()


def _read(run_id: RunId, inputs: Sequence[InputId]) -> Iterator[InputPromoted]:
    return (InputPromoted(input_id=i, run_id=run_id) for i in inputs)
