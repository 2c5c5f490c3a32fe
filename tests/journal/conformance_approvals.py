"""What every journal must know of approvals that wait: those that are committed, no others."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from holdfast.core.approval.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Choice,
)
from holdfast.core.run.call import CallSettled, CallStarted, Outcome
from holdfast.core.run.run import RunCancelled
from holdfast.core.types import CallId, Fact, Owner, RequestId, RunId, SessionId, SessionKey, Usage
from holdfast.journal.journal import Asked, Journal
from tests.journal.conformance import KEY, ME, RUN, accept

A, B, C = RequestId("apr_a"), RequestId("apr_b"), RequestId("apr_c")
OTHER = SessionKey(Owner("other"), SessionId("s"))


def requested(name: RequestId = A, expires_at: float = 9.0, run_id: RunId = RUN) -> Fact:
    return ApprovalRequested(
        run_id=run_id,
        call_id=CallId(f"call {name}"),
        request_id=name,
        command="make",
        description="make",
        execution="0" * 64,
        choices=(Choice.ONCE,),
        expires_at=expires_at,
    )


ENDS: dict[str, Fact] = {
    "granted": ApprovalGranted(run_id=RUN, request_id=A, choice=Choice.ONCE, by=ME),
    "denied": ApprovalDenied(run_id=RUN, request_id=A, by=ME),
    "expired": ApprovalExpired(run_id=RUN, request_id=A),
    "withdrawn": ApprovalWithdrawn(run_id=RUN, request_id=A, reason="over"),
    "started": CallStarted(run_id=RUN, call_id=CallId(f"call {A}"), tool="t"),
    "settled": CallSettled(
        run_id=RUN, call_id=CallId(f"call {A}"), tool="t", outcome=Outcome.ABORTED, text=""
    ),
}


async def names(journal: Journal, owner: Owner | None = None) -> list[RequestId]:
    return [a.requested.request_id for a in await journal.approvals(owner, 100, None)]


class ApprovalSuite:
    """The promises, one test each."""

    def make(self, directory: Path) -> AbstractAsyncContextManager[Journal]:
        """A journal over `directory`, which may hold one already."""
        raise NotImplementedError

    @pytest.fixture
    async def journal(self, tmp_path: Path) -> AsyncIterator[Journal]:
        async with self.make(tmp_path) as made:
            yield made

    async def test_a_request_waits_once_it_is_committed_and_not_before(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        pending = journal.append(row.stream, 3, 2.0, [requested()], [])
        assert not pending.durable
        assert await names(journal) == [] or pending.durable
        await pending.wait()
        assert pending.durable
        asked = requested()
        assert isinstance(asked, ApprovalRequested)
        assert await journal.approvals(None, 100, None) == [Asked(KEY, asked)]
        assert await journal.approval(A) == Asked(KEY, asked)
        assert await journal.approval(B) is None

    @pytest.mark.parametrize("end", ENDS)
    async def test_what_answers_it_or_uses_it_up_takes_it_away_and_no_other(
        self, journal: Journal, tmp_path: Path, end: str
    ) -> None:
        row = await accept(journal)
        await journal.append(row.stream, 3, 2.0, [requested(A), requested(B)], []).wait()
        await journal.append(row.stream, 5, 3.0, [ENDS[end]], []).wait()
        assert await names(journal) == [B]
        assert await journal.approval(A) is None

    async def test_the_end_of_its_run_takes_all_of_them_away(self, journal: Journal) -> None:
        row = await accept(journal)
        other = await accept(journal, OTHER, RunId("run_2"))
        await journal.append(row.stream, 3, 2.0, [requested(A), requested(B)], []).wait()
        await journal.append(other.stream, 3, 2.0, [requested(C, run_id=RunId("run_2"))], []).wait()
        ended = RunCancelled(run_id=RUN, reason="enough", usage=Usage())
        await journal.append(row.stream, 5, 3.0, [ended], []).wait()
        assert await names(journal) == [C]

    async def test_one_that_is_asked_and_answered_in_one_commit_does_not_wait(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        await journal.append(row.stream, 3, 2.0, [requested(A), ENDS["denied"]], []).wait()
        assert await names(journal) == []

    async def test_they_wait_still_after_opening_again_and_can_be_taken_away_then(
        self, tmp_path: Path
    ) -> None:
        async with self.make(tmp_path) as before:
            row = await accept(before)
            await before.append(row.stream, 3, 2.0, [requested()], []).wait()
        async with self.make(tmp_path) as after:
            assert await names(after) == [A]
            found = await after.stream_of(KEY)
            assert found is not None
            ended = RunCancelled(run_id=RUN, reason="enough", usage=Usage())
            await after.append(found.stream, found.head, 3.0, [ended], []).wait()
            assert await names(after) == []

    async def test_they_are_listed_by_expiry_page_by_page_also_if_some_go_in_between(
        self, journal: Journal
    ) -> None:
        row = await accept(journal)
        asked = [requested(A, 7.0), requested(B, 5.0), requested(C, 7.0)]
        await journal.append(row.stream, 3, 2.0, asked, []).wait()
        assert await names(journal) == [B, A, C]
        (first,) = await journal.approvals(None, 1, None)
        place = (first.requested.expires_at, first.requested.request_id)
        answered = ApprovalDenied(run_id=RUN, request_id=B, by=ME)
        await journal.append(row.stream, 6, 3.0, [answered], []).wait()
        rest = await journal.approvals(None, 10, place)
        assert [a.requested.request_id for a in rest] == [A, C]

    async def test_an_owner_sees_its_own(self, journal: Journal) -> None:
        mine, theirs = await accept(journal), await accept(journal, OTHER, RunId("run_2"))
        await journal.append(mine.stream, 3, 2.0, [requested(A)], []).wait()
        await journal.append(
            theirs.stream, 3, 2.0, [requested(B, run_id=RunId("run_2"))], []
        ).wait()
        assert await names(journal, ME) == [A]
        assert await names(journal, OTHER.owner) == [B]
        assert await names(journal) == [A, B]
