"""The front door: everything a channel, a command or a terminal may do, as a Protocol.

`send` returns when the intent is in the journal, not before; what happens to the
caller afterwards changes nothing. `follow` reads a run's records from a cursor, for
any number of readers, before and after the run has ended and across restarts.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, overload

from holdfast.core.approval import ApprovalRequested, Choice, Role
from holdfast.core.call import CallParked
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
from holdfast.core.library import Imported
from holdfast.core.messages import Message
from holdfast.core.run import Status
from holdfast.core.types import OPERATOR, Fact, Owner, RunId, SessionId, SessionKey, Usage, Value

HANDOVER = "/v1/handover"  # at the operator's door: let somebody else own the home


class RunView(Value):
    """A run as somebody outside may see it."""

    run_id: RunId
    session_id: SessionId
    status: Status
    stopping: bool
    waiting_for_approval: bool
    approval: ApprovalRequested | None  # the oldest that waits
    created_at: float
    updated_at: float
    model: str
    last_event: str
    usage: Usage
    ending: Fact | None  # the fact that ended it
    ended_seq: int | None
    question: CallParked | None = None  # what the user is asked, the oldest if there are several
    owner: Owner = OPERATOR


class Waiting(Value):
    """What waits for an approval, and whose it is."""

    owner: Owner
    asked: ApprovalRequested


class Health(Value):
    """What the process says of itself."""

    status: str
    version: str
    model: str
    running: int
    queued: int
    waiting: int
    loop_lag_ms: float
    journal: str
    uptime_s: float
    sandbox: str  # how well commands are confined, "L2" for one; empty: not known yet
    sandbox_note: str
    paused: str  # why no work is done, and what to do about it; empty: it is
    held: str = ""  # why some runs do not go on, and what to do about it; empty: all do
    channels: Mapping[str, str] = {}  # each, and why nothing can be heard there; empty: all is well
    undelivered: int = 0  # messages on their way to chats, or held

    @property
    def ready(self) -> bool:
        return self.status == "ready" and self.journal == "ok"


class SessionView(Value):
    """A session as the operator sees it."""

    session_id: SessionId
    status: str
    reason: str  # why it is suspended
    unfinished: int  # runs
    held: int  # of these, because they may end the process
    mark: str  # what cut its work; empty: nothing since a run has completed
    mark_reason: str
    marked_at: float


class SessionSummary(Value):
    """A session as a list shows it."""

    session_id: SessionId
    title: str
    preview: str  # the first words, in one line
    created_at: float
    updated_at: float  # when it was last spoken in
    workspace: str
    platform: str
    model: str
    status: str
    unfinished: int  # runs
    owner: Owner = OPERATOR


class Settled(Value):
    """What was said before the first run that is not over, and where its events tell the rest."""

    messages: Sequence[Message]
    after: int
    unfinished: Sequence[RunId]


class RunQuery(Value):
    """Which runs to list, newest first."""

    status: frozenset[Status] = frozenset()
    session_id: SessionId | None = None
    limit: int = 20
    after: RunId | None = None


Batches = AsyncIterator[Sequence[Record]]


class Library(Protocol):
    """Sessions as people keep them. Only the caller's own: others are `session_not_found`."""

    async def sessions(
        self, by: Principal, limit: int, after: SessionKey | None
    ) -> tuple[Sequence[SessionSummary], bool]:
        """A page of all that it may see, newest first, and whether there are more."""
        ...

    async def session(self, by: Principal, session_id: SessionId) -> SessionSummary:
        """One of them."""
        ...

    async def settled(self, by: Principal, session_id: SessionId) -> Settled:
        """What is settled of its transcript."""
        ...

    async def rename(self, by: Principal, session_id: SessionId, title: str) -> SessionSummary:
        """Call it so from now on; empty: it has no name."""
        ...

    async def fork(
        self, by: Principal, session_id: SessionId, title: str, name: SessionId | None
    ) -> SessionSummary:
        """One of the caller's own that begins with what its model reads now; or `session_exists`."""
        ...

    async def bring_in(self, by: Principal, what: Imported) -> SessionSummary:
        """Begin one with what was said elsewhere; refused with `session_exists`. The operator's."""
        ...


