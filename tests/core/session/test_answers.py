"""Answers: the first counts, for exactly what was asked, and the end withdraws the rest."""

import pytest
from msgspec.structs import replace

from holdfast.core.approval.approval import (
    GRANT_S,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Choice,
    Deny,
    Grant,
    Ground,
    MayRun,
    Standing,
)
from holdfast.core.approval.rules import HostRule, Permission
from holdfast.core.approval.tree import Tree
from holdfast.core.inbox import InputAdmitted, InputPromoted
from holdfast.core.messages import Proposal
from holdfast.core.run import run
from holdfast.core.run.call import CallAsked, CallCleared, CallSettled, CallStarted, Outcome
from holdfast.core.run.run import ModelAnswered, RunPhase, RunQueued, RunStarted
from holdfast.core.session import answers, session
from holdfast.core.session.answers import GivenAnswer
from holdfast.core.session.session import Session
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
from holdfast.errors import IllegalTransition, Refused

RUN, ME = RunId("r"), Owner("me")
C1, C2 = CallId("c1"), CallId("c2")
Q1, Q2 = RequestId("q1"), RequestId("q2")


def fold(*facts: Fact, before: Session | None = None) -> Session:
    folded = before or Session(SessionKey(ME, SessionId("s")))
    for fact in facts:
        folded = session.evolve(folded, fact, 1.0)
    return folded


def requested(
    call_id: CallId, request_id: RequestId, *choices: Choice, offers: tuple[Permission, ...] = ()
) -> ApprovalRequested:
    return ApprovalRequested(
        run_id=RUN,
        call_id=call_id,
        request_id=request_id,
        command="rm -rf .",
        description="removes everything",
        execution=f"hash of {call_id}",
        choices=choices or (Choice.ONCE, Choice.DENY),
        expires_at=100.0,
        offers=offers,
    )


def asked(
    call_id: CallId, request_id: RequestId, *choices: Choice, offers: tuple[Permission, ...] = ()
) -> tuple[Fact, Fact]:
    return (
        requested(call_id, request_id, *choices, offers=offers),
        CallAsked(run_id=RUN, call_id=call_id, request_id=request_id),
    )


def begun(*calls: CallId) -> Session:
    """A session whose run has these calls to make."""
    return fold(
        InputAdmitted(input_id=InputId("i"), run_id=RUN, text="go"),
        RunQueued(run_id=RUN, input_id=InputId("i")),
        RunStarted(run_id=RUN),
        InputPromoted(input_id=InputId("i"), run_id=RUN),
        ModelAnswered(
            run_id=RUN, turn=1, text="", calls=tuple(Proposal(c, "terminal", "{}") for c in calls)
        ),
    )


def waiting(*questions: tuple[Fact, Fact]) -> Session:
    """A session whose run waits for the answers to `questions`."""
    ready = begun(*(C1, C2)[: len(questions)])
    return fold(*(fact for pair in questions for fact in pair), before=ready)


BOTH = waiting(asked(C1, Q1), asked(C2, Q2))


def given(
    choice: Choice = Choice.ONCE, request_id: RequestId | None = None, every: bool = False
) -> GivenAnswer:
    return GivenAnswer(RUN, choice, ME, request_id, every)


def test_a_run_waits_while_every_call_it_has_open_was_asked_for() -> None:
    assert BOTH.runs[RUN].status is RunPhase.WAITING
    assert [a.requested.request_id for a in answers.pending(BOTH, RUN)] == [Q1, Q2]
    assert answers.pending(BOTH, RunId("other")) == ()


@pytest.mark.promise("RUN-13")
def test_without_a_name_the_oldest_is_answered() -> None:
    facts, resolved = answers.answer(BOTH, given(), 1.0)
    assert resolved == 1
    assert facts == (
        ApprovalGranted(run_id=RUN, request_id=Q1, choice=Choice.ONCE, by=ME),
        CallCleared(run_id=RUN, call_id=C1),
    )
    after = fold(*facts, before=BOTH)
    assert after.runs[RUN].status is RunPhase.QUEUED
    assert [a.requested.request_id for a in answers.pending(after, RUN)] == [Q2]


