"""One real call to a model, before anybody relies on it.

It is a call as a run makes it: streamed, and with a tool on offer, because a server that takes
none is of no use here. What it costs is a few words. It says what it is doing while it takes
longer than a second (a server may have to load its model first), and gives up in the end.
"""

import sys
from collections.abc import Callable
from contextlib import aclosing

import anyio

from holdfast.app.models import build_model
from holdfast.cli.exits import Code, Exit
from holdfast.cli.output import ERASE, is_clever
from holdfast.config.settings import Config
from holdfast.core.messages import User
from holdfast.core.types import Value
from holdfast.errors import HoldfastError, Misconfigured, Transient
from holdfast.models.model import Answer, Request, ToolSpec

CALL_S = 120.0
AFTER_S = 1.0  # it says that it still waits

_SYSTEM = "You are being tried out. Answer with the one word: ready"
_TOOL = ToolSpec(
    "wait",
    "Do nothing. There is no need to.",
    {"type": "object", "properties": {}},
)

Say = Callable[[str], None]


class TriedModel(Value):
    """What a call came to."""

    seconds: float
    input_tokens: int
    output_tokens: int
    text: str


def call(config: Config, say: Say, within_s: float = CALL_S) -> TriedModel:
    """Ask the configured model. Raises `Exit` with what to do."""
    return anyio.run(_call, config, say, within_s)


async def _call(config: Config, say: Say, within_s: float) -> TriedModel:
    begun = anyio.current_time()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_tell_waiting, say)
            answer = await _try(config, within_s)
            tasks.cancel_scope.cancel()
    finally:
        _wipe()
    if isinstance(answer, Exit):
        raise answer
    spent, took_s = answer.usage, anyio.current_time() - begun
    return TriedModel(round(took_s, 2), spent.input_tokens, spent.output_tokens, answer.text)


async def _try(config: Config, within_s: float) -> Answer | Exit:
    """Return the answer, or why the model is not to be used."""
    try:
        with anyio.fail_after(within_s):
            return await _ask(config)
    except TimeoutError:
        where = f" at {config.table.base_url}" if config.table is not None else ""
        said = f"{config.model}{where} has not answered within {within_s:g} s"
        return Exit(Code.TRY_AGAIN, f"{said}; try another model")
    except Transient as error:
        said = f"{error}; see whether it runs, or try again later"
        return Exit(Code.TRY_AGAIN, said)
    except Misconfigured as error:
        return Exit(Code.CONFIG, f"{error}: {error.hint}")
    except HoldfastError as error:
        return Exit(Code.REJECTED, str(error))


async def _ask(config: Config) -> Answer:
    model = build_model(config)
    request = Request(config.model_name, _SYSTEM, (User("Are you ready?"),), (_TOOL,))
    try:
        async with aclosing(model.stream(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Answer):
                    return piece
    finally:
        with anyio.CancelScope(shield=True):
            await model.aclose()
    raise Transient(f"{config.model} ended without an answer")


async def _tell_waiting(say: Say) -> None:
    """Show that we still wait: where a line can be erased every second, elsewhere once."""
    begun = anyio.current_time()
    await anyio.sleep(AFTER_S)
    if not is_clever():
        say("… it takes its time; Ctrl-C leaves")
        return
    while True:
        waited = anyio.current_time() - begun
        print(f"{ERASE}… {waited:.0f} s", end="", file=sys.stderr, flush=True)
        await anyio.sleep(1.0)


def _wipe() -> None:
    if is_clever():
        print(ERASE, end="", file=sys.stderr, flush=True)
