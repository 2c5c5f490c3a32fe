"""All events: the union of the state machines' facts.

A `Record` is a fact with its stream, number and time. Deltas are facts too, but no decision
depends on them: they are merged before they get a number, stored in their own table and deleted
after their retention.
"""

from typing import NamedTuple

from holdfast.core import inbox
from holdfast.core.approval import approval
from holdfast.core.chat import access, chats, delivery
from holdfast.core.life import lifecycle
from holdfast.core.run import call, child, files, process, run
from holdfast.core.session import rewound, session
from holdfast.core.session.instructions import InstructionsRead
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
    """Output of a call while it is running."""

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
    | files.FileChanged
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
    | InstructionsRead
)

# Facts with consequences outside of the journal: they must survive a power failure.
ACTED_UPON: frozenset[type[Fact]] = frozenset(
    {
        inbox.InputAdmitted,
        call.CallStarted,
        files.FileChanging,
        call.CallCleared,
        call.CallAnswered,
        child.ChildBegun,
        child.ChildEnded,
        run.ModelAsked,
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
        process.PortPublished,
        lifecycle.GatewayWanted,
        lifecycle.JournalRestored,
        delivery.DeliveryQueued,
        delivery.SendStarted,
        delivery.SendAccepted,
        chats.UpdateTaken,
        access.PairingConfirmed,
        access.UserRemoved,
        session.SessionTitled,
        session.SessionSeeded,
        rewound.RewindPlanned,
        rewound.Rewound,
    }
)


TERMINAL = (run.RunCompleted, run.RunFailed, run.RunCancelled)


class Record(NamedTuple):
    """A fact with its stream, its number and its time."""

    stream: int
    seq: int
    at: float
    fact: Fact


def run_of(fact: Fact) -> RunId | None:
    """Return the run that a fact is about; None if there is none."""
    run_id: RunId | None = getattr(fact, "run_id", None)
    return run_id
