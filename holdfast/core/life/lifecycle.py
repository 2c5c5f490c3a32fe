"""The process: its start, its shutdown and its exit codes.

Every start is a recovery, so a killed process needs no cleanup. These statuses are in memory
only. The health page reports them, and they decide what is accepted: only `ready` takes new
work; `draining` still serves what was accepted before.

Two facts outlive the process: `wanted` is what the operator wants and decides what the next boot
does; `state` only reports. A stop by the operator sets both to `stopped`. A bare signal (a
recreated container, a kill) is not a request by the operator: both end as `running`. A restart
passes through the state `stopped`, and `wanted` stays `running`.
"""

from enum import StrEnum

from msgspec.structs import replace

from holdfast.core.types import Fact, Owner, Value
from holdfast.errors import IllegalTransition


class LifecyclePhase(StrEnum):
    STARTING = "starting"
    RECOVERING = "recovering"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"

    @property
    def final(self) -> bool:
        return self is LifecyclePhase.STOPPED


class Change(StrEnum):
    JOURNAL_OPENED = "journal opened"
    RECOVERED = "recovered"
    STOP_ASKED = "stop asked"
    ENDED = "ended"


class Reason(StrEnum):
    """The reason for the end of the process."""

    STOP = "stop"  # requested by the operator
    RESTART = "restart"  # likewise
    SIGNAL = "signal"  # without a request by the operator
    MISCONFIGURED = "misconfigured"
    BROKEN = "broken"  # an internal error: the supervisor should start it again


class Supervisor(StrEnum):
    NONE = "none"
    SYSTEMD = "systemd"
    LAUNCHD = "launchd"


S, V, R, D = (
    LifecyclePhase.STARTING,
    LifecyclePhase.RECOVERING,
    LifecyclePhase.READY,
    LifecyclePhase.DRAINING,
)

# The whole machine. docs/state-machines.md is drawn from this table.
TRANSITIONS: dict[tuple[LifecyclePhase, Change], LifecyclePhase] = {
    (S, Change.JOURNAL_OPENED): V,
    (S, Change.STOP_ASKED): D,
    (S, Change.ENDED): LifecyclePhase.STOPPED,
    (V, Change.RECOVERED): R,
    (V, Change.STOP_ASKED): D,
    (V, Change.ENDED): LifecyclePhase.STOPPED,
    (R, Change.STOP_ASKED): D,
    (R, Change.ENDED): LifecyclePhase.STOPPED,
    (D, Change.STOP_ASKED): D,
    (D, Change.ENDED): LifecyclePhase.STOPPED,
}


def evolve(status: LifecyclePhase, change: Change) -> LifecyclePhase:
    """Return the status after `change`."""
    try:
        return TRANSITIONS[status, change]
    except KeyError:
        raise IllegalTransition(f"{change} while the process is {status}") from None


class Decline(Value):
    """Refuse new work for now; `message` says why and to try again."""

    code: str
    message: str


_STARTING = Decline("gateway_starting", "The gateway is starting. Try again in a moment.")
_DRAINING = Decline(
    "gateway_draining",
    "The gateway is shutting down and takes no new work. Try again after it is back.",
)
# Only a ready process accepts new work.
DECLINES: dict[LifecyclePhase, Decline] = {
    **{LifecyclePhase.STARTING: _STARTING, LifecyclePhase.RECOVERING: _STARTING},
    **{LifecyclePhase.DRAINING: _DRAINING, LifecyclePhase.STOPPED: _DRAINING},
}


def exit_code(reason: Reason, supervisor: Supervisor) -> int:
    """Return the exit code: 0 stopped, 75 restart, 78 configuration error, 70 internal error."""
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
    """The state that the operator wants for the gateway."""

    RUNNING = "running"
    STOPPED = "stopped"


class ReportedState(StrEnum):
    """The last state that the gateway recorded. The process may have died since."""

    RUNNING = "running"
    DRAINING = "draining"
    STOPPED = "stopped"


class StartedBy(StrEnum):
    """The cause of the process's start."""

    ASKED = "asked"  # an operator, or a supervisor on an operator's request
    BOOT = "boot"  # the machine or the container started, without a request by the operator


class GatewayWanted(Fact, tag="gateway.wanted"):
    wanted: Wanted
    by: Owner


class GatewayBooted(Fact, tag="gateway.booted"):
    """The gateway is up and serves requests."""

    version: str


class GatewayState(Fact, tag="gateway.state"):
    state: ReportedState
    running: int  # runs, at that moment


class JournalRestored(Fact, tag="journal.restored"):
    """A start found that the journal was restored from a backup, and settled its open work."""

    runs: int  # the number of runs that were ended
    messages: int  # the number of messages that are held


Event = GatewayWanted | GatewayBooted | GatewayState | JournalRestored


class Recorded(Value):
    """The recorded state of the gateway."""

    wanted: Wanted = Wanted.RUNNING
    state: ReportedState = ReportedState.STOPPED
    booted_at: float = 0.0
    orderly: bool = True  # its last shutdown was orderly
    restored_at: float = 0.0  # 0: the journal was never restored
    restored: JournalRestored | None = None


def remember(known: Recorded, event: Event, at: float) -> Recorded:
    """Return the recorded state after `event`."""
    match event:
        case GatewayWanted():
            return replace(known, wanted=event.wanted)
        case GatewayBooted():
            return replace(known, state=ReportedState.RUNNING, booted_at=at, orderly=False)
        case JournalRestored():
            return replace(known, restored_at=at, restored=event)
        case _:  # GatewayState
            return replace(
                known, state=event.state, orderly=event.state is not ReportedState.DRAINING
            )


def stays_down(start: StartedBy, known: Recorded) -> bool:
    """Tell if this start has to end at once, because the operator had stopped the gateway."""
    return start is StartedBy.BOOT and known.wanted is Wanted.STOPPED


def want_running(known: Recorded, by: Owner) -> tuple[GatewayWanted, ...]:
    """Return the facts that withdraw an earlier stop: a requested start means that it is wanted."""
    if known.wanted is Wanted.RUNNING:
        return ()
    return (GatewayWanted(wanted=Wanted.RUNNING, by=by),)


def last_state(reason: Reason) -> ReportedState:
    """Return the state to record at an orderly shutdown."""
    return (
        ReportedState.STOPPED if reason in (Reason.STOP, Reason.RESTART) else ReportedState.RUNNING
    )
