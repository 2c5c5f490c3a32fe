"""An input ends once, in one of three ways. Where words go is core/chat/placement."""

import pytest

from holdfast.core.inbox import (
    Event,
    Input,
    InputAdmitted,
    InputPromoted,
    InputRefused,
    InputStatus,
    InputSuperseded,
    digest_of,
    evolve,
)
from holdfast.core.messages import Image, User
from holdfast.core.types import InputId, RunId
from holdfast.errors import IllegalTransition

RUN, INPUT = RunId("run"), InputId("input")
ADMITTED = InputAdmitted(input_id=INPUT, run_id=RUN, text="hello")
FACTS: dict[str, Event] = {
    "arrives": ADMITTED,
    "is read": InputPromoted(input_id=INPUT, run_id=RUN),
    "is displaced": InputSuperseded(input_id=INPUT, run_id=RUN, reason="stopped"),
    "may not be read": InputRefused(input_id=INPUT, run_id=RUN, reason="blocked"),
}
ALLOWED = {
    ("admitted", "is read"): "promoted",
    ("admitted", "is displaced"): "superseded",
    ("admitted", "may not be read"): "refused",
}


@pytest.mark.parametrize("status", InputStatus)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: InputStatus, fact: str) -> None:
    entry = Input(ADMITTED, status)
    if (status.value, fact) in ALLOWED:
        assert evolve(entry, FACTS[fact]) == Input(
            ADMITTED, InputStatus(ALLOWED[status.value, fact])
        )
    else:
        with pytest.raises(IllegalTransition, match=f"while input input is {status}"):
            evolve(entry, FACTS[fact])
        assert entry == Input(ADMITTED, status)


def test_only_an_admitted_input_is_still_to_be_read() -> None:
    assert [s for s in InputStatus if not s.final] == [InputStatus.ADMITTED]


def test_digests_differ_by_text_and_accept_lone_surrogates() -> None:
    assert digest_of("one") == digest_of("one")
    assert len({digest_of(text) for text in ("", "one", "One", "one ", "\ud83d")}) == 5


def test_the_size_counts_text_images_and_history() -> None:
    assert ADMITTED.size == 5
    full = InputAdmitted(
        input_id=INPUT,
        run_id=RUN,
        text="hello",
        instructions="kindly",
        history=(User("before"),),
        images=(Image("image/png", b"1234"),),
    )
    assert full.size == 5 + 6 + 6 + 4
