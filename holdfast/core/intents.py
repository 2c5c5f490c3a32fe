"""Everything one may ask of the gateway. Each intent says who asks and names its target.

An intent is not a fact: it may be refused. What was accepted has become facts in the
journal by the time `send` returns, whatever happens to the process afterwards.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.address import Address
from holdfast.core.approval import Choice, Role
from holdfast.core.inbox import Came, Mode
from holdfast.core.messages import Image, Message
from holdfast.core.types import OPERATOR, CallId, Owner, RequestId, RunId, SessionId, Value
from holdfast.errors import Refused


class Capabilities(Value):
    """What a door can do. A new one says so itself: nothing has a default."""

    platform: str  # "api_server", "cli", …
    answerable: bool  # a question of a run can be answered there
    late: bool  # what comes after a run's end still reaches somebody there


class Principal(Value):
    """Who asks, through which door, and what they may do."""

    owner: Owner
    door: Capabilities
    roles: frozenset[Role]
    speaker: Owner = Owner("")  # who exactly, where the owner is a chat of several

    @property
    def who(self) -> Owner:
        """The person, as far as one is known."""
        return self.speaker or self.owner

    @property
    def platform(self) -> str:
        return self.door.platform

    @property
    def scope(self) -> Owner | None:
        """Whose runs it may see and answer; None, at the operator's own door: everybody's."""
        at_home = self.owner == OPERATOR and self.platform == "cli"
        return None if at_home and Role.ADMIN in self.roles else self.owner

    def sees(self, owner: Owner) -> bool:
        """Whether it may see and answer what is that owner's."""
        return self.scope in (None, owner)

    def among(self, owner: Owner) -> "Principal":
        """The same person in sessions of that owner's: their own; the operator at home, anybody's."""
        if owner == self.owner:
            return self
        if owner == self.who:
            return replace(self, owner=owner, speaker=Owner(""))
        if self.scope is not None:
            why = "Only the operator, at a terminal, says whose a session is."
            raise Refused("admin_only", why)
        return replace(self, owner=owner, speaker=self.who)

    @property
    def visits(self) -> bool:
        """Whether it is the operator, in sessions of somebody else's."""
        return self.speaker == OPERATOR != self.owner


class RequestKey(Value):
    """The caller's name for a request, and a fingerprint of what it asked under that name."""

    route: str
    key: str
    fingerprint: str


class Submit(Value):
    """Words for the agent. They become one run."""

    by: Principal
    text: str
    session_id: SessionId | None = None
    instructions: str = ""
    history: tuple[Message, ...] | None = None
    model: str = ""
    workspace: str = ""
    metadata: Mapping[str, str] = {}
    request_key: RequestKey | None = None
    answerable: bool = True  # False: nobody will be there to be asked, whatever the door can do
    late: bool = False  # the caller has a way to hear what comes after the end
    mode: Mode = Mode.QUEUE  # what it does to a run that is busy
    came: Came | None = None  # through a chat: never refused for load, nor while draining
    address: Address | None = None  # the chat the answer goes to
    progress: bool = False  # how far it is can be shown there
    hosts: tuple[str, ...] = ()  # that the words name
    instead: bool = False  # of the last exchange, which no longer counts; its pictures do
    images: tuple[Image, ...] = ()  # that go with the words


class Stop(Value):
    """End one run, now."""

    by: Principal
    run_id: RunId
    reason: str
    unless_begun: bool = False  # take it back, if it only waits for its turn
    came: Came | None = None  # what the same request is known by, if it comes again


class Steer(Value):
    """Words for one live run: the answer to what it asks, else guidance for its next turn."""

    by: Principal
    run_id: RunId
    text: str
    call_id: CallId | None = None  # whose question it answers; None: whichever there is, if any
    came: Came | None = None  # what the same words are known by, if they come again


class Answer(Value):
    """An answer to approvals of one run: the named one, all, or the oldest."""

    by: Principal
    run_id: RunId
    choice: Choice
    request_id: RequestId | None = None
    every: bool = False
    came: Came | None = None  # through a chat: it is taken with what it answers, and never again


Intent = Submit | Stop | Steer | Answer


class Submitted(Value):
    run_id: RunId
    session_id: SessionId
    replayed: bool  # the same request had been accepted before


class Stopping(Value):
    run_id: RunId
    unread: tuple[str, ...] = ()  # words of a run that had not begun: nobody will read them now


class Steered(Value):
    run_id: RunId


class Answered(Value):
    run_id: RunId
    choice: Choice  # what was recorded, which may be less than what was asked for
    resolved: int


Reply = Submitted | Stopping | Steered | Answered
