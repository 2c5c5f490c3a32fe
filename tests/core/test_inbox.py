"""An input ends once, in one of three ways; where it goes depends on how busy the session is."""

import pytest

from holdfast.core.inbox import (
    Displace,
    Event,
    Input,
    InputAdmitted,
    InputPromoted,
    InputRefused,
    InputSuperseded,
    Join,
    Mode,
    OwnRun,
    Placement,
    Status,
    decide,
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


@pytest.mark.parametrize(
    ("mode", "busy", "placement"),
    [
        (Mode.QUEUE, None, OwnRun()),
        (Mode.STEER, None, OwnRun()),
        (Mode.INTERRUPT, None, OwnRun()),
        (Mode.QUEUE, RUN, OwnRun()),
        (Mode.STEER, RUN, Join(RUN)),
        (Mode.INTERRUPT, RUN, Displace(RUN)),
    ],
)
def test_the_mode_decides_only_while_a_run_is_busy(
    mode: Mode, busy: RunId | None, placement: Placement
) -> None:
    assert decide(mode, busy) == placement
