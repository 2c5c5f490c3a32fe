"""The way up: fold what is not final, settle what is in doubt, wake.

Every start is a recovery, after a clean stop as after `kill -9`. The same is done for
single sessions when the journal could not be written for a while: their drives are
gone, as after a crash, and are brought back once it can. A start over a disk that is full
serves what can be read, and brings the rest back in the same way.
"""

import logging
from collections.abc import Callable, Iterable, Sequence

import anyio
from msgspec import field

from holdfast.core.run.quarantine import Judgement, judge
from holdfast.core.run.run import CutCause, Run, RunPhase
from holdfast.core.session.recovery import recover, with_cuts
from holdfast.core.session.session import OnStart
from holdfast.core.types import Part, RunId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.runs.coordinator import Coordinator
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable
from holdfast.journal.journal import Journal, RunRow

log = logging.getLogger(__name__)

TRY_AGAIN_S = 0.5
TRY_AGAIN_CAP_S = 15.0
STEADY_S = 60.0  # a drive that has lasted so long has got somewhere

_CUT = frozenset({RunPhase.RUNNING, RunPhase.INTERRUPTED})
_Plan = tuple[OnStart, CutCause, Judgement]


class Orphans:
    """Sessions whose drives are gone, and when to try again to bring them back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._losses: dict[SessionKey, tuple[int, float]] = {}  # in a row, and when the last was
        self._lost = anyio.Event()
        self.plans: dict[SessionKey, _Plan] = {}

    def add(self, key: SessionKey) -> None:
        """The session's drive is gone because the journal could not be written, or the audit."""
        self.plans[key] = (OnStart.RESUME, CutCause.JOURNAL, Judgement())
        now = self._clock.now()
        times, last = self._losses.get(key, (0, 0.0))
        self._losses[key] = (times + 1 if now - last < STEADY_S else 1, now)
        self._lost.set()

    def alert(self) -> None:
        """Have them looked at."""
        self._lost.set()

    async def wait(self) -> None:
        """Return when they are to be looked at."""
        await self._lost.wait()
        self._lost = anyio.Event()

    def due(self) -> list[SessionKey]:
        """Those to try again now."""
        return [key for key in self.plans if self._is_due(key)]

    def tried(self, back: Sequence[bool]) -> None:
        """Note how it went: whether each could be recorded."""
        if self.plans:
            self._lost.set()
        elif all(back) and all(times == 1 for times, _ in self._losses.values()):
            log.info("journal can be written again")
        now = self._clock.now()
        self._losses = {k: v for k, v in self._losses.items() if 0 <= now - v[1] < STEADY_S}

    def _is_due(self, key: SessionKey) -> bool:
        """Return whether to try again: later each time it was brought back and lost at once."""
        times, last = self._losses.get(key, (1, 0.0))
        passed = self._clock.now() - last
        wait_s = min(TRY_AGAIN_CAP_S, TRY_AGAIN_S * 2.0 ** (times - 1))
        return passed >= wait_s or passed < 0  # the clock may be set back


