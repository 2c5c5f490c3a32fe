"""Words are placed by mode and by speaker, and none is ever lost on the way to the model.

First every situation meets every mode; then one or two people talk, in any mode, while runs
start, ask, are cut, are stopped and fail.
"""

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace
from typing_extensions import override

from holdfast.core.address import Address, ChatType
from holdfast.core.approval.approval import ApprovalDenied, ApprovalRequested, Choice
from holdfast.core.events import run_of
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputSuperseded, Mode, UpdateRef
from holdfast.core.messages import Image, Proposal
from holdfast.core.run.call import (
    CallAnswered,
    CallAsked,
    CallParked,
    CallSettled,
    CallStarted,
    Outcome,
)
from holdfast.core.run.call import CallStatus as CallStatus
from holdfast.core.run.run import (
    AbortCalls,
    CallModel,
    Cancel,
    Compact,
    Complete,
    CutCause,
    ModelAnswered,
    Origin,
    Read,
    Rest,
    Resume,
    Run,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunPhase,
    RunQueued,
    RunRequeued,
    RunResumed,
    RunStarted,
    SettleCalls,
    StartRun,
    StopAsked,
    next_step,
)
from holdfast.core.session.placement import (
    Join,
    OwnRun,
    Placement,
    Replies,
    Speaker,
    admitted,
    answer,
    asks_in_chat,
    place,
    question,
    requeue_unread,
    works_for,
)
from holdfast.core.session.recovery import recover
from holdfast.core.session.replies import SUPERSEDED
from holdfast.core.session.session import (
    OnStart,
    Session,
    SessionReset,
    SessionSuspended,
    current,
    evolve,
    give_up,
    requeue_interrupted,
    stop,
)
from holdfast.core.types import (
    CallId,
    Fact,
    InputId,
    Owner,
    RequestId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)

ALICE, BOB, ROOT = Owner("tg:alice"), Owner("tg:bob"), Owner("tg:root")
KEY = SessionKey(Owner("tg:group:7"), SessionId("s"))
CHAT = Address(platform="tg", chat_type=ChatType.GROUP, chat="7", user="1")
A, B, NEW = RunId("a"), RunId("b"), RunId("new")
CALL, OTHER = CallId("call"), CallId("other")
CAME = UpdateRef(channel="tg", external_id="41", cursor="41", message_id="5")

alice, bob, root = Speaker(ALICE, False), Speaker(BOB, False), Speaker(ROOT, True)


def fold(*facts: Fact, session: Session | None = None) -> Session:
    session = session or Session(KEY)
    for fact in facts:
        session = evolve(session, fact, 0.0)
    return session


def said(text: str, run_id: RunId, input_id: str = "") -> InputAdmitted:
    return InputAdmitted(input_id=InputId(input_id or f"in-{text}"), run_id=run_id, text=text)


def picture(name: str) -> Image:
    return Image("image/png", name.encode())


def shown(text: str, run_id: RunId, *names: str) -> InputAdmitted:
    """Words with pictures."""
    return msgspec.structs.replace(said(text, run_id), images=tuple(map(picture, names)))


def posted(run_id: RunId, by: Owner = ALICE) -> tuple[Fact, ...]:
    words = said(f"words for {run_id}", run_id, f"in-{run_id}")
    queued = RunQueued(run_id=run_id, input_id=words.input_id, origin=Origin(works_for=by))
    return words, queued


def begun(run_id: RunId, by: Owner = ALICE) -> tuple[Fact, ...]:
    read = InputPromoted(input_id=InputId(f"in-{run_id}"), run_id=run_id)
    return (*posted(run_id, by), RunStarted(run_id=run_id), read)


def wants(*call_ids: CallId) -> ModelAnswered:
    calls = tuple(Proposal(c, "ask", "{}") for c in call_ids)
    return ModelAnswered(run_id=A, turn=1, text="", calls=calls)


def asks(call_id: CallId) -> tuple[Fact, ...]:
    parked = CallParked(run_id=A, call_id=call_id, reason="asks", question=f"{call_id}?")
    return CallStarted(run_id=A, call_id=call_id, tool="ask"), parked


