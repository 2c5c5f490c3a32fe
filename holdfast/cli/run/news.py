"""News of a session: what happens besides the runs that this terminal has started.

When a background process or task ends, or a process writes a watched line, a run of the session
starts by itself. Another terminal may send messages to the session too. All of that is on the
session's event stream, which is read while a conversation is open. The next conversation reads it
from the user's last message.

The wire does not say what started a run. But the report of a process and the run that it starts are
recorded together, so they have the same time.
"""

from collections import deque
from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup

from holdfast.api.schema.events import TERMINAL
from holdfast.api.schema.runs import RunObject
from holdfast.cli.client.client import Client
from holdfast.cli.client.frames import Frame

LOOK_BACK = 20  # runs that may be news
CATCH_UP_S = 5.0


class News:
    """The events of one session after `after`. `listen` is the task that reads them."""

    def __init__(self, client: Client, session_id: str, after: int = 0) -> None:
        self.running: dict[str, str] = {}  # background processes, and their commands
        self._client = client
        self._session_id = session_id
        self._after = after
        self._untold: deque[Frame] = deque()  # reports of processes, and runs that started
        self._told_at: set[float] = set()  # times of reports of processes
        self._known: set[str] = set()
        self._ended: set[str] = set()
        self._heard = anyio.Event()

    async def listen(self) -> None:
        """Read the events while the conversation is open."""
        async for frame in self._client.listen(self._session_id, self._after):
            self._hear(frame)
            self._heard.set()
            self._heard = anyio.Event()

    def _hear(self, frame: Frame) -> None:
        event = frame.event
        match event.event:
            case "process.started":
                self.running[event.process_id] = event.command
            case "process.matched" | "process.ended":
                if event.event == "process.ended":
                    self.running.pop(event.process_id, None)
                self._told_at.add(event.timestamp)
                self._untold.append(frame)
            case "subagent.completed" if event.background:
                self._told_at.add(event.timestamp)
                if not event.run_id:  # else it is shown with its run
                    self._untold.append(frame)
            case "run.started":
                self._untold.append(frame)
            case ending if ending in TERMINAL:
                self._ended.add(event.run_id)
            case _:
                pass

    def known(self, run_id: str) -> None:
        """Note a run that is shown here anyway: it is no news."""
        self._known.add(run_id)

    def take(self) -> Frame | None:
        """Return the next event to show, if there is one."""
        while self._untold:
            frame = self._untold.popleft()
            if frame.event.run_id not in self._known:
                return frame
        return None

    async def come(self) -> None:
        """Return when there is an event to show."""
        while not any(frame.event.run_id not in self._known for frame in self._untold):
            await self._heard.wait()

    def is_late(self, run: RunObject) -> bool:
        """Tell whether a process started the run, according to the events read so far."""
        return run.created_at in self._told_at

    async def catch_up(self, runs: Sequence[RunObject]) -> None:
        """Return when the events of these runs have been read."""
        ended = {run.run_id for run in runs if run.ended}
        with anyio.move_on_after(CATCH_UP_S):
            while not self._ended >= ended:
                await self._heard.wait()

    def forget(self, runs: Sequence[RunObject]) -> None:
        """Drop the events before the user's last message; `runs` are newest first."""
        begun = [frame.event.run_id for frame in self._untold]
        spoken = next((r for r in runs if r.run_id in begun and not self.is_late(r)), None)
        if spoken is not None:
            for _ in range(begun.index(spoken.run_id)):
                self._untold.popleft()
            if spoken.ended:
                self.known(spoken.run_id)


async def reopen(client: Client, session_id: str, tasks: TaskGroup) -> News | None:
    """Return the news since the user's last message; None if the session has no runs.

    Unfinished runs continue: their events are read.
    """
    runs = await client.runs(session_id, LOOK_BACK)
    if not runs:
        return None
    older = len(runs) == LOOK_BACK and runs[-1].ended
    news = News(client, session_id, await client.first(runs[-1].run_id) - 1 if older else 0)
    tasks.start_soon(news.listen)
    await news.catch_up(runs)
    news.forget(runs)
    return news
