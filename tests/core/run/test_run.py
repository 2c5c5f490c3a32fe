"""A run keeps its word: what was accepted is read, what was called is answered, a stop holds.

First every status meets every fact, then a run is driven through any weather: people
steer, stop and answer, tools return or wait, the process ends at any point.
"""

from collections import Counter

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from typing_extensions import override

from holdfast.core.inbox import InputAdmitted, InputPromoted, InputRefused, InputSuperseded
from holdfast.core.messages import Proposal
from holdfast.core.run import call as calls
from holdfast.core.run.call import (
    Adopt,
    Begin,
    Call,
    CallAsked,
    CallCleared,
    CallParked,
    CallSettled,
    CallStarted,
    OnCrash,
    Outcome,
)
from holdfast.core.run.context import ContextExceeded, HistoryCompacted
from holdfast.core.run.run import (
    AbortCalls,
    CallModel,
    Cancel,
    Compact,
    Complete,
    CutCause,
    Event,
    MessageVoided,
    ModelAnswered,
    ModelAsked,
    ModelFailed,
    Origin,
    Read,
    Rest,
    Resume,
    Run,
    RunCancelled,
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
    SettleCalls,
    StartRun,
    StopAsked,
    end_with,
    evolve,
    may_compact,
    movable,
    next_step,
    queue,
    stuck,
)
from holdfast.core.types import CallId, InputId, RequestId, RunId, Usage
from holdfast.errors import IllegalTransition

RUN, INPUT, CALL = RunId("run"), InputId("input"), CallId("call")
OTHER = CallId("other")
USAGE = Usage(3, 4)


def proposal(call_id: CallId) -> Proposal:
    return Proposal(call_id, "write_file", "{}")


def settled(call_id: CallId, outcome: Outcome = Outcome.OK) -> CallSettled:
    return CallSettled(run_id=RUN, call_id=call_id, tool="t", outcome=outcome, text="done")


def exceeded(turn: int = 1) -> ContextExceeded:
    return ContextExceeded(run_id=RUN, turn=turn, error="too long")


def compacted() -> HistoryCompacted:
    return HistoryCompacted(upto=0, summary="", reason="overflow", run_id=RUN, usage=USAGE)


def interrupted(cut_at: float = 0.0, cause: CutCause = CutCause.CRASH) -> RunInterrupted:
    return RunInterrupted(run_id=RUN, cause=cause, reason="why", cut_at=cut_at)


FACTS: dict[str, Event] = {
    "it begins": RunStarted(run_id=RUN),
    "it goes on": RunResumed(run_id=RUN, cause="crash"),
    "it may go on": RunRequeued(run_id=RUN),
    "it is held": RunHeld(run_id=RUN, until=9.0),
    "it is isolated": RunIsolated(run_id=RUN),
    "it is cleared": RunCleared(run_id=RUN),
    "words arrive": InputAdmitted(input_id=InputId("more"), run_id=RUN, text="also"),
    "words are read": InputPromoted(input_id=INPUT, run_id=RUN),
    "words are displaced": InputSuperseded(input_id=INPUT, run_id=RUN, reason="stopped"),
    "words may not be read": InputRefused(input_id=INPUT, run_id=RUN, reason="blocked"),
    "the model is to be asked": ModelAsked(run_id=RUN, turn=1, attempt=1, model="a/b"),
    "the model answers": ModelAnswered(run_id=RUN, turn=1, text="hi"),
    "the model is asked again": MessageVoided(run_id=RUN, turn=1, reason="cut"),
    "an attempt at the model fails": ModelFailed(
        run_id=RUN, turn=1, attempt=1, model="a/b", reason="busy", next_model="c/d"
    ),
    "the model finds it too long": exceeded(),
    "the history is compacted": compacted(),
    "a person is asked": CallAsked(run_id=RUN, call_id=CALL, request_id=RequestId("q")),
    "a person agrees": CallCleared(run_id=RUN, call_id=CALL),
    "a call begins": CallStarted(run_id=RUN, call_id=CALL, tool="t"),
    "a call waits": CallParked(run_id=RUN, call_id=CALL, reason="child"),
    "a call ends": settled(CALL),
    "a person stops it": StopAsked(run_id=RUN, reason="enough"),
    "we cut it": interrupted(),
    "it completes": RunCompleted(run_id=RUN, output="hi", usage=USAGE),
    "it fails": RunFailed(run_id=RUN, code="c", error="e", usage=USAGE),
    "it is cancelled": RunCancelled(run_id=RUN, reason="enough", usage=USAGE),
}