CUT = RunInterrupted(run_id=A, cause=CutCause.SHUTDOWN, reason="down", cut_at=0.0)
BACK = RunRequeued(run_id=A)
STOPS = StopAsked(run_id=A, reason="enough")

ASKING = (*begun(A), wants(CALL), *asks(CALL))
SITUATIONS: dict[str, tuple[Fact, ...]] = {
    "nothing at work": (),
    "not begun": posted(A),
    "begun, nothing read": (*posted(A), RunStarted(run_id=A)),
    "at work": begun(A),
    "cut": (*begun(A), CUT),
    "to go on": (*begun(A), CUT, BACK),
    "gone on": (*begun(A), CUT, BACK, RunResumed(run_id=A, cause="shutdown_timeout")),
    "stopping": (*begun(A), STOPS),
    "cut and stopping": (*begun(A), STOPS, CUT),
    "asks": ASKING,
    "asks and is cut": (*begun(A), wants(CALL, OTHER), *asks(CALL), *asks(OTHER)[:1], CUT),
    "asks and is stopping": (*ASKING, STOPS),
    "at work, own behind": (*begun(A), *posted(B)),
    "at work, other's behind": (*begun(A), *posted(B, BOB)),
    "stopping, own behind": (*begun(A), STOPS, *posted(B)),
    "stopping, other's behind": (*begun(A), STOPS, *posted(B, BOB)),
    "cut, own behind": (*begun(A), CUT, *posted(B)),
    "cut, other's behind": (*begun(A), CUT, *posted(B, BOB)),
    "other's at work": begun(A, BOB),
    "other's at work, own behind": (*begun(A, BOB), *posted(B)),
    "other's not begun": posted(A, BOB),
    "other's asks": (*begun(A, BOB), *ASKING[4:]),
}
PLACES: dict[str, tuple[Placement, Placement, Placement]] = {  # queue, steer, interrupt
    "nothing at work": (OwnRun(), OwnRun(), OwnRun()),
    "not begun": (OwnRun(), Join(A), Join(A)),
    "begun, nothing read": (OwnRun(), Join(A), OwnRun(A)),
    "at work": (OwnRun(), Join(A), OwnRun(A)),
    "cut": (OwnRun(), Join(A), Join(A)),
    "to go on": (OwnRun(), Join(A), Join(A)),
    "gone on": (OwnRun(), Join(A), OwnRun(A)),
    "stopping": (OwnRun(), OwnRun(), OwnRun()),
    "cut and stopping": (OwnRun(), OwnRun(), OwnRun()),
    "asks": (Replies(A, CALL), Replies(A, CALL), Replies(A, CALL)),
    "asks and is cut": (Replies(A, CALL), Replies(A, CALL), Replies(A, CALL)),
    "asks and is stopping": (OwnRun(), OwnRun(), OwnRun()),
    "at work, own behind": (OwnRun(), Join(A), Join(B, A)),
    "at work, other's behind": (OwnRun(), Join(A), OwnRun(A)),
    "stopping, own behind": (OwnRun(), Join(B), Join(B)),
    "stopping, other's behind": (OwnRun(), OwnRun(), OwnRun()),
    "cut, own behind": (OwnRun(), Join(A), Join(B)),
    "cut, other's behind": (OwnRun(), Join(A), OwnRun()),
    "other's at work": (OwnRun(), OwnRun(), OwnRun()),
    "other's at work, own behind": (OwnRun(), Join(B), Join(B)),
    "other's not begun": (OwnRun(), OwnRun(), OwnRun()),
    "other's asks": (OwnRun(), OwnRun(), OwnRun()),
}


@pytest.mark.promise("HALT-08")
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize(("at", "mode"), [(0, Mode.QUEUE), (1, Mode.STEER), (2, Mode.INTERRUPT)])
def test_every_situation_meets_every_mode_as_stated(situation: str, at: int, mode: Mode) -> None:
    now = fold(*SITUATIONS[situation])
    assert place(now, mode, alice) == PLACES[situation][at]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("mode", Mode)
