"""The contract of a tool: its name, its arguments and its effect.

Every tool states its effect and what a crash in the middle of a call means. There are no
defaults, so a new tool cannot inherit a wrong one by accident. The arguments are a typed struct:
the schema that the model sees and the validation of its calls come from the same type. A tool from
elsewhere may bring a JSON Schema instead; its arguments are a dict, which it validates. A tool
returns an outcome. If it raises `ToolFailed`, the outcome is a `ToolFailure` with that text.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from holdfast.core.approval.approval import Choice, Level, Posture
from holdfast.core.approval.execution import ExecutionRequest
from holdfast.core.approval.rules import Permission as Rule
from holdfast.core.approval.tree import LeftOut, Tree
from holdfast.core.run.call import OnCrash
from holdfast.core.run.files import FileChange
from holdfast.core.run.process import ProcessEnded, Processes, id_for
from holdfast.core.run.run import Origin
from holdfast.core.session.rewind import SeenFile
from holdfast.core.session.rewound import FileStep
from holdfast.core.types import CallId, ProcessId, RunId, SessionKey, Value

SURROGATE = "The text contains half of a surrogate pair; remove it."

A = TypeVar("A")  # a struct; for a tool with a JSON Schema of its own also a dict


class Effect(StrEnum):
    READ = "read"  # changes nothing; calls of the same turn may run in parallel
    WRITE = "write"  # changes the workspace
    ACT = "act"  # can have effects outside the workspace


class Background(Value):
    """A process that continues after the call that started it."""

    process_id: ProcessId
    command: str
    notify: bool
    watch: tuple[str, ...]
    detach: bool


class PortChange(Value):
    """A port of a process that was published, or closed."""

    process_id: ProcessId
    port: int
    host_port: int  # 0: closed


class Delegated(Value):
    """A task for a child run."""

    child: RunId
    task: str
    name: str
    note: str = ""  # added to the result of the call


class Done(Value):
    """The call succeeded. `text` goes to the model; `changes` are the files that it changed.

    Both versions of a changed file are in the blob store before the outcome is returned.
    """

    text: str
    changes: tuple[FileChange, ...] = ()
    cwd: str = ""  # directory of the session's next command; empty: unchanged
    background: Background | None = None
    summary: str = ""  # short result for people, if it was not a plain success
    delegated: Delegated | None = None  # a background task, which the call does not wait for
    port: PortChange | None = None


class Unknown(Value):
    """The call may or may not have had its effect. `text` describes what is known."""

    text: str
    changes: tuple[FileChange, ...] = ()  # that are known


class ToolFailure(Value):
    """The call failed. `text` tells the model why."""

    text: str
    changes: tuple[FileChange, ...] = ()  # a command that fails may have changed files


class ToolDenied(Value):
    """The call did not run, because it no longer matches what was approved."""

    text: str


class Park(Value):
    """The call waits until a fact in the journal ends it. Meanwhile it occupies no task."""

    reason: str
    question: str = ""  # to the user, whose next message ends the wait
    options: tuple[str, ...] = ()
    delegated: Delegated | None = None  # a task; its end ends the wait


Outcome = Done | ToolFailure | Unknown | ToolDenied | Park


class ToolAllowed(Value):
    """The call may run. `note` is written to the audit log."""

    note: str = ""


class Question(Value):
    """The call may run if a person approves exactly this."""

    command: str  # exactly what would run, in readable form
    description: str
    execution: str  # sha256 of exactly what would run; the approval covers nothing else
    choices: tuple[Choice, ...]
    offers: tuple[Rule, ...] = ()  # the rules that a choice wider than `once` would add


class LookAtTrees(Protocol):
    """Take a snapshot of directory trees within a time limit, without the files in `but`."""

    def __call__(self, within_s: float, but: LeftOut) -> Awaitable[tuple[Tree, ...]]: ...


class Judge(Value):
    """`core.approval.decision.decide_execution` decides whether the call may run."""

    request: ExecutionRequest
    level: Level  # sandbox level that it would run at
    look: LookAtTrees  # takes a snapshot of every tree that the command may read


class Forbidden(Value):
    """The call may not run. `text` tells the model why."""

    text: str


Permission = ToolAllowed | Question | Judge | Forbidden


class BlobStore(Protocol):
    """Stores large data and former versions of files under their hash."""

    def put(self, data: bytes) -> str:
        """Store `data` durably and return its hash. Blocks; call it from a worker thread."""


class VersionStore(BlobStore, Protocol):
    """The same, to read from too."""

    def get(self, name: str) -> bytes:
        """Return what was stored; `KeyError` if it is not there, or no longer. Blocks."""


class RestoresFiles(Protocol):
    """The interface to the files of a workspace that undo uses. Blocks; use a worker thread."""

    def look(self, workspace: Path, paths: Sequence[str]) -> Mapping[str, SeenFile]:
        """Return these files as they are. Their content is stored as a version before."""

    def kept(self, blobs: Collection[str]) -> frozenset[str]:
        """Return those of these versions that can be restored."""

    def restore(self, workspace: Path, steps: Sequence[FileStep]) -> tuple[FileStep, ...]:
        """Carry out these steps, and return each with its result. Repeating them is harmless."""


async def _no_result(call_id: CallId) -> None:
    """Find no result of an earlier call."""


async def _announce_nothing(change: FileChange) -> None:
    """Record nothing."""


class Context(Value):
    """The environment of one call: its session, run, workspace and services."""

    session: SessionKey
    run_id: RunId
    turn: int
    call_id: CallId
    workspace: Path
    blobs: BlobStore
    cwd: str  # current directory, inside the workspace
    origin: Origin
    processes: Processes  # the session's processes according to the journal
    hosts: tuple[str, ...]  # hosts that its commands may connect to
    execution: str  # hash of what was approved; empty: nothing was approved yet
    trees: tuple[Tree, ...]  # the approved snapshots; they must still match when it starts
    progress: Callable[[str], None]  # show output while the call runs; redacted text only
    may_reach: Callable[[str], Awaitable[bool]]  # ask the user about another host, and wait
    announce: Callable[[FileChange], Coroutine[Any, Any, None]] = (
        _announce_nothing  # before it is made
    )
    announced: Callable[[], tuple[FileChange, ...]] = tuple  # by this start of the call
    depth: int = 0  # number of parent runs above this run
    children: int = 0  # unfinished child runs of this run
    result_of: Callable[[CallId], Awaitable[str | None]] = _no_result  # of an earlier call
    confirm_writes: bool = False  # a person confirms each write of this run
    unasked: bool = False  # it runs only because a rule calls it harmless; no person was asked

    @property
    def process_id(self) -> ProcessId:
        """The id of the call's process: the same after a restart."""
        return id_for(self.run_id, self.turn, self.call_id)


