"""A line is parsed as bash would, or not at all; hostile commands never run without approval."""

import os
import random
import re
import subprocess
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest

from holdfast.core.approval.approval import (
    ApprovalMode,
    Choice,
    Decision,
    Deny,
    ExecutionContext,
    Ground,
    Level,
    MayRun,
    MustAsk,
    Role,
    RunDoor,
    RunPrincipal,
)
from holdfast.core.approval.decision import decide_execution
from holdfast.core.approval.execution import (
    BUILTINS,
    ExecutionRequest,
    Opaque,
    Operator,
    Parsed,
    Redirect,
    RedirectKind,
    Seen,
    Wants,
)
from holdfast.core.types import OPERATOR, SessionId, SessionKey
from holdfast.tools.exec.shell import parse, serialise
from tests.tools.hostile import HARMLESS, HOSTILE

STRINGS = int(os.environ.get("HOLDFAST_FUZZ_STRINGS", "2000"))
SEED = int(os.environ.get("HOLDFAST_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
PLAIN_NAME = re.compile(r"\w[\w :,@+=-]{0,99}")
TOGETHER = 40  # texts for one start of bash

USER = frozenset({Role.RUN, Role.APPROVE})
ADMIN = frozenset(Role)
TERMINAL = RunDoor("terminal", True, 600.0)
COMPLETIONS = RunDoor("chat completions", False, 600.0)


@pytest.mark.parametrize(
    ("text", "commands", "operators"),
    [
        ("ls -la", [("ls", "-la")], ""),
        (" ls  a ; ", [("ls", "a")], ""),
        (
            "a 1 -2 | b && c || d; e",
            [("a", "1", "-2"), ("b",), ("c",), ("d",), ("e",)],
            "| && || ;",
        ),
        ("""echo 'a b'"c d"e ''""", [("echo", "a bc de", "")], ""),
        (r'grep "a\.b\$ \\ \"" é', [("grep", 'a\\.b$ \\ "', "é")], ""),
        ("'if' A=b", [("if", "A=b")], ""),
    ],
)
def test_literal_words_are_parsed_unchanged(
    text: str, commands: list[tuple[str, ...]], operators: str
) -> None:
    assert parse(text) == Parsed(tuple(commands), tuple(map(Operator, operators.split())))


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ";", "ls; ;", "ls &", "ls & ls", "! ls", "ls |& wc", "(ls)", "{ ls; }", "ls #x"),
        *("ls $a", 'ls "$a"', 'ls "$"', "ls `a`", "ls $(a)", "ls <(a)", "ls $'a'", 'ls $"a"'),
        *(
            "ls >$x",
            "ls 3>x",
            "ls >|x",
            "ls <&0",
            "ls >&-",
            "ls >&x",
            "ls > x y",
            ">x ls",
            "ls >''",
            "ls <<<x",
            "A=b",
            "A=$b ls",
            "A=~ ls",
            "A=b:~ ls",
            "A=(b) ls",
            "A+=b ls",
            "A[0]=b ls",
        ),
        *("'A=b' ls", "ls >x &", "{ ls; } >x", "(ls) >x", "2>&1 ls", "ls 22>x", "ls >~/x", "ls >*"),
        *("a+=b", "a[0]=b"),
        *(
            "ls *",
            "ls ?",
            "ls [a]",
            "ls ~",
            "ls a=~",
            "ls {a,b}",
            "ls {1..3}",
            "ls a\\ b",
            "ls \\-l",
        ),
        *(
            "if",
            "%1",
            "time ls",
            "[ a ]",
            "[[ a ]]",
            "f() { ls; }",
            "for a in b; do ls; done",
            "((1))",
        ),
        *("export a=b", "unset a", "ls 'a", 'ls "a', "a\tb", "a\nb", "a\rb", "a\x00b", "a\x1bb"),
        *("a\u202eb", "a\u200bb", "a\u00a0b", "a\u3164b", "a\ufe0fb", "a\ud800b", "e\u0301"),
        *("echo " + "x" * 4096, "&&".join(["a"] * 11), "&&".join(["a"] * 1300)),
    ],
)
def test_everything_else_is_a_script_and_says_why(text: str) -> None:
    read = parse(text)
    assert isinstance(read, Opaque) and read.text == text and read.reason


def test_ten_commands_and_four_kibibytes_can_still_be_read() -> None:
    assert isinstance(parse("&&".join(["a"] * 10)), Parsed)
    assert isinstance(parse("echo " + "x" * 4091), Parsed)


