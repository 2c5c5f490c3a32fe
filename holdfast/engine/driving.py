"""Build what drives runs and asks models; fail the run of a drive that broke."""

import logging
from collections.abc import Callable

from anyio.abc import TaskGroup

from holdfast.core.run.run import RunFailed
from holdfast.core.session import placement
from holdfast.core.session.session import give_up
from holdfast.core.types import Fact, RunId, SessionKey
from holdfast.engine.commits import Commits
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.runs.approvals import Permits
from holdfast.engine.runs.asking import Asking
from holdfast.engine.runs.calls import Calls
from holdfast.engine.runs.processes import Processes
from holdfast.engine.runs.rewinding import Rewinder
from holdfast.engine.runs.runner import Runner
from holdfast.engine.runs.titles import Titles
from holdfast.engine.runs.toolbox import Toolbox
from holdfast.engine.sessions import LoadedSession, Sessions

log = logging.getLogger(__name__)


def runner(
    deps: ServiceDeps,
    sessions: Sessions,
    permits: Permits,
    processes: Processes,
    rewinder: Rewinder,
    posture: Callable[[], str],
) -> tuple[Runner, Asking]:
    """Build the runner of all sessions, and what asks the models for it."""
    toolbox = Toolbox(deps.tools)
    asking = Asking(sessions, deps.models, toolbox, deps.clock, deps.limits, deps.redactor)
    calls = Calls(
        toolbox,
        deps.blobs,
        deps.clock,
        sessions,
        permits,
        deps.redactor,
        deps.home / "workspaces",
        processes.begun,
    )
    find, settle = deps.find_instructions, rewinder.finish
    return Runner(sessions, calls, asking, posture, processes.end_of, find, settle), asking


def give_titles(deps: ServiceDeps, sessions: Sessions, tasks: TaskGroup, commits: Commits) -> None:
    """Have new sessions named, if there is a small model for it."""
    if deps.models.small is not None:
        Titles(sessions, deps.models.small, tasks).subscribe(commits)


async def fail_broken(
    sessions: Sessions, key: SessionKey, run_id: RunId | None, error: Exception
) -> None:
    """Fail the run that a drive was at when it raised what it should not have."""
    log.error("drive broke", exc_info=error, extra={"session_id": key.session_id})
    text = f"Internal error: {type(error).__name__}. The log has the details."

    def decide(loaded: LoadedSession | None) -> tuple[Fact, ...]:
        now = loaded.session.runs.get(run_id) if loaded and run_id else None
        if loaded is None or now is None:
            return ()
        failed = RunFailed(run_id=now.id, code="internal_error", error=text, usage=now.usage)
        next_one = placement.requeue_unread(loaded.session, now)
        return (*give_up(now, failed.code), failed, *next_one)

    await sessions.change(key, decide)