@pytest.mark.promise("RUN-13")
def test_a_named_one_or_all_are_answered() -> None:
    facts, resolved = answers.answer(BOTH, given(request_id=Q2), 1.0)
    assert (resolved, facts[1]) == (1, CallCleared(run_id=RUN, call_id=C2))
    facts, resolved = answers.answer(BOTH, given(every=True), 1.0)
    assert (resolved, len(facts)) == (2, 4)


def test_a_denied_call_is_settled_and_the_model_is_told() -> None:
    facts, _ = answers.answer(BOTH, given(Choice.DENY), 1.0)
    assert facts[0] == ApprovalDenied(run_id=RUN, request_id=Q1, by=ME)
    (settled,) = (f for f in facts if isinstance(f, CallSettled))
    assert (settled.outcome, settled.tool) == (Outcome.DENIED, "terminal")
    assert fold(*facts, before=BOTH).runs[RUN].status is RunPhase.WAITING


@pytest.mark.promise("ASK-07")
def test_the_reason_of_a_denial_is_the_result_of_the_call() -> None:
    facts, _ = answers.answer(BOTH, replace(given(Choice.DENY), reason="use make"), 1.0)
    assert facts[0] == ApprovalDenied(run_id=RUN, request_id=Q1, by=ME, reason="use make")
    (settled,) = (f for f in facts if isinstance(f, CallSettled))
    assert settled.text == f"{answers.DENIED_TEXT}\n{answers.BECAUSE_TEXT}use make"
    long = "x" * (answers.LONGEST_REASON + 1)
    for wrong in (replace(given(), reason="x"), replace(given(Choice.DENY), reason=long)):
        with pytest.raises(Refused) as refused:
            answers.answer(BOTH, wrong, 1.0)
        assert refused.value.code == "invalid_reason"


@pytest.mark.promise("RUN-12")
def test_an_answer_to_nothing_is_refused() -> None:
    for wrong in (
        given(request_id=RequestId("q9")),
        GivenAnswer(RunId("x"), Choice.ONCE, ME, None, True),
    ):
        with pytest.raises(Refused) as refused:
            answers.answer(BOTH, wrong, 1.0)
        assert refused.value.code == "approval_not_pending"


def test_a_second_answer_comes_too_late() -> None:
    after = fold(*answers.answer(BOTH, given(request_id=Q1), 1.0)[0], before=BOTH)
    with pytest.raises(Refused):
        answers.answer(after, given(request_id=Q1), 1.0)


def test_an_answer_after_the_expiry_is_refused_and_the_request_expires() -> None:
    with pytest.raises(Refused):
        answers.answer(BOTH, given(), 100.0)
    assert answers.expire(BOTH, 99.9) == ()
    facts = answers.expire(BOTH, 100.0)
    assert [f.request_id for f in facts if isinstance(f, ApprovalExpired)] == [Q1, Q2]
    after = fold(*facts, before=BOTH)
    assert after.runs[RUN].status is RunPhase.QUEUED  # the model hears of it
    assert after.approvals == {}
    assert answers.expire(after, 200.0) == ()


def test_a_choice_that_was_not_offered_is_refused_and_answers_nothing() -> None:
    with pytest.raises(Refused) as refused:
        answers.answer(BOTH, given(Choice.SESSION), 1.0)
    assert refused.value.code == "invalid_approval_choice"
    assert "once, deny" in str(refused.value)


def test_a_grant_is_for_exactly_one_execution_and_used_up_by_its_start() -> None:
    after = fold(*answers.answer(BOTH, given(), 1.0)[0], before=BOTH)
    assert answers.granted(after, C1, "hash of c1")
    assert not answers.granted(after, C1, "hash of something else")
    assert not answers.granted(after, C2, "hash of c2")
    used = fold(
        run.RunResumed(run_id=RUN),
        CallStarted(run_id=RUN, call_id=C1, tool="terminal"),
        before=after,
    )
    assert not answers.granted(used, C1, "hash of c1")
    assert answers.expire(fold(before=after), 1.0) == ()


def test_the_end_of_a_run_withdraws_what_it_asked() -> None:
    facts = answers.withdraw(BOTH, RUN, "stopped")
    assert [f.request_id for f in facts if isinstance(f, ApprovalWithdrawn)] == [Q1, Q2]
    assert fold(*facts, before=BOTH).approvals == {}
    assert answers.withdraw(BOTH, RunId("other"), "stopped") == ()