# Each fact, and where a run that was in each of these statuses is after it.
ALLOWED = {
    "it begins": {"queued": "running"},
    "it goes on": {"queued": "running"},
    "it may go on": {"interrupted": "queued"},
    "it is held": {"queued": "interrupted", "interrupted": "interrupted"},
    "it is isolated": {s: s for s in ("queued", "running", "interrupted")},
    "it is cleared": {s: s for s in ("queued", "running", "waiting", "interrupted")},
    "words arrive": {s: s for s in ("queued", "running", "waiting", "interrupted")},
    "words are read": {"running": "running"},
    "words are displaced": {s: s for s in ("queued", "running", "waiting", "interrupted")},
    "words may not be read": {s: s for s in ("queued", "running", "waiting", "interrupted")},
    "the model is to be asked": {"running": "running"},
    "the model answers": {"running": "running"},
    "the model is asked again": {"running": "running"},
    "an attempt at the model fails": {"running": "running"},
    "the model finds it too long": {"running": "running"},
    "the history is compacted": {"running": "running"},
    "a person is asked": {"running": "running"},
    "a person agrees": {
        "queued": "queued",
        "running": "running",
        "waiting": "queued",
        "interrupted": "interrupted",
    },
    "a call begins": {"running": "running"},
    "a call waits": {"running": "running"},
    "a call ends": {
        "queued": "queued",
        "running": "running",
        "waiting": "queued",
        "interrupted": "interrupted",
    },
    "a person stops it": {s: s for s in ("queued", "running", "waiting", "interrupted")},
    "we cut it": {"running": "interrupted"},
    "it completes": {"running": "completed"},
    "it fails": {s: "failed" for s in ("queued", "running", "waiting", "interrupted")},
    "it is cancelled": {s: "cancelled" for s in ("queued", "running", "waiting", "interrupted")},
}


def run_about_to(fact: str, status: RunPhase) -> Run:
    """A run in `status` whose inside has nothing against `fact`."""
    needs = {
        "a person is asked": calls.CallStatus.PROPOSED,
        "a person agrees": calls.CallStatus.ASKED,
        "a call begins": calls.CallStatus.CLEARED,
        "a call waits": calls.CallStatus.STARTED,
        "a call ends": calls.CallStatus.ASKED,
    }
    open_calls: dict[CallId, Call] = {}
    if fact in needs:
        open_calls[CALL] = Call(proposal(CALL), needs[fact])
        if status is not RunPhase.WAITING:
            open_calls[OTHER] = Call(proposal(OTHER))
    return Run(
        RUN,
        INPUT,
        1.0,
        1.0,
        status=status,
        answered=fact == "it completes",
        unread=(INPUT,) if fact.startswith("words") else (),
        calls=open_calls,
    )


@pytest.mark.parametrize("status", RunPhase)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: RunPhase, fact: str) -> None:
    run = run_about_to(fact, status)
    if status.value in ALLOWED[fact]:
        after = evolve(run, FACTS[fact], 2.0)
        assert after.status.value == ALLOWED[fact][status.value]
        assert (after.created_at, after.updated_at) == (1.0, 2.0)
    else:
        with pytest.raises(IllegalTransition, match=f"while run run is {status}"):
            evolve(run, FACTS[fact], 2.0)
        assert run == run_about_to(fact, status)


