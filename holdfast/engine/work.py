"""Work: everything that drives runs over one journal, and brings them back after a crash.

What happens after an append does not depend on who asked for it: a session is woken, and a
stopped run interrupted, when the journal has committed the fact.
"""

import logging
from collections.abc import Callable
from functools import partial

from anyio.abc import TaskGroup

from holdfast.core.intents import Principal
from holdfast.core.types import RunId, SessionKey
from holdfast.engine import waking
from holdfast.engine.commits import Commits
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.driving import fail_broken, give_titles, runner
from holdfast.engine.life.gateway_state import StandingRules
from holdfast.engine.life.quarantine import Search
from holdfast.engine.life.recover import Orphans, Recovery
from holdfast.engine.live import Live
from holdfast.engine.runs.approvals import Audit, Permits
from holdfast.engine.runs.children import Children
from holdfast.engine.runs.coordinator import Coordinator
from holdfast.engine.runs.processes import Processes
from holdfast.engine.runs.rewinding import Rewinder
from holdfast.engine.sessions import Sessions
from holdfast.errors import Refused

log = logging.getLogger(__name__)


class Work:
    """The sessions, and what drives their runs."""

    def __init__(
        self,
        deps: ServiceDeps,
        sessions: Sessions,
        standing: StandingRules,
        audit: Audit,
        posture: Callable[[], str],
        tasks: TaskGroup,
    ) -> None:
        journal, clock = deps.journal, deps.clock
        self._tasks = tasks
        self._has_chats = deps.chatting is not None
        self.sessions = sessions
        self.standing = standing
        self.live = Live()
        self.commits = Commits(journal, self.live.publish)
        self.permits = Permits(
            clock,
            deps.policy,
            lambda: standing.rules,
            audit,
            lambda name: deps.models.named(name).profile.cautious,
            lambda: journal.trusted_since,
        )
        self.processes = Processes(sessions, clock, deps.hands, tasks, deps.model_name)
        self.rewinder = Rewinder(journal, sessions, deps.files)
        drives, self.asking = runner(
            deps, sessions, self.permits, self.processes, self.rewinder, posture
        )
        orphans = Orphans(clock)
        self.coordinator = Coordinator(
            tasks,
            drives.drive,
            partial(fail_broken, sessions),
            orphans.add,
            deps.limits.running,
        )
        self.recovery = Recovery(journal, sessions, self.coordinator, clock, deps.on_start, orphans)
        self.search = Search(sessions, clock, deps.on_start)
        self.children = Children(
            sessions, journal, clock, tasks, deps.model_name, self.recovery.need
        )
        self.recovery.on_return(self.search.notice)
        self.recovery.on_return(self.children.notice)
        self._subscribe()
        give_titles(deps, sessions, tasks, self.commits)

    def _subscribe(self) -> None:
        for part in (self.permits, self.children, self.standing, self.processes):
            part.subscribe(self.commits)
        waking.subscribe(self.commits, self.sessions, self.coordinator)

    async def start(self, only: frozenset[RunId] | None) -> int:
        """Bring back unfinished runs; how many there are. `only`: the runs, if not all."""
        await self.rewinder.start()
        found = await self.recovery.start(only)
        await self.children.start(aside=only is not None)
        await self.processes.start()
        for watch in (self.recovery.tend, self.search.watch, self.processes.tend):
            self._tasks.start_soon(watch)
        return found

    async def need(self, by: Principal, key: SessionKey) -> None:
        """Resume a session whose recovery was deferred, because an intent is for it."""
        if by.visits and not self._has_chats:  # nothing here could send what its chat is to get
            why = "It goes on in a chat, which only a gateway serves: holdfast gateway start"
            raise Refused("no_gateway", why)
        await self.recovery.need(key)
        await self.children.need(key)

    async def watch(self, by: Principal, key: SessionKey) -> None:
        """Resume a session whose recovery was deferred, because it is followed."""
        if key.owner == by.who or self._has_chats:
            await self.recovery.watch(key)
            await self.children.need(key)
