"""A rule allows what it names: this program, these flags, words of these kinds."""

import pytest
from msgspec.structs import replace

from holdfast.core.approval.execution import Parsed, Seen
from holdfast.core.approval.harmless import HARMLESS
from holdfast.core.approval.rules import (
    CommandPlace,
    HostRule,
    LineRule,
    Rule,
    WordKind,
    allows,
    describe,
    is_under,
)

HERE = CommandPlace("/w", "/w/src", linux=True)


def allowed(
    text: str, program: str | None = None, place: CommandPlace = HERE, seen: Seen = Seen.FILE
) -> bool:
    """Whether a built-in rule allows the words of `text`; `_` stands for a blank in a word.

    Every word was followed and is `seen` in the workspace, so that the text alone decides.
    """
    argv = tuple(word.replace("_", " ") for word in text.split())
    program = f"/usr/bin/{argv[0]}" if program is None else program
    followed = replace(place, paths=dict.fromkeys(argv, seen))
    return any(allows(rule, argv, program, followed) for rule in HARMLESS)


@pytest.mark.parametrize(
    "text",
    [
        *("ls", "ls -la src", "ls --color=always x", "ls /w/src /w", "cat a b c", "pwd -P"),
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
            "find . ( -name a -o -name b ) -not -path */x/* -type f,d -size +10k",
            "find a b ! -empty -prune",
            "ls src -la",
            "head x -n 5",
            "nl -ba x",
        ),
        *(
            "seq 5",
            "seq 1 100",
            "grep -5 a x",
            "grep a{2,3} x",
            "date +%H:%M:%S_%3N",
            "cmp -n 5 a b",
            "stat -c %s x",
            "rg -g *.py foo src",
        ),
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
            "sleep 1000",
            "sleep 1 1",
            "seq 1 2 3",
            "seq 0.5",
            "seq 1000000",
            "seq -w 9",
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
            "find -- . -delete",
            "find . -- -delete",
            "find . -name a b",
            "find . ,",
            "find . -ao -name x",
            "find -L .",
        ),
        *(
            "ls -- x",
            "grep -- a x",
            "tail +5f x",
            "tail -5f x",
            "tail -5c 7",
            "cat @x",
            "cat !x",
            "uniq a -c",
            "diff -r a b",
            "nl -w 9 x",
            "date +%999d",
            "stat -c %999s x",
            "stat -c %.9n x",
            "ls --time-style=+%999d x",
            "ls --col x",
        ),
        *(
            "grep \\(a*\\)\\1 x",
            "grep -E a{999} x",
            "grep -E (a{9}){9} x",
            "find . -name *a*a*a*a*a*a*a*a*a",
            "sort -k 1;2 x",
            "cut -f x y",
            "find . -type x",
            "find . -size 1x",
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


@pytest.mark.parametrize(
    "program",
    ["/w/ls", "/home/me/.local/bin/ls", "ls", "", "/usr/bin/cat", "/usr/local/bin/ls", "/sbin/ls"],
)
def test_a_name_counts_only_where_the_system_has_it(program: str) -> None:
    assert not allowed("ls", program)
    assert not any(allows(rule, ("ls",), None, HERE) for rule in HARMLESS)
    assert allowed("ls", "/bin/ls") and allowed("ls", "/usr/bin/ls")
    assert not allowed("ls", "/usr/bin/ls", place=CommandPlace("/usr", "/usr/src"))


def test_a_builtin_of_bash_is_found_nowhere_and_needs_not_be() -> None:
    assert all(any(allows(r, argv, None, HERE) for r in HARMLESS) for argv in [("pwd",), ("echo",)])


@pytest.mark.parametrize("cwd", ["/", "/etc", "/wx", "/w/../etc", "/w/.."])
def test_outside_of_the_workspace_nothing_is_harmless(cwd: str) -> None:
    assert not allowed("ls", place=CommandPlace("/w", cwd))


def test_a_path_that_was_not_followed_is_not_allowed() -> None:
    (cat,) = [rule for rule in HARMLESS if rule.exe == "cat"]
    assert not allows(cat, ("cat", "x"), "/bin/cat", HERE)
    assert not allows(cat, ("cat", "x", "-n"), "/bin/cat", replace(HERE, paths={"x": Seen.FILE}))


@pytest.mark.parametrize("text", ["diff a b", "cmp a b", "diff -u /w/a b"])
def test_a_command_that_follows_links_takes_files_only(text: str) -> None:
    assert allowed(text) and allowed(text, seen=Seen.MISSING)
    assert not allowed(text, seen=Seen.DIRECTORY)


def test_a_flag_that_means_something_else_elsewhere_is_allowed_on_linux_only() -> None:
    for text in ("grep -r a x", "grep -nri a x", "grep --recursive a x"):
        assert allowed(text) and not allowed(text, place=replace(HERE, linux=False))
    assert allowed("grep -n a x", place=replace(HERE, linux=False))


def test_a_whole_file_system_is_no_workspace() -> None:
    assert not is_under("/etc", "/") and not is_under("/etc", "")
    assert is_under("/w", "/w/") and is_under("/w/", "/w") and not is_under("/wx", "/w")


def test_a_rule_may_ask_for_one_program() -> None:
    rule = Rule(exe="make", rest=WordKind.TEXT, program="/opt/make")
    assert allows(rule, ("make", "x"), "/opt/make", HERE)
    assert not allows(rule, ("make", "x"), "/usr/bin/make", HERE)


def test_a_word_that_a_rule_has_no_place_for_is_not_allowed() -> None:
    rule = Rule(exe="make", positional=(WordKind.TEXT,), program="/opt/make")
    assert allows(rule, ("make", "x"), "/opt/make", HERE)
    assert not allows(rule, ("make", "x", "y"), "/opt/make", HERE)


def test_a_permission_is_shown_in_full() -> None:
    rule = Rule(
        exe="git",
        subcommand=("log",),
        flags=frozenset({"-p", "-a"}),
        valued={"-n": WordKind.NUMBER},
        positional=(WordKind.PATTERN,),
        rest=WordKind.PATH,
        least=1,
    )
    assert describe(rule) == "any git log [-a] [-p] [-n <number>] <pattern> <path>… (1 to 32 words)"
    assert describe(Rule(exe="x", program="/opt/x", most=0)) == "any /opt/x (0 to 0 words)"
    line = LineRule(what=Parsed((("x", "\u202e"),)), cwd="/w\n", programs={"x": "/opt/x"})
    assert describe(line) == "exactly x '\\u{202e}' in /w\\u{a} (programs: /opt/x)"
    assert describe(LineRule(what=Parsed((("pwd",),)), cwd="/w", programs={})).endswith(
        "(programs: none)"
    )
    assert describe(HostRule(name="a\u200b.example")) == "the network host a\\u{200b}.example"
