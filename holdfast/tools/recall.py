"""The `recall` tool: read the result of an earlier call again.

When a conversation outgrows the model's window, long results are shortened for the model. The
journal keeps them whole, and each shortened result names the call to ask for.
"""

from typing import Annotated

import msgspec

from holdfast.core.run.call import OnCrash
from holdfast.core.types import CallId
from holdfast.tools.tool import Context, Done, Effect, Outcome, Tool, ToolFailure, free

NAME = "recall"
PAGE = 8_000  # characters

NO_RESULT = (
    "This conversation has no result of a call {call}. The note in a shortened result names it."
)


class Recall(msgspec.Struct):
    call: Annotated[str, msgspec.Meta(min_length=1, max_length=200, description="The call's id.")]
    offset: Annotated[
        int, msgspec.Meta(ge=0, description="The first character to show; from the last page.")
    ] = 0


async def recall(context: Context, asked: Recall) -> Outcome:
    """Return one page of the result."""
    text = await context.result_of(CallId(asked.call))
    if text is None:
        return ToolFailure(NO_RESULT.format(call=asked.call))
    page = text[asked.offset : asked.offset + PAGE]
    end = asked.offset + len(page)
    more = f"\n[{len(text) - end:,} characters follow: offset {end}]" if end < len(text) else ""
    return Done(page + more)


TOOLS = (
    Tool(
        NAME,
        "Read the result of an earlier call again, if it was shortened.",
        Recall,
        Effect.READ,
        OnCrash.REPEAT,
        10,
        recall,
        lambda asked: asked.call,
        free,
    ),
)
