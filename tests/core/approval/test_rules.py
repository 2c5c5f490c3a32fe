"""A rule allows what it names: this program, these flags, words of these kinds."""

import pytest

from holdfast.core.execution import Parsed
from holdfast.core.rules import GIT, HARMLESS, Host, Kind, Line, Place, Rule, allows, shown, under

HERE = Place("/w", "/w/src")


def allowed(text: str, program: str | None = None, place: Place = HERE) -> bool:
    """Whether any built-in rule allows the words of `text`; `_` stands for a blank in a word."""
    argv = tuple(word.replace("_", " ") for word in text.split())
    program = f"/usr/bin/{argv[0]}" if program is None else program
    return any(allows(rule, argv, program, place) for rule in HARMLESS + GIT)


@pytest.mark.parametrize(
    "text",
    [
        *("ls", "ls -la src", "ls --color=always -- -x", "ls /w/src /w", "cat a b c", "pwd -P"),
        *(
            "head -n 5 x",
            "head -n5 x",
            "head -20 x",
            "tail -n +3 x",
            "tail --lines=3 x",
            "wc -lc x",
        ),
        *("grep -rn foo src", "grep -A3 -B 2 foo x", "grep --include=*.py -r a_b .", "grep / x"),
        *("echo", "echo -n -x --foo /etc", "sleep 0.5", "sleep 30", "date +%s", "date -u"),
        *(
            "sort -t, -k 2,2n x",
            "cut -d _ -f-3 x",
            "uniq -c",
            "uniq x",
            "tr a-z A-Z",
            "diff -U 3 a b",
        ),
        *("find . -name *.py -o -name x", "find src -maxdepth 2 -mtime -1", "cd sub", "true"),
        *(
            "git status",
            "git log --oneline -5 main..HEAD",
            "git show HEAD:a/b",
            "git branch --list -a",
        ),
        *("git diff HEAD~1 -- a/b.c", "cmp -n 5 a b", "stat -c %s x", "rg -g *.py foo src"),
    ],
)
def test_reading_is_allowed(text: str) -> None:
    assert allowed(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "cat /etc/passwd",
            "cat ../x",
            "cat a/../../x",
            "cat ~/x",
            "cat ~root/x",
            "cat -",
            "cat -- -",
        ),
        *("cat /w/../etc/passwd", "cat /wx", "ls --color /etc", "ls -Z", "ls --zap", "ls -lZ"),
        *(
            "head -n",
            "head -n x y",
            "head -c -",
            "head --lines 5 x",
            "tail -f x",
            "wc --files0-from=x",
        ),
        *(
            "grep",
            "grep -e a /etc/passwd",
            "grep -f x y",
            "grep -R a x",
            "grep -P a x",
            "grep -rne a x",
        ),
        *(
            "grep a /etc/passwd",
            "grep -C a x",
            "sleep",
            "sleep infinity",
            "sleep 1e9",
            "seq 1 2 3 4",
        ),
        *(
            "date 01010101",
            "date -s now",
            "date -d now",
            "sort -o x y",
            "sort -ro x y",
            "sort -T /w x",
        ),
        *(
            "sort -k -o x",
            "sort --compress-program=sh x",
            "uniq a b",
            "cut -f",
            "diff a",
            "diff a b c",
        ),
        *(
            "diff -l a b",
            "true x",
            "pwd x",
            "cd",
            "cd a b",
            "cd -",
            "cd ..",
            "basename",
            "file -C -m x",
        ),
        *(
            "find . -exec sh",
            "find . -delete",
            "find . -fprint x",
            "find / -name x",
            "find . -name -exec",
        ),
        *("git", "git -c a=b status", "git push", "git log --output=x", "git diff --no-index a b"),
        *(
            "git diff /dev/null /etc/passwd",
            "git diff ../../x y",
            "git branch x",
            "git branch -D x",
        ),
        *(
            "git show --textconv",
            "printf x",
            "env ls",
            "xargs ls",
            "sh",
            "python3",
            "sed p x",
            "tee x",
        ),
        *("awk 1", "tar tf x", "ssh a", "test -v a", "[ a ]", "command ls", "find . -newer", "''"),
    ],
)
def test_everything_else_is_not(text: str) -> None:
    assert not allowed(text)


@pytest.mark.parametrize("program", ["/w/ls", "/home/me/.local/bin/ls", "ls", "", "/usr/bin/cat"])
def test_a_name_counts_only_where_the_system_has_it(program: str) -> None:
    assert not allowed("ls", program)
    assert not any(allows(rule, ("ls",), None, HERE) for rule in HARMLESS)
    assert allowed("ls", "/bin/ls") and allowed("ls", "/usr/local/bin/ls")


def test_a_builtin_of_bash_is_found_nowhere_and_needs_not_be() -> None:
    assert all(any(allows(r, argv, None, HERE) for r in HARMLESS) for argv in [("pwd",), ("echo",)])


@pytest.mark.parametrize("cwd", ["/", "/etc", "/wx", "/w/../etc", "/w/.."])
def test_outside_of_the_workspace_nothing_is_harmless(cwd: str) -> None:
    assert not allowed("ls", place=Place("/w", cwd))


def test_a_whole_file_system_is_no_workspace() -> None:
    assert not under("/etc", "/") and not under("/etc", "")
    assert under("/w", "/w/") and under("/w/", "/w") and not under("/wx", "/w")


def test_a_rule_may_ask_for_one_program() -> None:
    rule = Rule(exe="make", rest=Kind.TEXT, program="/opt/make")
    assert allows(rule, ("make", "x"), "/opt/make", HERE)
    assert not allows(rule, ("make", "x"), "/usr/bin/make", HERE)


def test_a_word_that_a_rule_has_no_place_for_is_not_allowed() -> None:
    rule = Rule(exe="make", positional=(Kind.TEXT,), program="/opt/make")
    assert allows(rule, ("make", "x"), "/opt/make", HERE)
    assert not allows(rule, ("make", "x", "y"), "/opt/make", HERE)


def test_a_permission_is_shown_in_full() -> None:
    rule = Rule(
        exe="git",
        subcommand=("log",),
        flags=frozenset({"-p", "-a"}),
        valued={"-n": Kind.NUMBER},
        positional=(Kind.PATTERN,),
        rest=Kind.PATH,
        least=1,
    )
    assert shown(rule) == "any git log [-a] [-p] [-n <number>] <pattern> <path>… (1 to 32 words)"
    assert shown(Rule(exe="x", program="/opt/x", most=0)) == "any /opt/x (0 to 0 words)"
    line = Line(what=Parsed((("x", "\u202e"),)), cwd="/w\n", programs={"x": "/opt/x"})
    assert shown(line) == "exactly x '\\u{202e}' in /w\\u{a} (programs: /opt/x)"
    assert shown(Line(what=Parsed((("pwd",),)), cwd="/w", programs={})).endswith("(programs: none)")
    assert shown(Host(name="a\u200b.example")) == "the network host a\\u{200b}.example"
