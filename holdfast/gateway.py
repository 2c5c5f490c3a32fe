"""The interface of the gateway to channels, commands and terminals, as Protocols.

`send` returns when the intent is in the journal; what happens to the caller after that has no
effect on it. `follow` reads a run's records from a cursor, for any number of readers, before and
after the run has ended and across restarts.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, overload

from holdfast.core.approval.approval import ApprovalRequested, Choice, Role
from holdfast.core.events import Record
from holdfast.core.inbox import Mode
from holdfast.core.intents import (
    Answer,
    Answered,
    Principal,
    Steer,
    Steered,
    Stop,
    Stopping,
    Submit,
    Submitted,
)
from holdfast.core.messages import Message
from holdfast.core.run.call import CallParked
from holdfast.core.run.files import FileChange, FileChanged
from holdfast.core.run.process import BackgroundProcess
from holdfast.core.run.run import RunPhase
from holdfast.core.session.compaction import Filling
from holdfast.core.session.instructions import InstructionFile
from holdfast.core.session.library import Imported
from holdfast.core.session.rewind import Point, Rewind, RewindChoice, RewindDone
from holdfast.core.types import (
    OPERATOR,
    CallId,
    Fact,
    Owner,
    ProcessId,
    RequestId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
    Value,
)

HANDOVER = "/v1/handover"  # on the operator's socket: let another process own the home


class RunView(Value):
    """A run as clients see it."""

    run_id: RunId
    session_id: SessionId
    status: RunPhase
    stopping: bool
    waiting_for_approval: bool
    approval: ApprovalRequested | None  # the oldest pending one
    created_at: float
    updated_at: float
    model: str
    last_event: str
    usage: Usage
    ending: Fact | None  # the fact that ended it
    ended_seq: int | None
    question: CallParked | None = None  # the oldest open question to the user
    owner: Owner = OPERATOR


class PendingApproval(Value):
    """A pending approval request, and its owner."""

    owner: Owner
    asked: ApprovalRequested


AskedPlace = tuple[float, RequestId]  # the position in the list: expiry and id


class Health(Value):
    """The state of the process."""

    status: str
    version: str
    model: str
    running: int
    queued: int
    waiting: int
    loop_lag_ms: float
    journal: str
    uptime_s: float
    sandbox: str  # the sandbox level, such as "L2"; empty: not known yet
    sandbox_note: str
    paused: str  # why no work is done, and what to do; empty: work is done
    held: str = ""  # why some runs are held, and what to do; empty: none is
    channels: Mapping[str, str] = {}  # each channel, and why it receives nothing; empty: it works
    undelivered: int = 0  # messages to chats that are not sent yet, or held
    models: tuple[str, ...] = ()  # the configured ones, the main one first
    model_reason: str = ""  # one line: why the main one is used
    audit: str = "ok"  # or why decisions cannot be recorded, and so have no effect

    @property
    def ready(self) -> bool:
        return self.status == "ready" and self.journal == "ok"


class SessionView(Value):
    """A session as the operator sees it."""

    session_id: SessionId
    status: str
    reason: str  # why it is suspended
    unfinished: int  # the number of unfinished runs
    held: int  # of these, the number suspected of crashing the process
    mark: str  # the cause of its interruption; empty: none since a run has completed
    mark_reason: str
    marked_at: float


class SessionSummary(Value):
    """A session as a list shows it."""

    session_id: SessionId
    title: str
    preview: str  # the beginning of the first message, in one line
    created_at: float
    updated_at: float  # the time of its last message
    workspace: str
    platform: str
    model: str
    status: str
    unfinished: int  # the number of unfinished runs
    owner: Owner = OPERATOR


class SettledTranscript(Value):
    """The messages before the first unfinished run, and the number after which its events begin."""

    messages: Sequence[Message]
    after: int
    unfinished: Sequence[RunId]


class RunQuery(Value):
    """A filter for a list of runs, newest first."""

    status: frozenset[RunPhase] = frozenset()
    session_id: SessionId | None = None
    limit: int = 20
    after: RunId | None = None


class DiffQuery(Value):
    """Changed files of a run or of a session; of one call or below one path only."""

    run_id: RunId | None = None
    session_id: SessionId | None = None  # if there is no run
    call_id: CallId | None = None
    path: str = ""
    each: bool = False  # every single change with its call, without a diff


class FileDiff(Value):
    """The net change of one file, with its diff; or a single change of one call."""

    change: FileChange | FileChanged
    text: str = ""  # as git writes it
    cut: bool = False  # the text is not the whole diff
    pruned: bool = False  # a version is no longer kept, so there is no diff


class ProcessView(Value):
    """A background process as clients see it."""

    key: SessionKey
    process: BackgroundProcess
    last_line: str  # the last line that it wrote


Batches = AsyncIterator[Sequence[Record]]


class Library(Protocol):
    """The session library. Sessions of other owners are refused with `session_not_found`."""

    async def sessions(
        self, by: Principal, limit: int, after: SessionKey | None
    ) -> tuple[Sequence[SessionSummary], bool]:
        """Return a page of the visible sessions, newest first, and whether there are more."""

    async def session(self, by: Principal, session_id: SessionId) -> SessionSummary:
        """Return one session."""

    async def settled(self, by: Principal, session_id: SessionId) -> SettledTranscript:
        """Return the transcript up to the first unfinished run."""

    async def rename(self, by: Principal, session_id: SessionId, title: str) -> SessionSummary:
        """Give the session a title; an empty one removes it."""

    async def fork(
        self, by: Principal, session_id: SessionId, title: str, name: SessionId | None
    ) -> SessionSummary:
        """Create a session with the messages that the model of this one reads now.

        Refused with `session_exists` if `name` is taken.
        """

    async def points(self, by: Principal, session_id: SessionId) -> Sequence[Point]:
        """Return the points that the session can go back to, oldest first."""

    async def rewind(self, session_id: SessionId, asked: Rewind) -> RewindDone:
        """Go back to a point, or forth again. Durable when this returns.

        Refused with `files_changed` if another hand changed a file, `session_busy` during a run.
        """

    async def bring_in(self, by: Principal, what: Imported) -> SessionSummary:
        """Import a session; refused with `session_exists`. Only for the operator."""


class BackgroundControl(Protocol):
    """The background processes of sessions. Those of other owners are refused as not found."""

    async def listed(
        self, by: Principal, session_id: SessionId | None, *, ended: bool
    ) -> Sequence[ProcessView]:
        """Return the processes of a session, or of all visible ones, oldest first.

        `ended`: also those that have ended lately.
        """

    async def output(self, by: Principal, process_id: ProcessId, limit: int) -> str:
        """Return the last `limit` bytes of its output; refused with `process_not_found`."""

    async def kill(self, by: Principal, process_id: ProcessId) -> ProcessView:
        """Kill it with all its children, and return how it ended; refused in the same way."""

    async def publish(
        self, by: Principal, process_id: ProcessId, port: int, host_port: int
    ) -> ProcessView:
        """Publish a port of it on this machine's loopback; `host_port` 0: the same or a free one.

        Only for the operator. Refused with `port_not_published`.
        """

    async def close_port(self, by: Principal, process_id: ProcessId, port: int) -> ProcessView:
        """Close a published port. Only for the operator."""


class Gateway(Protocol):
    """The interface that all clients use."""

    @property
    def background(self) -> BackgroundControl:
        """The background processes."""

    @property
    def library(self) -> Library:
        """The session library."""

    @property
    def restored_at(self) -> float:
        """The time of the restore, while older request keys may be repeated; otherwise 0."""

    @overload
    async def send(self, intent: Submit) -> Submitted: ...
    @overload
    async def send(self, intent: Stop) -> Stopping: ...
    @overload
    async def send(self, intent: Steer) -> Steered: ...
    @overload
    async def send(self, intent: Answer) -> Answered: ...

    async def run(self, by: Principal, run_id: RunId) -> RunView:
        """Return the state of a run; refused with `run_not_found` if it is not the caller's."""

    async def approvals(
        self, by: Principal, limit: int, after: AskedPlace | None
    ) -> tuple[Sequence[PendingApproval], bool]:
        """Return a page of the visible pending requests, oldest first, and if there are more."""

    async def approval(self, by: Principal, request_id: RequestId) -> PendingApproval | None:
        """Return one request; None if it is not pending, or the caller may not see it."""

    async def runs(self, by: Principal, query: RunQuery) -> tuple[Sequence[RunView], bool]:
        """Return a page of runs, and whether there are more."""

    async def messages(self, by: Principal, session_id: SessionId) -> Sequence[Message]:
        """Return the whole transcript; refused with `session_not_found` if not the caller's."""

    async def diff(self, by: Principal, query: DiffQuery) -> Sequence[FileDiff]:
        """Return what changed from before the run or session to its last change, by path.

        Refused with `run_not_found` or `session_not_found` if it is not the caller's.
        """

    def follow(
        self, by: Principal, run_id: RunId, after: int
    ) -> AbstractAsyncContextManager[Batches | None]:
        """Yield the run's records after `after`, in order and each once; None if there are none.

        An empty batch is a keep-alive. It ends after the run's last record. It ends early, without
        that record, if the reader is too slow or the gateway stops: follow again from the cursor.
        """

    def follow_session(
        self, by: Principal, session_id: SessionId, after: int
    ) -> AbstractAsyncContextManager[Batches]:
        """Yield all records of the session after `after`, until the reader leaves."""

    def rules(self, by: Principal) -> dict[str, str]:
        """Return the operator's standing permissions: name and description of each."""

    async def allow(self, by: Principal, pattern: str) -> tuple[str, str]:
        """Add a rule for the commands that match `pattern`; return its name and its text."""

    async def revoke(self, by: Principal, name: str) -> None:
        """Revoke a standing permission; refused with `rule_not_found`."""

    async def accept_posture(self, by: Principal) -> None:
        """Continue with the present sandbox level, as the operator decided."""

    def health(self) -> Health:
        """Return the state of the process, from memory."""