def test_a_stop_is_legal_whenever_there_is_something_to_stop() -> None:
    unfinished = {s.value for s in RunPhase if not s.final}
    assert set(ALLOWED["a person stops it"]) == unfinished
    assert set(ALLOWED["it is cancelled"]) == set(ALLOWED["it fails"]) == unfinished


def test_a_final_status_accepts_no_fact() -> None:
    final = {s.value for s in RunPhase if s.final}
    assert final == {"completed", "failed", "cancelled"}
    assert not any(final & set(legal) for legal in ALLOWED.values())


def fold(*facts: Event, at: float = 0.0) -> Run:
    run = queue(RunQueued(run_id=RUN, input_id=INPUT), at)
    for fact in facts:
        run = evolve(run, fact, at)
    return run


def test_a_run_knows_for_whom_it_works_from_its_first_fact_to_its_last() -> None:
    origin = Origin(platform="api_server", answerable=False)
    run = queue(RunQueued(run_id=RUN, input_id=INPUT, origin=origin), 0.0)
    for fact in (*BEGUN, interrupted(), *GO_ON, FACTS["it is cancelled"]):
        run = evolve(run, fact, 1.0)
        assert run.origin == origin
    assert run.status is RunPhase.CANCELLED


BEGUN: tuple[Event, ...] = (FACTS["it begins"], FACTS["words are read"])
GO_ON: tuple[Event, ...] = (FACTS["it may go on"], FACTS["it goes on"])


def test_a_run_knows_which_model_to_ask_next_until_one_answers() -> None:
    run = fold(*BEGUN, FACTS["an attempt at the model fails"])
    assert (run.attempts, run.ask_next) == (1, "c/d")
    run = evolve(run, interrupted(), 1.0)
    run = evolve(evolve(run, GO_ON[0], 1.0), GO_ON[1], 1.0)
    assert (run.attempts, run.ask_next) == (1, "c/d"), "a crash changes nothing"
    run = evolve(run, wanting(CALL), 1.0)
    assert (run.attempts, run.ask_next) == (0, "")


@pytest.mark.promise("CTX-02")
def test_a_request_that_was_too_long_is_compacted_once_and_asked_again() -> None:
    run = fold(*BEGUN)
    assert may_compact(run)
    run = evolve(run, exceeded(), 1.0)
    assert next_step(run) == Compact(1)
    run = evolve(run, compacted(), 1.0)
    assert next_step(run) == CallModel(1)
    assert not may_compact(run)
    assert run.usage == USAGE, "the summary was not free"
    run = evolve(run, wanting(CALL), 1.0)
    assert may_compact(evolve(run, settled(CALL), 1.0)), "the next turn may be compacted again"


def wanting(*call_ids: CallId, turn: int = 1) -> ModelAnswered:
    wanted = tuple(proposal(c) for c in call_ids)
    return ModelAnswered(run_id=RUN, turn=turn, text="", calls=wanted, usage=USAGE, model="m")


def test_the_straight_path_is_read_ask_the_model_settle_ask_again_complete() -> None:
    run = fold()
    assert next_step(run) == StartRun((INPUT,))
    run = evolve(run, FACTS["it begins"], 1.0)
    assert next_step(run) == Read((INPUT,))
    run = evolve(run, FACTS["words are read"], 1.0)
    assert next_step(run) == CallModel(1)
    run = evolve(run, wanting(CALL), 2.0)
    assert next_step(run) == SettleCalls((Call(proposal(CALL)),))
    run = evolve(evolve(run, FACTS["a call begins"], 3.0), settled(CALL), 4.0)
    assert next_step(run) == CallModel(2)
    run = evolve(run, ModelAnswered(run_id=RUN, turn=2, text="yes", usage=USAGE), 5.0)
    assert next_step(run) == Complete("yes")
    run = evolve(run, RunCompleted(run_id=RUN, output="yes", usage=run.usage), 6.0)
    assert next_step(run) == Rest()
    assert (run.usage, run.model, run.last_event) == (Usage(6, 8), "m", "run.completed")


