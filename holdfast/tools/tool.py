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

from holdfast.core.approval import Choice, Level, Posture
from holdfast.core.call import Kept, OnCrash
from holdfast.core.execution import ExecutionRequest
from holdfast.core.process import ProcessEnded, Processes
from holdfast.core.rules import Permission as Rule
from holdfast.core.run import Origin
from holdfast.core.types import CallId, ProcessId, RunId, SessionKey, Value

A = TypeVar("A", bound=msgspec.Struct)


class Effect(StrEnum):
    READ = "read"  # changes nothing; may run beside its neighbours
    WRITE = "write"  # changes the workspace
    ACT = "act"  # reaches beyond it


class Background(Value):
    """A process that goes on after the call which started it."""

    process_id: ProcessId
    command: str
    notify: bool
    watch: tuple[str, ...]
    detach: bool


class Delegated(Value):
    """A task for a run of its own."""

    child: RunId
    task: str
    name: str
    note: str = ""  # what its result has to say beside


class Done(Value):
    """It worked. `text` goes to the model; `kept` is what undo needs."""

    text: str
    kept: tuple[Kept, ...] = ()
    cwd: str = ""  # where the session's next command starts; empty: where it did
    background: Background | None = None
    summary: str = ""  # a word for people: how it ended, if that is not plain
    delegated: Delegated | None = None  # a task that nobody waits for


class Unknown(Value):
    """It may or may not have had its effect. `text` says what is known."""

    text: str


class Failed(Value):
    """It did not work, and the model should know why."""

    text: str


class Denied(Value):
    """It did not run: it was no longer what had been permitted."""

    text: str


class Park(Value):
    """It waits for somebody's fact; no task is held meanwhile."""

    reason: str
    question: str = ""  # to the user, whose next words end it
    options: tuple[str, ...] = ()
    delegated: Delegated | None = None  # a task whose end ends it


Outcome = Done | Failed | Unknown | Denied | Park


class Allowed(Value):
    """It may run. What is noted goes into the audit."""

    note: str = ""


class Question(Value):
    """It may run if somebody says so, who has seen this."""

    command: str  # exactly what would run, in a form that people can read
    description: str
    execution: str  # sha256 of exactly what would run; an approval is for this and nothing else
    choices: tuple[Choice, ...]
    offers: tuple[Rule, ...] = ()  # what more than `once` would permit


class Judge(Value):
    """Whether it may run is for `core.approval.decide_execution` to say."""

    request: ExecutionRequest
    level: Level  # how well it would be confined
    git_is_safe: bool


class Forbidden(Value):
    """It may not run, and the model is told so."""

    text: str


Permission = Allowed | Question | Judge | Forbidden


class BlobStore(Protocol):
    """Where big or former things are kept, named by their hash."""

    def put(self, data: bytes) -> str:
        """Keep `data`, durably, and return its name. Blocks; call it from a worker thread."""
        ...


class Context(Value):
    """What one call works for and with."""

    session: SessionKey
    run_id: RunId
    turn: int
    call_id: CallId
    workspace: Path
    blobs: BlobStore
    cwd: str  # in the workspace
    origin: Origin
    processes: Processes  # the session's, as the journal knows them
    hosts: tuple[str, ...]  # that its commands may speak to
    execution: str  # the hash of what was judged; empty: nothing was, yet
    progress: Callable[[str], None]  # tell people what it says on its way; clean text only
    may_reach: Callable[[str], Awaitable[bool]]  # ask somebody about one more host, and wait
    depth: int = 0  # how many runs its run works for, one for the other
    children: int = 0  # tasks of its run that are not done


class Hands(Protocol):
    """Commands and their processes, for the engine, which tells of their end."""

    async def posture(self) -> Posture:
        """How well commands are confined here: found out once, by trying."""
        ...

    def known(self) -> list[tuple[SessionKey, ProcessId]]:
        """Every process an earlier gateway, or this one, has left traces of."""
        ...

    async def sweep(self) -> None:
        """At the start: end what an earlier gateway left behind, but for the detached."""
        ...

    async def ended(self, process_id: ProcessId) -> ProcessEnded:
        """How it ended, once it has; `Cause.LOST` if nobody knows of it."""
        ...

    async def lines(
        self, process_id: ProcessId, after: int, patterns: tuple[str, ...]
    ) -> tuple[str, int]:
        """Wait for lines with one of `patterns` in them, from `after` on; they, and where they end.

        Never returns if there are none: the caller stops waiting when the process has ended.
        """
        ...

    async def kill(self, process_id: ProcessId) -> ProcessEnded:
        """End its whole tree, if it runs; how it ended."""
        ...

    async def kill_all(self) -> None:
        """End everything that was started here and may not outlive us."""
        ...

    def forget(self, process_id: ProcessId) -> None:
        """Remove its traces."""
        ...


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    name: str
    description: str
    arguments: type[A]
    effect: Effect
    on_crash: OnCrash  # with ADOPT, `adopt` is asked
    timeout_s: float
    run: Callable[[Context, A], Awaitable[Outcome]]
    preview: Callable[[A], str]  # one short line for people: what is it about to do
    permit: Callable[[Context, A], Awaitable[Permission]]  # asked before it starts, each time
    adopt: Callable[[Context, A], Awaitable[Outcome]] | None = None  # what its evidence says
    settled: Callable[[Context], None] | None = None  # the outcome is written down: forget evidence
    abort: Callable[[Context], Awaitable[None]] | None = None  # its run is stopped: nothing stays


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
