"""The process comes up one way, goes down from anywhere, and says why with its exit code."""

import pytest

from holdfast.core.life.lifecycle import (
    DECLINES,
    Change,
    Event,
    GatewayBooted,
    GatewayState,
    GatewayWanted,
    JournalRestored,
    LifecyclePhase,
    Reason,
    Recorded,
    ReportedState,
    StartedBy,
    Supervisor,
    Wanted,
    evolve,
    exit_code,
    last_state,
    remember,
    stays_down,
    want_running,
)
from holdfast.core.types import OPERATOR
from holdfast.errors import IllegalTransition

ALLOWED = {
    ("starting", "journal opened"): "recovering",
    ("starting", "stop asked"): "draining",
    ("starting", "ended"): "stopped",
    ("recovering", "recovered"): "ready",
    ("recovering", "stop asked"): "draining",
    ("recovering", "ended"): "stopped",
    ("ready", "stop asked"): "draining",
    ("ready", "ended"): "stopped",
    ("draining", "stop asked"): "draining",
    ("draining", "ended"): "stopped",
}


@pytest.mark.parametrize("status", LifecyclePhase)
@pytest.mark.parametrize("change", Change)
def test_every_status_meets_every_change_as_stated(status: LifecyclePhase, change: Change) -> None:
    if (status.value, change.value) in ALLOWED:
        assert evolve(status, change).value == ALLOWED[status.value, change.value]
    else:
        with pytest.raises(IllegalTransition, match=f"{change} while the process is {status}"):
            evolve(status, change)


@pytest.mark.parametrize("status", LifecyclePhase)
def test_a_stop_is_legal_whenever_there_is_something_to_stop(status: LifecyclePhase) -> None:
    assert ((status.value, "stop asked") in ALLOWED) is not status.final
    assert ((status.value, "ended") in ALLOWED) is not status.final


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (LifecyclePhase.STARTING, "gateway_starting"),
        (LifecyclePhase.RECOVERING, "gateway_starting"),
        (LifecyclePhase.READY, ""),
        (LifecyclePhase.DRAINING, "gateway_draining"),
        (LifecyclePhase.STOPPED, "gateway_draining"),
    ],
)
def test_only_a_ready_process_takes_new_work(status: LifecyclePhase, code: str) -> None:
    declined = DECLINES.get(status)
    assert (declined.code if declined else "") == code
    assert declined is None or "Try again" in declined.message


@pytest.mark.parametrize("supervisor", Supervisor)
@pytest.mark.parametrize("reason", Reason)
def test_the_exit_code_tells_the_supervisor_what_to_do(
    reason: Reason, supervisor: Supervisor
) -> None:
    again = 75 if supervisor is Supervisor.LAUNCHD else 0
    expected = {"stop": 0, "restart": again, "signal": 0, "misconfigured": 78, "broken": 70}
    assert exit_code(reason, supervisor) == expected[reason.value]


BOOTED = GatewayBooted(version="1")
DRAINING = GatewayState(state=ReportedState.DRAINING, running=1)


def wanted(what: Wanted) -> GatewayWanted:
    return GatewayWanted(wanted=what, by=OPERATOR)


def life(*events: Event) -> Recorded:
    known = Recorded()
    for at, event in enumerate(events, 1):
        known = remember(known, event, float(at))
    return known


def ends(reason: Reason) -> tuple[Event, ...]:
    """A whole life that ends for `reason`, as it is written down."""
    word = {Reason.STOP: Wanted.STOPPED, Reason.RESTART: Wanted.RUNNING}.get(reason)
    spoken = (wanted(word),) if word is not None else ()
    return (BOOTED, *spoken, DRAINING, GatewayState(state=last_state(reason), running=0))


@pytest.mark.promise("STOP-11")
@pytest.mark.parametrize(
    ("reason", "is_wanted", "state"),
    [
        (Reason.STOP, Wanted.STOPPED, ReportedState.STOPPED),
        (Reason.RESTART, Wanted.RUNNING, ReportedState.STOPPED),
        (Reason.SIGNAL, Wanted.RUNNING, ReportedState.RUNNING),
        (Reason.BROKEN, Wanted.RUNNING, ReportedState.RUNNING),
    ],
)
def test_only_the_operator_changes_what_is_wanted(
    reason: Reason, is_wanted: Wanted, state: ReportedState
) -> None:
    known = life(*ends(reason))
    assert (known.wanted, known.state, known.booted_at) == (is_wanted, state, 1.0)


@pytest.mark.promise("STOP-11")
def test_state_only_reports_and_a_boot_that_is_wanted_starts_whatever_it_says() -> None:
    for known in (Recorded(), life(BOOTED), life(BOOTED, DRAINING), life(*ends(Reason.RESTART))):
        assert not any(stays_down(start, known) for start in StartedBy)
        assert want_running(known, OPERATOR) == ()


@pytest.mark.promise("STOP-11")
def test_a_stopped_gateway_stays_stopped_at_a_boot_until_it_is_started() -> None:
    known = life(*ends(Reason.STOP))
    assert stays_down(StartedBy.BOOT, known) and not stays_down(StartedBy.ASKED, known)
    said = want_running(known, OPERATOR)
    assert said == (wanted(Wanted.RUNNING),)
    after = life(*ends(Reason.STOP), *said, BOOTED)
    assert (after.wanted, after.state) == (Wanted.RUNNING, ReportedState.RUNNING)


@pytest.mark.promise("TIME-03")
def test_a_restore_is_remembered_with_its_time() -> None:
    restored = JournalRestored(runs=2, messages=1)
    known = remember(Recorded(), restored, 5.0)
    assert (known.restored_at, known.restored) == (5.0, restored)
    booted = remember(known, GatewayBooted(version="1"), 6.0)
    assert booted.restored == restored
