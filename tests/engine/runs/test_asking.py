"""Models that fail, fall back and run out of room: what a run does, and what its readers see."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from holdfast.core.events import Record
from holdfast.core.messages import ToolResult, User
from holdfast.core.run.call import OnCrash
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import ModelAnswered, ModelFailed, RunCompleted, RunFailed
from holdfast.core.types import Fact, Usage
from holdfast.errors import HoldfastError, Overflow, Rejected, Transient
from holdfast.models.model import Answer, Candidate, Piece, Request
from holdfast.tools import recall
from holdfast.tools.tool import Context, Done, Effect, Outcome, Tool, free
from tests.engine.workshop import (
    Played,
    call,
    finished,
    follow,
    journaled,
    parts,
    running,
    serving,
    submit,
)
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio


class Nothing(msgspec.Struct):
    """No arguments."""


F = TypeVar("F", bound=Fact)
BUSY = Transient("busy")
WRONG_KEY = Rejected("wrong key")


def raising(error: HoldfastError) -> Played:
    def play(request: Request) -> Iterable[Piece]:
        raise error

    return Played(play)


def saying(text: str) -> Played:
    return Played(lambda request: (Answer(text, usage=Usage(10, 2)),))


def facts(records: Iterable[Record], kind: type[F]) -> list[F]:
    return [r.fact for r in records if isinstance(r.fact, kind)]


@pytest.mark.promise("MODEL-01")
@pytest.mark.parametrize("error", [BUSY, WRONG_KEY])
async def test_if_a_model_fails_the_next_one_is_asked_at_once(
    tmp_path: Path, error: HoldfastError
) -> None:
    first, second = raising(error), saying("hello")
    spare = [Candidate("spare/model", second)]
    async with serving(tmp_path, first, fallbacks=spare) as service:
        run_id = await submit(service, "hi")
        view = await finished(service, run_id)
        assert isinstance(view.ending, RunCompleted)
        assert view.ending.usage == Usage(10, 2), "usage is counted once"
        records = await follow(service, run_id)
    (failed,) = facts(records, ModelFailed)
    (answered,) = facts(records, ModelAnswered)
    assert (failed.model, failed.next_model, failed.attempt) == ("played/it", "spare/model", 1)
    assert (failed.reason, failed.wait_s) == (str(error), 0.0)
    assert answered.model == "spare/model"
    assert second.requests[0].model == "model"


@pytest.mark.promise("MODEL-01")
async def test_when_every_model_refuses_the_run_fails_with_all_their_reasons(
    tmp_path: Path,
) -> None:
    spare = [Candidate("spare/model", raising(Rejected("no such model")))]
    async with serving(tmp_path, raising(WRONG_KEY), fallbacks=spare) as service:
        ending = (await finished(service, await submit(service, "hi"))).ending
    assert isinstance(ending, RunFailed)
    assert ending.code == "model_rejected"
    assert "wrong key" in ending.error and "no such model" in ending.error


@pytest.mark.promise("MODEL-01")
async def test_models_that_stay_busy_are_asked_in_rounds_with_a_wait_between(
    tmp_path: Path,
) -> None:
    first, second, clock = raising(BUSY), raising(BUSY), ManualClock()
    spare = [Candidate("spare/model", second)]
    limits = Limits(model_attempts=2)
    async with serving(tmp_path, first, fallbacks=spare, limits=limits, clock=clock) as service:
        run_id = await submit(service, "hi")
        await clock.due_within(0.5)
        assert (len(first.requests), len(second.requests)) == (1, 1)
        clock.advance(0.5)
        ending = (await finished(service, run_id)).ending
    assert isinstance(ending, RunFailed) and ending.code == "model_unavailable"
    assert (len(first.requests), len(second.requests)) == (2, 2)


@pytest.mark.promise("MODEL-02")
async def test_a_run_cut_between_two_attempts_goes_on_with_the_model_it_had_come_to(
    tmp_path: Path,
) -> None:
    first, clock = raising(BUSY), ManualClock()
    spare = [Candidate("spare/model", raising(BUSY))]
    async with serving(tmp_path, first, fallbacks=spare, clock=clock) as service:
        run_id = await submit(service, "hi")
        await clock.due_within(0.5)  # both have failed; the process ends here
    again, other = saying("no"), saying("yes")
    async with journaled(tmp_path) as journal:
        made = parts(tmp_path, journal, again, fallbacks=[Candidate("spare/model", other)])
        async with running(made) as service:
            assert isinstance((await finished(service, run_id)).ending, RunCompleted)
            records = await follow(service, run_id)
    assert [f.attempt for f in facts(records, ModelFailed)] == [1, 2]
    assert (len(again.requests), len(other.requests)) == (1, 0), "the second had failed last"


@pytest.mark.promise("MODEL-03")
async def test_a_model_that_keeps_failing_is_asked_last_for_a_while(tmp_path: Path) -> None:
    first, second, clock = raising(BUSY), saying("hello"), ManualClock()
    spare = [Candidate("spare/model", second)]
    async with serving(tmp_path, first, fallbacks=spare, clock=clock) as service:
        for _ in range(5):
            await finished(service, await submit(service, "hi"))
        assert (len(first.requests), len(second.requests)) == (3, 5)
        clock.advance(61.0)
        await finished(service, await submit(service, "hi"))
        assert len(first.requests) == 4, "after its rest it is tried again"


@pytest.mark.promise("MODEL-03")
async def test_a_server_that_asks_for_a_wait_gets_it_while_another_model_answers(
    tmp_path: Path,
) -> None:
    first, clock = raising(Transient("slow down", retry_after_s=30.0)), ManualClock()
    spare = [Candidate("spare/model", saying("hello"))]
    async with serving(tmp_path, first, fallbacks=spare, clock=clock) as service:
        for _ in range(3):
            await finished(service, await submit(service, "hi"))
        assert len(first.requests) == 1
        clock.advance(31.0)
        await finished(service, await submit(service, "hi"))
        assert len(first.requests) == 2


@pytest.mark.promise("MODEL-09")
async def test_a_key_that_keeps_failing_is_used_last_and_the_others_are_not(tmp_path: Path) -> None:
    first, second, clock = raising(BUSY), saying("hello"), ManualClock()
    pool = Candidate("pool/it", first, spares=(Candidate("pool/it", second, key=2),))
    async with serving(tmp_path, raising(BUSY), fallbacks=[pool], clock=clock) as service:
        for _ in range(5):
            found = await finished(service, await submit(service, "hi"))
            assert isinstance(found.ending, RunCompleted)
    assert (len(first.requests), len(second.requests)) == (3, 5)


async def test_overflow_with_nothing_to_leave_out_fails_once(tmp_path: Path) -> None:
    model = raising(Overflow("too long"))
    async with serving(tmp_path, model) as service:
        ending = (await finished(service, await submit(service, "hi"))).ending
    assert isinstance(ending, RunFailed) and ending.code == "context_overflow"
    assert len(model.requests) == 1


@pytest.mark.promise("CTX-03")
async def test_without_a_model_that_summarizes_the_notes_are_made_by_rule(tmp_path: Path) -> None:
    def play(request: Request) -> Iterable[Piece]:
        if not request.tools and "memory of an assistant" in request.system:
            raise Rejected("this model writes no notes")
        return (Answer("noted"),)

    model = Played(play)
    async with serving(tmp_path, model, window=2_000) as service:
        await finished(service, await submit(service, "The boat is called Marigold.", "s"))
        for number in range(12):
            run_id = await submit(service, f"{number} " + "word " * 150, "s")
            assert isinstance((await finished(service, run_id)).ending, RunCompleted)
    last = model.requests[-1].messages
    assert isinstance(last[0], User)
    assert "Marigold" in last[0].text and "- The user: 0 word" in last[0].text
    assert len(last) < 20


@pytest.mark.promise("CTX-01")
async def test_a_shortened_result_can_be_read_again(tmp_path: Path) -> None:
    whole = "".join(f"line {n}\n" for n in range(3_000))

    def play(request: Request) -> Iterable[Piece]:
        results = [m for m in request.messages if isinstance(m, ToolResult)]
        if not results:
            return (Answer("", calls=(call("long", call_id="c1"),)),)
        if len(results) == 1:
            assert "`recall`" in results[0].text and len(results[0].text) < 4_000
            assert "recall" in {t.name for t in request.tools}
            asked = call("recall", '{"call": "c1", "offset": 8000}', call_id="c2")
            return (Answer("", calls=(asked,)),)
        return (Answer(results[1].text[:20]),)

    async def show(context: Context, asked: Nothing) -> Outcome:
        return Done(whole)

    long = Tool("long", "", Nothing, Effect.READ, OnCrash.REPEAT, 9, show, lambda _: "", free)
    tools = [long, *recall.TOOLS]
    async with serving(tmp_path, Played(play), tools=tools, window=8_000) as service:
        run_id = await submit(service, "go")
        view = await finished(service, run_id)
        assert isinstance(view.ending, RunCompleted), view
        records = await follow(service, run_id)
    assert view.ending.output == whole[8_000:8_020]
    assert facts(records, HistoryCompacted)