def test_an_answer_without_a_pending_request_is_an_illegal_fact() -> None:
    with pytest.raises(IllegalTransition):
        fold(ApprovalDenied(run_id=RUN, request_id=RequestId("q9"), by=ME), before=BOTH)


@pytest.mark.fault("F-33")
def test_an_approval_is_worth_nothing_for_anything_but_what_was_approved() -> None:
    after = fold(*answers.answer(BOTH, given(), 1.0)[0], before=BOTH)
    assert answers.redeem(after, C1, "hash of c1") == MayRun(Ground.APPROVED)
    changed = answers.redeem(after, C1, "hash of something else")
    assert isinstance(changed, Deny) and "no longer what was approved" in changed.reason
    assert isinstance(answers.redeem(after, C2, "hash of c1"), Deny)
    assert isinstance(answers.redeem(BOTH, C1, "hash of c1"), Deny)  # nobody has answered


TREE = Tree(path="/w", files=2, identity="i", content="c", looked_ns=10**9)


@pytest.mark.fault("F-33")
def test_an_approval_is_worth_nothing_once_a_file_has_changed() -> None:
    question = replace(requested(C1, Q1), trees=(TREE,))
    held = waiting((question, CallAsked(run_id=RUN, call_id=C1, request_id=Q1, holds=True)))
    after = fold(*answers.answer(held, given(), 1.0)[0], before=held)
    assert answers.redeem(after, C1, "hash of c1", (TREE,)) == MayRun(Ground.APPROVED)
    newest = ((2 * 10**9, "a\x1b.sh"), (1, "old"))
    other = replace(TREE, identity="j", content="d", newest=newest)
    denied = answers.redeem(after, C1, "hash of c1", (other,))
    assert denied == Deny(f"{answers.CHANGED_TEXT} Changed since then: 'a\\u{{1b}}.sh'.")
    assert isinstance(answers.redeem(after, C1, "hash of c1"), Deny)
    assert answers.trees_asked_with(after, C1) == (TREE,)
    assert answers.trees_asked_with(after, C2) == ()


EVERY_CHOICE = tuple(Choice)
PACKAGES = HostRule(name="packages.example")
OFFERED = waiting(asked(C1, Q1, *EVERY_CHOICE, offers=(PACKAGES,)), asked(C2, Q2))
GRANTED = Grant(
    permission=PACKAGES,
    session=SessionKey(ME, SessionId("s")),
    user=ME,
    expires_at=1.0 + GRANT_S,
)


@pytest.mark.promise("RUN-13")
@pytest.mark.parametrize(
    ("choice", "left", "stands"),
    [
        (Choice.ONCE, (), ()),
        (Choice.SESSION, (GRANTED,), ()),
        (Choice.ALWAYS, (GRANTED,), (Standing(permission=PACKAGES, by=ME),)),
        (Choice.DENY, (), ()),
    ],
)
def test_an_answer_leaves_what_was_offered_to_its_session_or_to_all_or_to_none(
    choice: Choice, left: tuple[Grant, ...], stands: tuple[Standing, ...]
) -> None:
    facts, _ = answers.answer(OFFERED, given(choice), 1.0)
    assert fold(*facts, before=OFFERED).grants == left
    assert isinstance(facts[-1], CallSettled if choice is Choice.DENY else CallCleared)
    assert answers.standing(OFFERED, given(choice), 1.0) == stands


def test_a_grant_is_for_the_owner_and_a_standing_permission_names_who_gave_it() -> None:
    boss = GivenAnswer(RUN, Choice.ALWAYS, Owner("boss"), Q1, False)
    facts, _ = answers.answer(OFFERED, boss, 1.0)
    assert fold(*facts, before=OFFERED).grants == (GRANTED,)
    assert [s.by for s in answers.standing(OFFERED, boss, 1.0)] == ["boss"]


@pytest.mark.promise("RUN-13")
def test_standing_rules_come_only_from_the_answered_requests() -> None:
    both = waiting(
        asked(C1, Q1, *EVERY_CHOICE, offers=(PACKAGES,)),
        asked(C2, Q2, *EVERY_CHOICE, offers=(HostRule(name="mirror.example"),)),
    )

    def names(said: GivenAnswer) -> list[str]:
        return [
            s.permission.name
            for s in answers.standing(both, said, 1.0)
            if isinstance(s.permission, HostRule)
        ]

    assert names(given(Choice.ALWAYS)) == ["packages.example"]
    assert names(given(Choice.ALWAYS, request_id=Q2)) == ["mirror.example"]
    assert names(given(Choice.ALWAYS, every=True)) == ["packages.example", "mirror.example"]
    assert names(GivenAnswer(RunId("other"), Choice.ALWAYS, ME, None, True)) == []


