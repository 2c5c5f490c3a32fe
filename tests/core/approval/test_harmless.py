"""The table of what runs unasked: no rule without its reason, and no word too many gets past one."""

import re
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.approval.execution import BUILTINS, Seen
from holdfast.core.approval.harmless import HARMLESS
from holdfast.core.approval.rules import CommandPlace, Rule, WordKind, allows, describe

SAFETY = Path(__file__).parents[3] / "docs" / "safety.md"
ROW = re.compile(r"^\| (\S+) \| `(.+)` \| (.+) \|$", re.MULTILINE)
WHERE = CommandPlace("/w", "/w/src", linux=True)
OUTSIDE = ("/etc/passwd", "/", "../x", "a/../../x", "~/x", "-", "~root", "//etc", "/w/../x", "")
EXAMPLES = {
    WordKind.PATH: ("x", "a/b.py", "./x", ".", "/w", "/w/src/x"),
    WordKind.FILE: ("x", "a/b.py"),
    WordKind.NUMBER: ("0", "5", "+3", "-2"),
    WordKind.COUNT: ("0", "100"),
    WordKind.SECONDS: ("1", "0.5"),
    WordKind.WORD: ("always", "size", "long-iso"),
    WordKind.TEXT: ("a", "a-z", "/etc/passwd", "x y"),
    WordKind.SET: ("a", "a-z", "[:alpha:]", "[x*3]"),
    WordKind.PATTERN: ("foo", "^a.*b$", "a{2}", "/x", "(a+)+"),
    WordKind.GLOB: ("*.py", "x", "*/a/*"),
    WordKind.FIELDS: ("1", "1,3", "2-"),
    WordKind.KEY: ("2", "2,2n", "1.2r"),
    WordKind.SIZE: ("+10k", "5", "-1M"),
    WordKind.TYPE: ("f", "f,d"),
    WordKind.FORMAT: ("+%s", "+%Y-%m-%d"),
    WordKind.LAYOUT: ("%s %n", "%y"),
    WordKind.LINES: ("5p", "1,20p", "3,$p", "$p", "1,5p;5q"),
}


@pytest.mark.promise("ASK-01")
def test_every_rule_has_a_row_that_says_why_it_is_right_and_every_row_a_rule() -> None:
    rows = {exe: (form, why) for exe, form, why in ROW.findall(SAFETY.read_text("utf-8"))}
    assert {exe: form for exe, (form, _) in rows.items()} == {
        rule.exe: describe(rule).removeprefix("any ") for rule in HARMLESS
    }
    assert all(len(why) >= 10 for _, why in rows.values())


def test_no_program_has_two_rules() -> None:
    assert len({rule.exe for rule in HARMLESS}) == len(HARMLESS)


@st.composite
def allowed(draw: st.DrawFn, rule: Rule) -> tuple[list[str], list[str]]:
    """Flags and words that `rule` allows, in the order of any program."""
    flags: list[str] = []
    names = st.sampled_from(sorted(rule.flags | rule.valued.keys()) or [""])
    for flag in draw(st.lists(names, max_size=4)):
        if flag in rule.flags:
            flags.append(flag)
        elif flag in rule.valued:
            value = draw(st.sampled_from(EXAMPLES[rule.valued[flag]]))
            flags += [f"{flag}={value}"] if flag.startswith("--") else [flag, value]
    most = min(rule.most, rule.least + 3) if rule.rest else len(rule.positional)
    count = draw(st.integers(rule.least, most))
    kinds = (*rule.positional, *[rule.rest] * count)[:count]
    words = [draw(st.sampled_from(EXAMPLES[kind])) for kind in kinds if kind]
    return flags, words


def passes(rule: Rule, words: list[str], place: CommandPlace = WHERE) -> bool:
    """Whether the rule allows `words` if every one of them stays where its text says."""
    program = None if rule.exe in BUILTINS else f"/usr/bin/{rule.exe}"
    paths = dict.fromkeys(words, Seen.FILE) | dict(place.paths)
    return allows(rule, (rule.exe, *words), program, replace(place, paths=paths))


def line(rule: Rule, flags: list[str], words: list[str]) -> list[str]:
    return [*words, *flags] if rule.expression else [*flags, *words]


@st.composite
def inserted(draw: st.DrawFn, rule: Rule, alien: st.SearchStrategy[str]) -> list[str]:
    """A line that the rule allows, with one word more somewhere."""
    whole = line(rule, *draw(allowed(rule)))
    assert passes(rule, whole), whole
    at = draw(st.integers(0, len(whole)))
    assume(at == 0 or whole[at - 1] not in rule.valued)  # there it would be the flag's value
    return [*whole[:at], draw(alien), *whole[at:]]


