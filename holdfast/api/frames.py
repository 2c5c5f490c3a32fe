"""Journal records as server-sent events."""

import msgspec

from holdfast.api.responses import (
    approval_object,
    file_object,
    question_object,
    usage_object,
)
from holdfast.api.schema.rewinds import RestoredFileObject
from holdfast.core.approval.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
)
from holdfast.core.events import MessageDelta, ReasoningDelta, Record, ToolProgress, run_of
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputSuperseded, Mode
from holdfast.core.run.call import CallAnswered, CallParked, CallSettled, CallStarted, Outcome
from holdfast.core.run.child import ChildBegun, ChildEnded
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.files import FileChanged
from holdfast.core.run.process import (
    PortClosed,
    PortPublished,
    ProcessEnded,
    ProcessMatched,
    ProcessStarted,
    describe_end,
)
from holdfast.core.run.run import (
    MessageVoided,
    ModelAnswered,
    ModelAsked,
    ModelFailed,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunQueued,
    RunResumed,
    RunStarted,
)
from holdfast.core.session.instructions import InstructionsRead
from holdfast.core.session.rewound import FileStep, Rewound
from holdfast.core.types import Fact, kind

STREAM_CLOSED = b": stream closed\n\n"
KEEP_ALIVE = b": keepalive\n\n"
RETRY = b"retry: 2000\n\n"
PREVIEW = 200  # characters of a task
DETAIL, DETAIL_LINES = 600, 4  # characters and lines of a failed call's result

_SILENT = frozenset(
    {InputPromoted, RunQueued, ModelAsked, ModelAnswered}
)  # of every run, without an event

_encode = msgspec.json.Encoder().encode


def frame(record: Record) -> bytes:
    """The record as one SSE frame; empty if the API has no event for it."""
    fact = record.fact
    if type(fact) in _SILENT or (type(fact) is InputAdmitted and fact.mode is not Mode.STEER):
        return b""
    if type(fact) is MessageDelta or type(fact) is ReasoningDelta:
        return b'id: %d\ndata: {"event":"%s","run_id":"%s","timestamp":%.6f,"seq":%d,"turn":%d,"delta":%s}\n\n' % (
            record.seq,
            kind(fact).encode(),
            fact.run_id.encode(),
            record.at,
            record.seq,
            fact.turn,
            _encode(fact.text),
        )  # fmt: skip
    body = _event(fact)
    if body is None:
        return b""
    return _frame(record, *body)


def _frame(record: Record, name: str, fields: dict[str, object]) -> bytes:
    run_id = run_of(record.fact)
    whose = {} if run_id is None else {"run_id": run_id}
    event = {"event": name, **whose, "timestamp": record.at, "seq": record.seq, **fields}
    return b"id: %d\ndata: %s\n\n" % (record.seq, _encode(event))


def session_frame(record: Record) -> bytes:
    """The same in the stream of a session, which also has queued input, superseded input and the
    tokens of each turn."""
    match record.fact:
        case InputAdmitted(mode=mode, input_id=input_id) as given:
            name = "run.steered" if mode is Mode.STEER else "run.queued"
            return _frame(record, name, {**_input(given), "input_id": input_id})
        case InputSuperseded(input_id=input_id, reason=reason):
            return _frame(record, "input.superseded", {"input_id": input_id, "reason": reason})
        case ModelAnswered(turn=turn, usage=usage) as answer:
            fields = {"turn": turn, "usage": usage_object(usage), **_incomplete(answer)}
            return _frame(record, "model.answered", fields)
        case _:
            return frame(record)


def _incomplete(fact: ModelAnswered | RunCompleted) -> dict[str, object]:
    return {"incomplete": fact.incomplete} if fact.incomplete else {}


def _input(given: InputAdmitted) -> dict[str, object]:
    """The text, and the number of pictures. The pictures are in the transcript only."""
    return {"input": given.text} | ({"images": len(given.images)} if given.images else {})


def _event(fact: Fact) -> tuple[str, dict[str, object]] | None:
    match fact:
        case RunStarted(sandbox=sandbox):
            return "run.started", {"sandbox": sandbox} if sandbox else {}
        case ToolProgress():
            return "tool.progress", {"call_id": fact.call_id, "delta": fact.text}
        case RunCompleted():
            done = {"output": fact.output, "usage": usage_object(fact.usage)}
            return "run.completed", {**done, **_incomplete(fact)}
        case RunResumed(cause=cause):
            return "run.resumed", {"reason": cause or "woken"}
        case InputAdmitted(mode=Mode.STEER):
            return "run.steered", _input(fact)
        case MessageVoided(turn=turn, reason=reason):
            return "message.void", {"turn": turn, "reason": reason}
        case CallStarted():
            return "tool.started", {
                "tool": fact.tool,
                "preview": fact.preview,
                "call_id": fact.call_id,
            }
        case CallSettled():
            return "tool.completed", {
                "tool": fact.tool,
                "call_id": fact.call_id,
                "duration": fact.duration_s,
                "error": fact.outcome is not Outcome.OK,
                "outcome": fact.outcome,
                **({"summary": fact.summary} if fact.summary else {}),
                **({"detail": _head(fact.text)} if fact.outcome is not Outcome.OK else {}),
            }
        case FileChanged():
            return "file.changed", _change(fact)
        case RunFailed():
            return "run.failed", {"error": fact.error, "code": fact.code}
        case RunCancelled():
            return "run.cancelled", {"reason": fact.reason}
        case _:
            return _model_event(fact) or _approval_event(fact)


