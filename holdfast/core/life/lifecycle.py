"""The process: the way up, the way down, and what it says to whoever started it.

There is no state that a killed process leaves behind: every start is a recovery,
and a shutdown is a crash with courtesy. These statuses live in memory, tell the
health page the truth and decide what may be accepted: only `ready` takes new work;
`draining` still answers what was accepted before.

What outlives the process are facts: `wanted` is the operator's word and decides what the
next boot does, `state` only reports. A stop the operator asks for makes both `stopped`. A
bare signal (a container made anew, a kill) is nobody's word: both end as `running`. A
restart passes through the state `stopped` and stays wanted.
"""

from enum import StrEnum

from msgspec.structs import replace

from holdfast.core.types import Fact, Owner, Value
from holdfast.errors import IllegalTransition


class Status(StrEnum):
    STARTING = "starting"
    RECOVERING = "recovering"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        return self is Status.STOPPED


class Change(StrEnum):
    JOURNAL_OPENED = "journal opened"
    RECOVERED = "recovered"
    STOP_ASKED = "stop asked"
    ENDED = "ended"


class Reason(StrEnum):
    """Why the process ends."""

    STOP = "stop"  # the operator asked for it
    RESTART = "restart"  # likewise
    SIGNAL = "signal"  # somebody's, without a word
    MISCONFIGURED = "misconfigured"
    BROKEN = "broken"  # an internal error: the supervisor should start it again


class Supervisor(StrEnum):
    NONE = "none"
    SYSTEMD = "systemd"
    LAUNCHD = "launchd"


S, V, R, D = Status.STARTING, Status.RECOVERING, Status.READY, Status.DRAINING

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[Status, Change], Status] = {
    (S, Change.JOURNAL_OPENED): V,
    (S, Change.STOP_ASKED): D,
    (S, Change.ENDED): Status.STOPPED,
    (V, Change.RECOVERED): R,
    (V, Change.STOP_ASKED): D,
    (V, Change.ENDED): Status.STOPPED,
    (R, Change.STOP_ASKED): D,
    (R, Change.ENDED): Status.STOPPED,
    (D, Change.STOP_ASKED): D,
    (D, Change.ENDED): Status.STOPPED,
}


def evolve(status: Status, change: Change) -> Status:
    """What `change` means while the process is `status`."""
    try:
        return TRANSITIONS[status, change]
    except KeyError:
        raise IllegalTransition(f"{change} while the process is {status}") from None


class Admit(Value):
    """Take it."""


class Decline(Value):
    """Do not take it; say why and that it is worth another try."""

    code: str
    message: str


def decide(status: Status) -> Admit | Decline:
    """Whether new work may be accepted now. Total."""
    match status:
        case Status.READY:
            return Admit()
        case Status.STARTING | Status.RECOVERING:
            return Decline("gateway_starting", "The gateway is starting. Try again in a moment.")
        case _:  # draining, stopped
            return Decline(
                "gateway_draining",
                "The gateway is shutting down and takes no new work. Try again after it is back.",
            )


def exit_code(reason: Reason, supervisor: Supervisor) -> int:
    """What the process returns: 0 stopped, 75 start me again, 78 mend the config, 70 our fault."""
    if reason is Reason.RESTART and supervisor is Supervisor.LAUNCHD:
        return 75
    return _EXIT_CODES[reason]


_EXIT_CODES = {
    Reason.STOP: 0,
    Reason.RESTART: 0,
    Reason.SIGNAL: 0,
    Reason.MISCONFIGURED: 78,
    Reason.BROKEN: 70,
}


class Wanted(StrEnum):
    """What the operator wants of the gateway."""

    RUNNING = "running"
    STOPPED = "stopped"


class State(StrEnum):
    """What the gateway has last said of itself. It may be dead since."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class Start(StrEnum):
    """Who starts the process."""

    ASKED = "asked"  # an operator, or a supervisor on behalf of one
    BOOT = "boot"  # the machine or the container: whether it is wanted is not known


class GatewayWanted(Fact, tag="gateway.wanted"):
    wanted: Wanted
    by: Owner


class GatewayBooted(Fact, tag="gateway.booted"):
    """It serves from here on."""

    version: str


class GatewayState(Fact, tag="gateway.state"):
    state: State
    running: int  # runs, at that moment


Event = GatewayWanted | GatewayBooted | GatewayState


class Recorded(Value):
    """What the facts say of the gateway."""

    wanted: Wanted = Wanted.RUNNING
    state: State = State.STOPPED
    booted_at: float = 0.0
    orderly: bool = True  # its end, whoever wanted it


def remember(known: Recorded, event: Event, at: float) -> Recorded:
    """What `event` adds to what is known."""
    match event:
        case GatewayWanted():
            return replace(known, wanted=event.wanted)
        case GatewayBooted():
            return replace(known, state=State.RUNNING, booted_at=at, orderly=False)
        case _:  # GatewayState
            return replace(known, state=event.state, orderly=event.state is not State.DRAINING)


def stays_down(start: Start, known: Recorded) -> bool:
    """Whether a start is to come to nothing, because the operator has said so."""
    return start is Start.BOOT and known.wanted is Wanted.STOPPED


def take_back(known: Recorded, by: Owner) -> tuple[GatewayWanted, ...]:
    """What a start that goes on says first: whoever asked for it wants it."""
    if known.wanted is Wanted.RUNNING:
        return ()
    return (GatewayWanted(wanted=Wanted.RUNNING, by=by),)


def last_state(reason: Reason) -> State:
    """What an orderly end says of itself."""
    return State.STOPPED if reason in (Reason.STOP, Reason.RESTART) else State.RUNNING