def test_a_run_ends_with_the_models_answer_if_nothing_is_left_to_do() -> None:
    run = fold(*BEGUN)
    answer = ModelAnswered(run_id=RUN, turn=1, text="yes", usage=USAGE)
    (ending,) = end_with(run, answer)
    after = evolve(run, answer, 2.0)
    assert next_step(after) == Complete(ending.output)
    assert evolve(after, ending, 2.0).usage == ending.usage == after.usage
    assert end_with(run, wanting(CALL)) == ()
    assert end_with(evolve(run, FACTS["words arrive"], 2.0), answer) == ()
    assert end_with(evolve(run, FACTS["a person stops it"], 2.0), answer) == ()


def test_a_run_waits_while_every_open_call_waits_and_is_queued_when_one_can_move() -> None:
    run = fold(*BEGUN, wanting(CALL, OTHER), FACTS["a person is asked"])
    assert run.status is RunPhase.RUNNING
    assert next_step(run) == SettleCalls((Call(proposal(OTHER)),))
    run = evolve(run, CallStarted(run_id=RUN, call_id=OTHER, tool="t"), 1.0)
    run = evolve(run, CallParked(run_id=RUN, call_id=OTHER, reason="child"), 1.0)
    assert (run.status, next_step(run)) == (RunPhase.WAITING, Rest())
    run = evolve(run, settled(OTHER), 2.0)
    assert (run.status, next_step(run)) == (RunPhase.WAITING, Rest())
    run = evolve(run, FACTS["a person agrees"], 3.0)
    assert (run.status, next_step(run)) == (RunPhase.QUEUED, Resume(""))


def test_an_answer_that_comes_while_it_is_interrupted_is_kept_and_used() -> None:
    asked = fold(*BEGUN, wanting(CALL, OTHER), FACTS["a person is asked"], interrupted())
    run = evolve(evolve(asked, settled(CALL), 1.0), settled(OTHER, Outcome.UNKNOWN), 1.0)
    run = evolve(run, FACTS["it may go on"], 2.0)
    assert next_step(run) == Resume("crash")
    assert next_step(evolve(run, FACTS["it goes on"], 3.0)) == CallModel(2)


def test_a_run_whose_calls_all_wait_does_not_go_on_before_one_of_them_moves() -> None:
    asked = fold(*BEGUN, wanting(CALL, OTHER), FACTS["a person is asked"], interrupted())
    run = evolve(evolve(asked, settled(OTHER), 1.0), FACTS["it may go on"], 2.0)
    assert (run.status, next_step(run)) == (RunPhase.WAITING, Rest())
    run = evolve(run, settled(CALL), 3.0)
    assert next_step(run) == Resume("crash")  # the model still hears of the cut


def test_a_run_that_came_back_and_then_waited_goes_on_without_a_cause() -> None:
    run = fold(*BEGUN, wanting(CALL), interrupted(), *GO_ON, FACTS["a person is asked"])
    assert run.status is RunPhase.WAITING
    assert next_step(evolve(run, settled(CALL), 1.0)) == Resume("")


@pytest.mark.parametrize(
    "open_thing",
    [
        pytest.param((FACTS["it begins"],), id="unread words"),
        pytest.param(BEGUN, id="no answer yet"),
        pytest.param((*BEGUN, wanting(CALL)), id="an open call"),
        pytest.param(
            (*BEGUN, FACTS["the model answers"], FACTS["words arrive"]), id="an unread steer"
        ),
        pytest.param((*BEGUN, FACTS["the model answers"], FACTS["a person stops it"]), id="a stop"),
    ],
)
def test_a_run_cannot_complete_over(open_thing: tuple[Event, ...]) -> None:
    with pytest.raises(IllegalTransition, match="has more to do"):
        evolve(fold(*open_thing), FACTS["it completes"], 1.0)


