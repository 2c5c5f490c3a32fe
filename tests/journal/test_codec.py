"""What is written down loads again, also where a field of it is damaged or did not exist yet."""

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.approval.approval import ApprovalRequested, Choice, Grant, Standing
from holdfast.core.approval.rules import HostRule
from holdfast.core.approval.tree import Tree
from holdfast.core.inbox import InputAdmitted
from holdfast.core.run.call import CallAsked, CallSettled, Outcome
from holdfast.core.run.files import ChangeKind, FileChanged
from holdfast.core.run.run import (
    CutCause,
    ModelAnswered,
    Origin,
    RunHeld,
    RunInterrupted,
    RunQueued,
    RunResumed,
)
from holdfast.core.session.rewound import FileStep, Rewound
from holdfast.core.types import (
    OPERATOR,
    CallId,
    Fact,
    InputId,
    RequestId,
    RewindId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)
from holdfast.journal import codec

pytestmark = pytest.mark.promise("BACK-08")

RUN = RunId("run")
FACTS: tuple[Fact, ...] = (
    RunInterrupted(run_id=RUN, cause=CutCause.CRASH, reason="why", cut_at=12.5),
    RunHeld(run_id=RUN, until=12.5),
    RunResumed(run_id=RUN, cause="crash"),
    RunQueued(run_id=RUN, input_id=InputId("in"), model="m", origin=Origin(platform="cli")),
    InputAdmitted(
        input_id=InputId("in"), run_id=RUN, text="go", instructions="kindly", metadata={"a": "b"}
    ),
    CallSettled(
        run_id=RUN, call_id=CallId("c"), tool="t", outcome=Outcome.OK, text="x", duration_s=1.5
    ),
    FileChanged(
        run_id=RUN, call_id=CallId("c"), path="a", kind=ChangeKind.CREATED, added=1, after="0f"
    ),
    Rewound(
        rewind_id=RewindId("r"), point=RUN, by=OPERATOR, runs=(RUN,), files=(FileStep(path="a"),)
    ),
)
ASKED = ApprovalRequested(
    run_id=RUN,
    call_id=CallId("c"),
    request_id=RequestId("q"),
    command="make",
    description="d",
    execution="e",
    choices=(Choice.ONCE,),
    expires_at=1.0,
    trees=(Tree(path="/w", files=2, identity="i", content="c", but=("log",), looked_ns=3),),
)
# What each can do without: a time stamp, or a field that has a default.
SPARE = {
    RunInterrupted: {"cut_at"},
    RunHeld: {"until"},
    RunResumed: {"cause"},
    RunQueued: {"model"},
    InputAdmitted: {"instructions", "metadata", "history", "idempotency"},
    CallSettled: {"duration_s", "cwd", "kept", "summary"},
    Rewound: {"what", "runs", "redo", "came"},
    FileChanged: {"added", "after", "mode_after", "binary"},
}
wrong = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just([[]]), st.just({"?": []})
)


def _raw(fact: Fact) -> dict[str, object]:
    return dict(msgspec.json.decode(codec.encode(fact)))


@given(st.sampled_from(FACTS), st.data())
def test_of_a_fact_with_a_damaged_field_the_rest_holds(fact: Fact, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(SPARE[type(fact)])))
    damaged = _raw(fact) | {name: data.draw(wrong)}
    loaded = codec.decode(msgspec.json.encode(damaged), codec.VERSION)
    assert type(loaded) is type(fact)
    for field in msgspec.structs.fields(fact):
        if field.name != name:
            assert getattr(loaded, field.name) == getattr(fact, field.name)


@given(st.sampled_from(FACTS), st.data())
def test_a_field_that_makes_the_fact_what_it_is_cannot_be_done_without(
    fact: Fact, data: st.DataObject
) -> None:
    required = {f.encode_name for f in msgspec.structs.fields(fact) if f.required}
    fields = required - SPARE[type(fact)]
    damaged = _raw(fact) | {data.draw(st.sampled_from(sorted(fields))): [[]]}
    with pytest.raises(msgspec.ValidationError):
        codec.decode(msgspec.json.encode(damaged), codec.VERSION)


