"""A session comes back: its runs in order, its mark true, its transcript whole.

First every status meets every fact and the policies are spelled out; then a session
with several runs lives through posts, steers, stops, drains and crashes.
"""

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace
from typing_extensions import override

from holdfast.core.address import Address, ChatType, Key, KeyBound, Why
from holdfast.core.address import current as current_session
from holdfast.core.approval.approval import Grant, Level, PostureSeen, Standing
from holdfast.core.approval.rules import HostRule
from holdfast.core.chat import chats
from holdfast.core.chat.chats import HomeChosen
from holdfast.core.chat.delivery import SendStarted
from holdfast.core.events import MessageDelta, ToolProgress
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputRefused, InputSuperseded
from holdfast.core.messages import Assistant, Message, Proposal, ToolResult, User
from holdfast.core.run import call as calls
from holdfast.core.run.call import CallParked, CallSettled, CallStarted, OnCrash, Outcome
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.process import ProcessEnd as EndCause
from holdfast.core.run.process import ProcessEnded, ProcessMatched, ProcessStarted
from holdfast.core.run.quarantine import Judgement, QuarantineVerdict
from holdfast.core.run.run import (
    AbortCalls,
    CallModel,
    Cancel,
    Compact,
    Complete,
    CutCause,
    ModelAnswered,
    Read,
    Rest,
    Resume,
    Run,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunQueued,
    RunRequeued,
    RunResumed,
    RunStarted,
    SettleCalls,
    StartRun,
    StopAsked,
    next_step,
)
from holdfast.core.run.run import RunPhase as RunStatus
from holdfast.core.session.history import MESSAGE_FACTS, Transcript
from holdfast.core.session.recovery import recover
from holdfast.core.session.session import (
    Event,
    Mark,
    ModelChosen,
    OnStart,
    Session,
    SessionOpened,
    SessionReopened,
    SessionReset,
    SessionSeeded,
    SessionStatus,
    SessionSuspended,
    SessionTitled,
    admit,
    clear_mark,
    current,
    evolve,
    evolve_lasting,
    mark,
    requeue_interrupted,
    stop,
)
from holdfast.core.types import (
    OPERATOR,
    CallId,
    DeliveryId,
    Fact,
    InputId,
    ProcessId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)
from holdfast.errors import IllegalTransition, Refused

KEY = SessionKey(OPERATOR, SessionId("s"))
A, B = RunId("a"), RunId("b")
CALL = CallId("call")

FACTS: dict[str, Event] = {
    "it opens": SessionOpened(session_id="s", workspace="/w", platform="cli"),
    "it is suspended": SessionSuspended(reason="stuck"),
    "it begins afresh": SessionReset(reason="suspended"),
    "it is brought back": SessionReopened(by=OPERATOR),
}
ALLOWED = {
    ("open", "it opens"): "open",
    ("open", "it is suspended"): "suspended",
    ("open", "it begins afresh"): "open",
    ("suspended", "it is suspended"): "suspended",
    ("suspended", "it begins afresh"): "open",
    ("suspended", "it is brought back"): "open",
}


def test_a_compaction_that_a_user_asked_for_belongs_to_no_run() -> None:
    session = Session(KEY)
    done = HistoryCompacted(upto=0, summary="", reason="asked")
    assert evolve(session, done, 1.0) is session


@pytest.mark.parametrize("status", SessionStatus)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: SessionStatus, fact: str) -> None:
    session = Session(KEY, status=status)
    if (status.value, fact) in ALLOWED:
        assert evolve(session, FACTS[fact], 1.0).status.value == ALLOWED[status.value, fact]
    else:
        with pytest.raises(IllegalTransition, match=f"while session s is {status}"):
            evolve(session, FACTS[fact], 1.0)
        assert session == Session(KEY, status=status)


def test_a_session_is_never_over() -> None:
    assert not any(s.final for s in SessionStatus)


def test_the_workspace_and_the_reason_of_a_suspension_are_kept() -> None:
    session = fold(FACTS["it opens"], FACTS["it is suspended"], SessionSuspended(reason="again"))
    assert (session.workspace, session.platform) == ("/w", "cli")
    assert session.suspended_for == "stuck"
    assert evolve(session, FACTS["it begins afresh"], 1.0).suspended_for == ""


def fold(*facts: Fact, at: float = 0.0, session: Session | None = None) -> Session:
    session = session or Session(KEY)
    for fact in facts:
        session = evolve(session, fact, at)
    return session


def posted(run_id: RunId) -> tuple[Fact, ...]:
    input_id = InputId(f"input-{run_id}")
    return (
        InputAdmitted(input_id=input_id, run_id=run_id, text=f"words for {run_id}"),
        RunQueued(run_id=run_id, input_id=input_id),
    )


