"""The inbox: one input, from the moment it is ours to the moment a run reads it.

An input is admitted when it is in the journal; from then on it may not be lost. It
ends in exactly one of three ways: a run reads it (promoted), something took its
place before a run could (superseded), or it turned out that it may not be read
(refused). Its place in the conversation is where it was promoted, not where it was
admitted: words typed while a run works come after that run's answer.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.messages import Image, Message
from holdfast.core.types import Fact, InputId, RunId
from holdfast.errors import IllegalTransition


class Status(StrEnum):
    ADMITTED = "admitted"
    PROMOTED = "promoted"
    SUPERSEDED = "superseded"
    REFUSED = "refused"

    @property
    def final(self) -> bool:
        return self is not Status.ADMITTED


class Mode(StrEnum):
    """What an input does to a run that is busy."""

    QUEUE = "queue"  # its own run, after those before it
    STEER = "steer"  # read by the busy run before its next turn
    INTERRUPT = "interrupt"  # the busy run ends as superseded, then its own run


class Idempotency(Fact):
    """The caller's name for this request: the same name again is the same request."""

    route: str
    key: str
    fingerprint: str


class Came(Fact, omit_defaults=True):
    """What a channel calls an update, and where its stream stands once this one is ours."""

    channel: str
    external_id: str  # the same again is the same thing
    cursor: str = ""  # empty: the channel has no stream
    message_id: str = ""  # what a reply names there


class InputAdmitted(Fact, tag="input.admitted", omit_defaults=True):
    input_id: InputId
    run_id: RunId  # the run made for it, or the run it steers
    text: str
    mode: Mode = Mode.QUEUE
    instructions: str = ""
    history: tuple[Message, ...] | None = None  # replaces what the model has read so far
    idempotency: Idempotency | None = None
    metadata: dict[str, str] = {}
    came: Came | None = None  # from a chat: its cursor moves with this fact
    hosts: tuple[str, ...] = ()  # that its words name
    reply_to: str = ""  # the message the run it steers answers from now on; empty: as before
    images: tuple[Image, ...] = ()  # that came with its words


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

A = Status.ADMITTED

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[Status, type[Event]], Status] = {
    (A, InputPromoted): Status.PROMOTED,
    (A, InputSuperseded): Status.SUPERSEDED,
    (A, InputRefused): Status.REFUSED,
}


class Input(msgspec.Struct, frozen=True):
    admitted: InputAdmitted
    status: Status = Status.ADMITTED


def evolve(entry: Input, event: Event) -> Input:
    """What `event` means for `entry`."""
    try:
        return replace(entry, status=TRANSITIONS[entry.status, type(event)])
    except KeyError:
        raise IllegalTransition(
            f"{type(event).__name__} while input {entry.admitted.input_id} is {entry.status}"
        ) from None
