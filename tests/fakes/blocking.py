"""A plugin that does what no tool may: it holds up the event loop."""

import time

import msgspec

from holdfast.core.run.call import OnCrash
from holdfast.tools.tool import Context, Done, Effect, Outcome, Tool, free


class Nothing(msgspec.Struct):
    pass


async def block(context: Context, asked: Nothing) -> Outcome:
    """Sleep as threads do, not as tasks do."""
    time.sleep(600)  # noqa: ASYNC251  # sleep: that is the fault
    return Done("never")


TOOLS = (Tool("block", "Block.", Nothing, Effect.ACT, OnCrash.UNKNOWN, 600, block, str, free),)
