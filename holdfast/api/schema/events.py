"""Events: one struct for all kinds. Each kind has its own fields, and sends no others."""

from typing import Any

import msgspec

from holdfast.api.schema.rewinds import RestoredFileObject
from holdfast.api.schema.runs import UsageObject

TERMINAL = frozenset({"run.completed", "run.failed", "run.cancelled"})  # the last of a run


class InstructionFileObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file with instructions that a run reads, in the event `instructions.read`."""

    path: str  # relative to the workspace; the user's own: absolute
    sha256: str = ""  # of what was read of it
    size: int = 0  # of the file, in bytes
    own: bool = False  # the user's, not the project's
    problem: str = ""  # why it was not read


class Event(msgspec.Struct, frozen=True):
    """An event of a run or a session. A field that its kind does not have has its default."""

    event: str  # its kind
    seq: int
    run_id: str = ""  # some events of a session belong to no run
    timestamp: float = 0.0
    turn: int = 0
    delta: str = ""
    output: str = ""
    tool: str = ""
    preview: str = ""
    reason: str = ""
    code: str = ""
    outcome: str = ""
    summary: str = ""
    detail: str = ""  # the first lines of a failed call's result
    error: Any = None  # a text in `run.failed`; true or false in `tool.completed`
    call_id: str = ""
    request_id: str = ""
    command: str = ""
    description: str = ""
    choices: tuple[str, ...] = ()
    choice: str = ""
    expires_at: float = 0.0
    sandbox: str = ""
    path: str = ""  # of a changed file, below the workspace
    kind: str = ""  # "created", "replaced", "patched" or "deleted"
    added: int = 0  # lines
    removed: int = 0
    before: str = ""  # sha256 of the content before; empty: there was no file
    after: str = ""  # sha256 of the content after; empty: there is no file
    binary: bool = False
    process_id: str = ""
    port: int = 0  # of the session's network
    host_port: int = 0  # of this machine
    how: str = ""
    exit_code: int | None = None
    lines: str = ""
    question: str = ""
    options: tuple[str, ...] = ()
    child_run_id: str = ""
    name: str = ""
    status: str = ""
    background: bool = False
    detach: bool = False
    notify_on_complete: bool = False
    input: str = ""
    input_id: str = ""
    images: int = 0
    duration: float = 0.0
    attempt: int = 0
    attempts: int = 0  # after which the run gives up
    http_status: int = 0
    incomplete: str = ""  # an answer: "cut" (at the model's limit of tokens) or "empty"
    model: str = ""
    next_model: str = ""
    wait_s: float = 0.0
    messages: int = 0
    files: tuple[InstructionFileObject, ...] = ()
    rewind_id: str = ""
    point: str = ""  # the run before which the session is now; of a redo: was
    what: str = ""  # "both", "files" or "conversation"
    redo: bool = False
    runs: tuple[str, ...] = ()  # that no longer count; of a redo: count again
    restored: tuple[RestoredFileObject, ...] = ()
    usage: UsageObject | None = None

    @property
    def why(self) -> str:
        """The text of the error or the reason; empty if the event has neither."""
        match self.error:
            case str(text):
                return text
            case {"message": str(text)}:
                return text
            case _:
                return self.reason
