"""Ask a model for the next turn: stream its answer, try again, fall back, compact.

Which candidate is asked next, and when, is core's decision (core/run/limits.py). Every failed
attempt is a fact, so that readers see what happens, and a run that goes on after a crash goes on
with the candidate it had come to.
"""

import logging
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial
from itertools import count
from random import random

from msgspec.structs import replace

from holdfast.core.events import MessageDelta, ReasoningDelta
from holdfast.core.redaction import Redactor
from holdfast.core.run import budget, limits, run
from holdfast.core.run.budget import OverBudget, Reserved
from holdfast.core.run.context import ContextExceeded, HistoryCompacted
from holdfast.core.run.limits import Limits, StopRetrying, TryAgain
from holdfast.core.run.run import (
    Incomplete,
    MessageVoided,
    ModelAnswered,
    ModelAsked,
    ModelFailed,
    Run,
)
from holdfast.core.session.compaction import Filling
from holdfast.core.session.instructions import room, section
from holdfast.core.types import Fact, RunId, Value
from holdfast.engine.clock import Clock
from holdfast.engine.runs.breaker import Breaker
from holdfast.engine.runs.compactor import TOO_LONG, Compactor, without_change
from holdfast.engine.runs.driven import Cut, DrivenRun
from holdfast.engine.runs.outcomes import plain
from holdfast.engine.runs.prompt import STANDING, system_prompt
from holdfast.engine.runs.toolbox import Toolbox
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import Filtered, JournalUnavailable, Overflow, Rejected, Transient
from holdfast.models.model import (
    Answer,
    Candidate,
    Models,
    Reasoning,
    Request,
    Text,
)

log = logging.getLogger(__name__)

PRICE_NOT_KNOWN = (
    "A run may spend ${usd:g} (limits.run_usd), and the price of {model} is not known. "
    "Set usd_per_m_input and usd_per_m_output of the model."
)
EXHAUSTED = (
    "The run used its budget of ${usd:g} (limits.run_usd): the next request to the model could "
    "cost more than the ${left:.4f} that are left."
)
AT_ONCE = TryAgain(0.0)
ASKED = "asked"  # the reason of a compaction that a user wanted


class GaveUp(Value):
    """No model answered: the run fails with this code."""

    code: str
    error: str