class Recovery(Part):
    """Brings sessions back whose drives are gone."""

    _journal: Journal
    _sessions: Sessions
    _coordinator: Coordinator
    _clock: Clock
    _policy: OnStart
    _orphans: Orphans
    _returned: list[Callable[[LoadedSession], None]] = []
    _deferred: dict[SessionKey, anyio.Lock] = {}  # one at a time brings it back
    _sorted: anyio.Event = field(default_factory=anyio.Event)  # the deferred ones are known
    _cut: frozenset[SessionKey] = frozenset()  # where the start found something cut

    def __post_init__(self) -> None:
        self._journal.on_failure(self._orphans.alert)

    def on_return(self, listener: Callable[[LoadedSession], None]) -> None:
        """Call `listener` with every session that is brought back."""
        self._returned.append(listener)

    async def start(self, only: frozenset[RunId] | None) -> int:
        """Bring back the runs of earlier processes; return how many are unfinished.

        A process that will not stay long names the runs it came for, if any. Sessions without
        one are deferred: they stay as they are until they are needed.
        """
        unfinished = await self._journal.unfinished()
        self._sessions.recount(unfinished)
        keys = dict.fromkeys(row.key for row in unfinished)
        wanted = keys if only is None else {r.key: None for r in unfinished if r.run_id in only}
        for key in keys:
            self._coordinator.orphan(key)
            if key not in wanted:  # else a caller who needs it now would bring it back before us
                self._deferred[key] = anyio.Lock()
        self._cut = frozenset(row.key for row in unfinished if row.status in _CUT)
        self._sorted.set()
        judgement = await self._judge([r for r in unfinished if r.key in wanted])
        async with anyio.create_task_group() as together:  # so that they share their commits
            for key in wanted:
                self._orphans.plans[key] = (self._policy, CutCause.CRASH, judgement)
                together.start_soon(self._bring_back, key)
        return len(unfinished)

    async def _judge(self, unfinished: Sequence[RunRow]) -> Judgement:
        """Over all that is brought back, before any of it is: who may be what ended the process."""
        concerned = {r.key: None for r in unfinished if r.status is not RunPhase.WAITING}
        if self._cut.isdisjoint(concerned):
            return Judgement()
        return await self._judge_keys(concerned)

    async def _judge_keys(self, keys: Iterable[SessionKey]) -> Judgement:
        found: list[tuple[Run, bool]] = []
        read: set[SessionKey] = set()

        async def look(key: SessionKey) -> None:
            try:
                async with self._sessions.load(key) as loaded:
                    if loaded is not None:
                        cut = with_cuts(loaded.session, loaded.last_at)
                        found.extend((run, said is not None) for run, said in cut)
                        read.add(key)
            except Exception:  # noqa: BLE001  told when it is brought back
                return

        async with anyio.create_task_group() as together:
            for key in keys:
                together.start_soon(look, key)
        just_cut = [run.id for run, said in found if said]
        others = bool(self._cut - read)
        return judge([run for run, _ in found], just_cut, self._clock.now(), others=others)

    async def need(self, key: SessionKey) -> None:
        """Resume a session whose recovery was deferred."""
        await self._fetch(key, OnStart.RESUME)

    async def watch(self, key: SessionKey) -> None:
        """Bring back a deferred session that is followed: it goes on, or waits, as after any start."""
        await self._fetch(key, self._policy)

    async def _fetch(self, key: SessionKey, policy: OnStart) -> None:
        if not self._sorted.is_set():  # the doors open before the start: this may defer it
            await self._sorted.wait()
        if (lock := self._deferred.get(key)) is None:
            return
        async with lock:
            if key not in self._deferred:
                return
            judgement = await self._judge_keys((key,)) if key in self._cut else Judgement()
            self._orphans.plans[key] = (policy, CutCause.CRASH, judgement)
            try:
                await self._bring_back(key)
            finally:
                del self._deferred[key]
                if key in self._orphans.plans:  # not recorded: the disk, or the caller has left
                    self._orphans.alert()

    async def tend(self) -> None:
        """For as long as the process lives: after a failed commit, put right what it left."""
        orphans = self._orphans
        while True:
            await orphans.wait()
            await self._clock.sleep(TRY_AGAIN_S)
            due = orphans.due()
            if due or not orphans.plans:
                self._sessions.recount(await self._journal.unfinished())
            if orphans.plans:
                orphans.tried([await self._bring_back(key) for key in due])

    async def _bring_back(self, key: SessionKey) -> bool:
        """Write down that the session's runs were cut, and go on; False: it cannot be written."""
        if (plan := self._orphans.plans.get(key)) is None:
            return True  # it is back already
        policy, cause, judgement = plan
        try:
            async with self._sessions.load(key) as loaded:
                if loaded is not None:
                    if facts := recover(loaded.session, policy, loaded.last_at, cause, judgement):
                        await self._sessions.append(loaded, *facts).wait()
                    for listener in self._returned:
                        listener(loaded)
        except JournalUnavailable:
            return False
        except Exception:
            # A session that cannot be read must not keep the others from coming back.
            log.exception(
                "session set apart: it cannot be read", extra={"session_id": key.session_id}
            )
            self._orphans.plans.pop(key, None)
            return True
        self._orphans.plans.pop(key, None)
        self._coordinator.adopt(key)
        return True
