"""Which keys answer an approval, and which are text."""

import pytest

from holdfast.cli.tui.input.answers import ALONE_S, FLOW_S, SEEN_S, AnswerKeys

CHOICES = {"y": "once", "a": "always", "n": "deny"}


class Typist:
    """A person at the keys, with a clock of their own."""

    def __init__(self, draft: str = "") -> None:
        self.now = 100.0
        self.keys = AnswerKeys(lambda: self.now)
        if draft:
            self.keys.note()
        self.keys.open(draft=draft)

    def press(self, key: str, after_s: float, *, more: bool = False) -> str:
        self.now += after_s * 1.01  # no rounding decides
        self.keys.note()
        return self.keys.press(key, CHOICES, more=more)

    def answer(self, after_s: float) -> str:
        self.now += after_s * 1.01  # no rounding decides
        return self.keys.ripe()


@pytest.mark.promise("TERM-01")
@pytest.mark.parametrize(("key", "choice"), CHOICES.items())
def test_one_key_alone_answers(key: str, choice: str) -> None:
    it = Typist()
    assert it.press(key, SEEN_S) == ""
    assert it.answer(ALONE_S / 2) == ""
    assert it.answer(ALONE_S / 2) == choice
    assert it.answer(ALONE_S) == ""


@pytest.mark.promise("TERM-01")
def test_a_sentence_that_begins_with_a_choice_answers_nothing() -> None:
    it = Typist()
    said = it.press("a", SEEN_S) + "".join(it.press(key, ALONE_S / 2) for key in "ctually no")
    assert said == "actually no"
    assert it.answer(60) == ""


@pytest.mark.promise("TERM-01")
def test_keys_pressed_before_the_question_was_read_answer_nothing() -> None:
    it = Typist()
    assert it.press("y", SEEN_S / 2) == "y"
    assert it.answer(60) == ""


@pytest.mark.promise("TERM-01")
def test_keys_that_arrive_together_answer_nothing() -> None:
    it = Typist()
    assert it.press("y", SEEN_S, more=True) == "y"
    assert it.answer(60) == ""


def test_another_key_is_no_answer() -> None:
    assert Typist().press("x", SEEN_S) == "x"


def test_a_sentence_begun_before_the_question_flows_on() -> None:
    it = Typist(draft="once upon a ti")
    it.press("m", FLOW_S / 2)
    assert it.keys.flows
    it.press("y", FLOW_S)
    assert not it.keys.flows
