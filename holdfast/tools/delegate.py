"""The `delegate_task` tool: give a task to a child run, which sees only the task.

The call waits for the child run's answer, which is its result. With `background` it does not
wait: it returns a handle, and the result of the task arrives later as a new message. If the
channel cannot deliver later messages, the call waits anyway and its result says so.
"""

from typing import Annotated

import msgspec

from holdfast.core.run.call import OnCrash
from holdfast.core.session import delegation
from holdfast.tools.tool import (
    Context,
    Delegated,
    Done,
    Effect,
    Outcome,
    Park,
    Tool,
    ToolFailure,
    free,
)


class DelegateTask(msgspec.Struct):
    task: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="The complete task: what to do, where, all needed facts, what to answer. "
            "The other run sees nothing else of this conversation.",
        ),
    ]
    background: Annotated[
        bool, msgspec.Meta(description="Do not wait: the result arrives later, as a new message.")
    ] = False
    name: Annotated[
        str, msgspec.Meta(max_length=60, description="A short title of the task, for people.")
    ] = ""


async def delegate(context: Context, asked: DelegateTask) -> Outcome:
    """Start a child run for the task, if this run may."""
    if not asked.task.strip():
        return ToolFailure("The task is empty. Describe what to do and all needed facts.")
    if refused := delegation.refusal(context.depth, context.children):
        return ToolFailure(refused)
    child = delegation.child_id(context.run_id, context.turn, context.call_id)
    late = context.origin.late
    if asked.background and late:
        handle = {
            "task_id": child,
            "status": "running",
            "note": "The result arrives as a new message; do not wait or poll for it.",
        }
        begun = Delegated(child, asked.task, asked.name)
        return Done(msgspec.json.encode(handle).decode(), delegated=begun)
    note = (
        NO_BACKGROUND.format(context.origin.platform or "this client") if asked.background else ""
    )
    return Park("waits for a task", delegated=Delegated(child, asked.task, asked.name, note))


NO_BACKGROUND = (
    "background is not possible here: {} cannot deliver a message after this run has ended. "
    "The call waited for the task instead."
)

TOOLS = (
    Tool(
        "delegate_task",
        "Give a self-contained task to another run of yours, with an empty context, and get its "
        "answer. Use it for long work or for work that can run in parallel: several calls in one "
        "turn run at the same time.",
        DelegateTask,
        Effect.ACT,
        OnCrash.REPEAT,  # the child run starts only after the wait is in the journal
        10,
        delegate,
        lambda asked: asked.name or asked.task,
        free,
    ),
)
