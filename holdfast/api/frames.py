"""Facts and folds in, the words of the runs API out. Other words are mapped here only."""

from collections.abc import Sequence

import msgspec

from holdfast.core.approval import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    ApprovalWithdrawn,
)
from holdfast.core.call import CallAnswered, CallParked, CallSettled, CallStarted, Outcome
from holdfast.core.child import ChildBegun, ChildEnded
from holdfast.core.events import MessageDelta, ReasoningDelta, Record, ToolProgress, run_of
from holdfast.core.images import to_url
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputSuperseded, Mode
from holdfast.core.messages import Assistant, Image, Message, ToolResult, User
from holdfast.core.process import ProcessEnded, ProcessMatched, ProcessStarted, how
from holdfast.core.run import (
    MessageVoided,
    ModelAnswered,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunQueued,
    RunResumed,
    RunStarted,
    Status,
)
from holdfast.core.types import OPERATOR, Fact, Owner, Usage, kind
from holdfast.gateway import RunView

STREAM_CLOSED = b": stream closed\n\n"
KEEP_ALIVE = b": keepalive\n\n"
RETRY = b"retry: 2000\n\n"
PREVIEW = 200  # characters of a task

_encode = msgspec.json.Encoder().encode

_SILENT = frozenset({InputPromoted, RunQueued, ModelAnswered})  # in every run; no words for them

_LAST_EVENT = {
    "call.asked": "approval.request",
    "call.cleared": "approval.responded",
    "call.started": "tool.started",
    "call.settled": "tool.completed",
    "message.void": "message.void",
    "run.started": "run.started",
    "run.resumed": "run.resumed",
    "run.completed": "run.completed",
    "run.failed": "run.failed",
    "run.cancelled": "run.cancelled",
}


class UsageObject(msgspec.Struct):
    input_tokens: int
    output_tokens: int
    total_tokens: int


def usage_object(usage: Usage) -> UsageObject:
    """Tokens, as the API counts them."""
    return UsageObject(usage.input_tokens, usage.output_tokens, usage.total_tokens)


def status_of(view: RunView) -> str:
    """The run's status in the API's words."""
    if view.status.final:
        return view.status
    if view.stopping:
        return "stopping"
    match view.status:
        case Status.WAITING:
            return "waiting_for_approval" if view.waiting_for_approval else "running"
        case Status.RUNNING:
            return "running"
        case _:
            return "queued"


def run_object(view: RunView) -> dict[str, object]:
    """The run's status object."""
    body: dict[str, object] = {
        "object": "hermes.run",
        "run_id": view.run_id,
        "status": status_of(view),
        "created_at": view.created_at,
        "updated_at": view.updated_at,
        "session_id": view.session_id,
        "model": view.model,
        "last_event": _last_event(view),
    }
    match view.ending:
        case RunCompleted(output=output):
            body["output"] = output
        case RunFailed(error=error, code=code):
            body["error"] = error
            body["error_code"] = code
        case _:
            pass
    if view.status.final:
        body["usage"] = usage_object(view.usage)
    if view.question is not None:
        body["question"] = question_object(view.question)
    if view.approval is not None:
        body["approval"] = approval_object(view.approval)
    return body | owner_fields(view.owner)


def owner_fields(owner: Owner) -> dict[str, object]:
    """Whose something is, at the only door that shows what is not the operator's."""
    return {} if owner == OPERATOR else {"owner": owner}


def _last_event(view: RunView) -> str | None:
    if view.last_event == "call.parked":
        return "question.asked" if view.question is not None else "subagent.started"
    return _LAST_EVENT.get(view.last_event)


def question_object(asked: CallParked) -> dict[str, object]:
    """What the user is asked, and what they may choose from; any other words will do too."""
    return {"call_id": asked.call_id, "question": asked.question, "options": asked.options}


