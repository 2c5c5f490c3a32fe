"""A family rule allows a program in its usual forms: in its workspace, in the sandbox, no more."""

import pytest
from msgspec.structs import replace

from holdfast.core.approval.approval import (
    Choice,
    ExecutionContext,
    Ground,
    Level,
    MayRun,
    MustAsk,
)
from holdfast.core.approval.decision import decide_execution
from holdfast.core.approval.execution import (
    NOT_ORDINARY,
    OUTSIDE,
    ExecutionRequest,
    Operator,
    Parsed,
    Redirect,
    RedirectKind,
    Seen,
    Wants,
    execution_hash,
    serialise,
)
from holdfast.core.approval.families import family
from holdfast.core.approval.rules import (
    CommandPlace,
    CommandRule,
    LineRule,
    OutputRule,
    Permission,
    describe,
)
from tests.core.approval.test_approval import CONTEXT, REQUEST_TO_BUILD, SANDBOXED

HERE = CommandPlace("/w", "/w/src")
OUT = Redirect(RedirectKind.WRITE, "out", 1)
ERRORS = Redirect(RedirectKind.SAME, "1", 2)
OUTPUT = OutputRule(workspace="/w")


def rule_of(text: str, program: str = "") -> CommandRule | None:
    argv = tuple(text.split())
    return family(argv, (), program or f"/usr/bin/{argv[0]}", HERE)


def request(text: str, **other: object) -> ExecutionRequest:
    """The line `text`, of which `|`, `;` and `&&` are operators."""
    words = text.split()
    operators = tuple(Operator(word) for word in words if word in set(Operator))
    lines: list[list[str]] = [[]]
    for word in words:
        if word in set(Operator):
            lines.append([])
        else:
            lines[-1].append(word)
    names = {line[0] for line in lines}
    return replace(
        REQUEST_TO_BUILD,
        what=Parsed(tuple(map(tuple, lines)), operators),
        programs={name: f"/usr/bin/{name}" for name in names},
        files={},
        **other,
    )


def with_redirects(asked: ExecutionRequest, *redirects: Redirect) -> ExecutionRequest:
    """The same, with redirections behind the last command."""
    assert isinstance(asked.what, Parsed)
    none = ((),) * (len(asked.what.commands) - 1)
    return replace(asked, what=replace(asked.what, redirects=(*none, redirects)))


def asked(of: ExecutionRequest, context: ExecutionContext = CONTEXT) -> MustAsk:
    decision = decide_execution(of, context)
    assert isinstance(decision, MustAsk)
    return decision


def given(*permissions: Permission) -> ExecutionContext:
    return replace(CONTEXT, standing=permissions)


@pytest.mark.promise("ASK-05")
def test_a_family_is_offered_in_full_and_allows_what_is_like_it() -> None:
    question = asked(request("pytest -q tests"))
    (rule,) = question.offers
    assert rule == CommandRule(
        exe="pytest", more=True, code=True, program="/usr/bin/pytest", workspace="/w"
    )
    assert question.choices == (Choice.ONCE, Choice.SESSION, Choice.DENY)
    assert f"To permit: {describe(rule)}" in question.description
    for like in ("pytest", "pytest -x -p y", "ls | wc -l ; pytest", "cd x && pytest"):
        followed = request(like, paths=dict.fromkeys(like.split(), Seen.DIRECTORY))
        assert decide_execution(followed, given(rule)) == MayRun(Ground.GRANTED)


@pytest.mark.promise("ASK-05")
@pytest.mark.parametrize(
    "change",
    [
        {"stdin": "x"},
        {"programs": {"pytest": "/w/pytest"}},
        {"programs": {}},
        {"cwd": "/elsewhere"},
        {"bash": "/w/bash"},
        {"environment": {"LD_PRELOAD": "x"}},
        {"wants": Wants(background=True)},
        {"wants": Wants(terminal=True)},
        {"wants": Wants(open_input=True)},
        {"wants": Wants(unsandboxed=True)},
        {"wants": Wants(detach=True)},
    ],
)
def test_a_family_is_for_the_program_in_the_foreground_without_more(
    change: dict[str, object],
) -> None:
    (rule,) = asked(request("pytest")).offers
    assert decide_execution(request("pytest"), given(rule)) == MayRun(Ground.GRANTED)
    assert rule not in asked(replace(request("pytest"), **change)).offers
    asked(replace(request("pytest"), **change), given(rule))


