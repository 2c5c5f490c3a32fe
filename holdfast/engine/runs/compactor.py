"""Compact a history: ask a model for notes on its beginning, and record them.

The plan is core's. If the model does not answer in time, or cannot, the notes are made by rule,
so that a run never fails for want of a summary. The notes are made while nothing else is decided
about the session; if its messages have changed meanwhile (a reset, an undo), they are dropped.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import anyio
from msgspec.structs import replace

from holdfast.core.messages import Message, User
from holdfast.core.run import budget
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.session import compaction
from holdfast.core.session.compaction import Filling, Plan, Window, tokens
from holdfast.core.session.history import Transcript
from holdfast.core.types import RunId, Usage, Value
from holdfast.engine.runs.toolbox import Toolbox
from holdfast.errors import HoldfastError, JournalUnavailable
from holdfast.models.model import Answer, Candidate, Request

log = logging.getLogger(__name__)

SUMMARY_S = 120.0  # time limit for the notes
_PARTS = 4  # requests for one compaction; what is older is noted by rule
_RESULT = 600  # characters of a result that the summarizing model reads
_WORD = 7  # characters

TOO_LONG = (
    "The conversation is too long for this model, and nothing is left to leave out. "
    "Start a new one with /new, or choose a model that reads more at once."
)


# Reserves what notes may cost: the model, the tokens that it reads and those it should be able to
# write; returns those that it may write. 0: any number. -1: the model must not be asked.
Reserve = Callable[[Candidate, int, int], Awaitable[int]]


class _Notes(Value):
    text: str
    model: str = ""  # empty: made by rule
    usage: Usage = Usage()


class Compactor:
    """Compacts the histories of all sessions."""

    def __init__(self, writer: Candidate, toolbox: Toolbox) -> None:
        self._writer = writer  # of the notes
        self._toolbox = toolbox

    def is_due(self, transcript: Transcript, system: str, window: int) -> bool:
        """Tell if the next request, with these instructions, would fill the window too far."""
        if not window:
            return False
        return compaction.is_full(transcript.used(self._overhead(system)), Window(window))

    def filling(self, transcript: Transcript, system: str, window: int) -> Filling:
        """Return what fills the window now."""
        return transcript.filling(window, self._overhead(system))

    def _overhead(self, system: str) -> int:
        """Return the tokens around the messages, roughly: instructions and tools."""
        return tokens(system) + self._toolbox.size

    async def compact(
        self,
        transcript: Transcript,
        system: str,
        size: int,
        reason: str,
        run_id: RunId,
        focus: str = "",
        reserve: Reserve | None = None,
    ) -> HistoryCompacted | None:
        """Return the fact that compacts the history; None if nothing is left to compact.

        `reserve` is asked before a model is, if what it costs is limited.
        """
        overhead = self._overhead(system)
        factor = compaction.scale(transcript.measured, overhead)
        window = Window(max(size or transcript.used(overhead), compaction.LEAST_WINDOW))
        messages, done = tuple(transcript.messages), transcript.compacted
        plan = compaction.plan(messages, done, window, factor)
        if plan is None:
            return None
        notes = _Notes(compaction.notes_of(done))
        before = done.upto if done is not None else 0
        if plan.upto > before:
            notes = await self._notes(
                messages[before : plan.upto], notes, window, factor, focus, reserve
            )
        unchanged = transcript.compacted is done and _begins_with(transcript.messages, messages)
        if not unchanged:
            return None
        made = _fact(messages, plan, notes, window, factor, reason, run_id)
        return compaction.moved(made, transcript.left_out)

    async def _notes(
        self,
        messages: tuple[Message, ...],
        so_far: _Notes,
        window: Window,
        factor: float,
        focus: str,
        reserve: Reserve | None,
    ) -> _Notes:
        """Return notes on the messages, with those on what was before them."""
        most = compaction.most_of_summary(window, factor)
        size = min(window.size, self._writer.window or window.size)
        part = max(2_000, int(size * compaction.PER_TOKEN / factor / 2))
        result = min(_RESULT, part // 8)
        parts = compaction.in_parts(compaction.rendered(messages, result), part)[-_PARTS:]
        system = compaction.INSTRUCTION.format(words=most // _WORD)
        if focus:
            system += f" The user asks above all to keep: {focus}"
        around = tokens(system) + tokens(so_far.text) + most // compaction.PER_TOKEN
        reads = sum(map(tokens, parts)) + len(parts) * around
        writes = len(parts) * max(budget.LEAST_OUTPUT, 2 * most // compaction.PER_TOKEN)
        room = 0 if reserve is None else await reserve(self._writer, reads, writes)
        by_rule = _Notes(compaction.by_rule(messages, so_far.text, most))
        if room < 0:
            return by_rule
        notes = so_far
        try:
            with anyio.fail_after(SUMMARY_S):
                for text in parts:
                    notes = await self._ask(system, text, notes, room // len(parts))
                return notes
        except JournalUnavailable:
            raise
        except (HoldfastError, TimeoutError) as error:
            log.warning("no model summarized the history", extra={"error": str(error)})
            return replace(by_rule, usage=self._worst(notes.usage, reads, room))

    def _worst(self, usage: Usage, reads: int, room: int) -> Usage:
        """Return what it may have cost if a request failed: with a limit, all that was reserved."""
        if not room:
            return usage
        most = Usage(int(budget.MARGIN * reads) + budget.EXTRA, room)
        return replace(usage, cost_usd=self._writer.price.cost(most))

    async def _ask(self, system: str, text: str, notes: _Notes, room: int) -> _Notes:
        earlier = f"Notes so far:\n{notes.text}\n\n" if notes.text else ""
        asked = User(f"{earlier}Transcript:\n{text}")
        name = self._writer.name
        request = Request(name.partition("/")[2], system, (asked,), (), max_output=room)
        async with aclosing(self._writer.model.stream(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Answer) and piece.text.strip():
                    usage = piece.usage
                    if cost_usd := self._writer.price.cost(usage):
                        usage = replace(usage, cost_usd=cost_usd)
                    return _Notes(piece.text.strip(), name, notes.usage + usage)
        raise HoldfastError("the model wrote no notes")


def _begins_with(messages: list[Message], earlier: tuple[Message, ...]) -> bool:
    return len(messages) >= len(earlier) and all(map(lambda a, b: a is b, messages, earlier))


def _fact(
    messages: tuple[Message, ...],
    plan: Plan,
    notes: _Notes,
    window: Window,
    factor: float,
    reason: str,
    run_id: RunId,
) -> HistoryCompacted:
    summary = compaction.introduce(messages, plan.upto, notes.text, window, factor)
    return HistoryCompacted(
        upto=plan.upto,
        summary=summary if plan.upto else "",
        reason=reason,
        run_id=run_id,
        shortened=plan.shortened,
        limit=plan.limit,
        model=notes.model,
        usage=notes.usage,
    )


def without_change(transcript: Transcript, run_id: RunId, reason: str) -> HistoryCompacted:
    """Return a compaction that changes nothing: so it is not tried again for this turn."""
    done = transcript.compacted
    if done is None:
        return HistoryCompacted(upto=0, summary="", reason=reason, run_id=run_id)
    same = replace(done, reason=reason, run_id=run_id, model="", usage=Usage())
    return compaction.moved(same, transcript.left_out)