def approval_object(asked: ApprovalRequested) -> dict[str, object]:
    """A request for approval: what would run, why it asks, what may be said to it."""
    return {
        "request_id": asked.request_id,
        "run_id": asked.run_id,
        "call_id": asked.call_id,
        "command": asked.command,
        "description": asked.description,
        "choices": asked.choices,
        "expires_at": asked.expires_at,
    }


def message_object(message: Message) -> dict[str, object]:
    """One message of a transcript."""
    match message:
        case Assistant(text=text, calls=calls):
            body: dict[str, object] = {"role": "assistant", "content": text}
            if calls:
                body["tool_calls"] = [
                    {
                        "id": c.call_id,
                        "type": "function",
                        "function": {"name": c.tool, "arguments": c.arguments},
                    }
                    for c in calls
                ]
            return body
        case ToolResult(call_id=call_id, text=text):
            return {"role": "tool", "tool_call_id": call_id, "content": text}
        case User(images=pictures) if pictures:
            return {"role": "user", "content": _parts(message.text, pictures)}
        case _:
            return {"role": message.__struct_config__.tag, "content": message.text}


def _parts(text: str, pictures: Sequence[Image]) -> list[dict[str, object]]:
    """Words with pictures, as a request says them."""
    said: list[dict[str, object]] = [{"type": "text", "text": text}] if text else []
    return said + [{"type": "image_url", "image_url": {"url": to_url(p)}} for p in pictures]


def frame(record: Record) -> bytes:
    """The record as one SSE frame; empty if the API has no word for it."""
    fact = record.fact
    if type(fact) in _SILENT:
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
    """The same in the stream of a whole session, which also tells what waits, what is not read
    after all, and what each turn took."""
    match record.fact:
        case InputAdmitted(mode=mode, input_id=input_id) as words:
            name = "run.steered" if mode is Mode.STEER else "run.queued"
            return _frame(record, name, {**_said(words), "input_id": input_id})
        case InputSuperseded(input_id=input_id, reason=reason):
            return _frame(record, "input.superseded", {"input_id": input_id, "reason": reason})
        case ModelAnswered(turn=turn, usage=usage):
            return _frame(record, "model.answered", {"turn": turn, "usage": usage_object(usage)})
        case _:
            return frame(record)


def _said(words: InputAdmitted) -> dict[str, object]:
    """Words, and how many pictures came with them. These themselves are in the messages only."""
    return {"input": words.text} | ({"images": len(words.images)} if words.images else {})


def _event(fact: Fact) -> tuple[str, dict[str, object]] | None:
    match fact:
        case RunStarted(sandbox=sandbox):
            return "run.started", {"sandbox": sandbox} if sandbox else {}
        case ToolProgress():
            return "tool.progress", {"call_id": fact.call_id, "delta": fact.text}
        case RunCompleted():
            return "run.completed", {"output": fact.output, "usage": usage_object(fact.usage)}
        case RunResumed(cause=cause):
            return "run.resumed", {"reason": cause or "woken"}
        case InputAdmitted(mode=Mode.STEER):
            return "run.steered", _said(fact)
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
            }
        case RunFailed():
            return "run.failed", {"error": fact.error, "code": fact.code}
        case RunCancelled():
            return "run.cancelled", {"reason": fact.reason}
        case _:
            return _approval_event(fact)


def _approval_event(fact: Fact) -> tuple[str, dict[str, object]] | None:
    match fact:
        case ApprovalRequested():
            asked = approval_object(fact)
            del asked["run_id"]
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
            return "question.asked", question_object(fact)
        case CallAnswered():
            return "question.answered", {"call_id": fact.call_id}
        case _:
            return _child_event(fact)


def _child_event(fact: Fact) -> tuple[str, dict[str, object]] | None:
    """One that ends after the run which began it is in the stream of the session only."""
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
    """Only in the stream of a whole session: a run's own may have ended before."""
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
        case ProcessEnded():
            return "process.ended", {
                "process_id": fact.process_id,
                "how": how(fact),
                "exit_code": fact.exit_code,
                "output": fact.tail,
            }
        case _:
            return None