def begun(run_id: RunId) -> tuple[Fact, ...]:
    promoted = InputPromoted(input_id=InputId(f"input-{run_id}"), run_id=run_id)
    return (*posted(run_id), RunStarted(run_id=run_id), promoted)


def marked(run_id: RunId, cause: CutCause, at: float) -> RunInterrupted:
    return RunInterrupted(run_id=run_id, cause=cause, reason="Gateway shutting down", cut_at=at)


def completed(run_id: RunId) -> tuple[Fact, ...]:
    return (
        ModelAnswered(run_id=run_id, turn=1, text="done"),
        RunCompleted(run_id=run_id, output="done", usage=Usage()),
    )


@pytest.mark.parametrize(
    "fact",
    [
        MessageDelta(run_id=A, turn=1, text="he"),
        ToolProgress(run_id=A, turn=1, call_id=CALL, text="10 %"),
        SendStarted(delivery_id=DeliveryId("out")),
    ],
)
def test_facts_of_other_machines_change_nothing_here(fact: Fact) -> None:
    session = fold(*begun(A))
    assert evolve(session, fact, 9.0) == session


@pytest.mark.parametrize(
    "fact",
    [
        RunStarted(run_id=B),
        InputPromoted(input_id=InputId("input-a"), run_id=B),
        InputSuperseded(input_id=InputId("nobody"), run_id=A, reason="stopped"),
        InputRefused(input_id=InputId("nobody"), run_id=A, reason="blocked"),
        *posted(A)[1:],
    ],
)
def test_facts_about_what_is_not_there_are_illegal_and_change_nothing(fact: Fact) -> None:
    session = fold(*posted(A))
    with pytest.raises(IllegalTransition):
        evolve(session, fact, 1.0)
    assert session == fold(*posted(A))


@pytest.mark.promise("RUN-23")
def test_runs_of_one_session_go_one_after_the_other_in_order() -> None:
    session = fold(*posted(A), *posted(B))
    first = current(session)
    assert first is not None and first.id == A
    session = fold(*begun(A)[2:], *completed(A), session=session)
    second = current(session)
    assert second is not None and second.id == B
    assert session.ended is not None and session.ended.id == A
    assert current(fold()) is None


def test_unread_inputs_are_known_and_given_up_by_id() -> None:
    session = fold(*begun(A), InputAdmitted(input_id=InputId("steer"), run_id=A, text="also"))
    assert session.runs[A].unread == (InputId("steer"),)
    session = fold(
        InputSuperseded(input_id=InputId("steer"), run_id=A, reason="stopped"), session=session
    )
    assert (session.runs[A].unread, dict(session.inputs)) == ((), {})


def test_a_refused_input_is_not_waited_for_by_its_run() -> None:
    refused = InputRefused(input_id=InputId("input-a"), run_id=A, reason="blocked")
    session = fold(*posted(A), refused)
    assert (session.runs[A].unread, dict(session.inputs)) == ((), {})


def test_an_input_can_be_refused_before_it_has_a_run() -> None:
    refused = InputRefused(input_id=InputId("input-a"), run_id=A, reason="blocked")
    assert fold(posted(A)[0], refused) == Session(KEY)


@pytest.mark.promise("BACK-03")
@pytest.mark.parametrize(
    ("cause", "word"),
    [
        (CutCause.RESTART, "restart_timeout"),
        (CutCause.SHUTDOWN, "shutdown_timeout"),
        (CutCause.CRASH, "crash"),
    ],
)
def test_the_mark_keeps_its_reason_and_its_time(cause: CutCause, word: str) -> None:
    session = fold(*begun(A), marked(A, cause, 7.0))
    assert session.mark == Mark(cause, "Gateway shutting down", 7.0)
    assert session.mark.cause == word
    assert fold(RunRequeued(run_id=A), session=session, at=99.0).mark == session.mark


@pytest.mark.promise("BACK-03")
def test_a_crash_is_marked_at_the_last_sign_of_life() -> None:
    session = fold(*begun(A))
    session = fold(*recover(session, OnStart.WAIT, cut_at=41.5), session=session, at=99.0)
    assert session.mark is not None
    assert (session.mark.cause, session.mark.at) == (CutCause.CRASH, 41.5)


