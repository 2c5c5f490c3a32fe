"""Refused requests, as exits of the command."""

import msgspec

from holdfast.api.schema.errors import ErrorBody, ErrorEnvelope
from holdfast.cli.exits import Code, Exit

_PASSING = frozenset({"gateway_draining", "gateway_starting"})
_TOO_LATE = frozenset(
    {
        "approval_not_pending",
        "approval_not_active",
        "question_not_waiting",
        "run_not_accepting_steer",
        "run_begun",
    }
)


class NotFound(Exit):
    """There is no such run, or it is over."""


class WorkspaceFixed(Exit):
    """The session works in another directory and stays there."""


class TooLateExit(Exit):
    """The approval or question was answered before, expired, or its run is over."""


class Exists(Exit):
    """There is a session of that name already. Nothing has changed."""


class Passing(Exit):
    """Refused for a moment only."""


def error_in(status: int, content: bytes) -> ErrorBody:
    """The error of a refusal, also if the body is not one of ours."""
    try:
        return msgspec.json.decode(content, type=ErrorEnvelope).error
    except msgspec.DecodeError:
        return ErrorBody(f"the server answered {status}")


def refusal(status: int, content: bytes) -> Exit:
    """The exit that a refused request means."""
    error = error_in(status, content)
    if error.code in _PASSING:
        return Passing(Code.TRY_AGAIN, error.message)
    if status == 404:
        return NotFound(Code.FAILED, error.message)
    if error.code in _TOO_LATE:
        return TooLateExit(Code.FAILED, error.message)
    if error.code == "session_exists":
        return Exists(Code.FAILED, error.message)
    if error.code == "workspace_fixed":
        return WorkspaceFixed(Code.USAGE, error.message)
    return Exit(Code.TRY_AGAIN if status in (429, 503) else Code.FAILED, error.message)
