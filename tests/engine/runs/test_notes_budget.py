"""Notes on a long history are paid from the budget of the run that needs them."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import ModelAsked, RunCompleted
from holdfast.core.types import Usage
from holdfast.errors import Transient
from holdfast.models.model import Answer, Candidate, Piece, Price, Request
from tests.engine.workshop import Played, Told, finished, follow, reach, serving, submit

pytestmark = [pytest.mark.anyio, pytest.mark.promise("MODEL-07")]

WINDOW = 3_000
PRICE = Price(input=100.0, output=200.0)  # dollars for a million tokens
BUDGET = Limits(run_usd=2.0)


def talker(request: Request) -> Iterable[Piece]:
    return (Answer("word " * 100),)


class Writer:
    """A small model that writes notes, or fails to."""

    def __init__(self, *, fails: bool = False) -> None:
        self.requests: list[Request] = []
        self._fails = fails

    def __call__(self, request: Request) -> Iterable[Piece]:
        self.requests.append(request)
        if self._fails:
            raise Transient("the writer is gone")
        return (Answer("notes", usage=Usage(1_000, 100)),)


async def until_compacted(
    home: Path, writer: Writer, price: Price
) -> tuple[list[ModelAsked], HistoryCompacted, RunCompleted]:
    """Talk until the history is compacted; the reservations, the compaction, the run's end."""
    small = Candidate("small/it", Played(writer), price=price)
    free = Price(free=True)
    async with serving(
        home, Played(talker), window=WINDOW, small=small, price=free, limits=BUDGET
    ) as service:
        for _ in range(40):
            facts = [r.fact for r in await follow(service, await submit(service, "go", "s"))]
            done = [f for f in facts if isinstance(f, HistoryCompacted)]
            if done:
                assert isinstance(facts[-1], RunCompleted)
                return [f for f in facts if isinstance(f, ModelAsked)], done[0], facts[-1]
    raise AssertionError("nothing was compacted")


async def test_notes_are_reserved_before_and_counted_after(tmp_path: Path) -> None:
    writer = Writer()
    asked, done, ended = await until_compacted(tmp_path, writer, PRICE)
    requests = [r for r in writer.requests if "Transcript" in r.messages[-1].text]
    assert [a.model for a in asked] == ["small/it"]
    spent = len(requests) * PRICE.cost(Usage(1_000, 100))
    assert 0 < spent < asked[0].reserved_usd <= BUDGET.run_usd
    assert all(0 < r.max_output <= asked[0].max_output for r in requests)
    assert done.model == "small/it"
    assert done.usage.cost_usd == pytest.approx(spent)
    assert ended.usage.cost_usd == pytest.approx(spent)


@pytest.mark.parametrize("price", [Price(input=9_000.0, output=9_000.0), Price()])
async def test_notes_that_cost_too_much_are_made_by_rule(tmp_path: Path, price: Price) -> None:
    writer = Writer()
    asked, done, ended = await until_compacted(tmp_path, writer, price)
    assert not asked and not [r for r in writer.requests if "Transcript" in r.messages[-1].text]
    assert (done.model, done.usage.cost_usd, ended.usage.cost_usd) == ("", 0.0, 0.0)


async def test_notes_that_fail_cost_what_was_reserved(tmp_path: Path) -> None:
    asked, done, ended = await until_compacted(tmp_path, Writer(fails=True), PRICE)
    assert done.model == ""
    assert ended.usage.cost_usd == pytest.approx(asked[0].reserved_usd, rel=0.01)


async def test_notes_that_a_crash_cut_cost_what_was_reserved(tmp_path: Path) -> None:
    hanging = Candidate("small/it", Told(), price=PRICE)
    working = Candidate("small/it", Played(Writer()), price=PRICE)
    free = Price(free=True)
    async with serving(
        tmp_path, Played(talker), window=0, small=None, price=free, limits=BUDGET
    ) as service:
        for _ in range(30):
            await finished(service, await submit(service, "go", "s"))
    async with serving(
        tmp_path, Played(talker), window=WINDOW, small=hanging, price=free, limits=BUDGET
    ) as service:
        run_id = await submit(service, "go", "s")
        reserved = (await reach(service, run_id, ModelAsked)).fact
        assert isinstance(reserved, ModelAsked)
    async with serving(
        tmp_path, Played(talker), window=WINDOW, small=working, price=free, limits=BUDGET
    ) as service:
        view = await finished(service, run_id)
    assert isinstance(view.ending, RunCompleted)
    assert view.ending.usage.cost_usd > reserved.reserved_usd
