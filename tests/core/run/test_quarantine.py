"""Whoever ends the process is found and given up; whoever was only there goes on, every time.

First what is decided for a few runs, then a whole gateway on paper: innocent runs of any length
and one that ends the process soon after it is driven, in any order, also with starts that are
cut before they have written everything down.
"""

from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.messages import Proposal
from holdfast.core.run import run as runs
from holdfast.core.run.call import CallStarted
from holdfast.core.run.quarantine import (
    HOLD_S,
    Judgement,
    QuarantineVerdict,
    Release,
    judge,
    release,
)
from holdfast.core.run.run import (
    QUICK_CUT_S,
    CutCause,
    ModelAnswered,
    Run,
    RunCleared,
    RunCompleted,
    RunFailed,
    RunHeld,
    RunInterrupted,
    RunIsolated,
    RunPhase,
    RunQueued,
    RunRequeued,
    RunResumed,
    RunStarted,
    StopAsked,
    queue,
)
from holdfast.core.session.recovery import recover, with_cuts
from holdfast.core.session.session import (
    OnStart,
    Session,
    current,
    evolve,
    requeue_interrupted,
)
from holdfast.core.types import OPERATOR, CallId, Fact, InputId, RunId, SessionId, SessionKey, Usage

pytestmark = [pytest.mark.promise("BACK-07"), pytest.mark.fault("F-13")]

GO_ON, ISOLATE, HOLD, GIVE_UP = QuarantineVerdict


def cut(name: str, cuts: int, driven_at: float = 0.0, *then: runs.Event) -> Run:
    """A run that a crash has cut, for the `cuts`th time in a row."""
    run = queue(RunQueued(run_id=RunId(name), input_id=InputId(name)), 0.0)
    for n in range(cuts):
        begins = RunResumed(run_id=run.id, cause="crash") if n else RunStarted(run_id=run.id)
        run = runs.evolve(run, begins, driven_at)
        run = runs.evolve(run, crash(run.id, driven_at), driven_at)
        if n + 1 < cuts:
            run = runs.evolve(run, RunRequeued(run_id=run.id), driven_at)
    for fact in then:
        run = runs.evolve(run, fact, driven_at)
    return run


def crash(run_id: RunId, at: float) -> RunInterrupted:
    return RunInterrupted(run_id=run_id, cause=CutCause.CRASH, reason="", cut_at=at)


def judged(*cut_now: Run, others: bool = False) -> dict[str, QuarantineVerdict]:
    found = judge(cut_now, [r.id for r in cut_now], 0.0, others=others)
    return {str(run_id): verdict for run_id, verdict in found.verdicts.items()}


def test_one_that_was_cut_alone_three_times_in_a_row_is_given_up() -> None:
    assert judged(cut("a", 2)) == {}
    assert judged(cut("a", 3)) == {"a": GIVE_UP}
    assert judge([cut("a", 3)], [RunId("a")], 0.0).solved


def test_beside_unreadable_runs_a_stuck_run_is_isolated_first() -> None:
    assert judged(cut("a", 3), others=True) == {"a": ISOLATE}


def test_one_that_was_cut_in_an_earlier_life_is_not_given_up_for_being_the_last_one_left() -> None:
    assert judge([cut("a", 3)], [], 0.0).verdicts == {RunId("a"): ISOLATE}


def test_half_of_the_suspects_continue_first_those_cut_by_most_crashes() -> None:
    four = [cut("a", 3, 1.0), cut("b", 5, 4.0), cut("c", 3, 2.0), cut("d", 4, 3.0)]
    assert judged(*four) == {"a": HOLD, "b": GO_ON, "c": HOLD, "d": GO_ON}


def test_one_that_was_driven_long_before_the_others_comes_last() -> None:
    assert judged(cut("a", 5, 1.0), cut("b", 3, 62.0)) == {"a": HOLD, "b": ISOLATE}


def test_one_that_was_cut_for_the_first_time_is_held_too_so_that_one_alone_is_alone() -> None:
    assert judged(cut("old", 3), cut("new", 1)) == {"old": ISOLATE, "new": HOLD}


