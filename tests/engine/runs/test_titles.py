"""Titles of sessions by the small model."""

from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from holdfast.core.session.session import SessionTitled
from holdfast.core.types import SessionId
from holdfast.engine.runs.titles import INSTRUCTION
from holdfast.engine.service import Service
from holdfast.errors import Transient
from holdfast.models.model import Answer, Candidate, Piece, Request
from tests.engine.workshop import ME, PATIENCE_S, Played, finished, serving, submit

pytestmark = [pytest.mark.anyio, pytest.mark.promise("CTX-05")]


def _answer(request: Request) -> Iterable[Piece]:
    return (Answer("fine"),)


class Writer:
    """Gives one title after the other, or fails."""

    def __init__(self, *titles: str | Exception) -> None:
        self._titles = iter(titles)
        self.seen: list[Request] = []

    def __call__(self, request: Request) -> Iterable[Piece]:
        self.seen.append(request)
        title = next(self._titles)
        if isinstance(title, Exception):
            raise title
        return (Answer(title),)

    @property
    def candidate(self) -> Candidate:
        return Candidate("small/one", Played(self))


async def _title(service: Service, session: str) -> str:
    """Wait for the session's title."""
    with anyio.fail_after(PATIENCE_S):
        async with service.follow_session(ME, SessionId(session), 0) as batches:
            async for batch in batches:
                for record in batch:
                    if isinstance(record.fact, SessionTitled):
                        return record.fact.title
    raise AssertionError("the stream ended")


async def test_the_first_exchange_gets_a_title_of_one_line(tmp_path: Path) -> None:
    writer = Writer('"A boat\ncalled Marigold"')
    async with serving(tmp_path, Played(_answer), small=writer.candidate) as service:
        await finished(service, await submit(service, "Name my boat.", "s"))
        assert await _title(service, "s") == "A boat called Marigold"
        await finished(service, await submit(service, "And now?", "s"))
    (asked,) = writer.seen
    assert asked.system == INSTRUCTION and "Name my boat." in asked.messages[0].text


async def test_a_small_model_that_fails_leaves_the_session_without_a_title(tmp_path: Path) -> None:
    writer = Writer(Transient("busy"), "Second")
    async with serving(tmp_path, Played(_answer), small=writer.candidate) as service:
        view = await finished(service, await submit(service, "one", "s"))
        assert view.ending is not None, "the run itself is not touched by it"
        await finished(service, await submit(service, "two", "t"))
        assert await _title(service, "t") == "Second"
        assert (await service.library.session(ME, SessionId("s"))).title == ""
