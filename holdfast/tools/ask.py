"""A question to the user. The call waits for the answer, for as long as it takes.

It holds no task meanwhile; the user's next words to the run are its result.
"""

from typing import Annotated

import msgspec

from holdfast.core.call import OnCrash
from holdfast.tools.tool import Context, Effect, Failed, Outcome, Park, Tool, free

NOBODY = "Nobody can be asked here: decide yourself and say what you assumed."
NOT_YOU = (
    "You work on a task of another run and cannot ask the user: decide yourself, and say in your "
    "answer what you assumed or what is missing."
)


class Ask(msgspec.Struct):
    question: Annotated[
        str, msgspec.Meta(min_length=1, max_length=4000, description="One question, in full.")
    ]
    options: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=60)]],
        msgspec.Meta(
            max_length=6,
            description="Short answers to choose from. The user may say something else.",
        ),
    ] = []


async def ask(context: Context, asked: Ask) -> Outcome:
    """Put the question, if there is somebody to read it."""
    if context.depth:
        return Failed(NOT_YOU)
    if not context.origin.answerable:
        return Failed(NOBODY)
    return Park("waits for the user's answer", asked.question, tuple(asked.options))


TOOLS = (
    Tool(
        "ask",
        "Ask the user and wait for the answer. Only for what you cannot find out yourself and "
        "where a wrong guess would cost something.",
        Ask,
        Effect.READ,
        OnCrash.REPEAT,  # cut before it waits, it has not been heard of
        10,
        ask,
        lambda asked: asked.question,
        free,
    ),
)
