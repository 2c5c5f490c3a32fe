"""The requests to the gateway. Each intent has the user who asks and names its target.

An intent is not a fact: it may be refused. When `send` returns, an accepted intent has become
facts in the journal, which survive the end of the process.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.address import Address
from holdfast.core.approval.approval import Choice, Role
from holdfast.core.inbox import Mode, UpdateRef
from holdfast.core.messages import Image, Message
from holdfast.core.types import OPERATOR, CallId, Owner, RequestId, RunId, SessionId, Value
from holdfast.errors import Refused


class DoorCapabilities(Value):
    """The capabilities of an interface (API, terminal, chat). No field has a default."""

    platform: str  # "api_server", "cli", …
    answerable: bool  # a user there can answer a run's questions
    late: bool  # messages after a run's end can still be delivered there


class Principal(Value):
    """The user who asks, the interface used, and the user's roles."""

    owner: Owner
    door: DoorCapabilities
    roles: frozenset[Role]
    speaker: Owner = Owner("")  # the user, if the owner is a chat with several users

    @property
    def who(self) -> Owner:
        """The user, as far as known."""
        return self.speaker or self.owner

    @property
    def platform(self) -> str:
        return self.door.platform

    @property
    def scope(self) -> Owner | None:
        """The owner whose runs may be seen and answered; None: all, for the operator's terminal."""
        at_home = self.owner == OPERATOR and self.platform == "cli"
        return None if at_home and Role.ADMIN in self.roles else self.owner

    def sees(self, owner: Owner) -> bool:
        """Tell if the user may see and answer what belongs to that owner."""
        return self.scope in (None, owner)

    def among(self, owner: Owner) -> "Principal":
        """Return the same user for sessions of `owner`.

        Users may do this for their own sessions; the operator, at a terminal, for all.
        """
        if owner == self.owner:
            return self
        if owner == self.who:
            return replace(self, owner=owner, speaker=Owner(""))
        if self.scope is not None:
            raise Refused("admin_only", "Only the operator can name an owner, at a terminal.")
        return replace(self, owner=owner, speaker=self.who)

    @property
    def visits(self) -> bool:
        """Tell if this is the operator in another owner's session."""
        return self.speaker == OPERATOR != self.owner


class RequestKey(Value):
    """The client's key for a request, and a fingerprint of the request."""

    route: str
    key: str
    fingerprint: str


class Submit(Value):
    """Send a message to the agent. It becomes one run."""

    by: Principal
    text: str
    session_id: SessionId | None = None
    instructions: str = ""
    history: tuple[Message, ...] | None = None
    model: str = ""  # for this run; empty: the session's, or else the configured one
    workspace: str = ""
    metadata: Mapping[str, str] = {}
    request_key: RequestKey | None = None
    answerable: bool = True  # False: no user can be asked, whatever the interface can do
    late: bool = False  # the client can receive messages after the run's end
    mode: Mode = Mode.QUEUE  # what it does to a run that is busy
    came: UpdateRef | None = None  # from a chat: never refused for load or while draining
    address: Address | None = None  # the chat the answer goes to
    progress: bool = False  # progress can be shown there
    hosts: tuple[str, ...] = ()  # network hosts named in the text
    instead: bool = False  # undo the last exchange first, but keep its images
    images: tuple[Image, ...] = ()


class Stop(Value):
    """Stop one run now."""

    by: Principal
    run_id: RunId
    reason: str
    unless_begun: bool = False  # only if the run has not started yet
    came: UpdateRef | None = None  # identifies the request if it arrives again


class Steer(Value):
    """Send a message to an active run: the answer to its question, or input for its next turn."""

    by: Principal
    run_id: RunId
    text: str
    call_id: CallId | None = None  # the call whose question it answers; None: the oldest, if any
    came: UpdateRef | None = None  # identifies the message if it arrives again


class Answer(Value):
    """Answer approval requests of one run: the named one, all of them, or the oldest."""

    by: Principal
    run_id: RunId
    choice: Choice
    request_id: RequestId | None = None
    every: bool = False
    came: UpdateRef | None = None  # from a chat: recorded with the answer, so it counts once
    reason: str = ""  # of a denial: the model reads it


Intent = Submit | Stop | Steer | Answer


class Submitted(Value):
    run_id: RunId
    session_id: SessionId
    replayed: bool  # the same request had been accepted before


class Stopping(Value):
    run_id: RunId
    unread: tuple[str, ...] = ()  # messages of a run that had not started: no run will read them


class Steered(Value):
    run_id: RunId


class Answered(Value):
    run_id: RunId
    choice: Choice  # as recorded: `always` may have become `session`
    resolved: int


Reply = Submitted | Stopping | Steered | Answered