@pytest.mark.parametrize(
    ("text", "serialised"),
    [
        ("a >x", "a > x"),
        ("a|b>x", "a | b > x"),  # of the last command, as bash has it; the parser says otherwise
        ("a && b 2>&1 >x | c", "a && b 2>&1 > x | c"),
        ("a 2>>'x y' <z", "a 2>> 'x y' < z"),
        ("a &>x; b &>>y", "a &> x ; b &>> y"),
        ("a >&2 1>&1", "a 1>&2 1>&1"),
        ("a 2 >x", "a 2 > x"),
        ("A=1 B= C='x y' a B=2 | D=e b", "A=1 B= C='x y' a 'B=2' | D=e b"),
        ("a >'&1'", "a > '&1'"),
    ],
)
def test_redirections_and_variables_are_read_if_they_are_literal(
    text: str, serialised: str
) -> None:
    read = parse(text)
    assert isinstance(read, Parsed) and serialise(read, {}) == serialised
    assert parse(serialised) == read


def test_serialised_words_are_never_keywords_or_assignments() -> None:
    for word in ("if", "time", "LD_PRELOAD=x", "!", "{", "~", "a*", "it's", "$(id)", ""):
        text = serialise(Parsed(((word, word),)), {})
        assert text.startswith(("'", '"')) and text.count("'") >= 2, text
    for word in ("-c", "+x"):  # options of bash itself
        assert serialise(Parsed(((word, word),)), {}) == f"'{word}' {word}"
    assert serialise(Parsed((("ls", "x"), ("cd", "y")), (Operator.AND,)), {"ls": "/bin/ls"}) == (
        "/bin/ls x && cd y"
    )


def request(text: str) -> ExecutionRequest:
    """`text` as the terminal tool would bring it, every program where Debian has it, no links."""
    what = parse(text)
    commands = what.commands if isinstance(what, Parsed) else ()
    names = {argv[0] for argv in commands}
    return ExecutionRequest(
        what=what,
        cwd="/work/project",
        programs={name: f"/usr/bin/{name}" for name in names - BUILTINS},
        files={},
        environment={},
        stdin="",
        profile=("L2",),
        wants=Wants(),
        purpose="",
        paths={word: Seen.FILE for argv in commands for word in argv},
        bash="/usr/bin/bash",
        linux=True,
    )


def context(
    mode: ApprovalMode, level: Level, door: RunDoor, roles: frozenset[Role]
) -> ExecutionContext:
    return ExecutionContext(
        principal=RunPrincipal(OPERATOR, roles),
        session=SessionKey(OPERATOR, SessionId("s")),
        door=door,
        mode=mode,
        cautious=False,
        level=level,
        workspace="/work/project",
        grants=(),
        standing=(),
        open_prompts=0,
        now=0.0,
    )


EVERYWHERE = [
    context(*where)
    for where in product(ApprovalMode, Level, (TERMINAL, COMPLETIONS), (USER, ADMIN))
]


def by_the_operators_word(where: ExecutionContext) -> bool:
    """Where the operator has put the sandbox in the place of the question."""
    operator = where.principal.owner == OPERATOR
    return operator and where.mode is ApprovalMode.SANDBOXED and where.level >= Level.L2


def decisions(text: str, places: Iterable[ExecutionContext]) -> list[Decision]:
    return [decide_execution(request(text), place) for place in places]


def test_there_are_50_hostile_and_20_harmless_commands() -> None:
    assert len(set(HOSTILE)) == 50 and len(set(HARMLESS)) == 20


@pytest.mark.fault("F-32")
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_command_runs_unasked_nowhere(text: str) -> None:
    found = decisions(text, (p for p in EVERYWHERE if not by_the_operators_word(p)))
    assert not [d for d in found if isinstance(d, MayRun)]


@pytest.mark.fault("F-32")
@pytest.mark.parametrize("text", HOSTILE)
def test_if_the_operator_trusts_the_sandbox_it_contains_hostile_commands(
    text: str,
) -> None:
    for decision in decisions(text, filter(by_the_operators_word, EVERYWHERE)):
        match decision:
            case MayRun(ground=ground):
                assert ground is Ground.CONFINED
            case MustAsk() | Deny():
                assert "\u202e" in text or "\r" in text


@pytest.mark.fault("F-35")
@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_command_is_denied_without_a_user_to_ask(text: str) -> None:
    ask = context(ApprovalMode.ASK, Level.L2, COMPLETIONS, ADMIN)
    assert isinstance(decide_execution(request(text), ask), Deny)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_harmless_command_costs_no_prompt_in_any_sandbox(text: str) -> None:
    for place in EVERYWHERE:
        decision = decide_execution(request(text), place)
        if place.level is not Level.L0:
            assert decision == MayRun(Ground.HARMLESS)
        elif place.door.answerable:
            assert isinstance(decision, MustAsk) and decision.choices == (Choice.ONCE, Choice.DENY)
        else:
            assert isinstance(decision, Deny)