@pytest.mark.promise("BACK-04")
@pytest.mark.parametrize(
    "ending",
    [
        RunFailed(run_id=A, code="c", error="e", usage=Usage()),
        RunCancelled(run_id=A, reason="stopped", usage=Usage()),
    ],
)
def test_only_a_run_that_completed_clears_the_mark(ending: Fact) -> None:
    session = fold(*begun(A), marked(A, CutCause.SHUTDOWN, 7.0), ending, *begun(B))
    assert session.mark is not None
    assert fold(*completed(B), session=session).mark is None


@pytest.mark.promise("BACK-12")
def test_a_mark_can_be_dropped_by_hand_with_its_reason_and_its_time() -> None:
    marked_one = fold(*begun(A), marked(A, CutCause.SHUTDOWN, 7.0))
    facts = clear_mark(marked_one, OPERATOR)
    assert fold(*facts, session=marked_one) == replace(marked_one, mark=None)


@pytest.mark.promise("BACK-12")
def test_a_mark_can_be_set_by_hand_and_one_that_stands_stays() -> None:
    session = fold(*begun(A), *completed(A))
    session = fold(*mark(session), session=session, at=8.0)
    assert session.mark == Mark(CutCause.RESTART, "Marked by the operator", 8.0)
    assert mark(session) == ()


@pytest.mark.promise("BACK-12")
def test_marking_or_clearing_what_is_unknown_or_has_no_mark_changes_nothing_and_says_so() -> None:
    with pytest.raises(Refused, match="no such session. Nothing changed"):
        mark(None)
    with pytest.raises(Refused, match="no such session. Nothing changed"):
        clear_mark(None, OPERATOR)
    with pytest.raises(Refused, match="no mark. Nothing changed"):
        clear_mark(fold(*begun(A)), OPERATOR)


@pytest.mark.promise("BACK-05")
def test_a_suspended_session_cannot_be_marked() -> None:
    with pytest.raises(Refused, match="suspended") as refused:
        mark(fold(FACTS["it is suspended"]))
    assert refused.value.code == "session_suspended"


def held_by(policy: OnStart, verdict: QuarantineVerdict, found: Session) -> Session:
    judgement = Judgement({A: verdict}, hold_until=9.0)
    facts = recover(found, policy, 7.0, CutCause.CRASH, judgement)
    return fold(*facts, session=found)


@pytest.mark.promise("BACK-07")
@pytest.mark.parametrize("policy", OnStart)
def test_a_run_that_is_held_goes_on_neither_by_itself_nor_with_the_next_message(
    policy: OnStart,
) -> None:
    session = held_by(policy, QuarantineVerdict.HOLD, RUNNING)
    run = session.runs[A]
    assert (run.status, run.held_until) == (RunStatus.INTERRUPTED, 9.0)
    assert requeue_interrupted(session) == () and next_step(run) == Rest()
    assert held_by(policy, QuarantineVerdict.GO_ON, session) == session
    stopped = fold(StopAsked(run_id=A, reason="enough"), session=session)
    assert next_step(stopped.runs[A]) == Cancel("enough")


@pytest.mark.promise("BACK-07")
def test_a_cleared_run_goes_on_and_its_cuts_are_reset() -> None:
    session = held_by(OnStart.RESUME, QuarantineVerdict.HOLD, RUNNING)
    solved = recover(session, OnStart.RESUME, 8.0, CutCause.CRASH, Judgement(solved=True))
    run = fold(*solved, session=session).runs[A]
    assert (run.status, run.cuts, run.held_until) == (RunStatus.QUEUED, 0, 0.0)


@pytest.mark.promise("BACK-07")
def test_a_start_that_was_cut_can_still_hold_or_isolate_what_it_let_go_on() -> None:
    queued = held_by(OnStart.RESUME, QuarantineVerdict.GO_ON, RUNNING)
    assert queued.runs[A].status is RunStatus.QUEUED
    assert held_by(OnStart.RESUME, QuarantineVerdict.HOLD, queued).runs[A].held_until == 9.0
    isolated = held_by(OnStart.RESUME, QuarantineVerdict.ISOLATE, queued)
    assert isolated.runs[A].isolated and isolated.runs[A].status is RunStatus.QUEUED
    assert held_by(OnStart.RESUME, QuarantineVerdict.ISOLATE, isolated) == isolated


def test_facts_of_runs_that_ended_are_recalled_for_the_mark_alone() -> None:
    session = Session(KEY)
    session = evolve_lasting(session, RunStarted(run_id=A))
    assert session == Session(KEY)
    session = evolve_lasting(session, marked(A, CutCause.CRASH, 7.0))
    assert session == Session(KEY, mark=Mark(CutCause.CRASH, "Gateway shutting down", 7.0))
    assert evolve_lasting(session, completed(A)[1]) == Session(KEY)