def test_every_placement_gives_legal_facts(situation: str, mode: Mode) -> None:
    now = fold(*SITUATIONS[situation])
    words = said("more", NEW)
    queued = RunQueued(run_id=NEW, input_id=words.input_id, origin=Origin(works_for=ALICE))
    placement = place(now, mode, alice)
    after = fold(*admitted(now, placement, words, queued), session=now)
    assert (NEW in after.runs) is isinstance(placement, OwnRun)
    assert (words.input_id in after.inputs) is not isinstance(placement, Replies)
    assert not any(r.status is RunPhase.INTERRUPTED for r in after.runs.values())


@pytest.mark.promise("ASK-07")
@pytest.mark.parametrize("mode", Mode)
def test_a_message_does_not_end_a_run_that_waits_for_an_approval(mode: Mode) -> None:
    request = ApprovalRequested(
        run_id=A,
        call_id=CALL,
        request_id=RequestId("q"),
        command="x",
        description="",
        execution="",
        choices=(Choice.ONCE, Choice.DENY),
        expires_at=1.0,
    )
    asked = CallAsked(run_id=A, call_id=CALL, request_id=request.request_id)
    now = fold(*begun(A), wants(CALL), request, asked)
    assert place(now, mode, alice) == (OwnRun() if mode is Mode.QUEUE else Join(A))
    assert place(now, mode, bob) == OwnRun()
    answered = ApprovalDenied(run_id=A, request_id=request.request_id, by=ALICE)
    after = fold(answered, session=now)
    assert (place(after, Mode.INTERRUPT, alice)) == OwnRun(A)


def test_only_what_is_asked_in_a_chat_is_read_there() -> None:
    in_chat = RunQueued(run_id=A, input_id=InputId(f"in-{A}"), origin=Origin(address=CHAT))
    assert asks_in_chat(fold(posted(A)[0], in_chat))
    assert not asks_in_chat(fold(*ASKING))
    assert not asks_in_chat(fold())


@pytest.mark.parametrize("mode", [Mode.STEER, Mode.INTERRUPT])
def test_an_administrator_may_join_every_run(mode: Mode) -> None:
    assert place(fold(*SITUATIONS["other's asks"]), mode, root) == Replies(A, CALL)
    busy = fold(*begun(A, BOB), *posted(B))
    assert place(busy, mode, root) == (Join(A) if mode is Mode.STEER else Join(B, A))


@pytest.mark.promise("HALT-08")
def test_if_answers_name_their_question_other_messages_answer_nothing() -> None:
    now = fold(*SITUATIONS["asks"])
    assert place(now, Mode.INTERRUPT, alice, answers=False) == OwnRun(A)
    assert place(now, Mode.STEER, alice, answers=False) == Join(A)


@pytest.mark.promise("HALT-01")
def test_unread_inputs_of_a_failing_run_get_their_own_run() -> None:
    more = [
        replace(said(text, A, name), mode=Mode.STEER) for text, name in (("b", "i"), ("c", "j"))
    ]
    now = fold(*begun(A), *more)
    admitted_, queued = requeue_unread(now, now.runs[A])
    assert isinstance(admitted_, InputAdmitted) and isinstance(queued, RunQueued)
    assert admitted_.text == "b\n\nc"
    assert queued.origin == now.runs[A].origin
    failed = RunFailed(run_id=A, code="x", error="x", usage=Usage())
    after = fold(*give_up(now.runs[A], "x"), failed, admitted_, queued, session=now)
    assert list(after.runs) == [queued.run_id]
    assert requeue_unread(now, now.runs[A]) == (admitted_, queued), "the same again is the same run"


def test_inputs_that_never_joined_the_run_are_not_passed_on() -> None:
    begun_only = fold(*posted(A))
    assert requeue_unread(begun_only, begun_only.runs[A]) == ()
    more = replace(said("b", A, "i"), mode=Mode.STEER)
    now = fold(*begun(A), more, StopAsked(run_id=A, reason=SUPERSEDED))
    assert requeue_unread(now, now.runs[A]) == ()