def _head(text: str) -> str:
    """The first lines of a failed call's result."""
    lines = text.strip().splitlines()[:DETAIL_LINES]
    return "\n".join(lines)[:DETAIL]


def _change(fact: FileChanged) -> dict[str, object]:
    return {
        "call_id": fact.call_id,
        "path": fact.path,
        "kind": fact.kind,
        "added": fact.added,
        "removed": fact.removed,
        "before": fact.before,
        "after": fact.after,
        "binary": fact.binary,
    }


def _rewound(fact: Rewound) -> dict[str, object]:
    """Only in the stream of a session."""
    return {
        "rewind_id": fact.rewind_id,
        "point": fact.point,
        "what": fact.what,
        "redo": fact.redo,
        "runs": fact.runs,
        "restored": tuple(map(restored, fact.files)),
    }


def restored(step: FileStep) -> RestoredFileObject:
    """A file of a rewind."""
    return RestoredFileObject(step.path, step.result, step.was_blob, step.new_blob, step.reason)


def _model_event(fact: Fact) -> tuple[str, dict[str, object]] | None:
    match fact:
        case ModelFailed():
            return "model.retry", {
                "turn": fact.turn,
                "attempt": fact.attempt,
                "model": fact.model,
                "reason": fact.reason,
                "next_model": fact.next_model,
                "wait_s": fact.wait_s,
                **({"http_status": fact.status} if fact.status else {}),
                **({"attempts": fact.of} if fact.of else {}),
            }
        case InstructionsRead(files=files):
            return "instructions.read", {"files": [file_object(f) for f in files]}
        case Rewound():
            return "session.rewound", _rewound(fact)
        case HistoryCompacted():
            return "context.compacted", {
                "reason": fact.reason,
                "messages": fact.upto,
                "model": fact.model,
                "usage": usage_object(fact.usage),
            }
        case _:
            return None


def _approval_event(fact: Fact) -> tuple[str, dict[str, object]] | None:
    match fact:
        case ApprovalRequested():
            asked = msgspec.structs.asdict(approval_object(fact))
            del asked["run_id"], asked["owner"]
            return "approval.request", asked
        case ApprovalGranted():
            return "approval.responded", {"request_id": fact.request_id, "choice": fact.choice}
        case ApprovalDenied():
            return "approval.responded", {"request_id": fact.request_id, "choice": "deny"}
        case ApprovalExpired():
            return "approval.expired", {"request_id": fact.request_id}
        case ApprovalWithdrawn():
            return "approval.withdrawn", {"request_id": fact.request_id, "reason": fact.reason}
        case CallParked() if fact.question:
            return "question.asked", msgspec.structs.asdict(question_object(fact))
        case CallAnswered():
            return "question.answered", {"call_id": fact.call_id}
        case _:
            return _child_event(fact)


def _child_event(fact: Fact) -> tuple[str, dict[str, object]] | None:
    """A child that ends after the run which began it is in the stream of the session only."""
    match fact:
        case ChildBegun():
            return "subagent.started", {
                "call_id": fact.call_id,
                "child_run_id": fact.child,
                "name": fact.name,
                "preview": fact.task[:PREVIEW],
                "background": fact.background,
            }
        case ChildEnded():
            return "subagent.completed", {
                "call_id": fact.call_id,
                "child_run_id": fact.child,
                "name": fact.name,
                "status": fact.status,
                "background": fact.background,
            }
        case _:
            return _process_event(fact)


def _process_event(fact: Fact) -> tuple[str, dict[str, object]] | None:
    """Only in the stream of a session: the run that began the process may be over."""
    match fact:
        case ProcessStarted():
            return "process.started", {
                "process_id": fact.process_id,
                "command": fact.command,
                "notify_on_complete": fact.notify,
                "detach": fact.detach,
            }
        case ProcessMatched():
            return "process.matched", {"process_id": fact.process_id, "lines": fact.lines}
        case PortPublished():
            return "port.published", {
                "process_id": fact.process_id,
                "port": fact.port,
                "host_port": fact.host_port,
            }
        case PortClosed():
            return "port.closed", {
                "process_id": fact.process_id,
                "port": fact.port,
                "reason": fact.reason,
            }
        case ProcessEnded():
            return "process.ended", {
                "process_id": fact.process_id,
                "how": describe_end(fact),
                "exit_code": fact.exit_code,
                "output": fact.tail,
            }
        case _:
            return None