def settled_in(cwd: str) -> CallSettled:
    return CallSettled(
        run_id=A, call_id=CALL, tool="terminal", outcome=Outcome.OK, text="", cwd=cwd
    )


def test_the_next_command_starts_where_the_last_one_ended_also_in_the_next_run() -> None:
    wants = ModelAnswered(run_id=A, turn=1, text="", calls=(Proposal(CALL, "terminal", "{}"),))
    begins = CallStarted(run_id=A, call_id=CALL, tool="terminal")
    session = fold(*begun(A), wants, begins, settled_in("/w/src"))
    assert session.cwd == "/w/src"
    assert fold(*completed(A), *begun(B), session=session).cwd == "/w/src"


def test_a_call_of_a_run_that_ended_is_recalled_for_where_it_was_if_it_was_anywhere() -> None:
    session = evolve_lasting(Session(KEY), settled_in("/w/src"))
    assert session == Session(KEY, cwd="/w/src")
    assert evolve_lasting(session, settled_in("")) == session


def granted(host: str, expires_at: float) -> Grant:
    return Grant(permission=HostRule(name=host), session=KEY, user=OPERATOR, expires_at=expires_at)


@pytest.mark.promise("RUN-13")
def test_grants_outlive_their_run_and_make_way_for_others_once_they_ran_out() -> None:
    first, second, third = granted("a", 10.0), granted("b", 20.0), granted("c", 30.0)
    session = fold(*begun(A), first, second, *completed(A), at=1.0)
    assert session.grants == (first, second)
    assert fold(third, session=session, at=9.9).grants == (first, second, third)
    assert fold(third, session=session, at=10.0).grants == (second, third)
    assert fold(SessionReset(reason="suspended"), session=session).grants == ()


@pytest.mark.promise("RUN-13")
def test_a_standing_rule_is_there_once_until_it_is_revoked() -> None:
    a, b = HostRule(name="a"), HostRule(name="b")
    session = fold(*(Standing(permission=p, by=OPERATOR) for p in (a, b, a)))
    assert sorted(session.standing, key=str) == [a, b]
    session = fold(Standing(permission=a, by=OPERATOR, revoked=True), session=session)
    assert session.standing == (b,)
    assert fold(Standing(permission=a, by=OPERATOR, revoked=True), session=session) == session


def test_the_sandbox_level_is_the_last_one_seen() -> None:
    assert fold().posture is None
    seen = (PostureSeen(level=Level.L2), PostureSeen(level=Level.L1))
    assert fold(*seen).posture is Level.L1


def test_a_process_outlives_the_run_that_began_it() -> None:
    name = ProcessId("proc")
    began = ProcessStarted(process_id=name, started_by=A, call_id=CALL, command="make")
    session = fold(*begun(A), began, *completed(A), at=3.0)
    assert session.runs == {} and session.processes[name].started_at == 3.0
    session = fold(ProcessMatched(process_id=name, offset=5, lines="x"), session=session, at=4.0)
    assert session.processes[name].matched_at == 4.0
    ended = ProcessEnded(process_id=name, cause=EndCause.EXITED, exit_code=0)
    assert fold(ended, session=session).processes[name].ended == ended
    with pytest.raises(IllegalTransition):
        fold(ended, session=Session(KEY))


@pytest.mark.promise("BACK-05")
def test_a_suspended_session_that_is_brought_back_is_as_it_was() -> None:
    grant, cut = granted("a", 10.0), marked(A, CutCause.CRASH, 7.0)
    failed = RunFailed(run_id=A, code="stuck", error="e", usage=Usage())
    before = fold(*posted(A), RunStarted(run_id=A), grant, cut, *give_up_all(A), failed)
    before = replace(before, cwd="/w/src")
    after = fold(FACTS["it is suspended"], SessionReopened(by=OPERATOR), session=before)
    assert after == before
    assert after.mark is not None and after.grants == (grant,)
    assert admit(after) == ()


def give_up_all(run_id: RunId) -> tuple[Fact, ...]:
    input_id = InputId(f"input-{run_id}")
    return (InputSuperseded(input_id=input_id, run_id=run_id, reason="stuck"),)


def test_the_model_chosen_last_is_the_session_s_until_none_is() -> None:
    assert fold().model == ""
    session = fold(ModelChosen(model="p/a", by=OPERATOR), ModelChosen(model="p/b", by=OPERATOR))
    assert session.model == "p/b"
    assert fold(SessionReset(reason="suspended"), session=session).model == "p/b"
    assert fold(ModelChosen(model="", by=OPERATOR), session=session).model == ""