class ChatStatus(Value):
    """The state of one conversation."""

    session_id: SessionId
    run: RunView | None  # the active or next one
    steps: int  # calls it has started
    waiting: int  # runs queued behind it
    question: str  # of the active run to the user; empty: none
    approvals: Sequence[ApprovalRequested]
    busy_mode: Mode
    model: str
    suspended: bool
    health: Health
    now: float  # the time of this view
    priced: bool = True  # the price of its model is known
    attempts: int = 0  # at asking the model that failed, before the next one
    retry_at: float = 0.0  # when it is asked again; 0: at once
    files: Sequence[InstructionFile] = ()  # with instructions, as its last run read them


class ChatSession(Value):
    """One of the sessions of a conversation."""

    number: int  # from 1, the oldest; people refer to it by this number
    session_id: SessionId
    begun_at: float
    current: bool
    first_words: str
    now: float  # the time of this view


class CommandTarget(Protocol):
    """A conversation as slash commands see it: of an authorized user in a chat, or of the operator
    at a terminal.

    Every method may raise `Refused` with a message for people.
    """

    roles: frozenset[Role]  # of the user who gave the command

    async def status(self) -> ChatStatus: ...

    async def stop(self) -> int:
        """Stop the runs that the user may stop, and return their number.

        In a chat, the next message starts a new session.
        """

    async def begin(self) -> None:
        """Start a new session with the next message, and stop the active run."""

    async def say(self, text: str, mode: Mode | None) -> None:
        """Send a message to the agent; `mode` None: the chat's setting for busy runs."""

    async def choose_busy_mode(self, mode: Mode) -> None: ...

    async def choose_model(self, name: str) -> str:
        """Choose a model for this session; empty: the configured one."""

    async def answer(self, choice: Choice, request_id: str, reason: str = "") -> Choice:
        """Answer an approval of this conversation: the oldest, if none is named."""

    async def retry(self) -> None:
        """Undo the last exchange and send its message again."""

    async def points(self) -> Sequence[Point]:
        """Return the points that this session can go back to, oldest first."""

    async def rewind(self, asked: RewindChoice) -> RewindDone:
        """Go back to a point, or forth again."""

    async def usage(self) -> Usage:
        """Return the tokens that this session has used."""

    async def diff(self, run: str) -> Sequence[FileDiff]:
        """Return the files that this session changed; `run`: `last`, or the id of one run."""

    async def context(self) -> Filling:
        """Return what fills the model's window."""

    async def compact(self, focus: str) -> Filling | None:
        """Replace the beginning of what the model reads by notes, which keep above all `focus`.

        Returns what fills the window then; None if there is nothing to leave out.
        """

    async def processes(self) -> Sequence[ProcessView]:
        """Return the background processes of this session, oldest first, ended ones too."""

    async def process_output(self, process_id: str) -> str:
        """Return the end of the output of a process of this session."""

    async def kill_process(self, process_id: str) -> ProcessView:
        """Kill a process of this session."""

    async def sessions(self) -> Sequence[ChatSession]: ...

    async def resume(self, number: int | None) -> ChatSession:
        """Resume an earlier session; None: the previous one."""

    async def restart(self) -> None:
        """Restart the gateway. For administrators."""

    async def make_home(self) -> None:
        """Make this the home chat, which gets the gateway's own notices. For administrators."""


class CommandView(Value):
    """A slash command in a list."""

    name: str  # without the slash
    arguments: str
    help: str


class CommandGiven(Value):
    """A slash command that the operator gives at a terminal."""

    session_id: SessionId  # of the terminal; the session may not exist yet
    text: str
    mode: Mode = Mode.INTERRUPT  # what a message does to a busy run there
    workspace: str = ""  # for the session, if the command's message creates it
    key: str = ""  # the same key again is the same command


class CommandDone(Value):
    """The result of a slash command."""

    output: str  # markdown; may be empty
    session_id: SessionId  # to continue with
    busy: Mode | None = None  # the new setting for messages to a busy run, if it was changed
    run_id: RunId | None = None  # the run that reads the command's message
    undone: str | None = None  # the message that was undone
    owner: Owner = OPERATOR  # of the session
    refused: bool = False  # the command's message was refused; `output` says why


class ChannelState(Value):
    """The state of an enabled channel."""

    name: str
    trouble: str  # why it receives nothing now; empty: it works
    can: tuple[str, ...]  # its capabilities, as text
    undelivered: int  # messages that have not arrived
    held: int  # of those, how many wait for the operator
    given_up: int = 0  # and how many are no longer retried
