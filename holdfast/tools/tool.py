"""The contract of a tool: what it is called, what it takes, what it does to the world.

A tool states its effect and what a crash in the middle means; there is no default
for a new tool to inherit by accident. Arguments are a typed struct: the schema the
model sees and the check its call goes through are made from the same type. A tool
returns an outcome; what it raises as `ToolFailed` is a `Failed` with that text.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.core.approval import Choice
from holdfast.core.call import Kept, OnCrash
from holdfast.core.types import CallId, RunId, SessionKey, Value

A = TypeVar("A", bound=msgspec.Struct)


class Effect(StrEnum):
    READ = "read"  # changes nothing; may run beside its neighbours
    WRITE = "write"  # changes the workspace
    ACT = "act"  # reaches beyond it


class Done(Value):
    """It worked. `text` goes to the model; `kept` is what undo needs."""

    text: str
    kept: tuple[Kept, ...] = ()


class Failed(Value):
    """It did not work, and the model should know why."""

    text: str


class Park(Value):
    """It waits for somebody's fact; no task is held meanwhile."""

    reason: str


Outcome = Done | Failed | Park


class Allowed(Value):
    """It may run."""


class Question(Value):
    """It may run if somebody says so, who has seen this."""

    command: str  # exactly what would run, in a form that people can read
    description: str
    execution: str  # sha256 of exactly what would run; an approval is for this and nothing else
    choices: tuple[Choice, ...]


class Forbidden(Value):
    """It may not run, and the model is told so."""

    text: str


Permission = Allowed | Question | Forbidden


class BlobStore(Protocol):
    """Where big or former things are kept, named by their hash."""

    def put(self, data: bytes) -> str:
        """Keep `data`, durably, and return its name. Blocks; call it from a worker thread."""
        ...


class Context(Value):
    """What one call works for and with."""

    session: SessionKey
    run_id: RunId
    call_id: CallId
    workspace: Path
    blobs: BlobStore


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    name: str
    description: str
    arguments: type[A]
    effect: Effect
    on_crash: OnCrash
    timeout_s: float
    run: Callable[[Context, A], Awaitable[Outcome]]
    preview: Callable[[A], str]  # one short line for people: what is it about to do
    permit: Callable[[Context, A], Awaitable[Permission]]  # asked before it starts, each time


async def free(context: Context, arguments: msgspec.Struct) -> Permission:
    """The permission of tools that need none."""
    return Allowed()


def schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """JSON Schema of a tool's arguments, in the plain form that models are trained on."""
    (ref,), components = msgspec.json.schema_components([arguments], ref_template="{name}")
    body: dict[str, Any] = components.pop(ref["$ref"])
    body.pop("title", None)
    body.setdefault("additionalProperties", False)
    if components:
        body["$defs"] = components
    return body