def naming(run_id: RunId, *hosts: str) -> InputAdmitted:
    name = InputId(f"input-{run_id}")
    return InputAdmitted(input_id=name, run_id=run_id, text="see there", hosts=hosts)


def test_a_session_is_called_what_it_was_called_last_until_it_has_no_name() -> None:
    session = fold(FACTS["it opens"])
    assert session.title == ""
    session = fold(
        SessionTitled(title="one", by=OPERATOR),
        SessionTitled(title="two", by=OPERATOR),
        SessionReset(reason="suspended"),
        session=session,
    )
    assert session.title == "two"
    assert fold(SessionTitled(title="", by=OPERATOR), session=session).title == ""


def test_a_seed_changes_only_the_transcript() -> None:
    session = fold(FACTS["it opens"])
    assert fold(SessionSeeded(messages=(User("x"),), source="x"), session=session) == session


def test_the_hosts_its_people_named_add_up_also_from_runs_that_have_ended() -> None:
    first, second, third = naming(A, "a", "b"), naming(B, "b", "c"), naming(B)
    session = fold(first, RunQueued(run_id=A, input_id=first.input_id), second)
    assert session.hosts == {"a", "b", "c"}
    joined = InputAdmitted(input_id=InputId("more"), run_id=A, text="d", hosts=("d",))
    assert fold(joined, session=session).hosts == {"a", "b", "c", "d"}
    cold = Session(KEY)
    for fact in (first, second, third):
        cold = evolve_lasting(cold, fact)
    assert cold == Session(KEY, hosts=frozenset({"a", "b", "c"}))


def test_chat_facts_are_folded_in_their_own_session() -> None:
    bound = KeyBound(key=Key("k"), session_id=SessionId("k"), reason=Why.FIRST)
    home = HomeChosen(
        address=Address(platform="tg", chat_type=ChatType.DIRECT, chat="7"), by=OPERATOR
    )
    kept = fold(bound, home, at=3.0).chats
    assert kept == chats.evolve(chats.evolve(chats.Chats(), bound, 3.0), home, 3.0)
    assert kept.home == home.address and current_session(kept.keys, Key("k")) == "k"


def kinds(facts: tuple[Fact, ...]) -> list[str]:
    return [type(f).__name__ for f in facts]


RUNNING = fold(*begun(A))
MARKED = fold(*begun(A), marked(A, CutCause.SHUTDOWN, 7.0))
CRASHED = fold(*begun(A), marked(A, CutCause.CRASH, 7.0))


@pytest.mark.promise("BACK-09")
@pytest.mark.parametrize(
    ("found", "policy", "said"),
    [
        pytest.param(RUNNING, OnStart.RESUME, "RunInterrupted RunRequeued", id="crash, resume"),
        pytest.param(RUNNING, OnStart.WAIT, "RunInterrupted", id="crash, wait"),
        pytest.param(
            RUNNING,
            OnStart.SUSPEND,
            "RunInterrupted RunFailed SessionSuspended",
            id="crash, suspend",
        ),
        pytest.param(MARKED, OnStart.RESUME, "RunRequeued", id="marked, resume"),
        pytest.param(MARKED, OnStart.WAIT, "", id="marked, wait"),
        pytest.param(MARKED, OnStart.SUSPEND, "", id="marked, suspend"),
        pytest.param(
            CRASHED, OnStart.SUSPEND, "RunFailed SessionSuspended", id="crashed earlier, suspend"
        ),
        pytest.param(fold(*posted(A)), OnStart.SUSPEND, "", id="never begun"),
        pytest.param(fold(), OnStart.SUSPEND, "", id="nothing there"),
    ],
)
def test_the_policy_decides_for_runs_that_were_cut(
    found: Session, policy: OnStart, said: str
) -> None:
    facts = recover(found, policy, cut_at=7.0)
    assert kinds(facts) == said.split()
    assert recover(fold(*facts, session=found), policy, cut_at=7.0) == ()


@pytest.mark.promise("BACK-09")
def test_a_run_that_waits_for_the_user_goes_on_with_the_next_message() -> None:
    assert requeue_interrupted(MARKED) == (RunRequeued(run_id=A),)
    assert requeue_interrupted(RUNNING) == ()


def test_a_suspended_session_is_reset_by_its_next_message() -> None:
    assert admit(fold()) == ()
    suspended = fold(FACTS["it is suspended"])
    assert fold(*admit(suspended), session=suspended).status is SessionStatus.OPEN


