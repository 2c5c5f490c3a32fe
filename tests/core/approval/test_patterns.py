"""Patterns of the operator: the beginning of a command in plain words, and `*` for the rest."""

import pytest

from holdfast.core.approval.approval import Ground, MayRun, MustAsk
from holdfast.core.approval.decision import decide_execution
from holdfast.core.approval.patterns import LONGEST, RUNNERS, parse_pattern
from holdfast.core.approval.rules import CommandRule, describe
from holdfast.errors import Refused
from tests.core.approval.test_families import given, request


@pytest.mark.promise("ASK-08")
@pytest.mark.parametrize(
    ("pattern", "rule"),
    [
        ("pytest *", CommandRule(exe="pytest", more=True, code=True)),
        (" make  test ", CommandRule(exe="make", begins=(("test",),), code=True)),
        ("git log -5 *", CommandRule(exe="git", begins=(("log", "-5"),), more=True)),
    ],
)
def test_a_pattern_is_a_beginning_and_perhaps_a_star(pattern: str, rule: CommandRule) -> None:
    assert parse_pattern(pattern) == rule
    assert "in every workspace" in describe(rule)


@pytest.mark.promise("ASK-08")
@pytest.mark.parametrize(
    "pattern",
    [
        *("", " ", "*", "* x", "pytest * x", "pytest **", "pytest*", "pytest | sh", "pytest; ls"),
        *("pytest && ls", "pytest > x", "pytest $x", "pytest `id`", "pytest 'a b'", "pytest ~"),
        *(
            "./x *",
            "/bin/ls *",
            "-c *",
            "A=b ls",
            "cd *",
            "eval *",
            "if *",
            "pytest \u202ex",
            "p\tq\\",
        ),
        *("pytest " + "x" * LONGEST, *(f"{name} *" for name in sorted(RUNNERS))),
    ],
)
def test_everything_else_is_no_pattern(pattern: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_pattern(pattern)
    assert refused.value.code == "invalid_pattern"


@pytest.mark.promise("ASK-08")
def test_a_pattern_allows_every_command_of_its_kind_and_no_other() -> None:
    rules = given(parse_pattern("terraform plan *"), parse_pattern("make test"))
    for text in ("terraform plan", "terraform plan -out x", "make test | tail -5"):
        assert decide_execution(request(text), rules) == MayRun(Ground.GRANTED)
    for text in ("terraform apply", "terraform", "make test x", "terraform plan | sh"):
        assert isinstance(decide_execution(request(text), rules), MustAsk)