def test_a_run_without_a_user_works_for_the_session_s_owner() -> None:
    queued = RunQueued(run_id=A, input_id=InputId("in"))
    now = fold(said("words", A, "in"), queued, *posted(B, BOB))
    assert works_for(now, now.runs[A]) == KEY.owner
    assert works_for(now, now.runs[B]) == BOB
    assert place(now, Mode.STEER, alice) == OwnRun()
    assert place(now, Mode.STEER, Speaker(KEY.owner, False)) == Join(A)


def test_the_oldest_question_is_answered_first_unless_another_is_named() -> None:
    asking = (*begun(A), wants(OTHER, CALL), *asks(CALL), *asks(OTHER))
    now = fold(*asking).runs[A]
    assert question(now) == OTHER  # as the model put them
    assert question(now, CALL) == CALL
    assert question(now, CallId("no such")) is None
    assert question(fold(*begun(A), wants(CALL), *asks(CALL)[:1]).runs[A]) is None
    assert question(fold(*asking, STOPS).runs[A]) is None


def test_an_answer_is_the_call_s_result_and_records_its_update() -> None:
    now = fold(*ASKING)
    words = InputAdmitted(input_id=InputId("in"), run_id=NEW, text="blue", came=CAME)
    facts = answer(now, A, CALL, words)
    assert facts == (
        CallAnswered(run_id=A, call_id=CALL, came=CAME),
        CallSettled(run_id=A, call_id=CALL, tool="ask", outcome=Outcome.OK, text="blue"),
    )
    after = fold(*facts, session=now)
    assert (dict(after.runs[A].calls), after.runs[A].status) == ({}, RunPhase.QUEUED)


def test_an_answer_makes_a_run_go_on_that_waits_for_its_user_after_a_cut() -> None:
    now = fold(*SITUATIONS["asks and is cut"])
    facts = answer(now, A, CALL, said("blue", NEW))
    assert facts[0] == BACK
    assert fold(*facts, session=now).runs[A].status is RunPhase.QUEUED


def queued_for(words: InputAdmitted) -> RunQueued:
    return RunQueued(run_id=words.run_id, input_id=words.input_id, origin=Origin(works_for=ALICE))


def test_unread_inputs_of_a_displaced_run_are_read_with_the_new_message() -> None:
    now = fold(*begun(A), said("one", A), said("two", A))
    words = InputAdmitted(
        input_id=InputId("in"), run_id=NEW, text="three", came=CAME, hosts=("a.example",)
    )
    facts = admitted(now, OwnRun(A), words, queued_for(words))
    carrying = InputAdmitted(
        input_id=InputId("in"),
        run_id=NEW,
        text="one\n\ntwo\n\nthree",
        came=CAME,
        hosts=("a.example",),
    )
    assert facts == (StopAsked(run_id=A, reason=SUPERSEDED), carrying, queued_for(words))


@pytest.mark.promise("HALT-07")
def test_their_pictures_come_along_in_order() -> None:
    now = fold(*begun(A), shown("one", A, "1a", "1b"), said("two", A), shown("", A, "3"))
    words = shown("four", NEW, "4")
    *_, carrying, _ = admitted(now, OwnRun(A), words, queued_for(words))
    assert carrying == msgspec.structs.replace(
        words, text="one\n\ntwo\n\nfour", images=tuple(map(picture, ("1a", "1b", "3", "4")))
    )


@pytest.mark.promise("HALT-07")
def test_pictures_that_come_with_an_answer_are_read_right_after_it() -> None:
    now = fold(*ASKING)
    words = msgspec.structs.replace(shown("this one", NEW, "1"), came=CAME)
    facts = admitted(now, Replies(A, CALL), words, queued_for(words))
    alone = msgspec.structs.replace(words, run_id=A, mode=Mode.STEER, text="", came=None)
    assert facts == (*answer(now, A, CALL, words), alone)
    assert fold(*facts, session=now).runs[A].unread == (words.input_id,)


def test_the_run_behind_reads_them_where_there_is_one() -> None:
    now = fold(*begun(A), said("one", A), *posted(B))
    words = said("two", NEW, "in")
    assert admitted(now, Join(B, A), words, queued_for(words)) == (
        StopAsked(run_id=A, reason=SUPERSEDED),
        InputAdmitted(input_id=InputId("in"), run_id=B, text="one\n\ntwo", mode=Mode.STEER),
    )


