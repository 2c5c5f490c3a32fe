"""The tool call: from the model's proposal to a result that the model can read.

A call is recorded as started before its effect and as settled after it. A call that is
found started but not settled after a crash is *doubtful*: it may or may not have had its
effect. If the tool is safe to repeat, the call starts again. If the tool leaves evidence,
that evidence becomes the result. Otherwise the call is settled as unknown and the model is told.

A call that waits (for an approval, an answer or a child run) is asked or parked. It occupies
no task; a later fact ends the wait. While a user is asked about a call that depends on the
files as they are now, the later calls of its turn do not start, because they could change
those files.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.inbox import UpdateRef
from holdfast.core.machine import moved
from holdfast.core.messages import Proposal
from holdfast.core.run.files import FileChange, FileChanging
from holdfast.core.types import CallId, Fact, RequestId, RunId, Value


class CallStatus(StrEnum):
    PROPOSED = "proposed"
    ASKED = "asked"  # waits for an approval; nothing has happened yet
    CLEARED = "cleared"  # approved; may start
    STARTED = "started"  # in flight
    PARKED = "parked"  # its effect is to wait; holds no task
    DOUBTFUL = "doubtful"  # was in flight when the process ended
    SETTLED = "settled"

    @property
    def final(self) -> bool:
        return self is CallStatus.SETTLED

    @property
    def waiting(self) -> bool:
        return self is CallStatus.ASKED or self is CallStatus.PARKED


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    DENIED = "denied"
    ABORTED = "aborted"  # no effect, or one that does not matter
    UNKNOWN = "unknown"  # it may have taken effect; it is never run again


class OnCrash(StrEnum):
    """A tool's declaration of what to do with a call that a crash interrupted."""

    REPEAT = "repeat"
    UNKNOWN = "unknown"
    ADOPT = "adopt"  # it leaves evidence of its outcome


class Kept(Fact, omit_defaults=True):
    """The previous version of a file that a call changed: before there was `FileChanged`."""

    path: str
    blob: str = ""  # empty: there was no file before


class CallAsked(Fact, tag="call.asked", omit_defaults=True):
    run_id: RunId
    call_id: CallId
    request_id: RequestId
    holds: bool = False  # later calls of its turn start only after this one has ended


class CallCleared(Fact, tag="call.cleared"):
    run_id: RunId
    call_id: CallId


class CallStarted(Fact, tag="call.started", omit_defaults=True):
    run_id: RunId
    call_id: CallId
    tool: str
    preview: str = ""
    quiet: bool = False  # not counted or shown as a step


class CallParked(Fact, tag="call.parked", omit_defaults=True):
    run_id: RunId
    call_id: CallId
    reason: str
    question: str = ""  # for the user, whose next message is the answer
    options: tuple[str, ...] = ()  # suggested answers; the user may give another one
    child: RunId = RunId("")  # the run it waits for


class CallSettled(Fact, tag="call.settled", omit_defaults=True):
    run_id: RunId
    call_id: CallId
    tool: str
    outcome: Outcome
    text: str
    duration_s: float = 0.0
    cwd: str = ""
    kept: tuple[Kept, ...] = ()  # no longer written
    summary: str = ""  # for people: how it ended, if the outcome does not tell


class CallAnswered(Fact, tag="call.answered", omit_defaults=True):
    """The answer that a parked call waited for has arrived; the call is settled with it."""

    run_id: RunId
    call_id: CallId
    came: UpdateRef | None = None  # the chat message that was the answer


Event = CallAsked | CallCleared | CallStarted | FileChanging | CallParked | CallSettled

P, A, C, S, K, D, E = CallStatus

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[CallStatus, type[Event]], CallStatus] = {
    (P, CallAsked): A,
    (P, CallStarted): S,
    (P, CallSettled): E,  # refused before it started: bad arguments, no such tool
    (A, CallCleared): C,
    (A, CallSettled): E,
    (C, CallStarted): S,
    (C, CallSettled): E,
    (S, FileChanging): S,
    (S, CallParked): K,
    (S, CallSettled): E,
    (K, CallSettled): E,
    (D, CallStarted): S,
    (D, CallSettled): E,
}
RULES = ((S, "the process ended", D),)  # there is no fact for this: see `cut`


class Call(msgspec.Struct, frozen=True):
    proposal: Proposal
    status: CallStatus = CallStatus.PROPOSED
    parked: CallParked | None = None  # what it waits for
    holds: bool = False  # while the user is asked about it, later calls of its turn do not start
    changing: tuple[FileChange, ...] = ()  # that it was about to make, in this start

    @property
    def question(self) -> str:
        """The question to the user; empty if there is none."""
        return self.parked.question if self.parked else ""


def evolve(call: Call, event: Event) -> Call:
    """Return `call` after `event`."""
    status = moved(TRANSITIONS, call.status, event, "call", call.proposal.call_id)
    parked = event if isinstance(event, CallParked) else None
    holds = isinstance(event, CallAsked) and event.holds
    changing = (*call.changing, event.change) if isinstance(event, FileChanging) else ()
    return replace(call, status=status, parked=parked, holds=holds, changing=changing)


def cut(call: Call) -> Call:
    """Return `call` after the process ended: a call in flight becomes doubtful."""
    return replace(call, status=CallStatus.DOUBTFUL) if call.status is CallStatus.STARTED else call


class Begin(Value):
    """Start the call, for the first time or again."""


class Settle(Value):
    """Record this outcome without running anything."""

    outcome: Outcome
    text: str


class Adopt(Value):
    """Take the result from the evidence; without evidence, the outcome is unknown."""


class LeaveCall(Value):
    """Do nothing: a fact from elsewhere continues or has ended the call."""


Step = Begin | Settle | Adopt | LeaveCall

UNKNOWN_TEXT = (
    "Outcome unknown: the process was interrupted while this call was in flight. It may or may "
    "not have taken effect and was not run again. Check the state before you repeat it."
)
ABORTED_TEXT = "Not run: the run was stopped before this call could finish."


def next_step(call: Call, on_crash: OnCrash) -> Step:
    """Return what to do with a `call` that is not in flight in this process. Total."""
    match call.status:
        case CallStatus.PROPOSED | CallStatus.CLEARED:
            return Begin()
        case CallStatus.DOUBTFUL if on_crash is OnCrash.REPEAT:
            return Begin()
        case CallStatus.DOUBTFUL if on_crash is OnCrash.ADOPT:
            return Adopt()
        case CallStatus.DOUBTFUL | CallStatus.STARTED:
            return Settle(Outcome.UNKNOWN, UNKNOWN_TEXT)
        case _:  # asked, parked, settled
            return LeaveCall()


def abort(call: Call, on_crash: OnCrash) -> Settle:
    """Return how `call` ends when its run is stopped. Total over calls that are not settled."""
    begun = call.status in {CallStatus.STARTED, CallStatus.DOUBTFUL}
    if begun and on_crash is not OnCrash.REPEAT:
        return Settle(Outcome.UNKNOWN, UNKNOWN_TEXT)
    return Settle(Outcome.ABORTED, ABORTED_TEXT)