class Gateway(Protocol):
    """The front door."""

    @property
    def library(self) -> Library:
        """The sessions."""
        ...

    @overload
    async def send(self, intent: Submit) -> Submitted: ...
    @overload
    async def send(self, intent: Stop) -> Stopping: ...
    @overload
    async def send(self, intent: Steer) -> Steered: ...
    @overload
    async def send(self, intent: Answer) -> Answered: ...

    async def run(self, by: Principal, run_id: RunId) -> RunView:
        """The run as it stands; refused with `run_not_found` if it is not the caller's."""
        ...

    async def approvals(self, by: Principal) -> Sequence[Waiting]:
        """Everything the caller may see that waits for an approval, oldest first."""
        ...

    async def runs(self, by: Principal, query: RunQuery) -> tuple[Sequence[RunView], bool]:
        """A page of runs, and whether there are more."""
        ...

    async def messages(self, by: Principal, session_id: SessionId) -> Sequence[Message]:
        """The whole transcript; refused with `session_not_found` if it is not the caller's."""
        ...

    def follow(
        self, by: Principal, run_id: RunId, after: int
    ) -> AbstractAsyncContextManager[Batches | None]:
        """The run's records after `after`, in order, without gap or repeat; None if none follow.

        An empty batch is a sign of life. Ends after the run's last record; ends early, without
        one, when the reader is too slow or the gateway stops: come back with your cursor.
        """
        ...

    def follow_session(
        self, by: Principal, session_id: SessionId, after: int
    ) -> AbstractAsyncContextManager[Batches]:
        """Everything of the session after `after`, for as long as somebody reads."""
        ...

    def rules(self, by: Principal) -> dict[str, str]:
        """What the operator has permitted for good: a name for each, and its words."""
        ...

    async def revoke(self, by: Principal, name: str) -> None:
        """Take one of them back; refused with `rule_not_found`."""
        ...

    async def accept_posture(self, by: Principal) -> None:
        """The operator's word: go on, however well commands are confined here."""
        ...

    def health(self) -> Health:
        """How it is doing, from memory."""
        ...


class ChatStatus(Value):
    """How things stand in one conversation."""

    session_id: SessionId
    run: RunView | None  # the one at work or next
    steps: int  # calls it has begun
    waiting: int  # runs behind it
    question: str  # of the run at work, to the user; empty: none
    approvals: Sequence[ApprovalRequested]
    busy_mode: Mode
    model: str
    suspended: bool
    health: Health
    now: float  # when that was so


class ChatSession(Value):
    """One of the sessions a conversation has had."""

    number: int  # from 1, the oldest; what people call it by
    session_id: SessionId
    begun_at: float
    current: bool
    first_words: str
    now: float  # when that was so


class Chat(Protocol):
    """One conversation, as a command sees it: of a chat, whose speaker has been let in, or of the
    operator's at a terminal.

    Every method is refused with words for people where it may not be, or can not.
    """

    roles: frozenset[Role]  # of whoever speaks

    async def status(self) -> ChatStatus: ...

    async def stop(self) -> int:
        """Stop what the speaker may stop; how many runs it was. In a chat the session is left."""
        ...

    async def begin(self) -> None:
        """A fresh session from the next words on; what is at work is stopped."""
        ...

    async def say(self, text: str, mode: Mode | None) -> None:
        """Words for the agent; None: what they do to a busy run is as the chat has it."""
        ...

    async def choose_busy_mode(self, mode: Mode) -> None: ...

    async def choose_model(self, name: str) -> str:
        """Another model of the same provider for this session; empty: the configured one."""
        ...

    async def answer(self, choice: Choice, request_id: str) -> Choice:
        """Answer an approval of this conversation: the oldest, if none is named."""
        ...

    async def retry(self) -> None:
        """Say again what was said last, in place of what came of it."""
        ...

    async def undo(self) -> str:
        """Take back the last exchange; the words it began with."""
        ...

    async def usage(self) -> Usage:
        """Tokens this session has spent."""
        ...

    async def sessions(self) -> Sequence[ChatSession]: ...

    async def resume(self, number: int | None) -> ChatSession:
        """Bring back an earlier session; None: the one before."""
        ...

    async def restart(self) -> None:
        """Restart the gateway. For administrators."""
        ...

    async def make_home(self) -> None:
        """Have the gateway speak here when nobody asked it anything. For administrators."""
        ...


class CommandView(Value):
    """A slash command, as somebody may be shown it."""

    name: str  # without the slash
    arguments: str
    help: str


class CommandGiven(Value):
    """A slash command that the operator gives at a terminal."""

    session_id: SessionId  # the terminal sits in; there may be no such session yet
    text: str
    mode: Mode = Mode.INTERRUPT  # what words do to a busy run there
    workspace: str = ""  # for the session, if words of the command begin it
    key: str = ""  # the same again is the same command


class CommandDone(Value):
    """What came of it."""

    output: str  # markdown; empty: there is nothing to say
    session_id: SessionId  # to go on with
    busy: Mode | None = None  # what words do to a busy run from now on, if that was chosen
    run_id: RunId | None = None  # the run that reads words of the command
    undone: str | None = None  # the words that were taken back
    owner: Owner = OPERATOR  # whose session it is
    refused: bool = False  # words of the command: `output` says why nobody will read them


class ChannelState(Value):
    """One channel that is on, and how it is doing."""

    name: str
    trouble: str  # why nothing can be heard just now; empty: all is well
    can: tuple[str, ...]  # in words
    undelivered: int  # messages that somebody may miss
    held: int  # of those, how many wait for a person
    given_up: int = 0  # and how many are not tried any more
