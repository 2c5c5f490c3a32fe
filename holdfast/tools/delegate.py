"""A task for another run of the agent, which sees nothing of this one but the task.

The call waits for that run's answer, which is its result. In the background it does not wait:
it returns a handle, and the end of the task comes later, as a new message. Where nothing can
come later it waits all the same, and its result says so.
"""

from typing import Annotated

import msgspec

from holdfast.core import delegation
from holdfast.core.call import OnCrash
from holdfast.tools.tool import Context, Delegated, Done, Effect, Failed, Outcome, Park, Tool, free


class DelegateTask(msgspec.Struct):
    task: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            description="The whole of it: what to do, where, what to know, what to answer. "
            "Nothing else of this conversation is seen.",
        ),
    ]
    background: Annotated[
        bool,
        msgspec.Meta(description="Do not wait: its end comes later, as a new message."),
    ] = False
    name: Annotated[
        str, msgspec.Meta(max_length=60, description="A few words for people: what it is.")
    ] = ""


async def delegate(context: Context, asked: DelegateTask) -> Outcome:
    """Hand the task on, if this run may."""
    if not asked.task.strip():
        return Failed("The task is empty. Say all that is to be done, and what to know for it.")
    if refused := delegation.refusal(context.depth, context.children):
        return Failed(refused)
    child = delegation.name(context.run_id, context.turn, context.call_id)
    late = context.origin.late
    if asked.background and late:
        handle = {
            "task_id": child,
            "status": "running",
            "note": "Its end comes as a new message; there is nothing to wait for or to look at.",
        }
        begun = Delegated(child, asked.task, asked.name)
        return Done(msgspec.json.encode(handle).decode(), delegated=begun)
    note = _UNSUPPORTED.format(context.origin.platform or "this door") if asked.background else ""
    return Park("waits for a task", delegated=Delegated(child, asked.task, asked.name, note))


_UNSUPPORTED = (
    "background is not possible here: nothing can be delivered after this run has ended ({}). "
    "The task was waited for instead."
)

TOOLS = (
    Tool(
        "delegate_task",
        "Give a self-contained task to another run of yours, with its own fresh context, and get "
        "its answer. For work that is long or can go on beside other work: several calls in one "
        "turn run side by side.",
        DelegateTask,
        Effect.ACT,
        OnCrash.REPEAT,  # nothing is begun before it is written down that it waits
        10,
        delegate,
        lambda asked: asked.name or asked.task,
        free,
    ),
)