@pytest.mark.parametrize(
    ("there", "here", "answers"),
    [
        (CHAT, CHAT, "9"),
        (CHAT, msgspec.structs.replace(CHAT, user="2"), "9"),
        (CHAT, msgspec.structs.replace(CHAT, thread="t"), "5"),
        (CHAT, None, "5"),
        (None, CHAT, "5"),
    ],
)
def test_a_run_replies_to_the_newest_message_in_its_chat(
    there: Address | None, here: Address | None, answers: str
) -> None:
    origin = Origin(works_for=ALICE, address=there, reply_to="5")
    now = fold(said("one", A, "in"), RunQueued(run_id=A, input_id=InputId("in"), origin=origin))
    words = said("two", NEW)
    newer = Origin(works_for=ALICE, address=here, reply_to="9")
    queued = RunQueued(run_id=NEW, input_id=words.input_id, origin=newer)
    joined = fold(*admitted(now, Join(A), words, queued), session=now).runs[A]
    assert (joined.origin.reply_to, joined.origin.address) == (answers, there)


def test_a_message_requeues_an_interrupted_run_and_resets_a_suspended_session() -> None:
    words = said("more", NEW)
    cut = fold(*SITUATIONS["cut"])
    joined = InputAdmitted(input_id=words.input_id, run_id=A, text="more", mode=Mode.STEER)
    assert admitted(cut, Join(A), words, queued_for(words)) == (BACK, joined)
    suspended = fold(*begun(A), CUT, SessionSuspended(reason="stuck"))
    assert admitted(suspended, OwnRun(), words, queued_for(words)) == (
        SessionReset(reason="suspended"),
        BACK,
        words,
        queued_for(words),
    )


