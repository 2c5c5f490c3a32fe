"""A run as its drive sees it: the loaded session, and the one way to record facts for the run."""

from holdfast.core.approval.approval import ApprovalWithdrawn
from holdfast.core.run import run
from holdfast.core.run.call import CallSettled
from holdfast.core.run.files import FileChanged
from holdfast.core.run.process import PortClosed, PortPublished, ProcessStarted
from holdfast.core.run.run import Run
from holdfast.core.types import Fact, RunId
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import HoldfastError
from holdfast.journal.journal import Pending

# Results that are in already.
_AFTER_A_CUT = (
    CallSettled,
    FileChanged,
    ProcessStarted,
    PortPublished,
    PortClosed,
    ApprovalWithdrawn,
)


class Cut(HoldfastError):
    """The run was interrupted or ended by others: its drive must record nothing more."""


class DrivenRun:
    """One run that is driven now."""

    __slots__ = ("_sessions", "id", "loaded")

    def __init__(self, sessions: Sessions, loaded: LoadedSession, run_id: RunId) -> None:
        self._sessions = sessions
        self.loaded = loaded
        self.id = run_id

    @property
    def now(self) -> Run | None:
        """The run as it is now; None once it has ended."""
        return self.loaded.session.runs.get(self.id)

    def record(self, *facts: Fact) -> Pending:
        """Append facts for the run; raises `Cut` if it is no longer this drive's to continue."""
        now = self.now
        if now is None or (now.status is run.RunPhase.INTERRUPTED and not now.stop_reason):
            # Cut while it worked: only results that are in already may still be kept.
            if now is None or not all(isinstance(f, _AFTER_A_CUT) for f in facts):
                raise Cut
        return self._sessions.append(self.loaded, *facts)
