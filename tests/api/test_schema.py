"""One schema for both ends: what the server sends, the client reads, of any version."""

from collections.abc import Iterator

import msgspec
import pytest

from holdfast.api import frames
from holdfast.api.schema.approvals import ApprovalPage
from holdfast.api.schema.errors import ErrorBody, ErrorEnvelope
from holdfast.api.schema.events import Event
from holdfast.api.schema.health import HealthDetails
from holdfast.api.schema.runs import RunList, RunObject, RunRequest, StopResponse
from holdfast.api.schema.sessions import MessageObject, SessionObject
from holdfast.core.approval.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
    Choice,
)
from holdfast.core.events import MessageDelta, Record, ToolProgress
from holdfast.core.inbox import InputSuperseded
from holdfast.core.run.call import CallAnswered, CallParked, CallSettled, CallStarted, Outcome
from holdfast.core.run.child import ChildBegun, ChildEnded
from holdfast.core.run.files import FileChanged
from holdfast.core.run.process import ProcessEnd, ProcessEnded, ProcessMatched, ProcessStarted
from holdfast.core.run.run import (
    MessageVoided,
    ModelAnswered,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
)
from holdfast.core.types import Fact

RUN = b'{"run_id":"r","status":"running","created_at":1,"updated_at":1,"session_id":"s","model":"m","last_event":null'  # fmt: skip

SHOWN = (
    (ApprovalDenied, ApprovalExpired, ApprovalGranted, ApprovalRequested, ApprovalWithdrawn)
    + (MessageDelta, ToolProgress, InputSuperseded, CallAnswered, CallParked, CallSettled)
    + (
        CallStarted,
        FileChanged,
        ChildBegun,
        ChildEnded,
        ProcessEnded,
        ProcessMatched,
        ProcessStarted,
    )
    + (MessageVoided, ModelAnswered, RunCancelled, RunCompleted, RunFailed, RunResumed, RunStarted)
)


class StrictEvent(Event, frozen=True, forbid_unknown_fields=True):
    """An event that has no other fields than the schema names."""


def _made(kind: type[Fact]) -> Fact:
    """A fact of that kind, with a value in every field that it needs."""
    return msgspec.convert(dict(_values(kind)), kind)


def _values(kind: type[msgspec.Struct]) -> Iterator[tuple[str, object]]:
    config = kind.__struct_config__
    if config.tag is not None:
        yield str(config.tag_field), config.tag
    special = {"choice": Choice.ONCE, "outcome": Outcome.OK, "cause": ProcessEnd.EXITED}
    for field in msgspec.inspect.type_info(kind).fields:  # type: ignore[attr-defined]
        if field.name in special and not isinstance(field.type, msgspec.inspect.StrType):
            yield field.name, special[field.name]
        elif field.required or field.name in ("question", "summary", "sandbox"):
            yield field.encode_name, _value(field.type)


def _value(kind: msgspec.inspect.Type) -> object:
    match kind:
        case msgspec.inspect.IntType() | msgspec.inspect.FloatType():
            return 1
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.VarTupleType() | msgspec.inspect.TupleType():
            return ()
        case msgspec.inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case msgspec.inspect.StructType(cls=cls):
            return dict(_values(cls))
        case msgspec.inspect.UnionType(types=types):
            return _value(types[0])
        case _:
            return "x"


@pytest.mark.parametrize("kind", SHOWN)
def test_the_schema_has_every_field_of_an_event(kind: type[Fact]) -> None:
    record = Record(stream=1, seq=7, at=1.5, fact=_made(kind))
    for shown in (frames.frame(record), frames.session_frame(record)):
        if shown:
            line = shown.partition(b"data: ")[2]
            event = msgspec.json.decode(line, type=StrictEvent)
            assert (event.seq, event.timestamp) == (7, 1.5)
            assert event.event
    assert frames.session_frame(record)


def test_a_client_reads_answers_of_older_and_newer_gateways() -> None:
    decode = msgspec.json.decode
    run = decode(RUN + b',"later":{"a":1}}', type=RunObject)
    assert (run.owner, run.question, run.failure, run.ended) == ("", None, "", False)
    assert decode(b'{"data":[]}', type=RunList).has_more is False
    assert decode(b'{"data":[]}', type=ApprovalPage).next is msgspec.UNSET
    assert decode(b'{"run_id":"r"}', type=StopResponse).unread is msgspec.UNSET
    health = decode(b'{"paused":"","sandbox":{"level":"L2","note":""}}', type=HealthDetails)
    assert (health.held, health.undelivered) == ("", 0)
    error = decode(b'{"error":{"message":"no"}}', type=ErrorEnvelope).error
    assert error == ErrorBody("no")


@pytest.mark.parametrize("content", [b'{"error":{"code":"x"}}', b'{"sandbox":{}}'])
def test_an_error_is_not_taken_for_health(content: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(content, type=HealthDetails)


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (RunRequest("hi"), {"input": "hi"}),
        (StopResponse("r"), {"run_id": "r", "status": "stopping"}),
        (StopResponse("r", unread=()), {"run_id": "r", "status": "stopping", "unread": []}),
        (MessageObject("assistant", ""), {"role": "assistant", "content": ""}),
        (
            SessionObject("s", "", "", 1.0, 2.0, "", "cli", "", "open", 0),
            {
                "object": "hermes.session",
                **{"session_id": "s", "title": "", "preview": "", "created_at": 1.0},
                **{"updated_at": 2.0, "workspace": "", "platform": "cli", "model": ""},
                **{"status": "open", "unfinished": 0},
            },
        ),
        (
            RunObject("r", "completed", 1.0, 1.0, "s", "m", None, output=""),
            {
                "object": "hermes.run",
                **{"run_id": "r", "status": "completed", "created_at": 1.0, "updated_at": 1.0},
                **{"session_id": "s", "model": "m", "last_event": None, "output": ""},
            },
        ),
    ],
)
def test_only_what_is_absent_is_left_out(value: msgspec.Struct, sent: dict[str, object]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value)) == sent
