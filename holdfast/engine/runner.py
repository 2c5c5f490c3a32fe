"""The loop: fold, ask `next_step`, perform it, append the facts. There is no other way.

A run that starts, one that goes on after a crash and one that was woken after days go
through this loop alike; it does not know which it is, the fold does.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import count
from random import random

from holdfast.core import answers, limits, run, words
from holdfast.core.approval import ApprovalWithdrawn
from holdfast.core.call import Call, CallSettled
from holdfast.core.events import MessageDelta, ReasoningDelta
from holdfast.core.inbox import InputPromoted
from holdfast.core.limits import GiveUp, Limits, TryAgain
from holdfast.core.process import ProcessStarted
from holdfast.core.redaction import Redactor
from holdfast.core.run import MessageVoided, ModelAnswered, Run, RunFailed
from holdfast.core.session import current, give_up
from holdfast.core.types import Fact, RunId
from holdfast.engine import outcomes
from holdfast.engine.calls import Calls
from holdfast.engine.clock import Clock
from holdfast.engine.coordinator import Drive
from holdfast.engine.outcomes import plain
from holdfast.engine.prompt import system_prompt
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import HoldfastError, JournalUnavailable, Overflow, Rejected, Transient
from holdfast.journal.journal import Pending
from holdfast.models.model import Answer, Model, Reasoning, Request, Text, ToolSpec

log = logging.getLogger(__name__)

_IN_ALREADY = (CallSettled, ProcessStarted, ApprovalWithdrawn)  # what may be said after a cut


class Cut(HoldfastError):
    """The run was interrupted or ended by somebody else; its drive has nothing more to say."""


class Runner:
    """Drives one session at a time as far as it goes; shared by all drives."""

    def __init__(
        self,
        sessions: Sessions,
        calls: Calls,
        model: Model,
        model_name: str,
        tools: Sequence[ToolSpec],
        clock: Clock,
        budget: Limits,
        admitting: Callable[[], bool],
        redactor: Redactor,
        posture: Callable[[], Awaitable[str]],
        release: Callable[[Held, RunId], Awaitable[None]],
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._model = model
        self._model_name = model_name
        self._tools = tools
        self._clock = clock
        self._limits = budget
        self._admitting = admitting
        self._redactor = redactor
        self._posture = posture
        self._release = release  # what a stopped run alone holds

    async def drive(self, drive: Drive) -> None:
        """Perform steps until there is nothing to do but wait for somebody's fact."""
        async with self._sessions.hold(drive.key) as held:
            if held is None:
                return
            try:
                while (now := current(held.session)) is not None:
                    if now.status is run.Status.QUEUED and not self._admitting():
                        return
                    drive.run_id = now.id
                    if not await self._perform(held, now):
                        if held.said is not None:
                            await held.said.wait()  # else nobody would miss what was not written
                        return
            except Cut:
                return

    async def _perform(self, held: Held, now: Run) -> bool:
        """One step. False: nothing to do until somebody appends another fact."""
        match run.next_step(now):
            case run.Start():
                sandbox = await self._posture()
                self._say(held, now.id, run.RunStarted(run_id=now.id, sandbox=sandbox))
            case run.Resume(cause=cause):
                self._resume(held, now, cause)
            case run.Read(inputs=inputs):
                promoted = (InputPromoted(input_id=i, run_id=now.id) for i in inputs)
                self._say(held, now.id, *promoted)
            case run.CallModel(turn=turn):
                await self._ask(held, now, turn)
            case run.SettleCalls(calls=calls):
                await self._calls.settle(
                    held, now.id, calls, lambda *facts: self._say(held, now.id, *facts)
                )
            case run.AbortCalls(calls=calls):
                await self._abort(held, now.id, calls)
            case run.Complete(output=output):
                done = run.RunCompleted(run_id=now.id, output=output, usage=now.usage)
                left = answers.withdraw(held.session, now.id, "the run has ended")
                await self._say(held, now.id, *left, done).wait()
            case run.Cancel(reason=reason):
                await self._release(held, now.id)
                await self._end(
                    held, run.RunCancelled(run_id=now.id, reason=reason, usage=now.usage), reason
                )
            case run.Rest():
                return False
        return True

    async def _abort(self, held: Held, run_id: RunId, calls: Sequence[Call]) -> None:
        """End what the calls of a stopped run left behind, then say how they ended."""
        await self._calls.abort(held, run_id, calls, lambda *facts: self._say(held, run_id, *facts))
        now = held.session.runs.get(run_id)  # somebody may have said something meanwhile
        if now is not None:
            left = now.calls.values()
            settled = (outcomes.aborted(run_id, c, self._calls.on_crash(c)) for c in left)
            withdrawn = answers.withdraw(held.session, run_id, now.stop_reason)
            self._say(held, run_id, *withdrawn, *settled)

    def _say(self, held: Held, run_id: RunId, *facts: Fact) -> Pending:
        """Append for a run that is still ours to drive."""
        now = held.session.runs.get(run_id)
        if now is None or (now.status is run.Status.INTERRUPTED and not now.stop_reason):
            # Cut while it worked: only results that are in already may still be kept.
            if now is None or not all(isinstance(f, _IN_ALREADY) for f in facts):
                raise Cut
        return self._sessions.append(held, *facts)

    def _resume(self, held: Held, now: Run, cause: str) -> None:
        facts: list[Fact] = [run.RunResumed(run_id=now.id, cause=cause)]
        if held.partial:
            facts.append(MessageVoided(run_id=now.id, turn=held.partial, reason=cause or "resumed"))
        self._say(held, now.id, *facts)

    async def _end(self, held: Held, ending: run.RunCancelled | RunFailed, reason: str) -> None:
        """End a run that will not read its inputs any more."""
        now = held.session.runs[ending.run_id]
        next_one = words.passed_on(held.session, now) if isinstance(ending, RunFailed) else ()
        await self._say(held, ending.run_id, *give_up(now, reason), ending, *next_one).wait()

    async def _fail(self, held: Held, run_id: RunId, code: str, error: str) -> None:
        usage = held.session.runs[run_id].usage
        failed = RunFailed(run_id=run_id, code=code, error=plain(error), usage=usage)
        await self._end(held, failed, code)

    async def _ask(self, held: Held, now: Run, turn: int) -> None:
        """One turn: ask the model until it answers, or give up aloud."""
        if not limits.may_turn(self._limits, turn):
            error = f"The run used its {self._limits.turns} turns without coming to an end."
            await self._fail(held, now.id, "turns_exhausted", error)
            return
        request = self._request(held, now)
        for attempt in count(1):
            try:
                answer = await self._stream(held, now.id, turn, request)
            except JournalUnavailable:
                raise  # not the model's doing
            except Transient as error:
                if await self._try_again(held, now.id, turn, attempt, error):
                    continue
            except Overflow as error:
                await self._fail(held, now.id, "context_overflow", str(error))
            except Rejected as error:
                await self._fail(held, now.id, "model_rejected", str(error))
            else:
                self._take(held, now.id, _answered(now.id, turn, answer, self._model_of(now)))
            return

    def _take(self, held: Held, run_id: RunId, answered: ModelAnswered) -> None:
        """Keep the model's answer, but not for a run that is being stopped: nobody is told it."""
        now = held.session.runs.get(run_id)
        if now is None or not now.stop_reason:
            self._say(held, run_id, answered)

    async def _stream(self, held: Held, run_id: RunId, turn: int, request: Request) -> Answer:
        text, thought = self._redactor.stream(), self._redactor.stream()
        tell = partial(self._tell, held, run_id, turn)
        async with aclosing(self._model.stream(request)) as pieces:
            async for piece in pieces:
                match piece:
                    case Text():
                        tell(MessageDelta, text.feed(piece.text))
                    case Reasoning():
                        tell(ReasoningDelta, thought.feed(piece.text))
                    case Answer():
                        tell(ReasoningDelta, thought.flush())
                        tell(MessageDelta, text.flush())
                        return piece
        raise Transient("the model's stream ended without an answer")

    def _tell(
        self,
        held: Held,
        run_id: RunId,
        turn: int,
        kind: type[MessageDelta] | type[ReasoningDelta],
        text: str,
    ) -> None:
        if not text:
            return
        now = held.session.runs.get(run_id)
        if now is None or now.status is run.Status.INTERRUPTED:
            raise Cut
        self._sessions.delta(held, kind(run_id=run_id, turn=turn, text=text))

    async def _try_again(
        self, held: Held, run_id: RunId, turn: int, attempt: int, error: Transient
    ) -> bool:
        decision = limits.retry(self._limits, attempt, error.retry_after_s, random())
        if held.partial:
            self._say(
                held, run_id, MessageVoided(run_id=run_id, turn=turn, reason=plain(str(error)))
            )
        match decision:
            case TryAgain(after_s=after_s):
                log.warning(
                    "model call failed, trying again",
                    extra={"run_id": run_id, "attempt": attempt, "error": str(error)},
                )
                await self._clock.sleep(after_s)
                return True
            case GiveUp(reason=reason):
                await self._fail(held, run_id, "model_unavailable", f"{error} ({reason})")
                return False

    def _model_of(self, now: Run) -> str:
        """The run's own, unless the gateway has another provider by now."""
        own = now.model.partition("/")[0] == self._model_name.partition("/")[0]
        return now.model if own and now.model else self._model_name

    def _request(self, held: Held, now: Run) -> Request:
        instructions = held.transcript.instructions.get(now.id, "")
        return Request(
            model=self._model_of(now).partition("/")[2],
            system=system_prompt(held.session.workspace, instructions),
            messages=held.transcript.for_model(),
            tools=self._tools,
        )


def _answered(run_id: RunId, turn: int, answer: Answer, model: str) -> ModelAnswered:
    return ModelAnswered(
        run_id=run_id,
        turn=turn,
        text=answer.text,
        reasoning=answer.reasoning,
        calls=answer.calls,
        usage=answer.usage,
        model=model,
    )
