"""Turn views and facts into the response structs. Only this module maps our names to the API's."""

import msgspec

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.api.schema.changes import FileDiffObject
from holdfast.api.schema.events import InstructionFileObject
from holdfast.api.schema.runs import (
    ContentPart,
    ImageUrl,
    QuestionObject,
    RunObject,
    UsageObject,
)
from holdfast.api.schema.sessions import (
    MessageObject,
    SessionObject,
    ToolCallObject,
    ToolFunction,
)
from holdfast.core.approval.approval import ApprovalRequested
from holdfast.core.images import to_url
from holdfast.core.messages import Assistant, Message, ToolResult, User
from holdfast.core.run.call import CallParked
from holdfast.core.run.files import FileChanged
from holdfast.core.run.run import RunCompleted, RunFailed, RunPhase
from holdfast.core.session.instructions import InstructionFile
from holdfast.core.types import OPERATOR, Owner, Usage
from holdfast.gateway import FileDiff, RunView, SessionSummary

_LAST_EVENT = {
    "call.asked": "approval.request",
    "call.cleared": "approval.responded",
    "call.started": "tool.started",
    "file.changing": "tool.started",
    "call.settled": "tool.completed",
    "message.void": "message.void",
    "model.failed": "model.retry",
    "session.compacted": "context.compacted",
    "run.started": "run.started",
    "run.resumed": "run.resumed",
    "run.completed": "run.completed",
    "run.failed": "run.failed",
    "run.cancelled": "run.cancelled",
}


def usage_object(usage: Usage) -> UsageObject:
    """Tokens, as the API counts them."""
    return UsageObject(
        usage.input_tokens,
        usage.output_tokens,
        usage.total_tokens,
        usage.cached_tokens or msgspec.UNSET,
        round(usage.cost_usd, 6) if usage.cost_usd else msgspec.UNSET,
    )


def diff_object(diff: FileDiff) -> FileDiffObject:
    """The net change of a file."""
    change = diff.change
    return FileDiffObject(
        path=change.path,
        kind=change.kind,
        added=change.added,
        removed=change.removed,
        before=change.before,
        after=change.after,
        mode_before=change.mode_before,
        mode_after=change.mode_after,
        binary=change.binary,
        diff=diff.text,
        cut=diff.cut,
        pruned=diff.pruned,
        run_id=change.run_id if isinstance(change, FileChanged) else "",
        call_id=change.call_id if isinstance(change, FileChanged) else "",
    )


def status_of(view: RunView) -> str:
    """The run's status as the API names it."""
    if view.status.final:
        return view.status
    if view.stopping:
        return "stopping"
    match view.status:
        case RunPhase.WAITING:
            return "waiting_for_approval" if view.waiting_for_approval else "running"
        case RunPhase.RUNNING:
            return "running"
        case _:
            return "queued"


def run_object(view: RunView) -> RunObject:
    """The run's status object."""
    failed = view.ending if isinstance(view.ending, RunFailed) else None
    done = view.ending if isinstance(view.ending, RunCompleted) else None
    return RunObject(
        run_id=view.run_id,
        status=status_of(view),
        created_at=view.created_at,
        updated_at=view.updated_at,
        session_id=view.session_id,
        model=view.model,
        last_event=_last_event(view),
        output=msgspec.UNSET if done is None else done.output,
        error=msgspec.UNSET if failed is None else failed.error,
        error_code=msgspec.UNSET if failed is None else failed.code,
        usage=usage_object(view.usage) if view.status.final else None,
        question=None if view.question is None else question_object(view.question),
        approval=None if view.approval is None else approval_object(view.approval),
        owner=owner_name(view.owner),
        incomplete=(done.incomplete or "") if done is not None else "",
    )


def owner_name(owner: Owner) -> str:
    """The owner, where it is not the operator; else empty, which responses leave out."""
    return "" if owner == OPERATOR else owner


def _last_event(view: RunView) -> str | None:
    if view.last_event == "call.parked":
        return "question.asked" if view.question is not None else "subagent.started"
    return _LAST_EVENT.get(view.last_event)


def question_object(asked: CallParked) -> QuestionObject:
    """A question to the user."""
    return QuestionObject(asked.call_id, asked.question, asked.options)


def file_object(file: InstructionFile) -> InstructionFileObject:
    """A file with instructions, without its text."""
    return InstructionFileObject(file.path, file.sha256, file.size, file.own, file.problem)


def approval_object(asked: ApprovalRequested, owner: Owner = OPERATOR) -> ApprovalObject:
    """A request for approval: what would run, why it asks, and the possible answers."""
    return ApprovalObject(
        request_id=asked.request_id,
        run_id=asked.run_id,
        call_id=asked.call_id,
        command=asked.command,
        description=asked.description,
        choices=asked.choices,
        expires_at=asked.expires_at,
        owner=owner_name(owner),
    )


def asked_place(asked: ApprovalRequested) -> str:
    """The position after this request, as `?after=` takes it."""
    return f"{asked.expires_at!r}:{asked.request_id}"


def session_object(of: SessionSummary) -> SessionObject:
    """A session as a list shows it."""
    fields = msgspec.structs.asdict(of)
    return SessionObject(**fields | {"owner": owner_name(of.owner)})


def message_object(message: Message) -> MessageObject:
    """One message of a transcript."""
    match message:
        case Assistant(text=text, calls=calls):
            return MessageObject(
                "assistant",
                text,
                tuple(ToolCallObject(c.call_id, ToolFunction(c.tool, c.arguments)) for c in calls)
                or None,
            )
        case ToolResult(call_id=call_id, text=text):
            return MessageObject("tool", text, tool_call_id=call_id)
        case User(text=text, images=images) if images:
            parts = [ContentPart("text", text)] if text else []
            parts += [ContentPart("image_url", image_url=ImageUrl(to_url(i))) for i in images]
            return MessageObject("user", tuple(parts))
        case _:
            return MessageObject(str(message.__struct_config__.tag), message.text)