AT_WORK = fold(
    CallStarted(run_id=RUN, call_id=C1, tool="terminal"),
    requested(C1, Q1, *EVERY_CHOICE, offers=(PACKAGES,)),
    before=begun(C1),
)


@pytest.mark.parametrize("choice", Choice)
def test_a_call_that_asks_while_it_works_goes_on_whatever_the_answer_is(choice: Choice) -> None:
    facts, resolved = answers.answer(AT_WORK, given(choice), 1.0)
    said = (
        ApprovalDenied(run_id=RUN, request_id=Q1, by=ME)
        if choice is Choice.DENY
        else ApprovalGranted(run_id=RUN, request_id=Q1, choice=choice, by=ME)
    )
    left = (GRANTED,) if choice in (Choice.SESSION, Choice.ALWAYS) else ()
    assert (facts, resolved) == ((said, *left), 1)
    after = fold(*facts, before=AT_WORK)
    assert after.runs[RUN] == AT_WORK.runs[RUN]
    assert answers.pending(after, RUN) == ()


def test_a_working_call_goes_on_when_its_request_expires() -> None:
    facts = answers.expire(AT_WORK, 100.0)
    assert facts == (ApprovalExpired(run_id=RUN, request_id=Q1),)
    assert fold(*facts, before=AT_WORK).runs[RUN] == AT_WORK.runs[RUN]


def test_a_request_of_an_ended_call_cannot_be_answered() -> None:
    done = CallSettled(run_id=RUN, call_id=C1, tool="terminal", outcome=Outcome.OK, text="")
    with pytest.raises(Refused) as refused:
        answers.answer(fold(done, before=AT_WORK), given(), 1.0)
    assert refused.value.code == "approval_not_pending"


def test_an_expired_request_leaves_nothing_when_all_are_answered() -> None:
    fresh, old = (
        requested(c, q, *EVERY_CHOICE, offers=(HostRule(name=c),)) for c, q in ((C1, Q1), (C2, Q2))
    )
    both = waiting(
        (fresh, CallAsked(run_id=RUN, call_id=C1, request_id=Q1)),
        (replace(old, expires_at=50.0), CallAsked(run_id=RUN, call_id=C2, request_id=Q2)),
    )
    always = given(Choice.ALWAYS, every=True)
    assert answers.answer(both, always, 60.0)[1] == 1
    (left,) = answers.standing(both, always, 60.0)
    assert left.permission == HostRule(name=C1)


def test_a_run_that_is_given_up_leaves_no_question_behind() -> None:
    before = fold(
        CallStarted(run_id=RUN, call_id=C2, tool="terminal"), *asked(C1, Q1), before=begun(C1, C2)
    )
    failed = run.RunFailed(run_id=RUN, code="stuck", error="", usage=Usage())
    after = fold(failed, before=before)
    assert after.approvals == {}
    assert answers.expire(after, 200.0) == ()
    with pytest.raises(Refused):
        answers.answer(after, given(), 1.0)


def test_the_end_of_a_call_withdraws_what_it_asked_while_it_worked() -> None:
    (withdrawn,) = answers.withdraw_call(BOTH, RUN, C1)
    assert isinstance(withdrawn, ApprovalWithdrawn)
    assert withdrawn.request_id == Q1
    assert answers.withdraw_call(BOTH, RunId("other"), C1) == ()


@pytest.mark.promise("CHAT-05")
@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("yes", Choice.ONCE),
        (" Yes! ", Choice.ONCE),
        ("allow  once", Choice.ONCE),
        ("session", Choice.SESSION),
        ("No.", Choice.DENY),
        ("yes, and then delete it", None),
        ("yes\nplease", None),
        ("always", None),
        ("", None),
        ("yes" + " " * 50 + "no", None),
    ],
)
def test_a_message_is_a_choice_only_if_it_says_nothing_else(
    text: str, choice: Choice | None
) -> None:
    assert answers.parse_choice(text) is choice
