"""Everything that can have happened: the union of the machines' facts.

A `Record` is a fact with its place: which stream, which number, when. Deltas are
facts too, but nothing is ever decided by them: they are merged before they get a
number, kept in a table of their own and forgotten after their retention.
"""

from typing import NamedTuple

from holdfast.core import (
    access,
    approval,
    call,
    chats,
    child,
    delivery,
    inbox,
    lifecycle,
    process,
    run,
    session,
)
from holdfast.core.types import CallId, Fact, RunId


class MessageDelta(Fact, tag="message.delta"):
    run_id: RunId
    turn: int
    text: str


class ReasoningDelta(Fact, tag="reasoning.delta"):
    run_id: RunId
    turn: int
    text: str


class ToolProgress(Fact, tag="tool.progress"):
    """What a call says on its way."""

    run_id: RunId
    turn: int
    call_id: CallId
    text: str


Delta = MessageDelta | ReasoningDelta | ToolProgress

Event = (
    session.Event
    | inbox.Event
    | run.RunQueued
    | run.Event
    | call.Event
    | call.CallAnswered
    | approval.ApprovalRequested
    | approval.Event
    | approval.Grant
    | approval.Standing
    | approval.PostureSeen
    | process.Event
    | delivery.DeliveryQueued
    | delivery.Event
    | chats.Event
    | child.Own
)

# What somebody acts upon as soon as it is recorded: it must survive a power cut.
ACTED_UPON: frozenset[type[Fact]] = frozenset(
    {
        inbox.InputAdmitted,
        call.CallStarted,
        call.CallCleared,
        call.CallAnswered,
        child.ChildBegun,
        child.ChildEnded,
        run.StopAsked,
        run.RunCompleted,
        run.RunFailed,
        run.RunCancelled,
        approval.ApprovalRequested,
        approval.ApprovalGranted,
        approval.ApprovalDenied,
        approval.Grant,
        approval.Standing,
        process.ProcessStarted,
        lifecycle.GatewayWanted,
        delivery.DeliveryQueued,
        delivery.SendStarted,
        delivery.SendAccepted,
        chats.UpdateTaken,
        access.PairingConfirmed,
        access.UserRemoved,
        session.SessionTitled,
        session.SessionSeeded,
    }
)


TERMINAL = (run.RunCompleted, run.RunFailed, run.RunCancelled)


class Record(NamedTuple):
    """A fact, where it stands, and when it was written."""

    stream: int
    seq: int
    at: float
    fact: Fact


def run_of(fact: Fact) -> RunId | None:
    """The run a fact speaks of, if it speaks of one."""
    run_id: RunId | None = getattr(fact, "run_id", None)
    return run_id
