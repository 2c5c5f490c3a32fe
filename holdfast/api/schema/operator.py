"""Requests and responses of the operator's socket only: commands, marks, deliveries, people."""

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.core.inbox import Mode


class CommandRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/operator/sessions/{session_id}/command."""

    input: str
    mode: Mode | None = None  # what a message of the command does to an active run
    workspace: str | None = None  # for a session that a message of the command begins


class CommandResponse(msgspec.Struct, frozen=True):
    """The result of a slash command."""

    output: str  # markdown; empty: nothing to show
    session_id: str  # the session to continue with
    busy: str | None = None  # the mode of new messages from now on, if the command chose it
    run_id: str | None = None  # the run that reads the message of the command
    undone: str | None = None  # the message that was taken back
    refused: bool = False  # the message of the command was not accepted; `output` says why
    owner: str | UnsetType = UNSET  # only where it is not the operator

    @property
    def session_owner(self) -> str:
        """The owner of the session; empty: the operator."""
        return self.owner if isinstance(self.owner, str) else ""


class CommandObject(msgspec.Struct, frozen=True):
    """A slash command. The name has no slash."""

    name: str
    arguments: str
    help: str


class CommandList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/operator/commands."""

    data: tuple[CommandObject, ...]


class SessionMark(msgspec.Struct, frozen=True):
    """A session's state for recovery, and its interruption mark if no run has completed since."""

    session_id: str
    status: str
    reason: str  # why it is suspended
    unfinished: int  # runs
    held: int  # of those, runs in quarantine
    mark: str  # what interrupted its work; empty: no mark
    mark_reason: str
    marked_at: float


class SessionMarkList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/operator/sessions."""

    data: tuple[SessionMark, ...]


class MarkResponse(msgspec.Struct, frozen=True):
    """The answer to POST /v1/operator/sessions/{session_id}/mark and …/unmark."""

    session_id: str
    marked: bool


class ReleaseResponse(msgspec.Struct, frozen=True):
    """The answer to POST /v1/operator/release: the number of runs."""

    released: int


class DeliveryObject(msgspec.Struct, frozen=True, tag_field="object", tag="holdfast.message"):
    """A message to a chat that is not delivered."""

    delivery_id: str
    status: str
    platform: str
    chat: str
    thread: str
    run_id: str
    edits: str
    queued_at: float
    updated_at: float
    due_at: float
    attempts: int
    repeated: bool  # the platform may have a copy already
    reason: str  # of the last failure
    text: str  # in a list only the beginning


class DeliveryList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/operator/outbox."""

    data: tuple[DeliveryObject, ...]
    has_more: bool = False


class PairingCodeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/pairing/look-up."""

    code: str


class PairRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/pairing."""

    code: str
    roles: tuple[str, ...]


class RemoveUserRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/users/remove."""

    platform: str
    user: str


class RemoveUserResponse(msgspec.Struct, frozen=True):
    """The answer to POST /v1/users/remove."""

    platform: str
    user: str
    removed: bool = True


class UserObject(msgspec.Struct, frozen=True):
    """A person who may use the chats, or who was shown a pairing code."""

    platform: str
    user: str
    name: str
    roles: tuple[str, ...]
    source: str
    expires_at: float


class UserList(msgspec.Struct, frozen=True):
    """The answer to GET /v1/users."""

    data: tuple[UserObject, ...]


class ChannelObject(msgspec.Struct, frozen=True):
    """A channel that is on."""

    name: str
    trouble: str  # why it receives nothing now; empty: it does
    can: tuple[str, ...]
    undelivered: int
    held: int
    given_up: int = 0


class ChannelList(msgspec.Struct, frozen=True):
    """The answer to GET /v1/channels."""

    data: tuple[ChannelObject, ...]


class RestoredObject(msgspec.Struct, frozen=True):
    """A restore of the journal from a backup: its time, and what it ended."""

    at: float
    runs: int
    messages: int


class GatewayObject(msgspec.Struct, frozen=True):
    """The answer to GET /v1/gateway."""

    pid: int
    wanted: str
    state: str
    booted_at: float = 0.0
    restored: RestoredObject | None = None


class OrderResponse(msgspec.Struct, frozen=True):
    """The answer to an order to the gateway's process."""

    pid: int