@pytest.mark.promise("BACK-10")
def test_a_call_in_flight_is_in_doubt_after_the_crash_and_the_run_keeps_its_id() -> None:
    wants = ModelAnswered(run_id=A, turn=1, text="", calls=(Proposal(CALL, "write_file", "{}"),))
    session = fold(*begun(A), wants, CallStarted(run_id=A, call_id=CALL, tool="write_file"))
    session = fold(*recover(session, OnStart.RESUME, 1.0), session=session)
    run = current(session)
    assert run is not None and run.id == A
    assert run.calls[CALL].status is calls.CallStatus.DOUBTFUL
    assert (run.turn, next_step(run)) == (1, Resume("crash"))


def crash(session: Session, times: int) -> Session:
    """Crash at once, come back, go on; so many times. The last start only recovers."""
    for n in range(times):
        session = fold(*recover(session, OnStart.RESUME, cut_at=0.0), session=session)
        run = current(session)
        if n + 1 < times and run is not None and run.status is RunStatus.QUEUED:
            session = fold(RunResumed(run_id=run.id, cause="crash"), session=session)
    return session


@pytest.mark.promise("BACK-07")
def test_three_crashes_in_a_row_suspend_the_session_and_no_other() -> None:
    innocent = fold(*begun(B))
    assert crash(RUNNING, 2).status is SessionStatus.OPEN
    session = crash(RUNNING, 3)
    assert (session.status, session.suspended_for) == (SessionStatus.SUSPENDED, "stuck")
    assert session.ended is not None and session.ended.status is RunStatus.FAILED
    assert current(session) is None
    assert crash(innocent, 1).status is SessionStatus.OPEN


@pytest.mark.promise("BACK-07")
def test_a_run_given_up_says_so_and_leaves_no_input_behind() -> None:
    steer = InputAdmitted(input_id=InputId("steer"), run_id=A, text="also")
    twice = fold(RunResumed(run_id=A, cause="crash"), steer, session=crash(RUNNING, 2))
    facts = recover(twice, OnStart.RESUME, cut_at=0.0)
    assert kinds(facts) == [
        "RunInterrupted",
        "InputSuperseded",
        "RunFailed",
        "SessionSuspended",
    ]
    failed = facts[2]
    assert isinstance(failed, RunFailed)
    assert failed.code == "stuck" and "3 times in a row" in failed.error
    assert dict(fold(*facts, session=twice).inputs) == {}


@pytest.mark.promise("BACK-07")
def test_messages_queued_behind_a_stuck_run_are_the_next_message() -> None:
    session = crash(fold(*begun(A), *posted(B)), 3)
    run = current(session)
    assert run is not None and (run.id, next_step(run)) == (B, StartRun(run.unread))
    assert (session.status, session.mark) == (SessionStatus.OPEN, None)  # B reads nothing of A


@pytest.mark.promise("RUN-14")
def test_a_stop_ends_a_run_in_the_queue_at_once_and_asks_one_that_has_begun() -> None:
    session = fold(*begun(A), *posted(B))
    assert stop(session, A, "enough") == (StopAsked(run_id=A, reason="enough"),)
    facts = stop(session, B, "enough")
    assert kinds(facts) == ["StopAsked", "InputSuperseded", "RunCancelled"]
    session = fold(*facts, session=session)
    assert (list(session.runs), dict(session.inputs)) == ([A], {})


def test_a_stop_outranks_the_stuck_rule_and_every_policy() -> None:
    for policy in OnStart:
        session = fold(RunResumed(run_id=A, cause="crash"), session=crash(RUNNING, 2))
        session = fold(StopAsked(run_id=A, reason="enough"), session=session)
        session = fold(*recover(session, policy, cut_at=0.0), session=session)
        run = current(session)
        assert run is not None and next_step(run) == Cancel("enough")
        assert session.status is SessionStatus.OPEN


def open_calls(messages: list[Message]) -> set[CallId]:
    """The calls that wait for a result, if the conversation is one a provider takes."""
    waiting: set[CallId] = set()
    for message in messages:
        if isinstance(message, ToolResult):
            waiting.remove(message.call_id)
            continue
        assert not waiting
        if isinstance(message, Assistant):
            waiting = {c.call_id for c in message.calls}
    return waiting


