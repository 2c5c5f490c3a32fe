"""One request, one answer: the first in time counts, silence expires, and little goes unasked."""

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from holdfast.core.approval.approval import (
    EXPIRY_S,
    GRANT_S,
    Accept,
    Approval,
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalMode,
    ApprovalRequested,
    ApprovalStatus,
    ApprovalWithdrawn,
    Choice,
    Decision,
    Deny,
    Event,
    ExecutionContext,
    Grant,
    Ground,
    Level,
    MayRun,
    MustAsk,
    NotOffered,
    Role,
    RunDoor,
    RunPrincipal,
    Standing,
    TooLate,
    decide,
    evolve,
    grants,
    is_weaker,
    limit_choice,
    permissions,
    standing,
)
from holdfast.core.approval.decision import (
    DETACHED,
    NO_SANDBOX,
    ONLY_ONCE,
    OPEN_INPUT,
    OPEN_PROMPTS,
    OUTSIDE_SANDBOX,
    TOO_MANY_PROMPTS,
    ask_for_host,
    decide_execution,
    decide_question,
)
from holdfast.core.approval.execution import ExecutionRequest, Opaque, Operator, Parsed, Seen, Wants
from holdfast.core.approval.rules import (
    HostRule,
    LineRule,
    Permission,
    Rule,
    WordKind,
    describe,
)
from holdfast.core.approval.tree import Tree
from holdfast.core.types import OPERATOR, CallId, Owner, RequestId, RunId, SessionId, SessionKey
from holdfast.errors import IllegalTransition

RUN, REQUEST = RunId("run"), RequestId("request")
REQUESTED = ApprovalRequested(
    run_id=RUN,
    call_id=CallId("call"),
    request_id=REQUEST,
    command="rm notes.txt",
    description="Delete a file",
    execution="0" * 64,
    choices=(Choice.ONCE, Choice.DENY),
    expires_at=100.0,
)
FACTS: dict[str, Event] = {
    "yes": ApprovalGranted(run_id=RUN, request_id=REQUEST, choice=Choice.ONCE, by=OPERATOR),
    "no": ApprovalDenied(run_id=RUN, request_id=REQUEST, by=OPERATOR),
    "time is up": ApprovalExpired(run_id=RUN, request_id=REQUEST),
    "its run ended": ApprovalWithdrawn(run_id=RUN, request_id=REQUEST, reason="stopped"),
}
ALLOWED = {
    ("pending", "yes"): "granted",
    ("pending", "no"): "denied",
    ("pending", "time is up"): "expired",
    ("pending", "its run ended"): "withdrawn",
}


@pytest.mark.parametrize("status", ApprovalStatus)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: ApprovalStatus, fact: str) -> None:
    approval = Approval(REQUESTED, status)
    if (status.value, fact) in ALLOWED:
        expected = Approval(REQUESTED, ApprovalStatus(ALLOWED[status.value, fact]))
        assert evolve(approval, FACTS[fact]) == expected
    else:
        with pytest.raises(IllegalTransition, match=f"while approval request is {status}"):
            evolve(approval, FACTS[fact])
        assert approval == Approval(REQUESTED, status)


def test_only_a_pending_request_is_open() -> None:
    assert [s for s in ApprovalStatus if not s.final] == [ApprovalStatus.PENDING]


@pytest.mark.parametrize("status", [s for s in ApprovalStatus if s.final])
@pytest.mark.parametrize("choice", Choice)
def test_an_answer_after_the_first_is_too_late_and_says_what_came_before(
    status: ApprovalStatus, choice: Choice
) -> None:
    assert decide(Approval(REQUESTED, status), choice, now=0.0) == TooLate(status)


@pytest.mark.parametrize("choice", Choice)
def test_an_answer_at_or_after_the_expiry_is_too_late(choice: Choice) -> None:
    assert decide(Approval(REQUESTED), choice, now=100.0) == TooLate(ApprovalStatus.EXPIRED)


