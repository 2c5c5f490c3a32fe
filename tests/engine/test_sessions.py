"""Sessions in memory: what the journal tells again is what was known before."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

from holdfast.core.events import MessageDelta
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputSuperseded, Mode
from holdfast.core.messages import Assistant, Message, Proposal, User
from holdfast.core.run.call import CallParked, CallSettled, CallStarted, Outcome
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import (
    CutCause,
    MessageVoided,
    ModelAnswered,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunPhase,
    RunQueued,
    RunRequeued,
    RunResumed,
    RunStarted,
    StopAsked,
)
from holdfast.core.session.session import (
    Session,
    SessionOpened,
    SessionReset,
    SessionSuspended,
    stop,
)
from holdfast.core.types import CallId, Fact, InputId, Owner, RunId, SessionId, SessionKey, Usage
from holdfast.engine.sessions import KEEP_IDLE, LoadedSession, Sessions
from holdfast.errors import IllegalTransition, JournalUnavailable
from holdfast.models.model import Answer, Piece, Request, Text
from tests.engine.workshop import Played, finished, journaled, serving, submit
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

KEY = SessionKey(Owner("me"), SessionId("s"))
USAGE = Usage(1, 1)


def opened(key: SessionKey = KEY) -> SessionOpened:
    return SessionOpened(session_id=key.session_id, workspace="/w", platform="test")


def queued(
    name: str, text: str = "do it", history: tuple[Message, ...] | None = None
) -> tuple[Fact, Fact]:
    run_id, input_id = RunId(name), InputId(f"in {name}")
    return (
        InputAdmitted(
            input_id=input_id, run_id=run_id, text=text, history=history, instructions="kindly"
        ),
        RunQueued(run_id=run_id, input_id=input_id, model="m"),
    )


def steered(name: str, text: str) -> Fact:
    return InputAdmitted(
        input_id=InputId(f"in {text}"), run_id=RunId(name), text=text, mode=Mode.STEER
    )


def read(name: str, text: str = "") -> Fact:
    return InputPromoted(input_id=InputId(f"in {text or name}"), run_id=RunId(name))


def answered(name: str, turn: int, text: str, *tools: str) -> Fact:
    calls = tuple(Proposal(CallId(f"{name}{turn}{t}"), t, "{}") for t in tools)
    return ModelAnswered(run_id=RunId(name), turn=turn, text=text, calls=calls, usage=USAGE)


def started(name: str, call_id: str) -> Fact:
    return CallStarted(run_id=RunId(name), call_id=CallId(call_id), tool="t")


def settled(name: str, call_id: str, outcome: Outcome = Outcome.OK) -> Fact:
    return CallSettled(
        run_id=RunId(name), call_id=CallId(call_id), tool="t", outcome=outcome, text=f"{outcome}!"
    )


def completed(name: str, output: str) -> Fact:
    return RunCompleted(run_id=RunId(name), output=output, usage=USAGE)


def cut(name: str, cause: CutCause = CutCause.CRASH, at: float = 5.0) -> Fact:
    return RunInterrupted(run_id=RunId(name), cause=cause, reason="why", cut_at=at)


LIFE: tuple[tuple[Fact, ...], ...] = (
    (opened(), *queued("a")),
    (RunStarted(run_id=RunId("a")),),
    (read("a"),),
    (answered("a", 1, "let me see", "x", "y"),),
    (started("a", "a1x"), started("a", "a1y")),
    (settled("a", "a1y", Outcome.FAILED),),
    (steered("a", "left"),),
    queued("b", "and then"),
    (settled("a", "a1x"),),
    (read("a", "left"),),
    (MessageVoided(run_id=RunId("a"), turn=2, reason="cut"),),
    (answered("a", 2, "found it"),),
    (completed("a", "found it"),),
    (RunStarted(run_id=RunId("b")), read("b")),
    (answered("b", 1, "", "z"),),
    (started("b", "b1z"),),
    (cut("b", CutCause.SHUTDOWN),),
    (RunRequeued(run_id=RunId("b")),),
    (RunResumed(run_id=RunId("b"), cause=CutCause.SHUTDOWN),),
    (settled("b", "b1z", Outcome.UNKNOWN),),
    (StopAsked(run_id=RunId("b"), reason="enough"),),
    (steered("b", "late"),),
    (
        InputSuperseded(input_id=InputId("in late"), run_id=RunId("b"), reason="enough"),
        RunCancelled(run_id=RunId("b"), reason="enough", usage=USAGE),
    ),
    queued("c", "again", (User("before"), Assistant("yes"))),
    (RunStarted(run_id=RunId("c")), read("c")),
    (cut("c"), RunRequeued(run_id=RunId("c"))),
    (RunResumed(run_id=RunId("c"), cause=CutCause.CRASH),),
    (answered("c", 1, "hm", "p"),),
    (started("c", "c1p"),),
    (CallParked(run_id=RunId("c"), call_id=CallId("c1p"), reason="waits"),),
    queued("d"),
    (settled("c", "c1p"),),
    (RunFailed(run_id=RunId("c"), code="stuck", error="gave up", usage=USAGE),),
    (SessionSuspended(reason="stuck"),),
    (RunStarted(run_id=RunId("d")), read("d")),
    (answered("d", 1, "fine"), completed("d", "fine")),
    (SessionReset(reason="suspended"), *queued("e", "afresh")),
    (RunStarted(run_id=RunId("e")), read("e")),
    (answered("e", 1, "hello"), completed("e", "hello")),
)


def known(
    held: LoadedSession,
) -> tuple[Session, list[Message], tuple[Message, ...], dict[RunId, str], int]:
    """All that a fold knows. Which run ended last is news, not state: nobody asks later."""
    session = replace(held.session, ended=None)
    transcript = held.transcript
    return (
        session,
        transcript.for_model(),
        transcript.whole(),
        dict(transcript.instructions),
        held.head,
    )


@pytest.mark.promise("BACK-01")
async def test_a_session_that_is_loaded_is_the_one_that_was_in_memory_after_every_fact(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with journaled(tmp_path) as journal:
        live = Sessions(journal, clock)
        held = live.create(KEY)
        for facts in LIFE:
            clock.advance(1)
            await live.append(held, *facts).wait()
            async with Sessions(journal, clock).load(KEY) as cold:
                assert cold is not None
                assert known(cold) == known(held), facts
                assert cold.last_at == held.last_at
        assert held.session.mark is None and not held.session.runs
    async with journaled(tmp_path) as journal:  # and from the file alone
        async with Sessions(journal, clock).load(KEY) as cold:
            assert cold is not None and known(cold) == known(held)


async def test_of_runs_that_end_together_none_is_left_unfinished(tmp_path: Path) -> None:
    """As when a chat is stopped with several messages in its queue."""
    names = ("a", "b", "c")
    async with journaled(tmp_path) as journal:
        live = Sessions(journal, ManualClock())
        held = live.create(KEY)
        live.append(held, opened(), *(f for name in names for f in queued(name)))
        stopped = [f for name in names for f in stop(held.session, RunId(name), "enough")]
        await live.append(held, *stopped).wait()
        assert not held.session.runs and not live.counts[RunPhase.QUEUED]
        assert all(live.running(RunId(name)) is None for name in names)
        assert await journal.unfinished() == []
        rows = [await journal.run(RunId(name)) for name in names]
        assert [(r.status, r.ended_seq) for r in rows if r] == [
            (RunPhase.CANCELLED, 10),
            (RunPhase.CANCELLED, 13),
            (RunPhase.CANCELLED, 16),
        ]


async def test_text_that_was_streamed_and_not_answered_is_known_after_loading(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with journaled(tmp_path) as journal:
        live = Sessions(journal, clock)
        held = live.create(KEY)
        live.append(held, opened(), *queued("a"))
        live.append(held, RunStarted(run_id=RunId("a")), read("a"))
        live.delta(held, MessageDelta(run_id=RunId("a"), turn=1, text="half a"))
        await live.append(held, steered("a", "left")).wait()
        async with Sessions(journal, clock).load(KEY) as cold:
            assert cold is not None
            assert (cold.partial, held.partial) == (1, 1)
        await live.append(held, answered("a", 1, "half a word")).wait()
        async with Sessions(journal, clock).load(KEY) as cold:
            assert cold is not None
            assert (cold.partial, held.partial) == (0, 0)


async def test_a_session_that_does_not_exist_is_none(tmp_path: Path) -> None:
    async with journaled(tmp_path) as journal:
        async with Sessions(journal, ManualClock()).load(KEY) as held:
            assert held is None


async def test_a_fact_that_cannot_be_changes_nothing(tmp_path: Path) -> None:
    async with journaled(tmp_path) as journal:
        sessions = Sessions(journal, ManualClock())
        held = sessions.create(KEY)
        await sessions.append(held, opened(), *queued("a")).wait()
        before = known(held)
        with pytest.raises(IllegalTransition):
            sessions.append(held, RunStarted(run_id=RunId("a")), completed("a", "?"))
        assert known(held) == before
        await sessions.append(held, RunStarted(run_id=RunId("a"))).wait()


async def test_all_who_hold_a_session_at_once_hold_the_same(tmp_path: Path) -> None:
    async with journaled(tmp_path) as journal:
        sessions = Sessions(journal, ManualClock())
        await sessions.append(sessions.create(KEY), opened(), *queued("a")).wait()
        cold = Sessions(journal, ManualClock())
        found: list[LoadedSession | None] = []

        async def hold() -> None:
            async with cold.load(KEY) as held:
                found.append(held)

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(hold)
        assert len(found) == 10 and len(set(map(id, found))) == 1


async def past(sessions: Sessions, count: int, owner: str = "me") -> list[LoadedSession]:
    """So many sessions of `owner`, each with one run behind it."""
    made: list[LoadedSession] = []
    for n in range(count):
        key, name = SessionKey(Owner(owner), SessionId(f"s{n}")), f"{owner} {n}"
        held = sessions.create(key)
        sessions.append(held, opened(key), *queued(name))
        sessions.append(held, RunStarted(run_id=RunId(name)), read(name))
        await sessions.append(held, answered(name, 1, f"no {n}"), completed(name, f"no {n}")).wait()
        made.append(held)
    return made


async def test_idle_sessions_are_let_go_past_a_bound_and_come_back_the_same(tmp_path: Path) -> None:
    async with journaled(tmp_path) as journal:
        sessions = Sessions(journal, ManualClock())
        made = await past(sessions, KEEP_IDLE + 10)
        assert [held for held in made if sessions.key_of(held.stream) is not None] == made[10:]
        for held in made[:10]:
            async with sessions.load(held.key) as again:
                assert again is not None and again is not held
                assert known(again) == known(held)
                await sessions.append(again, *queued(f"{held.key.session_id} more")).wait()


async def test_a_session_that_is_held_or_has_a_run_to_be_driven_is_never_let_go(
    tmp_path: Path,
) -> None:
    async with journaled(tmp_path) as journal:
        sessions = Sessions(journal, ManualClock())
        busy = sessions.create(KEY)
        await sessions.append(busy, opened(), *queued("a")).wait()
        (idle,) = await past(sessions, 1)
        async with sessions.load(idle.key):
            await past(sessions, KEEP_IDLE + 1, "you")
            assert sessions.key_of(idle.stream) == idle.key
        await past(sessions, KEEP_IDLE + 1, "they")
        assert sessions.key_of(idle.stream) is None
        assert sessions.key_of(busy.stream) == KEY
        assert sessions.running(RunId("a")) == (busy, busy.session.runs[RunId("a")])


async def test_five_hundred_inputs_at_once_all_come_to_their_end(tmp_path: Path) -> None:
    """More sessions than may lie idle, each of them waiting for its turn."""

    def play(request: Request) -> Iterator[Piece]:
        last = request.messages[-1]
        assert isinstance(last, User)
        yield Text(last.text)
        yield Answer(last.text)

    outputs: list[str] = []
    async with serving(tmp_path, Played(play), limits=Limits(running=16)) as service:

        async def work(number: int) -> None:
            run_id = await submit(service, f"say {number}")
            ending = (await finished(service, run_id)).ending
            assert isinstance(ending, RunCompleted)
            outputs.append(ending.output)

        async with anyio.create_task_group() as tasks:
            for number in range(500):
                tasks.start_soon(work, number)
        assert sorted(outputs) == sorted(f"say {number}" for number in range(500))
        health = service.health()
        assert (health.queued, health.running) == (0, 0)


async def test_a_failed_commit_voids_what_is_in_memory_and_the_disk_is_asked_again(
    tmp_path: Path,
) -> None:
    async with journaled(tmp_path) as journal:
        sessions = Sessions(journal, ManualClock())
        before = sessions.create(KEY)
        await sessions.append(before, opened(), *queued("a")).wait()
    with closing(sqlite3.connect(tmp_path / "journal.db")) as connection:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
    async with journaled(tmp_path, max_pages=pages) as journal:
        sessions = Sessions(journal, ManualClock())
        async with sessions.load(KEY) as held:
            assert held is not None
            lost = sessions.append(held, *queued("b", "x" * 50_000))
            behind = sessions.append(held, RunStarted(run_id=RunId("a")))
            for pending in (lost, behind):
                with pytest.raises(JournalUnavailable, match="full"):
                    await pending.wait()
            assert held.void
            with pytest.raises(JournalUnavailable, match="load it again"):
                sessions.append(held, RunStarted(run_id=RunId("a")))
            with pytest.raises(JournalUnavailable, match="load it again"):
                sessions.delta(held, MessageDelta(run_id=RunId("a"), turn=1, text="x"))
        assert sessions.running(RunId("a")) is None
        async with sessions.load(KEY) as again:
            assert again is not None and again is not held and not again.void
            assert known(again) == known(before)
        sessions.recount(await journal.unfinished())
        assert sessions.counts[RunPhase.QUEUED] == 1


async def test_a_change_is_decided_again_when_the_session_has_moved_on(tmp_path: Path) -> None:
    async with journaled(tmp_path) as journal:
        stale, other = Sessions(journal, ManualClock()), Sessions(journal, ManualClock())
        await stale.append(stale.create(KEY), opened()).wait()
        await other.change(KEY, lambda loaded: queued("a"))
        seen: list[int] = []

        def decide(loaded: LoadedSession | None) -> tuple[Fact, ...]:
            assert loaded is not None
            seen.append(len(loaded.session.runs))
            return queued("b")

        await stale.change(KEY, decide)
        assert seen == [0, 1]
        async with stale.load(KEY) as loaded:
            assert loaded is not None
            assert list(loaded.session.runs) == ["a", "b"]


async def test_a_change_of_a_session_that_is_not_there_appends_nothing(tmp_path: Path) -> None:
    async with journaled(tmp_path) as journal:
        sessions = Sessions(journal, ManualClock())
        await sessions.change(KEY, lambda loaded: () if loaded is None else queued("a"))
        async with sessions.load(KEY) as loaded:
            assert loaded is None