@given(st.sampled_from(FACTS))
def test_a_record_without_the_newer_fields_loads_with_their_defaults(fact: Fact) -> None:
    required = {"kind", *(f.encode_name for f in msgspec.structs.fields(fact) if f.required)}
    old = {k: v for k, v in _raw(fact).items() if k in required}
    loaded = codec.decode(msgspec.json.encode(old), codec.VERSION)
    for field in msgspec.structs.fields(fact):
        if field.required:
            assert getattr(loaded, field.name) == getattr(fact, field.name)


def test_a_damaged_time_stamp_is_no_time_and_that_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    row = b'{"kind":"run.interrupted","run_id":"run","cause":"crash","reason":"","cut_at":"soon"}'
    with caplog.at_level(logging.WARNING):
        assert codec.decode(row, codec.VERSION) == RunInterrupted(
            run_id=RUN, cause=CutCause.CRASH, reason="", cut_at=0.0
        )
    assert "damaged fields left out" in caplog.text


def test_inside_a_field_only_what_is_damaged_drops_unless_it_cannot_be_without() -> None:
    answered = ModelAnswered(run_id=RUN, turn=1, text="hi", usage=Usage(3, 4))
    damaged = _raw(answered) | {"usage": {"input_tokens": "?", "output_tokens": 4}}
    loaded = codec.decode(msgspec.json.encode(damaged), codec.VERSION)
    assert isinstance(loaded, ModelAnswered) and loaded.usage == Usage(0, 4)
    asked = {"route": "/v1/runs", "key": 3, "fingerprint": "f"}
    damaged = _raw(FACTS[4]) | {"idempotency": asked}
    loaded = codec.decode(msgspec.json.encode(damaged), codec.VERSION)
    assert isinstance(loaded, InputAdmitted) and loaded.idempotency is None
    assert loaded.text == "go"


@pytest.mark.parametrize(
    ("fact", "field"),
    [
        (Standing(permission=HostRule(name="h"), by=OPERATOR, revoked=True), "revoked"),
        (
            Grant(
                permission=HostRule(name="h"),
                session=SessionKey(OPERATOR, SessionId("s")),
                user=OPERATOR,
                expires_at=1.0,
            ),
            "expires_at",
        ),
        (FACTS[3], "origin"),
        (ASKED, "trees"),
    ],
)
def test_damaged_permissions_and_owners_are_not_guessed(fact: Fact, field: str) -> None:
    damaged = _raw(fact) | {field: "?"}
    with pytest.raises(msgspec.ValidationError):
        codec.decode(msgspec.json.encode(damaged), codec.VERSION)


@pytest.mark.parametrize("row", [b"[]", b"7", b'{"kind":"nothing"}', b'{"kind":[]}', b"{}", b"{"])
def test_an_unknown_fact_is_an_error(row: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        codec.decode(row, codec.VERSION)


@pytest.mark.parametrize(("column", "at"), [(1.5, 1.5), (2, 2.0), ("?", 0.0), (None, 0.0)])
def test_a_damaged_time_of_a_row_is_no_time(column: object, at: float) -> None:
    assert codec.time_of(column) == at


# As version 0.1.0 wrote them, before and after approvals were bound to trees. Never to be changed.
OLD_QUESTION = (
    b'{"kind":"approval.requested","run_id":"run","call_id":"c","request_id":"q","command":"make",'
    b'"description":"d","execution":"e","choices":["once"],"expires_at":1.0,"offers":[]}'
)
OLD_CALL = b'{"kind":"call.asked","run_id":"run","call_id":"c","request_id":"q"}'
QUESTION = (
    OLD_QUESTION[:-1] + b',"trees":[{"kind":"Tree","path":"/w","files":2,"identity":"i",'
    b'"content":"c","but":["log"],"looked_ns":3}]}'
)
CALL = OLD_CALL[:-1] + b',"holds":true}'


@pytest.mark.fault("F-33")
def test_questions_of_both_kinds_load_for_ever() -> None:
    held = CallAsked(run_id=RUN, call_id=CallId("c"), request_id=RequestId("q"), holds=True)
    assert codec.decode(QUESTION, codec.VERSION) == ASKED
    assert codec.encode(ASKED) == QUESTION
    assert codec.decode(CALL, codec.VERSION) == held
    assert codec.decode(OLD_QUESTION, codec.VERSION) == replace(ASKED, trees=())
    assert codec.decode(OLD_CALL, codec.VERSION) == replace(held, holds=False)