class RunsCommands(Protocol):
    """The interface to commands and their processes that the engine uses."""

    async def posture(self) -> Posture:
        """Return how well commands are confined. Determined once, by a test."""

    def known(self) -> list[tuple[SessionKey, ProcessId]]:
        """List every process with a record on disk, of this gateway or an earlier one."""

    async def sweep(self) -> None:
        """At startup: kill what an earlier gateway left running, except detached processes."""

    async def ended(self, process_id: ProcessId) -> ProcessEnded:
        """Wait for its end and return how it ended; `ProcessEnd.LOST` if it has no record."""

    async def lines(
        self, process_id: ProcessId, after: int, patterns: tuple[str, ...]
    ) -> tuple[str, int]:
        """Wait for output lines after offset `after` that contain one of `patterns`.

        Returns the lines and the offset behind them. Never returns if there are none: the caller
        stops waiting when the process has ended.
        """

    async def kill(self, process_id: ProcessId) -> ProcessEnded:
        """Kill its process tree, if it runs, and return how it ended."""

    def last_output(self, process_id: ProcessId, limit: int) -> str:
        """Return the last `limit` bytes of its output, redacted; empty if none is stored."""

    async def publish(self, process_id: ProcessId, port: int, host_port: int) -> int:
        """Open a port of its network on this machine's loopback, and return its number there.

        `host_port` 0: the same number, or a free one. Raises `ToolFailed` if that is not possible.
        """

    def close_port(self, process_id: ProcessId, port: int) -> None:
        """Close a published port, if it is open."""

    def rest(self, session: SessionKey) -> None:
        """A run of the session has ended: hold nothing for it that no process needs."""

    async def kill_all(self) -> None:
        """Kill every process that was started here, except detached ones."""

    def forget(self, process_id: ProcessId) -> None:
        """Remove its record."""


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    name: str
    description: str
    arguments: type[A]
    effect: Effect
    on_crash: OnCrash  # ADOPT: `adopt` determines the outcome
    timeout_s: float
    run: Callable[[Context, A], Awaitable[Outcome]]
    preview: Callable[[A], str]  # one short line for people: what the call is about to do
    permit: Callable[[Context, A], Awaitable[Permission]]  # called before every start
    adopt: Callable[[Context, A], Awaitable[Outcome]] | None = None  # outcome after a restart
    settled: Callable[[Context], None] | None = None  # the outcome is stored: remove the record
    # The run was stopped: clean up, and return the files that the call had changed until then.
    abort: Callable[[Context], Awaitable[tuple[FileChange, ...]]] | None = None
    schema: Mapping[str, Any] | None = None  # JSON Schema; None: made from the type of arguments


async def free(context: Context, arguments: msgspec.Struct) -> Permission:
    """Allow the call: the `permit` of tools that need no approval."""
    return ToolAllowed()


def schema(arguments: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments, in the simple form that models know."""
    (ref,), components = msgspec.json.schema_components([arguments], ref_template="{name}")
    body: dict[str, Any] = components.pop(ref["$ref"])
    body.pop("title", None)
    body.setdefault("additionalProperties", False)
    if components:
        body["$defs"] = components
    return body