def test_no_run_is_held_before_one_was_cut_three_times() -> None:
    assert judged(cut("a", 2), cut("b", 2), cut("c", 1)) == {}


def test_one_that_was_isolated_when_it_was_cut_is_given_up_whatever_else_was_cut() -> None:
    alone = runs.evolve(cut("a", 2), RunIsolated(run_id=RunId("a")), 0.0)
    assert not alone.exposed, "it has to be driven first"
    for fact in (RunRequeued(run_id=alone.id), RunResumed(run_id=alone.id), crash(alone.id, 0.0)):
        alone = runs.evolve(alone, fact, 0.0)
    assert judged(alone, cut("b", 5)) == {"a": GIVE_UP}


def test_one_that_was_cut_in_an_orderly_way_while_isolated_is_not_exposed() -> None:
    alone = runs.evolve(cut("a", 3), RunIsolated(run_id=RunId("a")), 0.0)
    ends = RunInterrupted(run_id=alone.id, cause=CutCause.SHUTDOWN, reason="", cut_at=0.0)
    for fact in (RunRequeued(run_id=alone.id), RunResumed(run_id=alone.id), ends):
        alone = runs.evolve(alone, fact, 0.0)
    assert not alone.exposed and judged(alone, cut("b", 1)) == {}


def test_one_that_is_held_or_being_stopped_is_not_in_doubt() -> None:
    held = cut("held", 3, 0.0, RunHeld(run_id=RunId("held"), until=9.0))
    stopped = cut("stopped", 3, 0.0, StopAsked(run_id=RunId("stopped"), reason="enough"))
    assert judged(held, stopped) == {}
    assert judged(held, stopped, cut("a", 3)) == {"a": ISOLATE}


def restarted(name: str, times: int) -> Run:
    """A run that was at a call each time somebody restarted the gateway."""
    run_id, call = RunId(name), CallId("c")
    run = queue(RunQueued(run_id=run_id, input_id=InputId(name)), 0.0)
    run = runs.evolve(run, RunStarted(run_id=run_id), 0.0)
    run = runs.evolve(run, InputPromoted(input_id=InputId(name), run_id=run_id), 0.0)
    wants = ModelAnswered(run_id=run_id, turn=1, text="", calls=(Proposal(call, "t", "{}"),))
    ends = RunInterrupted(run_id=run_id, cause=CutCause.RESTART, reason="", cut_at=0.0)
    goes_on = (RunRequeued(run_id=run_id), RunResumed(run_id=run_id))
    begins = CallStarted(run_id=run_id, call_id=call, tool="t")
    run = runs.evolve(run, wants, 0.0)
    for n in range(times):
        for fact in (begins, ends, *(goes_on if n + 1 < times else ())):
            run = runs.evolve(run, fact, 0.0)
    return run


def test_a_run_that_restarts_its_own_gateway_is_given_up_and_no_other_is_held() -> None:
    assert judged(restarted("a", 2)) == {}
    found = judge([restarted("a", 3), restarted("b", 1), cut("c", 2)], [], 0.0)
    assert found == Judgement({RunId("a"): GIVE_UP})


def test_restarts_that_cut_several_runs_equally_blame_none() -> None:
    assert judged(restarted("a", 3), restarted("b", 3)) == {}


def test_restarts_do_not_count_while_a_run_only_waits_for_the_model() -> None:
    run = queue(RunQueued(run_id=RunId("a"), input_id=InputId("a")), 0.0)
    run = runs.evolve(run, RunStarted(run_id=run.id), 0.0)
    ends = RunInterrupted(run_id=run.id, cause=CutCause.SHUTDOWN, reason="", cut_at=0.0)
    for _ in range(5):
        for fact in (ends, RunRequeued(run_id=run.id), RunResumed(run_id=run.id)):
            run = runs.evolve(run, fact, 0.0)
    assert (run.restarts, run.cuts) == (0, 0)


def test_restarts_do_not_count_as_crashes() -> None:
    both = [restarted("a", 3), cut("b", 3)]
    assert judged(*both) == {"a": GIVE_UP, "b": GIVE_UP}
    assert judged(restarted("a", 2), cut("b", 2)) == {}