@pytest.mark.promise("ASK-05")
@pytest.mark.parametrize("level", [Level.L0, Level.L1])
def test_a_family_needs_a_sandbox_that_holds(level: Level) -> None:
    (rule,) = asked(request("pytest")).offers
    weak = replace(given(rule, OUTPUT), level=level)
    assert not [o for o in asked(request("pytest"), weak).offers if isinstance(o, CommandRule)]
    asked(with_redirects(request("ls", targets={"out": ""}), OUT), weak)


@pytest.mark.promise("ASK-05")
def test_a_family_is_for_its_workspace() -> None:
    (rule,) = asked(request("pytest")).offers
    asked(request("pytest"), replace(given(rule), workspace="/w/src"))
    everywhere = replace(rule, workspace="")
    other = replace(given(everywhere), workspace="/w/src")
    assert decide_execution(request("pytest"), other) == MayRun(Ground.GRANTED)
    assert "in every workspace" in describe(everywhere)


@pytest.mark.promise("ASK-05")
def test_a_line_with_a_command_without_a_family_is_offered_as_it_is() -> None:
    for text in ("pytest ; rm x", "deploy | pytest"):
        (line,) = asked(request(text)).offers
        assert isinstance(line, LineRule)
        assert decide_execution(request(text), given(line)) == MayRun(Ground.GRANTED)
    both = asked(request("pytest && make test && ls")).offers
    assert [rule.exe for rule in both if isinstance(rule, CommandRule)] == ["pytest", "make"]
    assert decide_execution(request("pytest && make test"), given(*both)) == MayRun(Ground.GRANTED)
    asked(request("pytest && make test"), given(both[0]))


@pytest.mark.parametrize(
    ("text", "covered", "others"),
    [
        ("make test", ["make test"], ["make", "make deploy", "make test deploy", "make test -k"]),
        ("npm run build", ["npm test", "npm run x -- -y"], ["npm install", "npm", "npm -g test"]),
        ("git log -5", ["git status -s", "git diff -U3 a b", "git show --format=x HEAD -- a"], []),
        ("git diff", [], ["git diff --output=x", "git -c a=b diff", "git add x", "git branch x"]),
        ("git add x", ["git commit -m x", "git commit -am x"], ["git commit -S", "git push"]),
        ("docker ps", ["docker logs -f x", "docker compose ps"], ["docker run x", "docker"]),
        ("python x.py", ["python -m y", "python -c z"], ["python3 x.py"]),
    ],
)
def test_a_family_has_the_usual_forms(text: str, covered: list[str], others: list[str]) -> None:
    rule = rule_of(text)
    assert rule is not None
    for like in (text, *covered):
        assert decide_execution(request(like), given(rule)) == MayRun(Ground.GRANTED), like
    for other in others:
        asked(request(other), given(rule))


@pytest.mark.parametrize(
    "text",
    [
        "rm x",
        "sh x.sh",
        "env pytest",
        "git push",
        "npm install",
        "./pytest",
        "sudo pytest",
        "make -f x",
    ],
)
def test_many_commands_have_no_family(text: str) -> None:
    assert rule_of(text) is None


def test_a_program_that_is_not_found_has_no_family() -> None:
    assert family(("pytest",), (), None, HERE) is None