@pytest.mark.parametrize(
    "open_thing",
    [
        pytest.param((FACTS["a person stops it"],), id="unread words"),
        pytest.param((*BEGUN, wanting(CALL), FACTS["a person stops it"]), id="an open call"),
    ],
)
def test_a_run_is_not_cancelled_before_it_has_settled(open_thing: tuple[Event, ...]) -> None:
    with pytest.raises(IllegalTransition, match="calls or inputs open"):
        evolve(fold(*open_thing), FACTS["it is cancelled"], 1.0)


def test_a_model_answer_is_illegal_while_calls_are_open() -> None:
    with pytest.raises(IllegalTransition, match="calls open"):
        fold(*BEGUN, wanting(CALL), FACTS["the model answers"])


def test_a_call_that_was_not_proposed_cannot_move() -> None:
    with pytest.raises(IllegalTransition, match="call call, which is not open in run run"):
        fold(*BEGUN, FACTS["a call begins"])


def test_the_first_stop_gives_the_reason_and_one_without_a_reason_gets_one() -> None:
    stop, again = (StopAsked(run_id=RUN, reason=r) for r in ("first", "second"))
    assert fold(stop, again).stop_reason == "first"
    assert fold(StopAsked(run_id=RUN, reason="")).stop_reason == "stopped"


def test_an_input_counts_once_whether_it_or_its_run_is_recorded_first() -> None:
    run = fold(InputAdmitted(input_id=INPUT, run_id=RUN, text="hello"))
    assert run.unread == (INPUT,)


@pytest.mark.parametrize("gone", ["words are displaced", "words may not be read"])
def test_a_steer_that_will_not_be_read_asks_for_no_further_turn(gone: str) -> None:
    steer = InputAdmitted(input_id=INPUT, run_id=RUN, text="wait")
    run = fold(*BEGUN, FACTS["the model answers"], steer)
    assert next_step(run) == Read((INPUT,))
    assert next_step(evolve(run, FACTS[gone], 1.0)) == Complete("hi")


@pytest.mark.promise("RUN-22")
def test_a_steer_accepted_after_the_final_answer_makes_another_turn() -> None:
    steer = FACTS["words arrive"]
    run = fold(*BEGUN, FACTS["the model answers"], steer)
    assert next_step(run) == Read((InputId("more"),))
    run = evolve(run, InputPromoted(input_id=InputId("more"), run_id=RUN), 1.0)
    assert next_step(run) == CallModel(2)


def cut_after(run: Run, seconds: float, *between: Event) -> Run:
    """Cut `run` so long after it was last driven, with these facts before, and let it go on."""
    at = run.driven_at + seconds
    for fact in (*between, interrupted(at)):
        run = evolve(run, fact, at)
    for fact in GO_ON:
        run = evolve(run, fact, at)
    return run


def answer(turn: int) -> tuple[Event, ...]:
    return (wanting(CALL, turn=turn), settled(CALL))


@pytest.mark.promise("BACK-07")
def test_three_quick_cuts_in_a_row_are_a_loop_even_with_progress() -> None:
    run = fold(*BEGUN)
    for n in (1, 2, 3):
        assert not stuck(run)
        run = cut_after(run, 60.0, *answer(n))
    assert stuck(run)


@pytest.mark.promise("BACK-07")
def test_three_cuts_without_progress_are_a_loop_however_long_they_took() -> None:
    run = fold(*BEGUN)
    for _ in range(3):
        assert not stuck(run)
        run = cut_after(run, 3600.0)
    assert stuck(run)


@pytest.mark.promise("BACK-07")
def test_a_call_that_ended_unknown_is_no_progress() -> None:
    run = fold(*BEGUN, wanting(CALL))
    run = cut_after(run, 61.0, FACTS["a call begins"])
    run = cut_after(run, 61.0, settled(CALL, Outcome.UNKNOWN))
    assert run.cuts == 1  # the first time it had the model's answer to show