def at_work(name: str, driven_at: float, *, progressed: bool) -> Run:
    run = queue(RunQueued(run_id=RunId(name), input_id=InputId(name)), 0.0)
    run = runs.evolve(run, RunStarted(run_id=run.id), driven_at)
    if progressed:
        run = runs.evolve(run, ModelAnswered(run_id=run.id, turn=1, text=""), driven_at)
    return run


def held(name: str, until: float = HOLD_S) -> Run:
    return cut(name, 3, 0.0, RunHeld(run_id=RunId(name), until=until))


def test_the_search_waits_until_those_that_go_on_have_had_their_time() -> None:
    waits = queue(RunQueued(run_id=RunId("q"), input_id=InputId("q")), 0.0)
    assert release([held("a")], [waits], 100.0) is None
    assert release([held("a")], [at_work("x", 50.0, progressed=True)], 100.0) is None
    assert release([held("a")], [at_work("x", 39.0, progressed=True)], 100.0) is not None


def test_the_next_half_goes_on_and_one_alone_is_isolated_if_all_others_got_on() -> None:
    assert release([held("a"), held("b")], [], 1.0) == Release((RunId("a"),), isolated=True)
    several = [held("a"), held("b"), held("c")]
    assert release(several, [], 1.0) == Release((RunId("a"), RunId("b")))
    fine, silent = at_work("x", 0.0, progressed=True), at_work("x", 0.0, progressed=False)
    assert release([held("a")], [fine], 61.0) == Release((RunId("a"),), isolated=True)
    assert release([held("a")], [silent], 61.0) == Release((RunId("a"),))
    assert release([held("a")], [cut("w", 1)], 61.0) == Release((RunId("a"),))


def test_no_run_is_held_longer_than_the_limit() -> None:
    busy = at_work("x", HOLD_S, progressed=True)
    both = [held("a"), held("b", 2 * HOLD_S)]
    assert release(both, [busy], HOLD_S - 1) is None
    assert release(both, [busy], HOLD_S) == Release((RunId("a"), RunId("b")), over=True)


