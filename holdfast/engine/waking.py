"""Wake a session after the commit of a fact that lets it continue."""

from holdfast.core.approval.approval import ApprovalDenied, ApprovalExpired
from holdfast.core.events import Record
from holdfast.core.run.call import CallAnswered, CallCleared
from holdfast.core.run.child import ChildEnded
from holdfast.core.run.run import RunQueued, RunRequeued, StopAsked
from holdfast.engine.commits import Commits
from holdfast.engine.runs.coordinator import Coordinator
from holdfast.engine.sessions import Sessions

# Facts with which a run that has begun can continue: it goes before runs that have not begun.
_CONTINUES = (RunRequeued, CallCleared, CallAnswered, ChildEnded, ApprovalDenied, ApprovalExpired)


def subscribe(commits: Commits, sessions: Sessions, coordinator: Coordinator) -> None:
    """Wake and interrupt sessions by the facts that are committed."""

    def queued(record: Record) -> None:
        if (key := sessions.key_of(record.stream)) is not None:
            coordinator.wake(key)

    def continues(record: Record) -> None:
        if (key := sessions.key_of(record.stream)) is not None:
            coordinator.wake(key, first=True)

    def stop_asked(record: Record) -> None:
        assert isinstance(record.fact, StopAsked)
        if (key := sessions.key_of(record.stream)) is not None:
            coordinator.interrupt(key, record.fact.run_id)

    commits.subscribe((RunQueued,), queued)
    commits.subscribe(_CONTINUES, continues)
    commits.subscribe((StopAsked,), stop_asked)