@pytest.mark.promise("BACK-07")
def test_cuts_do_not_count_against_a_long_run_with_progress() -> None:
    run = fold(*BEGUN)
    run = cut_after(run, 1.0)
    run = cut_after(run, 1.0)
    for n in range(1, 10):
        run = cut_after(run, 60.1, *answer(n))
        assert run.cuts == 0


@pytest.mark.promise("BACK-07")
@pytest.mark.parametrize("cause", [CutCause.TERMINAL, CutCause.JOURNAL])
def test_a_cut_that_a_run_cannot_cause_does_not_count(cause: CutCause) -> None:
    run = fold(*BEGUN)
    for _ in range(5):
        cut = RunInterrupted(run_id=run.id, cause=cause, reason="", cut_at=run.driven_at)
        for fact in (cut, *GO_ON):
            run = evolve(run, fact, run.driven_at)
    assert run.cuts == 0


@pytest.mark.fault("F-33")
def test_a_call_that_is_asked_about_holds_the_later_calls_of_its_turn() -> None:
    first, second, third = (CallId(name) for name in "abc")
    asked = CallAsked(run_id=RUN, call_id=second, request_id=RequestId("q"), holds=True)
    now = fold(*BEGUN, wanting(first, second, third), asked)
    assert [call.proposal.call_id for call in movable(now)] == [first]
    assert now.status is RunPhase.RUNNING
    now = evolve(now, settled(first), 1.0)
    assert (now.status, movable(now)) == (RunPhase.WAITING, ())
    cleared = evolve(now, CallCleared(run_id=RUN, call_id=second), 1.0)
    assert cleared.status is RunPhase.QUEUED
    assert [call.proposal.call_id for call in movable(cleared)] == [second, third]
    denied = evolve(now, settled(second, Outcome.DENIED), 1.0)
    assert [call.proposal.call_id for call in movable(denied)] == [third]
    stopped = evolve(now, StopAsked(run_id=RUN, reason="enough"), 1.0)
    assert isinstance(next_step(stopped), AbortCalls)


def test_a_question_of_an_older_journal_holds_nothing() -> None:
    asked = CallAsked(run_id=RUN, call_id=CALL, request_id=RequestId("q"))
    now = fold(*BEGUN, wanting(CALL, OTHER), asked)
    assert [call.proposal.call_id for call in movable(now)] == [OTHER]


