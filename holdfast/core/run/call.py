"""The tool call: from the model's wish to a result the model can read.

A call is recorded as started before its effect and settled after it. What is found
started and not settled after a crash is *doubtful*: it may or may not have had its
effect. A doubtful call of a tool that is safe to repeat starts again; of one that leaves
evidence the evidence is adopted; any other is settled as unknown, and the model is told.
A call that waits (for an approval, an answer, a child) is asked or parked: it holds no task,
and somebody's fact ends it.
"""

from enum import StrEnum

import msgspec
from msgspec.structs import replace

from holdfast.core.inbox import Came
from holdfast.core.messages import Proposal
from holdfast.core.types import CallId, Fact, RequestId, RunId, Value
from holdfast.errors import IllegalTransition


class Status(StrEnum):
    PROPOSED = "proposed"
    ASKED = "asked"  # waits for an approval; nothing has happened yet
    CLEARED = "cleared"  # approved; may start
    STARTED = "started"  # in flight
    PARKED = "parked"  # its effect is to wait; holds no task
    DOUBTFUL = "doubtful"  # was in flight when the process ended
    SETTLED = "settled"

    @property
    def final(self) -> bool:
        return self is Status.SETTLED

    @property
    def waiting(self) -> bool:
        return self is Status.ASKED or self is Status.PARKED


class Outcome(StrEnum):
    OK = "ok"
    FAILED = "failed"
    DENIED = "denied"
    ABORTED = "aborted"  # it had no effect, or its effect does not matter
    UNKNOWN = "unknown"  # it may have had its effect; never run again


class OnCrash(StrEnum):
    """What a tool says about being cut in the middle."""

    REPEAT = "repeat"
    UNKNOWN = "unknown"
    ADOPT = "adopt"  # it leaves evidence of what became of it


class Kept(Fact, omit_defaults=True):
    """The previous version of a file that a call changed: what undo needs."""

    path: str
    blob: str = ""  # empty: there was no file before


class CallAsked(Fact, tag="call.asked"):
    run_id: RunId
    call_id: CallId
    request_id: RequestId


class CallCleared(Fact, tag="call.cleared"):
    run_id: RunId
    call_id: CallId


class CallStarted(Fact, tag="call.started", omit_defaults=True):
    run_id: RunId
    call_id: CallId
    tool: str
    preview: str = ""
    quiet: bool = False  # no step of the work: it shows itself


class CallParked(Fact, tag="call.parked", omit_defaults=True):
    run_id: RunId
    call_id: CallId
    reason: str
    question: str = ""  # to the user, whose next words are the answer
    options: tuple[str, ...] = ()  # that they may choose from, or not
    child: RunId = RunId("")  # that it waits for


class CallSettled(Fact, tag="call.settled", omit_defaults=True):
    run_id: RunId
    call_id: CallId
    tool: str
    outcome: Outcome
    text: str
    duration_s: float = 0.0
    cwd: str = ""
    kept: tuple[Kept, ...] = ()
    summary: str = ""  # a word for people: how it ended, if that is not plain


class CallAnswered(Fact, tag="call.answered", omit_defaults=True):
    """What a parked call waited for has come; it is settled with it."""

    run_id: RunId
    call_id: CallId
    came: Came | None = None  # the words from a chat that it was


Event = CallAsked | CallCleared | CallStarted | CallParked | CallSettled

P, A, C, S, K, D = (
    Status.PROPOSED,
    Status.ASKED,
    Status.CLEARED,
    Status.STARTED,
    Status.PARKED,
    Status.DOUBTFUL,
)

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[Status, type[Event]], Status] = {
    (P, CallAsked): A,
    (P, CallStarted): S,
    (P, CallSettled): Status.SETTLED,  # refused before it began: bad arguments, no such tool
    (A, CallCleared): C,
    (A, CallSettled): Status.SETTLED,
    (C, CallStarted): S,
    (C, CallSettled): Status.SETTLED,
    (S, CallParked): K,
    (S, CallSettled): Status.SETTLED,
    (K, CallSettled): Status.SETTLED,
    (D, CallStarted): S,
    (D, CallSettled): Status.SETTLED,
}
RULES = ((S, "the process ended", D),)  # no fact of its own: `cut`


class Call(msgspec.Struct, frozen=True):
    proposal: Proposal
    status: Status = Status.PROPOSED
    parked: CallParked | None = None  # what it waits for

    @property
    def question(self) -> str:
        """What the user is asked; empty: nothing."""
        return self.parked.question if self.parked else ""


def evolve(call: Call, event: Event) -> Call:
    """What `event` means for `call`."""
    try:
        status = TRANSITIONS[call.status, type(event)]
        return replace(call, status=status, parked=event if isinstance(event, CallParked) else None)
    except KeyError:
        raise IllegalTransition(
            f"{type(event).__name__} while call {call.proposal.call_id} is {call.status}"
        ) from None


def cut(call: Call) -> Call:
    """What the end of the process means for `call`: in flight becomes doubtful."""
    return replace(call, status=Status.DOUBTFUL) if call.status is Status.STARTED else call


class Begin(Value):
    """Start it (again)."""


class Settle(Value):
    """Record this outcome without running anything."""

    outcome: Outcome
    text: str


class Adopt(Value):
    """See what the evidence says; if it says nothing, the outcome is unknown."""


class Leave(Value):
    """Somebody else's fact moves it on."""


Step = Begin | Settle | Adopt | Leave

UNKNOWN_TEXT = (
    "Outcome unknown: the process was interrupted while this call was in flight. It may or may "
    "not have taken effect and was not run again. Check the state before you repeat it."
)
ABORTED_TEXT = "Not run: the run was stopped before this call could finish."


def next_step(call: Call, on_crash: OnCrash) -> Step:
    """What to do with `call` now, when nothing of it is in flight here. Total."""
    match call.status:
        case Status.PROPOSED | Status.CLEARED:
            return Begin()
        case Status.DOUBTFUL if on_crash is OnCrash.REPEAT:
            return Begin()
        case Status.DOUBTFUL if on_crash is OnCrash.ADOPT:
            return Adopt()
        case Status.DOUBTFUL | Status.STARTED:
            return Settle(Outcome.UNKNOWN, UNKNOWN_TEXT)
        case _:  # asked, parked, settled
            return Leave()


def abort(call: Call, on_crash: OnCrash) -> Settle:
    """How `call` ends when its run is stopped. Total over calls that are not settled."""
    begun = call.status in {Status.STARTED, Status.DOUBTFUL}
    if begun and on_crash is not OnCrash.REPEAT:
        return Settle(Outcome.UNKNOWN, UNKNOWN_TEXT)
    return Settle(Outcome.ABORTED, ABORTED_TEXT)