FLAGGED = [rule for rule in HARMLESS if not rule.plain]
READING = [
    rule for rule in FLAGGED if rule.rest is WordKind.PATH or WordKind.FILE in rule.positional
]
LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@given(st.sampled_from(HARMLESS), st.data())
def test_a_rule_allows_what_it_names(rule: Rule, data: st.DataObject) -> None:
    assert passes(rule, line(rule, *data.draw(allowed(rule))))


@given(st.sampled_from(FLAGGED), st.data())
def test_two_dashes_anywhere_ask(rule: Rule, data: st.DataObject) -> None:
    assert not passes(rule, data.draw(inserted(rule, st.just("--"))))


@given(st.sampled_from(FLAGGED), st.data())
def test_a_flag_that_a_rule_does_not_name_asks_anywhere(rule: Rule, data: st.DataObject) -> None:
    longs = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1).map(lambda text: f"--{text}")
    shorts = st.sampled_from([f"-{c}" for c in LETTERS])
    unknown = data.draw((longs | shorts).filter(lambda f: f not in rule.flags | rule.valued.keys()))
    value = data.draw(
        st.sampled_from(["", "=x", "=/etc/passwd"]) if unknown[1] == "-" else st.just("")
    )
    assert not passes(rule, data.draw(inserted(rule, st.just(unknown + value))))


@given(st.sampled_from([r for r in FLAGGED if any("--" in f for f in r.flags)]), st.data())
def test_an_abbreviated_flag_asks(rule: Rule, data: st.DataObject) -> None:
    longs = {f for f in rule.flags | rule.valued.keys() if f.startswith("--")}
    flag = data.draw(st.sampled_from(sorted(longs)))
    short = flag[: data.draw(st.integers(3, len(flag) - 1))]
    assume(short not in longs)
    word = data.draw(st.sampled_from([short, f"{short}=x", f"{short}=5"]))
    assert not passes(rule, data.draw(inserted(rule, st.just(word))))


@given(st.sampled_from(FLAGGED), st.data())
def test_a_cluster_with_one_letter_that_is_not_named_asks(rule: Rule, data: st.DataObject) -> None:
    known = sorted(f[1] for f in rule.flags if len(f) == 2 and f[0] == "-")
    unknown = sorted(
        {*LETTERS, *"0123456789"} - {f[1] for f in rule.flags | rule.valued.keys() if len(f) == 2}
    )
    before = data.draw(st.lists(st.sampled_from(known), max_size=3)) if known else []
    after = data.draw(st.lists(st.sampled_from(known), max_size=2)) if known else []
    letter = data.draw(st.sampled_from(unknown))
    assume(not (rule.lines and letter.isdigit() and not before + after))
    word = "-" + "".join([*before, letter, *after])
    assume(word not in rule.flags)
    assert not passes(rule, data.draw(inserted(rule, st.just(word))))


@given(st.sampled_from(READING), st.data())
def test_a_path_outside_asks(rule: Rule, data: st.DataObject) -> None:
    flags, words = data.draw(allowed(rule))
    assume(len(words) > len(rule.positional) or WordKind.FILE in rule.positional)
    last = data.draw(st.sampled_from(OUTSIDE))
    assert not passes(rule, line(rule, flags, [*words[:-1], last]))


@given(st.sampled_from(READING), st.data())
def test_a_path_that_goes_astray_asks(rule: Rule, data: st.DataObject) -> None:
    flags, words = data.draw(allowed(rule))
    assume(len(words) > len(rule.positional) or WordKind.FILE in rule.positional)
    astray = replace(WHERE, paths={"link/x": Seen.ASTRAY})
    assert not passes(rule, line(rule, flags, [*words[:-1], "link/x"]), astray)


@given(st.sampled_from(HARMLESS), st.lists(st.text(max_size=5), max_size=4))
def test_no_rule_fails_on_any_words(rule: Rule, words: list[str]) -> None:
    assert passes(rule, words) in (True, False)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_word_that_fits_but_for_its_end_is_judged_at_once(kind: WordKind) -> None:
    rule = Rule(exe="x", program="/x", rest=kind)
    begun = time.process_time()
    for part in (*EXAMPLES[kind], "123456", "+", ")+", "*9"):
        for between in ("", ",", "-", "."):
            allows(rule, ("x", f"{part}{between}" * 9 + "!"), "/x", WHERE)
    assert time.process_time() - begun < 2