class Asking:
    """Asks the models, for all runs."""

    def __init__(
        self,
        sessions: Sessions,
        models: Models,
        toolbox: Toolbox,
        clock: Clock,
        bounds: Limits,
        redactor: Redactor,
    ) -> None:
        self._sessions = sessions
        self._models = models
        self._toolbox = toolbox
        self._clock = clock
        self._limits = bounds
        self._redactor = redactor
        self._breaker = Breaker()
        self._compactor = Compactor(models.small or models.main, toolbox)

    async def ask(self, at: DrivenRun, now: Run, turn: int) -> ModelAnswered | GaveUp | None:
        """Ask until a model answers or none is left; None: fold again, there is more to do first."""
        if not self._limits.may_turn(turn):
            error = f"The run used its {self._limits.turns} turns without coming to an end."
            return GaveUp("turns_exhausted", error)
        chain = self._chain(now)
        system = self._system(at.loaded, now.id, chain[0])
        if run.may_compact(now) and self._compactor.is_due(
            at.loaded.transcript, system, chain[0].window
        ):
            return await self.compact(at, now, "full")
        return await self._try_all(at, now, turn, chain, system)

    async def _try_all(
        self, at: DrivenRun, now: Run, turn: int, chain: tuple[Candidate, ...], system: str
    ) -> ModelAnswered | GaveUp | None:
        """Ask one after the other."""
        rejected = list[Rejected]()
        for attempt in count(now.attempts + 1):
            candidate, *others = chain
            reads = self._compactor.filling(at.loaded.transcript, system, 0).used
            room = await self._reserve(at, turn, attempt, candidate, reads)
            if isinstance(room, GaveUp):
                return room
            try:
                answer = await self._stream(at, now, turn, candidate, room)
            except JournalUnavailable:
                raise  # not the model's doing
            except Overflow as error:
                return self._exceed(at, turn, str(error))
            except Rejected as error:
                self._breaker.failed(candidate.id, self._clock.now(), None)
                rejected.append(error)
                if not others:
                    return self._all_refused(rejected)
                await self._fail_over(at, turn, attempt, candidate, error, others[0])
                chain = tuple(others)
            except Transient as error:
                self._breaker.failed(candidate.id, self._clock.now(), error.retry_after_s)
                decided = limits.retry(
                    self._limits, attempt, error.retry_after_s, random(), len(chain), error.status
                )
                if isinstance(decided, StopRetrying):
                    self._void(at, turn, str(error))
                    return GaveUp("model_unavailable", f"{error} ({decided.reason})")
                chain = (*others, candidate)
                await self._fail_over(at, turn, attempt, candidate, error, chain[0], decided)
                if decided.after_s:
                    await self._clock.sleep(decided.after_s)
            else:
                self._breaker.answered(candidate.id)
                return self._answered(at.id, turn, answer, candidate)
        raise AssertionError("counting ended")

    async def _reserve(
        self,
        at: DrivenRun,
        turn: int,
        attempt: int,
        candidate: Candidate,
        reads: int,
        most: int = budget.MAX_OUTPUT,
    ) -> int | GaveUp:
        """Reserve the worst case of the request; the tokens that its answer may have, 0: any."""
        usd, price = self._limits.run_usd, candidate.price
        now = at.loaded.session.runs[at.id]
        if not usd or (price.free and not now.reserved_usd):
            return 0
        if not price.known:
            return GaveUp("price_not_known", PRICE_NOT_KNOWN.format(model=candidate.name, usd=usd))
        spent = now.usage.cost_usd + now.reserved_usd  # a crash may have cut a request
        found: Reserved | OverBudget = Reserved(0.0, 0)  # which also counts the cut one as spent
        if not price.free:
            found = budget.reserve(usd, spent, reads, price.input / 1e6, price.output / 1e6, most)
        if isinstance(found, OverBudget):
            return GaveUp("budget_exhausted", EXHAUSTED.format(usd=usd, left=found.left_usd))
        asked = ModelAsked(
            run_id=at.id,
            turn=turn,
            attempt=attempt,
            model=candidate.name,
            reserved_usd=found.usd,
            max_output=found.max_output,
        )
        await at.record(asked).wait()
        return found.max_output

    async def _reserve_notes(
        self, at: DrivenRun, now: Run, writer: Candidate, reads: int, most: int
    ) -> int:
        """Reserve the worst case of notes; the tokens that they may have, 0: any, -1: ask no model."""
        room = await self._reserve(at, now.turn + 1, now.attempts + 1, writer, reads, most)
        return -1 if isinstance(room, GaveUp) else room

    def _chain(self, now: Run) -> tuple[Candidate, ...]:
        """Return the models to ask, in order."""
        chain = self._models.chain(now.model, now.ask_next)
        return chain if now.ask_next else self._breaker.order(chain, self._clock.now())

    def _all_refused(self, errors: Sequence[Rejected]) -> GaveUp:
        filtered = all(isinstance(error, Filtered) for error in errors)
        code = "answer_filtered" if filtered else "model_rejected"
        return GaveUp(code, "; ".join(dict.fromkeys(map(str, errors))))

    async def compact(self, at: DrivenRun, now: Run, reason: str) -> GaveUp | None:
        """Shorten what the model reads, and record it."""
        first = self._chain(now)[0]
        transcript, system = at.loaded.transcript, self._system(at.loaded, at.id, first)
        reserve = partial(self._reserve_notes, at, now) if self._limits.run_usd else None
        done = await self._compactor.compact(
            transcript, system, first.window, reason, at.id, reserve=reserve
        )
        if done is None and now.exceeded:
            return GaveUp("context_overflow", TOO_LONG)
        # Without one it may still fit; if it does not, the model's server says so.
        at.record(done or without_change(transcript, at.id, reason))
        return None

    def _exceed(self, at: DrivenRun, turn: int, error: str) -> GaveUp | None:
        """Have the history compacted and the model asked again, once; then give up."""
        if not run.may_compact(at.loaded.session.runs[at.id]):
            return GaveUp("context_overflow", error)
        exceeded = ContextExceeded(run_id=at.id, turn=turn, error=plain(error))
        at.record(*self._voided(at, turn, error), exceeded)
        return None

    async def _fail_over(
        self,
        at: DrivenRun,
        turn: int,
        attempt: int,
        asked: Candidate,
        error: Rejected | Transient,
        next_one: Candidate,
        decided: TryAgain = AT_ONCE,
    ) -> None:
        """Record a failed attempt, and what follows."""
        passing = error if isinstance(error, Transient) else Transient("", billed=False)
        log.warning(
            "model call failed, trying again",
            extra={"run_id": at.id, "attempt": attempt, "model": asked.name, "error": str(error)},
        )
        failed = ModelFailed(
            run_id=at.id,
            turn=turn,
            attempt=attempt,
            model=asked.name,
            reason=plain(str(error)),
            next_model=next_one.name,
            wait_s=decided.after_s,
            retry_after_s=passing.retry_after_s or 0.0,
            cost_usd=at.loaded.session.runs[at.id].reserved_usd if passing.billed else 0.0,
            status=passing.status,
            of=decided.of,
        )
        # On disk before the next model is asked: a crash then goes on with that one.
        await at.record(*self._voided(at, turn, str(error)), failed).wait()

    def _void(self, at: DrivenRun, turn: int, reason: str) -> None:
        if facts := self._voided(at, turn, reason):
            at.record(*facts)

    def _voided(self, at: DrivenRun, turn: int, reason: str) -> tuple[Fact, ...]:
        """Return the fact that withdraws what was streamed of this turn, if anything was."""
        if not at.loaded.partial:
            return ()
        return (MessageVoided(run_id=at.id, turn=turn, reason=plain(reason)),)

    async def _stream(
        self, at: DrivenRun, now: Run, turn: int, candidate: Candidate, max_output: int
    ) -> Answer:
        text, thought = self._redactor.stream(), self._redactor.stream()
        tell = partial(self._tell, at, turn)
        request = self._request(at.loaded, now, candidate, max_output)
        async with aclosing(candidate.model.stream(request)) as pieces:
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
        at: DrivenRun,
        turn: int,
        kind: type[MessageDelta] | type[ReasoningDelta],
        text: str,
    ) -> None:
        if not text:
            return
        now = at.now
        if now is None or now.status is run.RunPhase.INTERRUPTED:
            raise Cut
        self._sessions.delta(at.loaded, kind(run_id=at.id, turn=turn, text=text))

    def filling(self, loaded: LoadedSession) -> Filling:
        """Return what fills the window of the session's model now."""
        first = self._models.named(loaded.session.model)
        system = self._system(loaded, None, first)
        return self._compactor.filling(loaded.transcript, system, first.window)

    async def compact_now(self, loaded: LoadedSession, focus: str) -> HistoryCompacted | None:
        """Return the fact that compacts a session without an active run; None: nothing to do."""
        first = self._models.named(loaded.session.model)
        system = self._system(loaded, None, first)
        return await self._compactor.compact(
            loaded.transcript, system, first.window, ASKED, RunId(""), focus
        )

    def _system(self, loaded: LoadedSession, run_id: RunId | None, candidate: Candidate) -> str:
        transcript = loaded.transcript
        instructions = transcript.instructions.get(run_id, "") if run_id else ""
        return system_prompt(
            loaded.session.workspace,
            instructions,
            files=section(transcript.files, room(candidate.window, candidate.profile.instructions)),
            imported=transcript.imported,
            standing=candidate.profile.prompt or STANDING,
        )

    def _request(
        self, loaded: LoadedSession, now: Run, candidate: Candidate, max_output: int
    ) -> Request:
        transcript = loaded.transcript
        return Request(
            model=candidate.name.partition("/")[2],
            system=self._system(loaded, now.id, candidate),
            messages=transcript.for_model(candidate.name),
            tools=self._toolbox.offered(
                candidate.profile, compacted=transcript.compacted is not None
            ),
            max_output=max_output,
        )

    def _answered(
        self, run_id: RunId, turn: int, answer: Answer, candidate: Candidate
    ) -> ModelAnswered:
        usage = answer.usage
        if cost_usd := candidate.price.cost(usage):
            usage = replace(usage, cost_usd=cost_usd)
        # Changed by redaction, it would be refused: better none than that.
        opaque = "" if self._redactor.hides(answer.opaque) else answer.opaque
        return ModelAnswered(
            run_id=run_id,
            turn=turn,
            text=answer.text,
            reasoning=answer.reasoning,
            calls=answer.calls,
            usage=usage,
            model=candidate.name,
            opaque=opaque,
            incomplete=_incomplete(answer),
        )


def _incomplete(answer: Answer) -> Incomplete | None:
    if answer.cut:
        return Incomplete.CUT
    return None if answer.text.strip() or answer.calls else Incomplete.EMPTY
