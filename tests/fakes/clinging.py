"""A tool that does not let go, loaded by a real engine as a plugin: its cleanup never ends."""

import anyio
import msgspec

from holdfast.core.run.call import OnCrash
from holdfast.tools.tool import Context, Done, Effect, Outcome, Tool, free


class Cling(msgspec.Struct):
    pass


async def cling(context: Context, asked: Cling) -> Outcome:
    """Hang, and hang on when it is cancelled."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep_forever()
    return Done("never")


TOOLS = (
    Tool(
        "cling",
        "Hang on.",
        Cling,
        Effect.ACT,
        OnCrash.UNKNOWN,
        600,
        cling,
        lambda asked: "for good",
        free,
    ),
)