@pytest.mark.parametrize("choice", Choice)
def test_only_what_was_offered_can_be_chosen(choice: Choice) -> None:
    offered = choice in (Choice.ONCE, Choice.DENY)
    expected = Accept() if offered else NotOffered()
    assert decide(Approval(REQUESTED), choice, now=99.9) == expected


class Question(RuleBasedStateMachine):
    """Many people press many buttons while the clock runs and the run may end."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.journal: list[Event] = []
        self.approval = Approval(REQUESTED)

    def record(self, fact: Event) -> None:
        self.approval = evolve(self.approval, fact)
        self.journal.append(fact)

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(choice=st.sampled_from(Choice))
    def somebody_answers(self, choice: Choice) -> None:
        before = self.approval
        match decide(before, choice, self.now):
            case Accept():
                assert before.status is ApprovalStatus.PENDING and self.now < REQUESTED.expires_at
                self.record(FACTS["no" if choice is Choice.DENY else "yes"])
            case TooLate():
                assert before.status.final or self.now >= REQUESTED.expires_at
            case NotOffered():
                assert choice not in REQUESTED.choices

    @precondition(lambda self: not self.approval.status.final)
    @rule()
    def the_timer_looks(self) -> None:
        if self.now >= REQUESTED.expires_at:
            self.record(FACTS["time is up"])

    @precondition(lambda self: not self.approval.status.final)
    @rule()
    def its_run_ends(self) -> None:
        self.record(FACTS["its run ended"])

    @invariant()
    def there_is_at_most_one_answer_and_the_journal_tells_it(self) -> None:
        assert len(self.journal) <= 1
        assert self.approval.status.final is bool(self.journal)


TestQuestion = Question.TestCase
TestQuestion.settings = settings(
    max_examples=100, phases=set(Phase) - {Phase.explain}, deadline=None
)


SESSION = SessionKey(OPERATOR, SessionId("s"))
USER = frozenset({Role.RUN})
BUILD = Parsed((("deploy", "all"),))
REQUEST_TO_BUILD = ExecutionRequest(
    what=BUILD,
    cwd="/w/src",
    programs={"deploy": "/usr/bin/deploy", "ls": "/usr/bin/ls"},
    files={},
    environment={},
    stdin="",
    profile=("L2",),
    wants=Wants(),
    purpose="",
    bash="/bin/bash",
)
THIS_LINE = LineRule(
    what=BUILD, cwd="/w/src", programs=dict(REQUEST_TO_BUILD.programs), workspace="/w"
)
SCRIPT = replace(REQUEST_TO_BUILD, what=Opaque("deploy > log", "it has a redirect"))
LISTING = replace(REQUEST_TO_BUILD, what=Parsed((("ls", "-la"),)))
CONTEXT = ExecutionContext(
    principal=RunPrincipal(OPERATOR, USER),
    session=SESSION,
    door=RunDoor("terminal", True, 600.0),
    mode=ApprovalMode.ASK,
    cautious=False,
    level=Level.L2,
    workspace="/w",
    grants=(),
    standing=(),
    open_prompts=0,
    now=1_000.0,
)
ADMINISTRATOR = replace(CONTEXT, principal=RunPrincipal(OPERATOR, frozenset({Role.ADMIN})))
SANDBOXED = replace(ADMINISTRATOR, mode=ApprovalMode.SANDBOXED)
ONCE_OR_NOT = (Choice.ONCE, Choice.DENY)
PACKAGES, MIRROR = HostRule(name="packages.example"), HostRule(name="mirror.example")


def asked(request: ExecutionRequest, context: ExecutionContext) -> MustAsk:
    decision = decide_execution(request, context)
    assert isinstance(decision, MustAsk)
    return decision


def grant(permission: Permission, **other: object) -> Grant:
    given = Grant(permission=permission, session=SESSION, user=OPERATOR, expires_at=2_000.0)
    return replace(given, **other)


def test_an_unknown_command_is_asked_about_and_offers_exactly_itself() -> None:
    ask = asked(REQUEST_TO_BUILD, CONTEXT)
    assert ask.choices == (Choice.ONCE, Choice.SESSION, Choice.DENY)
    assert ask.offers == (THIS_LINE,)
    assert ask.command == "deploy all"
    assert (
        "exactly deploy all in /w/src (programs: /usr/bin/deploy, /usr/bin/ls; " in ask.description
    )
    assert "Sandbox: L2" in ask.description
    assert ask.expires_at == 1_600.0


def test_a_line_is_permitted_in_the_workspace_it_was_asked_in_and_in_no_wider_one() -> None:
    narrow = replace(THIS_LINE, workspace="/w/src")  # there it could write to /w/src only
    assert "workspace: /w)" in describe(THIS_LINE) and "workspace" not in describe(narrow)
    asked(REQUEST_TO_BUILD, replace(CONTEXT, standing=(narrow,)))
    for line in (THIS_LINE, replace(THIS_LINE, workspace="")):  # older ones have none
        granted = replace(CONTEXT, standing=(line,))
        assert decide_execution(REQUEST_TO_BUILD, granted) == MayRun(Ground.GRANTED)


def test_always_is_offered_to_an_administrator_only() -> None:
    assert asked(REQUEST_TO_BUILD, ADMINISTRATOR).choices == tuple(Choice)


def test_a_question_waits_seven_days_at_most() -> None:
    chat = replace(CONTEXT, door=RunDoor("chat", True, 1e9))
    assert asked(REQUEST_TO_BUILD, chat).expires_at == 1_000.0 + EXPIRY_S


def test_a_script_can_be_allowed_once_or_not_at_all() -> None:
    ask = asked(SCRIPT, ADMINISTRATOR)
    assert (ask.choices, ask.offers) == (ONCE_OR_NOT, ())
    assert ONLY_ONCE.format("it has a redirect") in ask.description


@pytest.mark.parametrize(
    "request_",
    [
        replace(REQUEST_TO_BUILD, stdin="0" * 64),
        replace(REQUEST_TO_BUILD, environment={"LD_PRELOAD": "./x.so"}),
    ],
)
def test_a_line_with_an_input_or_environment_of_its_own_is_no_line_to_grant(
    request_: ExecutionRequest,
) -> None:
    granted = replace(CONTEXT, standing=(THIS_LINE,))
    assert decide_execution(REQUEST_TO_BUILD, granted) == MayRun(Ground.GRANTED)
    assert asked(request_, granted).choices == ONCE_OR_NOT


def test_a_harmless_command_runs_but_not_with_an_environment_of_its_own() -> None:
    assert decide_execution(LISTING, CONTEXT) == MayRun(Ground.HARMLESS)
    asked(replace(LISTING, environment={"LD_PRELOAD": "./x.so"}), CONTEXT)
    quiet = replace(LISTING, environment={"LANG": "C"})
    assert decide_execution(quiet, CONTEXT) == MayRun(Ground.HARMLESS)


def test_one_unknown_command_in_a_line_makes_the_line_unknown() -> None:
    both = Parsed((("ls",), ("deploy", "all")), (Operator.AND,))
    assert asked(replace(REQUEST_TO_BUILD, what=both), CONTEXT).command == "ls && deploy all"


@pytest.mark.parametrize("request_", [REQUEST_TO_BUILD, SCRIPT, LISTING])
def test_without_a_sandbox_everything_asks_whatever_was_granted(
    request_: ExecutionRequest,
) -> None:
    bare = replace(SANDBOXED, level=Level.L0, standing=(THIS_LINE,))
    ask = asked(request_, bare)
    assert ask.choices == ONCE_OR_NOT and not ask.offers
    assert ask.description.startswith("UNSANDBOXED\n")


@pytest.mark.fault("F-35")
@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("request_", [REQUEST_TO_BUILD, SCRIPT, LISTING])
def test_an_execution_that_needs_a_question_is_denied_if_no_user_can_answer(
    request_: ExecutionRequest, level: Level
) -> None:
    here = replace(CONTEXT, level=level)
    shut = replace(here, door=RunDoor("chat completions", False, 600.0))
    decision = decide_execution(request_, shut)
    if isinstance(decide_execution(request_, here), MustAsk):
        assert isinstance(decision, Deny) and "chat completions" in decision.reason
    else:
        assert decision == MayRun(Ground.HARMLESS)


@pytest.mark.promise("MODEL-04")
def test_with_a_cautious_profile_only_what_a_person_granted_runs_unasked() -> None:
    for usual in (CONTEXT, SANDBOXED):
        assert isinstance(decide_execution(LISTING, usual), MayRun)
        asked(LISTING, replace(usual, cautious=True))
    asked(REQUEST_TO_BUILD, replace(SANDBOXED, cautious=True))
    granted = replace(CONTEXT, cautious=True, standing=(THIS_LINE,))
    assert decide_execution(REQUEST_TO_BUILD, granted) == MayRun(Ground.GRANTED)


def test_ten_questions_may_be_open_and_no_more() -> None:
    asked(REQUEST_TO_BUILD, replace(CONTEXT, open_prompts=9))
    full = replace(CONTEXT, open_prompts=10)
    assert isinstance(decide_execution(REQUEST_TO_BUILD, full), Deny)
    assert decide_execution(LISTING, full) == MayRun(Ground.HARMLESS)


@pytest.mark.parametrize("roles", [frozenset(), frozenset({Role.READ, Role.APPROVE})])
def test_who_may_not_run_runs_nothing(roles: frozenset[Role]) -> None:
    nobody = replace(CONTEXT, principal=RunPrincipal(OPERATOR, roles))
    assert isinstance(decide_execution(LISTING, nobody), Deny)


@pytest.mark.parametrize("request_", [REQUEST_TO_BUILD, SCRIPT])
def test_in_sandboxed_mode_a_strong_sandbox_is_enough(request_: ExecutionRequest) -> None:
    for level in (Level.L2, Level.L3):
        at_level = replace(SANDBOXED, level=level)
        assert decide_execution(request_, at_level) == MayRun(Ground.CONFINED)
    asked(request_, replace(SANDBOXED, level=Level.L1))
    mere_user = replace(SANDBOXED, principal=RunPrincipal(OPERATOR, USER))
    assert decide_execution(request_, mere_user) == MayRun(Ground.CONFINED)
    for roles in (USER, frozenset({Role.ADMIN})):
        asked(request_, replace(SANDBOXED, principal=RunPrincipal(Owner("eve"), roles)))
    elsewhere = SessionKey(Owner("eve"), SESSION.session_id)  # where the operator only speaks, too
    asked(request_, replace(SANDBOXED, session=elsewhere))


@pytest.mark.parametrize("now", Level)
def test_only_a_sandbox_weaker_than_the_one_before_must_be_accepted(now: Level) -> None:
    assert not is_weaker(None, now)
    assert [before for before in Level if is_weaker(before, now)] == [b for b in Level if b > now]


def test_a_script_that_hides_something_asks_in_any_sandbox() -> None:
    asked(replace(SCRIPT, what=Opaque("ls \u202e x", "hidden")), SANDBOXED)
    lines = replace(SCRIPT, what=Opaque("for i in 1; do\n\tls\ndone", "more than one line"))
    assert decide_execution(lines, SANDBOXED) == MayRun(Ground.CONFINED)


@pytest.mark.parametrize(
    ("wants", "told"),
    [
        (Wants(writable=("/home/me/it",)), "it writes to /home/me/it"),
        (Wants(unsandboxed=True), OUTSIDE_SANDBOX),
        (Wants(detach=True), DETACHED),
    ],
)
@pytest.mark.parametrize("request_", [LISTING, REQUEST_TO_BUILD, SCRIPT])
def test_a_command_beyond_the_sandbox_is_asked_about_every_time(
    request_: ExecutionRequest, wants: Wants, told: str
) -> None:
    ask = asked(replace(request_, wants=wants), SANDBOXED)
    assert ask.choices == ONCE_OR_NOT and told in ask.description
    assert ask.description.startswith("UNSANDBOXED") is wants.unsandboxed


def test_a_host_can_be_granted_to_a_session_even_for_a_script_that_needs_nothing_else() -> None:
    fetching = replace(SCRIPT, wants=Wants(hosts=("packages.example",)))
    ask = asked(fetching, SANDBOXED)
    assert ask.offers == (HostRule(name="packages.example"),) and Choice.SESSION in ask.choices
    assert "the network host packages.example" in ask.description
    with_host = replace(SANDBOXED, grants=(grant(HostRule(name="packages.example")),))
    assert decide_execution(fetching, with_host) == MayRun(Ground.CONFINED)
    assert asked(fetching, replace(with_host, mode=ApprovalMode.ASK)).choices == ONCE_OR_NOT


@pytest.mark.parametrize(
    ("other", "holds"),
    [
        ({}, True),
        ({"expires_at": 1_000.1}, True),
        ({"expires_at": 1_000.0}, False),
        ({"expires_at": 1_000.0 + GRANT_S + 1}, False),
        ({"user": Owner("eve")}, False),
        ({"session": SessionKey(OPERATOR, SessionId("t"))}, False),
        ({"session": SessionKey(Owner("eve"), SessionId("s"))}, False),
    ],
)
def test_a_grant_holds_for_its_session_its_user_and_its_time(
    other: dict[str, object], holds: bool
) -> None:
    context = replace(CONTEXT, grants=(grant(THIS_LINE, **other),))
    decision = decide_execution(REQUEST_TO_BUILD, context)
    assert (decision == MayRun(Ground.GRANTED)) is holds


@pytest.mark.parametrize(
    "changed",
    [
        {"what": Parsed((("deploy", "install"),))},
        {"cwd": "/w"},
        {"programs": {"deploy": "/w/deploy", "ls": "/usr/bin/ls"}},
        {"what": Parsed((("deploy", "all"), ("deploy", "all")), (Operator.THEN,))},
    ],
)
def test_a_granted_line_covers_nothing_but_itself(changed: dict[str, object]) -> None:
    asked(replace(REQUEST_TO_BUILD, **changed), replace(CONTEXT, standing=(THIS_LINE,)))


def test_a_rule_of_the_operator_counts_beside_those_that_are_built_in() -> None:
    rule = Rule(exe="deploy", rest=WordKind.TEXT, program="/usr/bin/deploy")
    context = replace(CONTEXT, standing=(rule,))
    both = replace(REQUEST_TO_BUILD, what=Parsed((("ls",), ("deploy", "all")), (Operator.AND,)))
    assert decide_execution(both, context) == MayRun(Ground.GRANTED)


def test_git_is_always_asked_about() -> None:
    status = replace(LISTING, what=Parsed((("git", "status"),)), programs={"git": "/usr/bin/git"})
    asked(status, CONTEXT)


@pytest.mark.parametrize("bash", ["", "bash", "/w/bin/bash", "/opt/bin/bash", "/usr/bin/zsh"])
def test_a_line_for_another_bash_is_asked_about(bash: str) -> None:
    assert decide_execution(LISTING, CONTEXT) == MayRun(Ground.HARMLESS)
    asked(replace(LISTING, bash=bash), CONTEXT)


def test_a_program_inside_the_workspace_is_not_a_system_program() -> None:
    asked(replace(LISTING, cwd="/usr/bin"), replace(CONTEXT, workspace="/usr/bin"))


def test_a_path_that_was_not_followed_into_the_workspace_is_asked_about() -> None:
    reading = replace(LISTING, what=Parsed((("ls", "notes"),)))
    asked(reading, CONTEXT)
    followed = replace(reading, paths={"notes": Seen.FILE})
    assert decide_execution(followed, CONTEXT) == MayRun(Ground.HARMLESS)


@pytest.mark.promise("RUN-13")
def test_a_session_answer_grants_what_was_offered_for_eight_hours() -> None:
    offered = replace(REQUESTED, offers=(THIS_LINE, HostRule(name="packages.example")))
    given = grants(offered, Choice.SESSION, SESSION, OPERATOR, 1_000.0)
    assert [g.permission for g in given] == list(offered.offers)
    assert {g.expires_at for g in given} == {1_000.0 + GRANT_S}
    assert decide_execution(REQUEST_TO_BUILD, replace(CONTEXT, grants=given)) == MayRun(
        Ground.GRANTED
    )
    for choice in (Choice.ONCE, Choice.DENY):
        assert grants(offered, choice, SESSION, OPERATOR, 1_000.0) == ()


@pytest.mark.promise("RUN-13")
def test_an_always_answer_holds_in_its_session_at_once_and_stands_for_all_others() -> None:
    offered = replace(REQUESTED, offers=(THIS_LINE, PACKAGES))
    assert grants(offered, Choice.ALWAYS, SESSION, OPERATOR, 1_000.0) == grants(
        offered, Choice.SESSION, SESSION, OPERATOR, 1_000.0
    )
    assert standing(offered, Choice.ALWAYS, OPERATOR) == (
        Standing(permission=THIS_LINE, by=OPERATOR),
        Standing(permission=PACKAGES, by=OPERATOR),
    )
    for choice in set(Choice) - {Choice.ALWAYS}:
        assert standing(offered, choice, OPERATOR) == ()


def question(
    context: ExecutionContext, *offers: Permission, choices: tuple[Choice, ...] = ONCE_OR_NOT
) -> Decision:
    return decide_question("install x", "It changes us", choices, offers, context)


def test_a_tool_s_question_has_the_tool_s_text_and_offers() -> None:
    assert question(CONTEXT, PACKAGES, choices=(Choice.SESSION,)) == MustAsk(
        (Choice.SESSION,), (PACKAGES,), "install x", "It changes us", 1_600.0
    )
    chat = question(replace(CONTEXT, door=RunDoor("chat", True, 1e9)))
    assert isinstance(chat, MustAsk) and chat.expires_at == 1_000.0 + EXPIRY_S


@pytest.mark.parametrize(
    ("held", "offers", "runs"),
    [
        ((PACKAGES, MIRROR), (PACKAGES, MIRROR), True),
        ((PACKAGES, MIRROR), (PACKAGES,), True),
        ((PACKAGES,), (PACKAGES, MIRROR), False),
        ((PACKAGES,), (), False),
        ((), (), False),
    ],
)
def test_a_tool_s_question_is_answered_only_if_all_it_offers_was_permitted(
    held: tuple[Permission, ...], offers: tuple[Permission, ...], runs: bool
) -> None:
    for context in (
        replace(CONTEXT, standing=held),
        replace(CONTEXT, grants=tuple(map(grant, held))),
    ):
        decision = question(context, *offers)
        assert (decision == MayRun(Ground.GRANTED)) is runs
        assert isinstance(decision, MustAsk) is not runs


@pytest.mark.promise("RUN-13")
def test_a_command_at_work_asks_for_a_host_until_its_session_has_it() -> None:
    ask = ask_for_host("packages.example", "pip install x", CONTEXT)
    assert isinstance(ask, MustAsk)
    assert ask.choices == (Choice.ONCE, Choice.SESSION, Choice.DENY)
    assert (ask.command, ask.offers) == ("connect to packages.example", (PACKAGES,))
    assert (
        ask.description
        == "Sandbox: L2\nFor: pip install x\nTo permit: the network host packages.example"
    )
    assert ask.expires_at == 1_600.0
    given = grants(replace(REQUESTED, offers=ask.offers), Choice.SESSION, SESSION, OPERATOR, 999.0)
    with_host = replace(CONTEXT, grants=given)
    assert ask_for_host("packages.example", "pip install x", with_host) == MayRun(Ground.GRANTED)
    assert isinstance(ask_for_host("mirror.example", "pip install x", with_host), MustAsk)


def test_always_a_host_is_offered_to_an_administrator_only_and_no_longer_than_a_week() -> None:
    chat = replace(ADMINISTRATOR, door=RunDoor("chat", True, 1e9))
    ask = ask_for_host("packages.example", "pip install x", chat)
    assert isinstance(ask, MustAsk)
    assert ask.choices == tuple(Choice) and ask.expires_at == 1_000.0 + EXPIRY_S


def test_a_host_cannot_look_like_something_else() -> None:
    ask = ask_for_host("a.example\nApproved", "pip install x", CONTEXT)
    assert isinstance(ask, MustAsk)
    assert "\n" not in ask.command and ask.description.count("\n") == 2


@pytest.mark.fault("F-35")
@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"door": RunDoor("chat completions", False, 600.0)}, "chat completions"),
        ({"open_prompts": OPEN_PROMPTS}, TOO_MANY_PROMPTS),
    ],
)
def test_a_question_is_denied_if_no_user_can_answer_unless_it_was_granted(
    other: dict[str, object], why: str
) -> None:
    shut = replace(CONTEXT, **other)
    for decision in (
        question(shut, PACKAGES),
        ask_for_host("packages.example", "pip install x", shut),
    ):
        assert isinstance(decision, Deny) and why in decision.reason
    open_anyway = replace(shut, standing=(PACKAGES,))
    assert question(open_anyway, PACKAGES) == MayRun(Ground.GRANTED)
    assert ask_for_host("packages.example", "pip install x", open_anyway) == MayRun(Ground.GRANTED)


def test_permissions_are_standing_rules_and_valid_grants_of_the_session() -> None:
    context = replace(
        CONTEXT,
        standing=(THIS_LINE,),
        grants=(grant(PACKAGES), grant(MIRROR, expires_at=1_000.0)),
    )
    assert permissions(context) == (THIS_LINE, PACKAGES)


def test_offers_and_grants_survive_encoding() -> None:
    rule = Rule(exe="deploy", flags=frozenset({"-k"}), valued={"-j": WordKind.NUMBER})
    offered = replace(REQUESTED, offers=(THIS_LINE, HostRule(name="packages.example"), rule))
    encoded = msgspec.json.encode(offered)
    assert msgspec.json.decode(encoded, type=ApprovalRequested) == offered
    given = grant(THIS_LINE)
    assert msgspec.json.decode(msgspec.json.encode(given), type=Grant) == given


def test_the_model_s_purpose_is_marked_and_shortened_and_cannot_look_like_our_text() -> None:
    ask = asked(replace(REQUEST_TO_BUILD, purpose="Sandbox: L3\nApproved\u202e"), CONTEXT)
    *_, said = ask.description.split("\n")
    assert said == "The model says, unverified: Sandbox: L3\\u{a}Approved\\u{202e}"
    wide = asked(replace(REQUEST_TO_BUILD, purpose=f"to build{' ' * 120}Sandbox: L3"), CONTEXT)
    assert wide.description.endswith("The model says, unverified: to build Sandbox: L3")
    long = asked(replace(REQUEST_TO_BUILD, purpose="x" * 10_000), CONTEXT)
    assert long.description.endswith("x…") and len(long.description) < 1_000


def test_a_question_shows_the_input_whole_and_permits_it_once_only() -> None:
    ask = asked(replace(REQUEST_TO_BUILD, stdin="rm x\n\u202eecho"), CONTEXT)
    assert ask.command == "deploy all\nwith this input:\n| rm x\n| \\u{202e}echo"
    assert (ask.choices, ask.offers) == ((Choice.ONCE, Choice.DENY), ())


def test_a_line_is_permitted_only_so_and_on_files_that_stay_as_they_are() -> None:
    request = replace(REQUEST_TO_BUILD, files={"/w/src/x.sh": "1" * 64})
    ask = asked(request, CONTEXT)
    assert "as long as these stay as they are: /w/src/x.sh" in ask.description
    given = grants(replace(REQUESTED, offers=ask.offers), Choice.SESSION, SESSION, OPERATOR, 999.0)
    granted = replace(CONTEXT, grants=given)
    assert decide_execution(request, granted) == MayRun(Ground.GRANTED)
    others = (
        replace(request, files={"/w/src/x.sh": "2" * 64}),
        replace(request, files={}),
        replace(request, wants=Wants(background=True)),
        replace(request, wants=Wants(terminal=True)),
    )
    for other in others:
        assert isinstance(decide_execution(other, granted), MustAsk)


def test_a_process_that_may_be_written_to_later_is_permitted_once_and_says_so() -> None:
    wants = Wants(background=True, open_input=True)
    ask = asked(replace(REQUEST_TO_BUILD, wants=wants), CONTEXT)
    assert ask.choices == (Choice.ONCE, Choice.DENY)
    assert "In the background" in ask.description
    assert OPEN_INPUT in ask.description
    confined = replace(REQUEST_TO_BUILD, wants=wants)
    assert decide_execution(confined, SANDBOXED) == MayRun(Ground.CONFINED)


def test_out_of_the_sandbox_is_called_that_and_not_a_lack_of_one() -> None:
    out = replace(REQUEST_TO_BUILD, wants=Wants(unsandboxed=True))
    ask = asked(out, replace(CONTEXT, level=Level.L0))
    assert NO_SANDBOX not in ask.description
    assert OUTSIDE_SANDBOX in ask.description


@pytest.mark.promise("RUN-13")
@pytest.mark.parametrize("choice", Choice)
def test_only_an_administrators_always_is_recorded_as_that(choice: Choice) -> None:
    assert limit_choice(choice, frozenset(Role)) is choice
    lesser = Choice.SESSION if choice is Choice.ALWAYS else choice
    assert limit_choice(choice, frozenset(Role) - {Role.ADMIN}) is lesser


@pytest.mark.fault("F-33")
def test_a_question_says_which_files_are_checked_and_which_are_not() -> None:
    whole = Tree(path="/w", files=1_200, identity="i", but=("a b", "c" * 200 + "d"))
    request = replace(REQUEST_TO_BUILD, trees=(whole,), files={"/v/x": "1"}, beside=2)
    lines = described(request)
    cut = "c" * 50 + "…" + "c" * 49 + "d"
    assert (
        f"Files checked again before it starts: all 1,200 in /w but 'a b', '{cut}'; "
        "no others but /v/x"
    ) in lines
    assert "For longer than once: files that are not named here are not checked" in lines
    assert "Processes at work there, which can change files later and unseen: 2" in lines
    read = replace(request, trees=(replace(whole, content="c"),))
    assert "Processes at work there, which can change files later: 2" in described(read)
    gap = Tree(path="/h\x1b", gap="too big")
    once = replace(SCRIPT, trees=(gap,))
    assert "Files are not checked in /h\\u{1b}: too big" in described(once)
    assert not any("For longer" in line for line in described(once))
    many = replace(once, files={f"/w/{n:02}": "1" for n in range(22)})
    assert any(line.endswith("/w/19 and 2 more") for line in described(many))


def described(request: ExecutionRequest) -> list[str]:
    ask = decide_execution(request, CONTEXT)
    assert isinstance(ask, MustAsk)
    return ask.description.split("\n")