class Weather(RuleBasedStateMachine):
    """One run, driven by `next_step`, in any weather."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.run = queue(RunQueued(run_id=RUN, input_id=INPUT), self.now)
        self.journal: list[tuple[Event, float]] = []
        self.in_flight: set[CallId] = set()  # memory: gone with the process
        self.starts: Counter[CallId] = Counter()
        self.tools: dict[CallId, OnCrash] = {}
        self.stopped = False
        self.names = 0

    # What happens to it.

    def record(self, *facts: Event) -> None:
        for fact in facts:
            self.run = evolve(self.run, fact, self.now)
            self.journal.append((fact, self.now))

    def read(self, inputs: tuple[InputId, ...]) -> None:
        self.record(*(InputPromoted(input_id=i, run_id=RUN) for i in inputs))

    def name(self, what: str) -> str:
        self.names += 1
        return f"{what}{self.names}"

    @rule(seconds=st.sampled_from([0.1, 30.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: not self.run.status.final)
    @rule()
    def somebody_steers(self) -> None:
        input_id = InputId(self.name("steer"))
        self.record(InputAdmitted(input_id=input_id, run_id=RUN, text="more"))

    @precondition(lambda self: not self.run.status.final)
    @rule()
    def somebody_stops_it(self) -> None:
        self.record(StopAsked(run_id=RUN, reason="enough"))
        self.stopped = True

    @precondition(lambda self: self.run.status is RunPhase.RUNNING)
    @rule(cause=st.sampled_from(CutCause))
    def the_process_ends(self, cause: CutCause) -> None:
        self.in_flight.clear()
        self.record(interrupted(self.now, cause))

    @precondition(lambda self: self.run.status is RunPhase.INTERRUPTED)
    @rule()
    def it_may_go_on(self) -> None:
        self.record(RunRequeued(run_id=RUN))

    @precondition(lambda self: any(c.status.waiting for c in self.run.calls.values()))
    @rule(agree=st.booleans())
    def somebody_answers(self, agree: bool) -> None:
        call = next(c for c in self.run.calls.values() if c.status.waiting)
        if agree and call.status is calls.CallStatus.ASKED:
            self.record(CallCleared(run_id=RUN, call_id=call.proposal.call_id))
        else:
            self.record(settled(call.proposal.call_id, Outcome.DENIED))

    @precondition(lambda self: self.in_flight)
    @rule(parks=st.booleans())
    def a_tool_returns(self, parks: bool) -> None:
        call_id = min(self.in_flight)
        self.in_flight.remove(call_id)
        if parks:
            self.record(CallParked(run_id=RUN, call_id=call_id, reason="child"))
        else:
            self.record(settled(call_id))

    @precondition(lambda self: isinstance(next_step(self.run), CallModel) and may_compact(self.run))
    @rule()
    def the_model_refuses_the_request_as_too_long(self) -> None:
        self.record(exceeded(self.run.turn + 1))

    # What we do about it.

    @rule(
        wants=st.integers(0, 3),
        on_crash=st.sampled_from(OnCrash),
        ask=st.booleans(),
        holds=st.booleans(),
    )
    def we_take_the_next_step(
        self, wants: int, on_crash: OnCrash, ask: bool, holds: bool = False
    ) -> None:
        match next_step(self.run):
            case StartRun(inputs=inputs):
                self.record(RunStarted(run_id=RUN))
                self.read(inputs)
            case Resume(cause=cause):
                self.record(RunResumed(run_id=RUN, cause=cause))
            case Read(inputs=inputs):
                self.read(inputs)
            case CallModel(turn=turn):
                ids = [CallId(self.name("call")) for _ in range(wants)]
                self.tools |= dict.fromkeys(ids, on_crash)
                answer = wanting(*ids, turn=turn)
                self.record(answer, *end_with(self.run, answer))
            case Compact():
                self.record(compacted())
            case SettleCalls(calls=open_calls):
                assert open_calls
                self.settle_all(open_calls, ask=ask, holds=holds)
            case AbortCalls(calls=open_calls):
                self.abort(open_calls)
            case Complete(output=output):
                self.record(RunCompleted(run_id=RUN, output=output, usage=self.run.usage))
            case Cancel(reason=reason):
                self.cancel(reason)
            case Rest():
                pass

    def abort(self, open_calls: tuple[Call, ...]) -> None:
        self.in_flight.clear()
        for call in open_calls:
            ending = calls.abort(call, self.tools[call.proposal.call_id])
            self.record(settled(call.proposal.call_id, ending.outcome))

    def cancel(self, reason: str) -> None:
        for input_id in self.run.unread:
            self.record(InputSuperseded(input_id=input_id, run_id=RUN, reason=reason))
        self.record(RunCancelled(run_id=RUN, reason=reason, usage=self.run.usage))

    def settle_all(self, open_calls: tuple[Call, ...], *, ask: bool, holds: bool) -> None:
        for call in open_calls:
            self.settle(call, ask=ask, holds=holds)
            if any(c.holds for c in self.run.calls.values()):
                break

    def settle(self, call: Call, *, ask: bool, holds: bool) -> None:
        call_id = call.proposal.call_id
        if call_id in self.in_flight:
            return
        step = calls.next_step(call, self.tools[call_id])
        if ask and call.status is calls.CallStatus.PROPOSED:
            request_id = RequestId("q")
            self.record(CallAsked(run_id=RUN, call_id=call_id, request_id=request_id, holds=holds))
        elif isinstance(step, Begin):
            self.record(CallStarted(run_id=RUN, call_id=call_id, tool="t"))
            self.in_flight.add(call_id)
            self.starts[call_id] += 1
        elif isinstance(step, calls.Settle):
            self.record(settled(call_id, step.outcome))
        elif isinstance(step, Adopt):
            assert self.starts[call_id] == 1
            self.record(settled(call_id, Outcome.OK))  # the evidence says how it went

    # What always holds.

    def the_journal_tells_the_same_story(self) -> None:
        again = queue(RunQueued(run_id=RUN, input_id=INPUT), 0.0)
        for fact, at in self.journal:
            again = evolve(again, fact, at)
        assert again == self.run

    @invariant()
    def it_rests_only_when_it_is_over_or_somebody_else_must_move_it(self) -> None:
        resting = self.run.status.final or (
            self.run.status in (RunPhase.WAITING, RunPhase.INTERRUPTED) and not self.stopped
        )
        assert isinstance(next_step(self.run), Rest) is resting

    @invariant()
    def it_waits_exactly_when_all_its_open_calls_do(self) -> None:
        if self.run.status in (RunPhase.QUEUED, RunPhase.RUNNING, RunPhase.WAITING):
            order = list(self.run.calls.values())
            held = [i for i, c in enumerate(order) if c.holds]
            free = order[: held[0]] if held else order
            waits = all(c.status.waiting for c in free)
            assert (self.run.status is RunPhase.WAITING) is (bool(self.run.calls) and waits)

    @invariant()
    def a_call_that_may_have_had_effects_never_starts_twice(self) -> None:
        for call_id, starts in self.starts.items():
            assert starts == 1 or self.tools[call_id] is OnCrash.REPEAT

    @invariant()
    def a_stop_is_never_lost(self) -> None:
        if self.stopped:
            assert self.run.stop_reason == "enough"
            assert self.run.status is not RunPhase.COMPLETED

    @invariant()
    def it_says_once_that_it_begins(self) -> None:
        assert sum(isinstance(f, RunStarted) for f, _ in self.journal) <= 1

    @invariant()
    def a_completed_run_has_read_everything_and_told_the_model_everything(self) -> None:
        if self.run.status is RunPhase.COMPLETED:
            facts = [f for f, _ in self.journal]
            last_word = max(i for i, f in enumerate(facts) if isinstance(f, ModelAnswered))
            for fact in facts[last_word:]:
                assert not isinstance(fact, CallSettled | InputPromoted)
            read = [f.input_id for f in facts if isinstance(f, InputPromoted)]
            admitted = [f.input_id for f in facts if isinstance(f, InputAdmitted)]
            assert sorted(read) == sorted([INPUT, *admitted])

    @override
    def teardown(self) -> None:
        """Never stuck: once the weather is calm, every run comes to its end."""
        for _ in range(60):
            if any(c.status.waiting for c in self.run.calls.values()) and not self.stopped:
                self.somebody_answers(agree=True)
            elif self.in_flight and not self.stopped:
                self.a_tool_returns(parks=False)
            elif self.run.status is RunPhase.INTERRUPTED and not self.stopped:
                self.it_may_go_on()
            else:
                self.we_take_the_next_step(wants=0, on_crash=OnCrash.UNKNOWN, ask=False)
        assert self.run.status is (RunPhase.CANCELLED if self.stopped else RunPhase.COMPLETED)
        self.the_journal_tells_the_same_story()
        self.a_completed_run_has_read_everything_and_told_the_model_everything()


TestWeather = Weather.TestCase
TestWeather.settings = settings(
    max_examples=150, phases=set(Phase) - {Phase.explain}, deadline=None
)