@pytest.mark.promise("ASK-05")
def test_variables_are_allowed_by_name_and_never_for_the_harmless_table() -> None:
    def setting(name: str, text: str) -> ExecutionRequest:
        what = Parsed((tuple(text.split()),), variables=(((name, "x"),),))
        return replace(request(text), what=what)

    pytest_, git = rule_of("pytest"), rule_of("git status")
    assert pytest_ and git
    for name in ("CI", "PYTHONPATH"):
        found = decide_execution(setting(name, "pytest"), given(pytest_))
        assert found == MayRun(Ground.GRANTED)
    for name, text in (
        ("LD_PRELOAD", "pytest"),
        ("PYTHONPATH", "git status"),
        ("CI", "ls"),
        ("GIT_PAGER", "git status"),
    ):
        (line,) = asked(setting(name, text), given(pytest_, git)).offers
        assert isinstance(line, LineRule)


@pytest.mark.promise("ASK-06")
def test_output_into_a_file_needs_a_permission_and_a_plain_file() -> None:
    writing = with_redirects(request("ls | sort", targets={"out": ""}), OUT, ERRORS)
    assert asked(writing).offers == (OUTPUT,)
    assert describe(OUTPUT) in asked(writing).description
    assert decide_execution(writing, given(OUTPUT)) == MayRun(Ground.GRANTED)
    for targets in ({}, {"out": "a reason"}):
        refused = replace(writing, targets=targets)
        assert OUTPUT not in asked(refused, given(OUTPUT)).offers
    protected = asked(replace(writing, targets={"out": "a reason"}), given(OUTPUT))
    assert protected.choices == (Choice.ONCE, Choice.DENY) and "a reason" in protected.description


@pytest.mark.promise("ASK-06", "PATH-03")
def test_where_the_sandbox_is_enough_only_protected_paths_are_asked_for() -> None:
    for why in (OUTSIDE, NOT_ORDINARY):
        writing = with_redirects(request("ls", targets={"out": why}), OUT)
        assert decide_execution(writing, SANDBOXED) == MayRun(Ground.CONFINED)
        assert asked(writing).choices == (Choice.ONCE, Choice.DENY)
    asked(with_redirects(request("ls", targets={"out": "a reason"}), OUT), SANDBOXED)


@pytest.mark.promise("ASK-06")
@pytest.mark.parametrize(
    ("redirect", "paths", "free"),
    [
        (ERRORS, {}, True),
        (Redirect(RedirectKind.WRITE, "/dev/null", 2), {}, True),
        (Redirect(RedirectKind.READ, "/dev/null", 0), {}, True),
        (Redirect(RedirectKind.READ, "x", 0), {"x": Seen.FILE}, True),
        (Redirect(RedirectKind.READ, "x", 0), {"x": Seen.ASTRAY}, False),
        (Redirect(RedirectKind.READ, "x", 0), {}, False),
        (Redirect(RedirectKind.READ, "/etc/passwd", 0), {"/etc/passwd": Seen.FILE}, False),
        (Redirect(RedirectKind.APPEND, "x", 1), {"x": Seen.FILE}, False),
        (Redirect(RedirectKind.BOTH, "x", 1), {"x": Seen.FILE}, False),
    ],
)
def test_a_redirection_that_writes_no_file_is_harmless(
    redirect: Redirect, paths: dict[str, Seen], free: bool
) -> None:
    line = with_redirects(request("ls", paths=paths), redirect)
    assert (decide_execution(line, CONTEXT) == MayRun(Ground.HARMLESS)) is free


def test_redirections_and_variables_are_part_of_the_hash_and_shown() -> None:
    plain = request("ls")
    line = with_redirects(plain, OUT)
    other = with_redirects(plain, replace(OUT, target="other"))
    reason = replace(line, targets={"out": "a reason"})
    assert len({execution_hash(one) for one in (plain, line, other, reason)}) == 4
    assert isinstance(line.what, Parsed)
    assert serialise(line.what, {"ls": "/bin/ls"}) == "/bin/ls > out"
    assert asked(line).command == "ls > out"
    errors = with_redirects(plain, Redirect(RedirectKind.APPEND, "out", 2))
    assert asked(errors).command == "ls 2>> out"
