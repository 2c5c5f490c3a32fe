"""What is shown is what runs, nothing in it hides, and one hash stands for all of it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.approval.execution import (
    ExecutionRequest,
    Opaque,
    Operator,
    Parsed,
    Seen,
    Wants,
    execution_hash,
    quote,
    render,
    serialise,
)
from holdfast.core.text.escape import escape, is_hidden

REQUEST = ExecutionRequest(
    what=Parsed((("ls", "-la"), ("wc",)), (Operator.PIPE,)),
    cwd="/w",
    programs={"ls": "/usr/bin/ls", "wc": "/usr/bin/wc"},
    files={"/usr/bin/ls": "1" * 64, "notes.txt": "2" * 64},
    environment={"LANG": "C"},
    stdin="",
    profile=("L2", "/w"),
    wants=Wants(),
    purpose="to look around",
)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (Parsed((("ls", "-la", "a b", "it's", ""),)), "ls -la 'a b' 'it'\"'\"'s' ''"),
        (Parsed((("a",), ("b",)), (Operator.OR,)), "a || b"),
        (Parsed((("if", "if"),)), "'if' if"),
        (Parsed((("A=b", "A=b"),)), "'A=b' 'A=b'"),
        (Parsed((("-c", "-c"),)), "'-c' -c"),
        (Parsed((("~", "*", "$a", "{a,b}", "#"),)), "'~' '*' '$a' '{a,b}' '#'"),
    ],
)
def test_bash_reads_back_exactly_the_serialised_words(what: Parsed, text: str) -> None:
    assert serialise(what, {}) == render(what) == text


def test_a_program_runs_from_where_it_was_found_and_a_builtin_from_bash() -> None:
    what = Parsed((("ls",), ("cd", "ls"), ("x",)), (Operator.AND, Operator.THEN))
    found = {"ls": "/a b/ls", "cd": "/usr/bin/cd"}
    assert serialise(what, found) == "'/a b/ls' && cd ls ; x"


@given(st.text())
def test_a_quoted_word_has_nothing_bare_that_a_shell_would_read(word: str) -> None:
    bare = "".join(re.split(r"'[^']*'|\"[^\"]*\"", quote(word)))
    assert re.fullmatch(r"[A-Za-z0-9_./,:@%+-]*", bare)


@pytest.mark.parametrize(
    "character",
    [*"\x00\t\n\r\x1b\x7f\u0085\u00a0\u00ad\u034f\u115f\u200b\u202e\u2066\u2028\u2800"]
    + [*"\u3000\u3164\ufe0f\ufeff\ufff9\U000e0041\U000e0100\ud800\ue000"],
)
def test_invisible_characters_are_shown_by_number(character: str) -> None:
    assert is_hidden(character)
    assert escape(f"a{character}b") == f"a\\u{{{ord(character):x}}}b"


@pytest.mark.parametrize("text", ["plain text", "é ß 漢字 ✓", "a\\tb", "back\\slash"])
def test_visible_characters_are_unchanged(text: str) -> None:
    assert escape(text) == text


def unescape(text: str) -> str:
    return re.sub(r"\\u\{([0-9a-f]+)\}", lambda found: chr(int(found[1], 16)), text)


@given(
    st.lists(st.sampled_from([*"ab\\u{}5c\n\u202e", "\\u{", "\\u{5c}"])).map("".join) | st.text()
)
def test_no_two_texts_look_the_same(text: str) -> None:
    assert unescape(escape(text)) == text
    assert not any(map(is_hidden, escape(text)))


def test_a_script_is_shown_whole_with_a_bar_before_each_line() -> None:
    assert render(Opaque("ls > x", "")) == "ls > x"
    assert render(Opaque("ls\nAllowed: yes\r", "")) == "| ls\n| Allowed: yes\\u{d}"
    assert render(Opaque("x" * 100_000, "")) == "x" * 100_000


@pytest.mark.fault("F-33")
@pytest.mark.parametrize(
    "changed",
    [
        {"what": Parsed((("ls", "-l"), ("wc",)), (Operator.PIPE,))},
        {"what": Parsed((("ls", "-la"), ("wc",)), (Operator.AND,))},
        {"what": Parsed((("ls", "-la", "wc"),))},
        {"what": Opaque("ls -la | wc", "")},
        {"cwd": "/w/src"},
        {"programs": {"ls": "/w/ls", "wc": "/usr/bin/wc"}},
        {"files": {"/usr/bin/ls": "1" * 64, "notes.txt": "3" * 64}},
        {"environment": {"LANG": "C", "LD_PRELOAD": "x"}},
        {"stdin": "4" * 64},
        {"profile": ("L1", "/w")},
        {"wants": Wants(hosts=("a.example",))},
        {"wants": Wants(writable=("/x",))},
        {"wants": Wants(unsandboxed=True)},
        {"wants": Wants(detach=True)},
    ],
)
def test_every_change_of_the_execution_changes_its_hash(changed: dict[str, object]) -> None:
    assert execution_hash(replace(REQUEST, **changed)) != execution_hash(REQUEST)


@pytest.mark.parametrize(
    "same",
    [
        {"purpose": "to do something else"},
        {"programs": {"wc": "/usr/bin/wc", "ls": "/usr/bin/ls"}},
    ],
)
def test_words_and_order_do_not_change_the_hash(same: dict[str, object]) -> None:
    assert execution_hash(replace(REQUEST, **same)) == execution_hash(REQUEST)


def test_two_scripts_that_differ_in_one_unseen_byte_are_two() -> None:
    scripts = ["ls", "ls ", "ls\r", "ls\u200b", "ls\udc80", "ls\udc81"]
    hashes = {execution_hash(replace(REQUEST, what=Opaque(text, ""))) for text in scripts}
    assert len(hashes) == len(scripts)
    why = replace(REQUEST, what=Opaque("ls", "another reason"))
    assert execution_hash(why) == execution_hash(replace(REQUEST, what=Opaque("ls", "")))


def test_of_the_paths_only_directories_and_those_that_lead_outside_change_the_hash() -> None:
    found = replace(REQUEST, paths={"-la": Seen.MISSING}, bash="/bin/bash", linux=True)
    assert execution_hash(found) == execution_hash(REQUEST)
    hashes = {execution_hash(replace(REQUEST, paths={"-la": seen})) for seen in Seen}
    assert len(hashes) == 3


def test_the_hash_of_an_execution_stays_the_same_from_release_to_release() -> None:
    assert (
        execution_hash(REQUEST)
        == "68b5ad813ce5f95d800f605be7553747953061a0a538c101c551b8d6ee48de1d"
    )
