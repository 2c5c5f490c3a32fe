"""An input ends once, in one of three ways. Where words go is core/words."""

import pytest

from holdfast.core.inbox import (
    Event,
    Input,
    InputAdmitted,
    InputPromoted,
    InputRefused,
    InputSuperseded,
    Status,
    evolve,
)
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


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("fact", FACTS)
def test_every_status_meets_every_fact_as_stated(status: Status, fact: str) -> None:
    entry = Input(ADMITTED, status)
    if (status.value, fact) in ALLOWED:
        assert evolve(entry, FACTS[fact]) == Input(ADMITTED, Status(ALLOWED[status.value, fact]))
    else:
        with pytest.raises(IllegalTransition, match=f"while input input is {status}"):
            evolve(entry, FACTS[fact])
        assert entry == Input(ADMITTED, status)


def test_only_an_admitted_input_is_still_to_be_read() -> None:
    assert [s for s in Status if not s.final] == [Status.ADMITTED]
