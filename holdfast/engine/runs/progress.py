"""Progress of a call, for followers: bounded in rate and in size."""

from types import TracebackType
from typing import Self

from holdfast.core.events import ToolProgress
from holdfast.core.run import run
from holdfast.core.run.call import Call
from holdfast.core.types import RunId
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable

EVERY_S = 1 / 3  # with the last words, which do not wait, that is four a second at most
MOST = 64 * 1024  # bytes of a call
_MORE = "\n[more output follows; it is not shown here]\n"


class CallProgress:
    """One call's way. What cannot be told any more is dropped: the result has it."""

    def __init__(
        self, sessions: Sessions, loaded: LoadedSession, run_id: RunId, call: Call, clock: Clock
    ) -> None:
        self._sessions = sessions
        self._loaded = loaded
        self._run_id = run_id
        self._call_id = call.proposal.call_id
        self._clock = clock
        self._room = MOST - len(_MORE)
        self._waiting = ""
        self._told_at = 0.0
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._waiting and kind is None:
            self._tell()  # the last of it, however soon: it comes once for each call
        self._over = True

    def add(self, text: str) -> None:
        """Say it now, or with what comes next."""
        if self._over or not self._room:
            return
        self._waiting += self._fitting(text)
        now = self._clock.now()
        if self._waiting and now - self._told_at >= EVERY_S:
            self._told_at = now
            self._tell()

    def _fitting(self, text: str) -> str:
        """As much of `text` as there is room for."""
        data = text.encode("utf-8", "replace")
        if len(data) <= self._room:
            self._room -= len(data)
            return text
        fits, self._room = data[: self._room].decode("utf-8", "ignore"), 0
        return fits + _MORE

    def _tell(self) -> None:
        now = self._loaded.session.runs.get(self._run_id)
        if now is None or now.status is run.RunPhase.INTERRUPTED or now.stop_reason:
            return
        text, self._waiting = self._waiting, ""
        fact = ToolProgress(run_id=self._run_id, turn=now.turn, call_id=self._call_id, text=text)
        try:
            self._sessions.delta(self._loaded, fact)
        except JournalUnavailable:
            return  # the call's own record will find out
