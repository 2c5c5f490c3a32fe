"""The inbox: one input, from its admission to the moment a run reads it.

An input is admitted when it is in the journal; from then on it must not be lost. It ends in
exactly one of three ways: a run reads it (promoted), something else replaces it before a run
reads it (superseded), or it may not be read (refused). Its position in the conversation is where
it was promoted, not where it was admitted: a message sent while a run is active comes after that
run's answer.
"""

from enum import StrEnum
from hashlib import sha256

import msgspec
from msgspec.structs import replace

from holdfast.core.machine import moved
from holdfast.core.messages import Image, Message
from holdfast.core.types import Fact, InputId, RunId


class InputStatus(StrEnum):
    ADMITTED = "admitted"
    PROMOTED = "promoted"
    SUPERSEDED = "superseded"
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        return self is not InputStatus.ADMITTED


class Mode(StrEnum):
    """The effect of an input on a run that is busy."""

    QUEUE = "queue"  # it gets its own run after the others
    STEER = "steer"  # the busy run reads it before its next turn
    INTERRUPT = "interrupt"  # the busy run ends as superseded, and it gets its own run


class Idempotency(Fact):
    """The client's key for this request: the same key again is the same request."""

    route: str
    key: str
    fingerprint: str


class UpdateRef(Fact, omit_defaults=True):
    """A channel's id of an update, and the position in its stream after this update."""

    channel: str
    external_id: str  # the same id again is the same update
    cursor: str = ""  # empty: the channel has no stream
    message_id: str = ""  # the id that a reply to it names
    place: str = ""  # the key of the chat and thread; empty: in records from before this field
    digest: str = ""  # of the text (`digest_of`), to ignore edits that do not change it


def digest_of(text: str) -> str:
    """Return a digest of `text`."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class InputAdmitted(Fact, tag="input.admitted", omit_defaults=True):
    input_id: InputId
    run_id: RunId  # the run made for it, or the run it steers
    text: str
    mode: Mode = Mode.QUEUE
    instructions: str = ""
    history: tuple[Message, ...] | None = None  # replaces the conversation for the model
    idempotency: Idempotency | None = None
    metadata: dict[str, str] = {}
    came: UpdateRef | None = None  # from a chat: its cursor moves with this fact
    hosts: tuple[str, ...] = ()  # network hosts named in the text
    reply_to: str = ""  # the message that the steered run answers from now on; empty: no change
    images: tuple[Image, ...] = ()

    @property
    def size(self) -> int:
        """The approximate size in memory, in bytes."""
        length = len(self.text) + len(self.instructions)
        if self.images:
            length += sum(len(image.data) for image in self.images)
        if self.history:
            length += sum(len(message.text) for message in self.history)
        return length


class InputPromoted(Fact, tag="input.promoted"):
    input_id: InputId
    run_id: RunId


class InputSuperseded(Fact, tag="input.superseded"):
    input_id: InputId
    run_id: RunId
    reason: str


class InputRefused(Fact, tag="input.refused"):
    input_id: InputId
    run_id: RunId
    reason: str


Event = InputAdmitted | InputPromoted | InputSuperseded | InputRefused

A = InputStatus.ADMITTED

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[InputStatus, type[Event]], InputStatus] = {
    (A, InputPromoted): InputStatus.PROMOTED,
    (A, InputSuperseded): InputStatus.SUPERSEDED,
    (A, InputRefused): InputStatus.REFUSED,
}


class Input(msgspec.Struct, frozen=True):
    admitted: InputAdmitted
    status: InputStatus = InputStatus.ADMITTED


def evolve(entry: Input, event: Event) -> Input:
    """Return `entry` after `event`."""
    name = entry.admitted.input_id
    return replace(entry, status=moved(TRANSITIONS, entry.status, event, "input", name))