@pytest.mark.parametrize(
    "text",
    [
        *("git status -s", "git log --oneline -5", "git diff HEAD~1 -- src/a.py"),
        *("git show HEAD:src/a.py", "git branch --list"),
    ],
)
def test_git_is_asked_about_everywhere(text: str) -> None:
    found = decisions(text, (p for p in EVERYWHERE if not by_the_operators_word(p)))
    assert not [d for d in found if isinstance(d, MayRun)]


LITERAL = ["H ", "H ", "H", "a", "b1", " ", " ", "  ", "'x y'", '"x y"', "'$a'", '"a\\$b\\c"', "''"]
LITERAL += [
    "é",
    "-",
    ".",
    ":",
    "%",
    "^",
    "@",
    "+",
    "=",
    ",",
    "1",
    " && ",
    " || ",
    " ; ",
    " | ",
    ";",
    " > a ",
    " >>b1 ",
    " 2>&1 ",
    " 2>a",
]
ODD = ["'", '"', "\\", "$", "`", "|", "&", "&&", ">", "<", "2>", "(", ")", "{", "}", "{a,b}", "*"]
ODD += ["?", "[", "]", "~", "#", " #", "!", "+=", "/", "if ", "then ", "fi", "time ", "in", "\t"]
ODD += [
    "$IFS",
    "..",
    "A=b ",
    "\\ ",
    "\\\t",
    "$'a'",
    '$"a"',
    "\n",
    "ß",
    "\u00a0",
    "function ",
    "a[0]=",
]

# Whatever is no command of bash's own comes here, and nothing else can be found.
RECORD = "() { local IFS=$'\\x1f'; printf '%s\\n' \"$*\" >&\"$TOLD\"; }"


def lines(seed: int, count: int) -> Iterable[str]:
    chance = random.Random(seed)
    for _ in range(count):
        odd = chance.choice((0.0, 0.0, 0.1, 0.3))
        yield "H" * chance.randrange(2) + "".join(
            chance.choice(ODD if chance.random() < odd else LITERAL)
            for _ in range(chance.randrange(1, 14))
        )


def told_by_bash(texts: list[str], told: Path, empty: Path) -> list[list[list[str]]]:
    """For each of `texts`, the argv of every command that bash runs for it."""
    with told.open("wb", buffering=0) as file:
        subprocess.run(
            ["/bin/bash", "--noprofile", "--norc", "-c", "\nEND\n".join([*texts, ""])],
            env={
                "PATH": "/nonexistent",
                "LC_ALL": "C.UTF-8",
                "TOLD": str(file.fileno()),
                "BASH_FUNC_command_not_found_handle%%": RECORD,
            },
            cwd=empty,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(file.fileno(),),
            timeout=30,
            check=False,
        )
    runs = told.read_text().split("END\n")[:-1]
    return [sorted(argv.split("\x1f") for argv in run.split("\n")[:-1]) for run in runs]


def expected(parsed: Parsed) -> list[list[str]]:
    """What runs if every command succeeds: all, but for the pipeline behind each `||`."""
    ran, skipping = [list(parsed.commands[0])], False
    for operator, argv in zip(parsed.operators, parsed.commands[1:], strict=True):
        if operator is not Operator.PIPE:
            skipping = operator is Operator.OR
        if not skipping:
            ran.append(list(argv))
    return sorted(ran)


def literal(texts: Iterable[str]) -> Iterator[tuple[str, Parsed]]:
    """Those that can be read and whose every command bash would have to look for."""
    for text in texts:
        parsed = parse(text)
        if isinstance(parsed, Parsed):
            names = {argv[0] for argv in parsed.commands}
            if not names & BUILTINS and all(name and "/" not in name for name in names):
                if all(map(opens, parsed.redirections)):
                    yield text, parsed


def opens(redirect: Redirect) -> bool:
    """Whether bash can open its target, so that the command runs."""
    to_file = redirect.writes and PLAIN_NAME.fullmatch(redirect.target)
    return redirect.kind is RedirectKind.SAME or bool(to_file)


@pytest.mark.fault("F-32")
def test_literal_words_mean_the_same_in_bash(tmp_path: Path) -> None:
    told, empty = tmp_path / "told", tmp_path / "empty"
    empty.mkdir()
    read = list(literal(lines(SEED, STRINGS)))
    assert len(read) > STRINGS / 20
    for start in range(0, len(read), TOGETHER):
        some = read[start : start + TOGETHER]
        both = [form for text, parsed in some for form in (serialise(parsed, {}), f" {text}")]
        found = told_by_bash(both, told, empty)
        wanted = [expected(parsed) for _, parsed in some for _ in range(2)]
        wrong = [case for case in zip(both, found, wanted, strict=False) if case[1] != case[2]]
        assert not wrong and len(found) == len(wanted), f"HOLDFAST_FUZZ_SEED={SEED}: {wrong[:1]}"
    targets = {r.target for _, parsed in read for r in parsed.redirections if r.writes}
    assert targets and {path.name for path in empty.iterdir()} <= targets
