"""The process comes up one way, goes down from anywhere, and says why with its exit code."""

import pytest

from holdfast.core.lifecycle import (
    Admit,
    Change,
    Decline,
    Reason,
    Status,
    Supervisor,
    decide,
    evolve,
    exit_code,
)
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


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("change", Change)
def test_every_status_meets_every_change_as_stated(status: Status, change: Change) -> None:
    if (status.value, change.value) in ALLOWED:
        assert evolve(status, change).value == ALLOWED[status.value, change.value]
    else:
        with pytest.raises(IllegalTransition, match=f"{change} while the process is {status}"):
            evolve(status, change)


@pytest.mark.parametrize("status", Status)
def test_a_stop_is_legal_whenever_there_is_something_to_stop(status: Status) -> None:
    assert ((status.value, "stop asked") in ALLOWED) is not status.final
    assert ((status.value, "ended") in ALLOWED) is not status.final


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (Status.STARTING, "gateway_starting"),
        (Status.RECOVERING, "gateway_starting"),
        (Status.READY, ""),
        (Status.DRAINING, "gateway_draining"),
        (Status.STOPPED, "gateway_draining"),
    ],
)
def test_only_a_ready_process_takes_new_work(status: Status, code: str) -> None:
    match decide(status):
        case Admit():
            assert code == ""
        case Decline() as declined:
            assert declined.code == code
            assert "Try again" in declined.message


@pytest.mark.parametrize("supervisor", Supervisor)
@pytest.mark.parametrize("reason", Reason)
def test_the_exit_code_tells_the_supervisor_what_to_do(
    reason: Reason, supervisor: Supervisor
) -> None:
    again = 75 if supervisor is Supervisor.LAUNCHD else 0
    expected = {"stop": 0, "restart": again, "misconfigured": 78, "broken": 70}
    assert exit_code(reason, supervisor) == expected[reason.value]