class Talk(RuleBasedStateMachine):
    """One session, those who talk in it, and everything that can happen to its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.session = Session(KEY)
        self.speakers: tuple[Speaker, ...] = ()
        self.modes: tuple[Mode, ...] = ()
        self.names = 0
        self.said: dict[str, Mode] = {}  # in order
        self.read: list[str] = []  # in order
        self.answers: list[str] = []
        self.given_up: list[str] = []  # with a run that failed or that somebody stopped
        self.carried: set[str] = set()
        self.pictures: list[str] = []  # that were read, or given up

    @initialize(
        speakers=st.sampled_from([(alice,), (alice, bob), (alice, bob, root)]),
        modes=st.sampled_from([tuple(Mode), *((m,) for m in Mode), tuple(Mode)]),
    )
    def they_meet(self, speakers: tuple[Speaker, ...], modes: tuple[Mode, ...]) -> None:
        self.speakers, self.modes = speakers, modes

    @property
    def run(self) -> Run | None:
        return current(self.session)

    @property
    def alone(self) -> bool:
        return len(self.speakers) == 1

    def name(self, what: str) -> str:
        self.names += 1
        return f"{what}{self.names}"

    def record(self, *facts: Fact) -> None:
        for fact in facts:
            before, self.session = self.session, evolve(self.session, fact, self.now)
            match fact:
                case InputPromoted():
                    self.read += self.words_of(before, fact.input_id)
                    self.see(before.inputs[fact.input_id].admitted)
                case InputSuperseded() if before.runs[fact.run_id].stop_reason != SUPERSEDED:
                    self.given_up += self.words_of(before, fact.input_id)
                    self.see(before.inputs[fact.input_id].admitted)
                case CallSettled(outcome=Outcome.OK) if not fact.text.startswith("of "):
                    self.answers.append(fact.text)
                case _:
                    pass

    def words_of(self, session: Session, input_id: InputId) -> list[str]:
        return [w for w in session.inputs[input_id].admitted.text.split("\n\n") if w]

    def see(self, words: InputAdmitted) -> None:
        """Each word has its picture; those of an answer come after it."""
        seen = [image.data.decode() for image in words.images]
        self.pictures += seen
        assert "\n\n".join(p for p in seen if p not in self.answers) == words.text

    # What people do.

    @precondition(lambda self: len(self.said) < 20)
    @rule(turns=st.lists(st.tuples(*[st.integers(0, 2)] * 3), min_size=1, max_size=4))
    def they_speak(self, turns: list[tuple[int, int, int]]) -> None:
        for speaker, mode, steps in turns:
            self.the_next_steps_are_taken(tools=("work",), steps=steps)
            by = self.speakers[speaker % len(self.speakers)]
            self.speak(by, self.modes[mode % len(self.modes)])

    def speak(self, by: Speaker, mode: Mode) -> None:
        text, before = self.name("w"), self.session
        words = shown(text, RunId(f"run-{text}"), text)
        queued = RunQueued(
            run_id=words.run_id, input_id=words.input_id, origin=Origin(works_for=by.owner)
        )
        placement = place(before, mode, by)
        facts = admitted(before, placement, words, queued)
        self.said[text] = mode
        self.check_whose_runs_are_touched(before, by, facts)
        self.check_what_makes_way(before, mode, by, placement)
        for fact in facts:
            if isinstance(fact, InputAdmitted):
                self.carried.update(fact.text.split("\n\n")[:-1])
        self.record(*facts)

    def check_whose_runs_are_touched(
        self, before: Session, by: Speaker, facts: tuple[Fact, ...]
    ) -> None:
        for fact in facts:
            run = before.runs.get(run_of(fact) or RunId(""))
            if run and not isinstance(fact, RunRequeued) and not by.admin:
                assert works_for(before, run) == by.owner

    def check_what_makes_way(
        self, before: Session, mode: Mode, by: Speaker, placement: Placement
    ) -> None:
        displaced = None if isinstance(placement, Replies) else placement.displaces
        if displaced is not None:
            way = before.runs[displaced]
            assert way.driven and not way.stop_reason and mode is Mode.INTERRUPT
        if isinstance(placement, OwnRun) and mode is not Mode.QUEUE and before.runs:
            last = list(before.runs.values())[-1]
            theirs = by.admin or works_for(before, last) == by.owner
            assert last.driven or last.stop_reason or not theirs

    @precondition(lambda self: self.run)
    @rule(last=st.booleans())
    def somebody_stops_a_run(self, last: bool) -> None:
        run_id = list(self.session.runs)[-1 if last else 0]
        if not self.session.runs[run_id].stop_reason:
            self.record(*stop(self.session, run_id, "enough"))

    # What else happens.

    @rule(
        policy=st.sampled_from(OnStart), courteous=st.booleans(), after=st.sampled_from([1.0, 61.0])
    )
    def the_process_ends_and_starts(self, policy: OnStart, courteous: bool, after: float) -> None:
        self.now += after
        run = self.run
        if courteous and run and run.status is RunPhase.RUNNING:
            cause = CutCause.SHUTDOWN
            self.record(RunInterrupted(run_id=run.id, cause=cause, reason="", cut_at=self.now))
        self.record(*recover(self.session, policy, self.now))

    @precondition(lambda self: self.run and self.run.status is RunPhase.RUNNING)
    @rule()
    def the_model_fails(self) -> None:
        run = self.run
        assert run
        failed = RunFailed(run_id=run.id, code="c", error="e", usage=run.usage)
        self.record(*give_up(run, "c"), failed)

    @rule(
        tools=st.sampled_from([("work",), ("ask", "work"), ("ask",), ()]), steps=st.integers(1, 5)
    )
    def the_next_steps_are_taken(self, tools: tuple[str, ...], steps: int) -> None:
        for _ in range(steps):
            if self.run:
                self.step(self.run, tools)

    def step(self, run: Run, tools: tuple[str, ...]) -> None:
        match next_step(run):
            case StartRun(inputs=inputs):
                read = (InputPromoted(input_id=i, run_id=run.id) for i in inputs)
                self.record(RunStarted(run_id=run.id), *read)
            case Resume(cause=cause):
                self.record(RunResumed(run_id=run.id, cause=cause))
            case Read(inputs=inputs):
                self.record(*(InputPromoted(input_id=i, run_id=run.id) for i in inputs))
            case CallModel(turn=turn):
                calls = tuple(Proposal(CallId(self.name("call")), t, "{}") for t in tools)
                self.record(ModelAnswered(run_id=run.id, turn=turn, text="", calls=calls))
            case SettleCalls(calls=movable):
                for call in movable:
                    self.move(run.id, call.proposal, call.status)
            case AbortCalls(calls=left):
                for call in left:
                    self.settle(run.id, call.proposal, Outcome.ABORTED)
            case Complete(output=output):
                self.record(RunCompleted(run_id=run.id, output=output, usage=run.usage))
            case Cancel(reason=reason):
                cancelled = RunCancelled(run_id=run.id, reason=reason, usage=run.usage)
                self.record(*give_up(run, reason), cancelled)
            case Rest() | Compact():
                pass

    def move(self, run_id: RunId, wanted: Proposal, status: CallStatus) -> None:
        started = CallStarted(run_id=run_id, call_id=wanted.call_id, tool=wanted.tool)
        asked = CallParked(run_id=run_id, call_id=wanted.call_id, reason="asks", question="Which?")
        if status is CallStatus.PROPOSED:
            self.record(started)
        elif status is CallStatus.STARTED and wanted.tool == "ask":
            self.record(asked)
        else:
            self.settle(run_id, wanted, Outcome.OK)

    def settle(self, run_id: RunId, wanted: Proposal, outcome: Outcome) -> None:
        text = f"of {wanted.call_id}"
        self.record(
            CallSettled(
                run_id=run_id,
                call_id=wanted.call_id,
                tool=wanted.tool,
                outcome=outcome,
                text=text,
            )
        )

    # What always holds.

    @invariant()
    def all_that_was_said_is_in_exactly_one_place(self) -> None:
        waiting = [
            word
            for run in self.session.runs.values()
            if not run.stop_reason
            for input_id in run.unread
            for word in self.words_of(self.session, input_id)
        ]
        stopped = [
            word
            for run in self.session.runs.values()
            if run.stop_reason and run.stop_reason != SUPERSEDED
            for input_id in run.unread
            for word in self.words_of(self.session, input_id)
        ]
        found = [*self.read, *self.answers, *self.given_up, *waiting, *stopped]
        assert sorted(found) == sorted(self.said)

    @invariant()
    def only_the_first_run_is_at_work(self) -> None:
        assert not any(r.driven for r in list(self.session.runs.values())[1:])

    @invariant()
    def who_never_queues_has_at_most_one_run_that_has_not_begun(self) -> None:
        if self.alone and Mode.QUEUE not in self.modes:
            assert sum(not r.driven for r in self.session.runs.values()) <= 1

    @override
    def teardown(self) -> None:
        """In calm weather all that was said is read, answers something, or was given up."""
        for _ in range(500):
            run = self.run
            if run is None:
                break
            if run.status is RunPhase.INTERRUPTED and not run.stop_reason:
                self.record(*requeue_interrupted(self.session))
            elif (asked := question(run)) is not None:
                text = self.name("w")
                self.said[text] = Mode.QUEUE
                self.pictures.append(text)  # the picture that it does not have
                self.record(*answer(self.session, run.id, asked, said(text, run.id)))
            else:
                self.step(run, ())
        assert not self.session.runs and not self.session.inputs
        assert sorted([*self.read, *self.answers, *self.given_up]) == sorted(self.said)
        assert sorted(self.pictures) == sorted(self.said)
        self.check_that_words_are_read_in_the_order_they_were_said()

    def check_that_words_are_read_in_the_order_they_were_said(self) -> None:
        """But steering overtakes what waits; what came along is read where it came to."""
        order = list(self.said)
        one_way = self.alone and len(self.modes) == 1
        for at, later in enumerate(self.read):
            for earlier in self.read[at + 1 :]:
                if order.index(earlier) > order.index(later):
                    continue
                assert not one_way
                assert self.said[later] is Mode.STEER or earlier in self.carried


TestTalk = Talk.TestCase
TestTalk.settings = settings(max_examples=200, phases=set(Phase) - {Phase.explain}, deadline=None)
