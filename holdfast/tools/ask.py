"""The `ask` tool: ask the user a question and wait for the answer, without a time limit.

While it waits, the call occupies no task. The user's next message to the run is its result.
"""

from typing import Annotated

import msgspec

from holdfast.core.run.call import OnCrash
from holdfast.tools.tool import Context, Effect, Outcome, Park, Tool, ToolFailure, free

NO_USER = "No user can answer here: decide yourself and state what you assumed."
CHILD_RUN = (
    "You work on a task of another run and cannot ask the user: decide yourself, and state in "
    "your answer what you assumed or what is missing."
)


class AskUser(msgspec.Struct):
    question: Annotated[
        str, msgspec.Meta(min_length=1, max_length=4000, description="One question, in full.")
    ]
    options: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=60)]],
        msgspec.Meta(
            max_length=6,
            description="Short answers to choose from. The user may give another answer.",
        ),
    ] = []


async def ask(context: Context, asked: AskUser) -> Outcome:
    """Ask the question, if a user can answer it."""
    if context.depth:
        return ToolFailure(CHILD_RUN)
    if not context.origin.answerable:
        return ToolFailure(NO_USER)
    return Park("waits for the user's answer", asked.question, tuple(asked.options))


TOOLS = (
    Tool(
        "ask",
        "Ask the user and wait for the answer. Use it only for what you cannot find out yourself "
        "and where a wrong guess would do harm.",
        AskUser,
        Effect.READ,
        OnCrash.REPEAT,  # before it waits, the user has not seen the question
        10,
        ask,
        lambda asked: asked.question,
        free,
    ),
)
