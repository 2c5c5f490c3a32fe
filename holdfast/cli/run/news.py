"""Late news: what happens in a session beside the runs that its terminal has asked for.

A background process or task ends, or one writes what is watched for; then a run of the session
begins by itself. Another terminal may speak in the session too. All of that is on the session's event
stream, which is listened to while a conversation is open. At its next start the stream is read
from where the user last spoke.

Who asked for a run is not on the wire. But what a process tells and the run that this begins
are written down together, so they bear the same time.
"""

from collections import deque
from collections.abc import Sequence

import anyio
from anyio.abc import TaskGroup

from holdfast.api.schema.events import TERMINAL
from holdfast.api.schema.runs import RunObject
from holdfast.cli.client.client import Client
from holdfast.cli.client.frames import Frame

LOOK_BACK = 20  # runs; what is older is not news
CATCH_UP_S = 5.0


class News:
    """What one session tells from `after` on. `listen` is the task that hears it."""

    def __init__(self, client: Client, session_id: str, after: int = 0) -> None:
        self.running: dict[str, str] = {}  # background processes, and their commands
        self._client = client
        self._session_id = session_id
        self._after = after
        self._untold: deque[Frame] = deque()  # what processes tell, and runs that began
        self._told_at: set[float] = set()  # when a process told something
        self._known: set[str] = set()
        self._ended: set[str] = set()
        self._heard = anyio.Event()

    async def listen(self) -> None:
        """Hear what happens, for as long as the conversation is open."""
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
        """The run is shown here anyway: it is no news."""
        self._known.add(run_id)

    def take(self) -> Frame | None:
        """The next thing to be told, if there is one."""
        while self._untold:
            frame = self._untold.popleft()
            if frame.event.run_id not in self._known:
                return frame
        return None

    async def come(self) -> None:
        """Return when there is something to be told."""
        while not any(frame.event.run_id not in self._known for frame in self._untold):
            await self._heard.wait()

    def is_late(self, run: RunObject) -> bool:
        """Whether it was a process that began the run, as far as has been heard."""
        return run.created_at in self._told_at

    async def catch_up(self, runs: Sequence[RunObject]) -> None:
        """Return when all of these has been heard that has happened."""
        ended = {run.run_id for run in runs if run.ended}
        with anyio.move_on_after(CATCH_UP_S):
            while not self._ended >= ended:
                await self._heard.wait()

    def forget(self, runs: Sequence[RunObject]) -> None:
        """What came until the user last spoke, in one of these runs, newest first, is no news."""
        begun = [frame.event.run_id for frame in self._untold]
        spoken = next((r for r in runs if r.run_id in begun and not self.is_late(r)), None)
        if spoken is not None:
            for _ in range(begun.index(spoken.run_id)):
                self._untold.popleft()
            if spoken.ended:
                self.known(spoken.run_id)


async def reopen(client: Client, session_id: str, tasks: TaskGroup) -> News | None:
    """The news since the user last spoke in the session; None if nobody ever did.

    What was left unfinished there goes on: it is listened to.
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