class Gateway:
    """Sessions with one run each, driven by what the core decides."""

    def __init__(self, needs: list[float], poison: int, fuse: float) -> None:
        self.now = 0.0
        self.needs = {RunId(f"r{n}"): need for n, need in enumerate(needs)}
        self.poison, self.fuse = RunId(f"r{poison}"), fuse
        self.sessions: dict[RunId, Session] = {}
        self.failed: list[RunId] = []
        self.completed: set[RunId] = set()
        self.suspects: set[RunId] = set()

    def say(self, run_id: RunId, *facts: Fact) -> None:
        for fact in facts:
            if isinstance(fact, RunFailed):
                self.failed.append(fact.run_id)
            self.sessions[run_id] = evolve(self.sessions[run_id], fact, self.now)

    def accept(self, run_id: RunId) -> None:
        name = InputId(f"in-{run_id}")
        self.sessions[run_id] = Session(SessionKey(OPERATOR, SessionId(run_id)))
        self.say(run_id, InputAdmitted(input_id=name, run_id=run_id, text="go"))
        self.say(run_id, RunQueued(run_id=run_id, input_id=name))

    def open(self) -> dict[RunId, Run]:
        found = {k: current(s) for k, s in self.sessions.items()}
        return {k: r for k, r in found.items() if r is not None}

    def boot(self, written: int | None = None) -> None:
        """Judge and recover; or only the first `written` sessions, and end again."""
        found = [pair for s in self.sessions.values() for pair in with_cuts(s, self.now)]
        just_cut = [r.id for r, said in found if said]
        judgement = judge([r for r, _ in found], just_cut, self.now)
        for run_id in list(self.open())[:written]:
            session = self.sessions[run_id]
            facts = recover(session, OnStart.RESUME, self.now, CutCause.CRASH, judgement)
            self.say(run_id, *facts)
        self.suspects = {k for k, r in self.open().items() if r.cuts and not r.held_until}

    def live(self, arrivals: list[RunId]) -> bool:
        """Until the process ends (True), or nothing is left to do."""
        for run_id in arrivals:
            self.accept(run_id)
        for _ in range(500):
            for run_id, run in self.open().items():
                if run.status is RunPhase.QUEUED:
                    word = RunResumed(run_id=run_id, cause=run.cut_by)
                    self.say(run_id, word if run.driven else RunStarted(run_id=run_id))
            driven = {k: r for k, r in self.open().items() if r.status is RunPhase.RUNNING}
            if not self.open():
                return False
            self.now = self.next_event(driven)
            if (bad := driven.get(self.poison)) and self.now - bad.driven_at >= self.fuse:
                return True
            for run_id, run in driven.items():
                if run_id != self.poison and self.now - run.driven_at >= self.needs[run_id]:
                    self.complete(run_id, run)
            self.search()
        raise AssertionError("something is held for ever")

    def next_event(self, driven: dict[RunId, Run]) -> float:
        """When something can happen next; the search looks at nothing in between."""
        due = {HOLD_S + 1.0}
        for run_id, run in driven.items():
            takes = self.fuse if run_id == self.poison else self.needs[run_id]
            since = self.now - run.driven_at
            due |= {wait - since for wait in (takes, QUICK_CUT_S + 1.0)}
        return self.now + max(1.0, min(wait for wait in due if wait > 0))

    def complete(self, run_id: RunId, run: Run) -> None:
        self.say(run_id, *(InputPromoted(input_id=i, run_id=run_id) for i in run.unread))
        self.say(run_id, ModelAnswered(run_id=run_id, turn=1, text="done"))
        self.say(run_id, RunCompleted(run_id=run_id, output="done", usage=Usage()))
        self.completed.add(run_id)

    def search(self) -> None:
        found = self.open()
        waiting = [r for r in found.values() if r.held_until]
        if not waiting:
            return
        assert all(requeue_interrupted(self.sessions[r.id]) == () for r in waiting)
        doubtful = [found[k] for k in self.suspects if k in found and not found[k].held_until]
        decided = release(waiting, doubtful, self.now)
        if decided is None:
            return
        for run in doubtful:
            if run.isolated:
                self.say(run.id, RunIsolated(run_id=run.id, alone=False))
            if decided.over:
                self.say(run.id, RunCleared(run_id=run.id))
        for run_id in decided.runs:
            if decided.over:
                self.say(run_id, RunCleared(run_id=run_id))
            if decided.isolated:
                self.say(run_id, RunIsolated(run_id=run_id))
            self.say(run_id, RunRequeued(run_id=run_id))
            self.suspects.add(run_id)


@st.composite
def gateways(draw: st.DrawFn) -> Gateway:
    needs = draw(st.lists(st.sampled_from([1.0, 5.0, 59.0, 61.0, 200.0]), min_size=1, max_size=40))
    poison = draw(st.integers(0, len(needs) - 1))
    return Gateway(needs, poison, draw(st.sampled_from([1.0, 2.0, 30.0, 60.0])))


@settings(max_examples=100, deadline=None)
@given(gateways(), st.data())
def test_exactly_the_poison_is_given_up_and_all_others_complete(
    it: Gateway, data: st.DataObject
) -> None:
    order = data.draw(st.permutations(list(it.needs)))
    first = data.draw(st.integers(0, len(order)))
    for run_id in order[:first]:
        it.accept(run_id)
    arrivals, starts = order[first:], 0
    ended = True
    while ended:
        if data.draw(st.integers(0, 4)) == 0:
            it.boot(data.draw(st.integers(0, len(order))))
        it.boot()
        if not it.open() and not arrivals:
            break
        some = data.draw(st.integers(0, len(arrivals))) if starts < 8 else len(arrivals)
        now, arrivals = arrivals[:some], arrivals[some:]
        ended = it.live(now) or bool(arrivals)
        starts += 1
        assert starts <= 11 + 2 * ceil(log2(len(order) + 1)), "it does not come to an end"
    assert it.failed == [it.poison]
    assert it.completed == it.needs.keys() - {it.poison}