class Life(RuleBasedStateMachine):
    """One session with everything that can happen to it, and its transcript beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.session = Session(KEY)
        self.transcript = Transcript()
        self.cold = Transcript()  # as a session reads itself that was not in memory
        self.journal: list[tuple[Fact, float]] = []
        self.in_flight: set[CallId] = set()
        self.starts: dict[CallId, int] = {}
        self.on_crash: dict[CallId, OnCrash] = {}
        self.names = 0

    @property
    def facts(self) -> list[Fact]:
        return [f for f, _ in self.journal]

    @property
    def run(self) -> Run | None:
        return current(self.session)

    def record(self, *facts: Fact) -> None:
        for fact in facts:
            before = self.session
            self.session = evolve(before, fact, self.now)
            self.journal.append((fact, self.now))
            self.transcript.add(fact)
            if isinstance(fact, MESSAGE_FACTS):
                self.cold.add(fact)
            if before.mark and not self.session.mark:
                assert isinstance(fact, RunCompleted | SessionReset)
            self.what_the_model_reads_is_always_whole()

    def name(self, what: str) -> str:
        self.names += 1
        return f"{what}-{self.names}"

    # What happens to it.

    @rule(seconds=st.sampled_from([1.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def somebody_writes(self) -> None:
        run_id = RunId(self.name("run"))
        self.record(*admit(self.session), *requeue_interrupted(self.session), *posted(run_id))

    @precondition(lambda self: self.run)
    @rule()
    def somebody_steers(self) -> None:
        assert self.run
        name = self.name("steer")
        steer = InputAdmitted(input_id=InputId(name), run_id=self.run.id, text=name)
        self.record(*requeue_interrupted(self.session), steer)

    @precondition(lambda self: self.run)
    @rule(last=st.booleans(), at_once=st.booleans())
    def somebody_stops_a_run(self, last: bool, at_once: bool) -> None:
        run_id = list(self.session.runs)[-1 if last else 0]
        asked = StopAsked(run_id=run_id, reason="enough")
        self.record(*(stop(self.session, run_id, "enough") if at_once else (asked,)))

    @rule(policy=st.sampled_from(OnStart), courteous=st.booleans())
    def the_process_ends_and_starts(self, policy: OnStart, courteous: bool) -> None:
        if courteous:
            running = [r for r in self.session.runs.values() if r.status is RunStatus.RUNNING]
            self.record(*(marked(r.id, CutCause.SHUTDOWN, self.now) for r in running))
        self.in_flight.clear()
        self.record(*recover(self.session, policy, self.now))
        assert recover(self.session, policy, self.now) == ()
        assert not any(r.status is RunStatus.RUNNING for r in self.session.runs.values())

    @precondition(lambda self: self.in_flight)
    @rule(parks=st.booleans())
    def a_tool_returns(self, parks: bool) -> None:
        assert self.run
        call_id = min(self.in_flight)
        self.in_flight.remove(call_id)
        if parks:
            self.record(CallParked(run_id=self.run.id, call_id=call_id, reason="child"))
        else:
            self.settle(self.run.id, call_id, Outcome.OK)

    @precondition(lambda self: self.run and self.run.calls)
    @rule()
    def somebody_answers(self) -> None:
        assert self.run
        for call in list(self.run.calls.values()):
            if call.status.waiting:
                self.settle(self.run.id, call.proposal.call_id, Outcome.OK)

    # What we do about it.

    def settle(self, run_id: RunId, call_id: CallId, outcome: Outcome) -> None:
        self.record(
            CallSettled(
                run_id=run_id, call_id=call_id, tool="t", outcome=outcome, text=f"of {call_id}"
            )
        )

    @rule(
        wants=st.integers(0, 2),
        steps=st.integers(1, 5),
        on_crash=st.sampled_from([OnCrash.UNKNOWN, OnCrash.ADOPT]),
    )
    def we_take_the_next_steps(
        self, wants: int, steps: int, on_crash: OnCrash = OnCrash.UNKNOWN
    ) -> None:
        for _ in range(steps):
            if self.run:
                self.step(self.run, wants, on_crash)

    def step(self, run: Run, wants: int, on_crash: OnCrash) -> None:
        match next_step(run):
            case StartRun(inputs=inputs):
                read = (InputPromoted(input_id=i, run_id=run.id) for i in inputs)
                self.record(RunStarted(run_id=run.id), *read)
            case Resume(cause=cause):
                self.record(RunResumed(run_id=run.id, cause=cause))
            case Read(inputs=inputs):
                self.record(*(InputPromoted(input_id=i, run_id=run.id) for i in inputs))
            case CallModel(turn=turn):
                ids = [CallId(self.name("call")) for _ in range(wants)]
                wanted = tuple(Proposal(i, "t", "{}") for i in ids)
                self.on_crash.update(dict.fromkeys(ids, on_crash))
                self.record(ModelAnswered(run_id=run.id, turn=turn, text="hm", calls=wanted))
            case SettleCalls(calls=movable):
                for call in movable:
                    self.begin_or_settle(run.id, call)
            case AbortCalls(calls=all_open):
                self.in_flight.clear()
                for call in all_open:
                    ending = calls.abort(call, self.on_crash[call.proposal.call_id])
                    self.settle(run.id, call.proposal.call_id, ending.outcome)
            case Complete(output=output):
                self.record(RunCompleted(run_id=run.id, output=output, usage=run.usage))
            case Cancel(reason=reason):
                self.record(
                    *(
                        InputSuperseded(input_id=i, run_id=run.id, reason=reason)
                        for i in self.session.runs[run.id].unread
                    ),
                    RunCancelled(run_id=run.id, reason=reason, usage=run.usage),
                )
            case Rest() | Compact():
                pass

    def begin_or_settle(self, run_id: RunId, call: calls.Call) -> None:
        call_id = call.proposal.call_id
        if call_id in self.in_flight:
            return
        match calls.next_step(call, self.on_crash[call_id]):
            case calls.Begin():
                self.starts[call_id] = self.starts.get(call_id, 0) + 1
                self.in_flight.add(call_id)
                self.record(CallStarted(run_id=run_id, call_id=call_id, tool="t"))
            case calls.Settle(outcome=outcome):
                self.settle(run_id, call_id, outcome)
            case calls.Adopt():
                assert self.starts[call_id] == 1 and call.status is calls.CallStatus.DOUBTFUL
                self.settle(run_id, call_id, Outcome.OK)  # the evidence says how it went
            case calls.LeaveCall():
                raise AssertionError("a call that waits is not ours to move")

    # What always holds.

    def what_the_model_reads_is_always_whole(self) -> None:
        messages = self.transcript.for_model()
        assert open_calls(messages) == set()
        assert self.cold.for_model() == messages

    @invariant()
    def only_the_first_run_was_ever_driven(self) -> None:
        assert not any(r.driven for r in list(self.session.runs.values())[1:])

    @invariant()
    def every_waiting_input_has_an_open_run_that_will_read_it(self) -> None:
        expected = [i for r in self.session.runs.values() for i in r.unread]
        assert sorted(self.session.inputs) == sorted(expected)

    @invariant()
    def no_call_starts_twice(self) -> None:
        assert set(self.starts.values()) <= {1}

    @invariant()
    def every_result_reaches_the_model_as_it_was(self) -> None:
        told = {m.call_id: m.text for m in self.transcript.messages if isinstance(m, ToolResult)}
        fresh = self.since_the_last_reset()
        results = {f.call_id: f.text for f in fresh if isinstance(f, CallSettled)}
        assert {k: told[k] for k in results} == results

    def since_the_last_reset(self) -> list[Fact]:
        facts = self.facts
        resets = [i for i, f in enumerate(facts) if isinstance(f, SessionReset)]
        return facts[resets[-1] :] if resets else facts

    @invariant()
    def words_stand_where_they_were_read(self) -> None:
        words = {f.input_id: f.text for f in self.facts if isinstance(f, InputAdmitted)}
        read = [f for f in self.since_the_last_reset() if isinstance(f, InputPromoted)]
        users = [m.text for m in self.transcript.messages if isinstance(m, User)]
        assert users == [words[f.input_id] for f in read]

    @invariant()
    def the_model_is_told_of_a_cut_at_most_once_at_a_time(self) -> None:
        texts = [m.text for m in self.transcript.for_model()]
        assert sum(t.count("[System note:") for t in texts) <= 1

    @override
    def teardown(self) -> None:
        """Never stuck: in calm weather every accepted input is read by a run that ends."""
        for _ in range(200):
            run = self.run
            if run is None:
                break
            if self.in_flight and not run.stop_reason:
                self.a_tool_returns(parks=False)
            elif any(c.status.waiting for c in run.calls.values()):
                self.somebody_answers()
            elif run.status is RunStatus.INTERRUPTED and not run.stop_reason:
                self.record(*requeue_interrupted(self.session))
            else:
                self.we_take_the_next_steps(wants=0, steps=1)
        assert not self.session.runs and not self.session.inputs
        again = Session(KEY)
        for fact, at in self.journal:
            again = evolve(again, fact, at)
        assert again == self.session
        ends = [f for f in self.facts if isinstance(f, RunCompleted | RunFailed | RunCancelled)]
        queued = [f.run_id for f in self.facts if isinstance(f, RunQueued)]
        assert sorted(f.run_id for f in ends) == sorted(queued)
        stopped = {f.run_id for f in self.facts if isinstance(f, StopAsked)}
        for end in ends:
            assert not (isinstance(end, RunCompleted) and end.run_id in stopped)
            assert isinstance(end, RunCancelled) is (end.run_id in stopped)


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=200, phases=set(Phase) - {Phase.explain}, deadline=None)
