"""The world of a simulation: one disk, one gateway at a time over it, and people outside.

A `Process` is one life of the gateway: a `Service` over a `MemoryJournal`. It ends by a
kill (nothing of it reaches the disk or anybody any more) or by an orderly stop, and a kill
may come in the midst of that, or of a start. `World.supervise` starts the next one.

People are tasks outside all processes. They reach whichever process there is by `visit`;
its end throws them out, as a broken connection would.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar, copy_context
from itertools import count
from pathlib import Path
from typing import TypeVar

import anyio

from holdfast.core.approval.approval import ApprovalMode, Role
from holdfast.core.events import TERMINAL, MessageDelta, Record
from holdfast.core.inbox import InputAdmitted
from holdfast.core.intents import DoorCapabilities, Principal
from holdfast.core.messages import Assistant, Message, User
from holdfast.core.redaction import Redactor
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import CutCause, RunCompleted
from holdfast.core.session.session import OnStart, Session, evolve
from holdfast.core.types import Fact, Owner, SessionId, SessionKey, Value
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.runs.approvals import ApprovalPolicy
from holdfast.engine.service import Service
from holdfast.errors import HoldfastError
from holdfast.journal.audit import AuditEntry
from holdfast.models.model import Candidate, Models
from holdfast.tools.fs.restore import FileRestorer
from tests.fakes.hands import IdleHands
from tests.fakes.memory_disk import Disk
from tests.fakes.memory_journal import MemoryJournal
from tests.fakes.simloop import SimClock, SimLoop
from tests.sim.parrot import Parrot, reply_to, words_of

T = TypeVar("T")
_LIFE: ContextVar[object] = ContextVar("life")  # set in all that a process does

ME = Principal(Owner("me"), DoorCapabilities("cli", answerable=True, late=True), frozenset(Role))
HOME = Path("/nowhere")
DAY_S = 86_400.0
PATIENCE_S = 7_200.0  # of virtual time; by then everything is answered, or never will be
PAUSES = (0.0, 0.0, 0.0, 0.001, 0.02)  # how long the disk may take for one move


class Death(Value):
    """How one life ends: after so many turns of the loop, and how many later the next begins."""

    turns: int
    drain_s: float | None  # an orderly stop with that much patience; None: a kill
    killed_after: int  # an orderly stop is cut short after so many turns; 0: it is not
    down_s: float


class World:
    """What outlives every process, and who watches it."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        deaths: Sequence[Death],
        places: int = 1_000,
        pauses: Sequence[float] = PAUSES,
        disk: Disk | None = None,
    ) -> None:
        self.loop = loop
        self.seed = seed
        self.random = loop.random
        self.clock = SimClock(loop)
        self.disk = disk or Disk()
        self.disk.on_write = self._written
        self.wrong: list[str] = []  # what must not happen, and did
        self.lives: list[Process] = []
        self.pauses = pauses
        self._deaths = deaths
        self._birth = anyio.Event()
        self._limits = Limits(running=places)
        self._shut = True
        self._tickets = count()
        self._waiting: dict[int, asyncio.Future[None]] = {}  # visitors, by their tickets
        self.admitted: dict[SessionKey, list[InputAdmitted]] = {}

    @property
    def process(self) -> "Process | None":
        """The process there is, if there is one that takes visitors."""
        return None if self._shut else self.lives[-1]

    def blame(self, what: str) -> None:
        """Something must not have happened."""
        self.wrong.append(f"{self.loop.time():.3f} s, life {len(self.lives)}: {what}")

    async def visit(self, errand: Callable[[Service], Awaitable[T]]) -> T | None:
        """Do something with the service there is, waiting for one; None: it ended meanwhile."""
        ticket = next(self._tickets)
        while (process := self.process) is None:
            await self._wait(ticket)
        answer = await process.host(errand)
        if process is self.process:
            return answer
        if self._shut:  # all who were thrown out come back in the order they came
            await self._wait(ticket)
        return None

    async def _wait(self, ticket: int) -> None:
        self._waiting[ticket] = self.loop.create_future()
        await self._waiting[ticket]

    def _admit(self) -> None:
        self._shut = False
        for _, waiting in sorted(self._waiting.items()):
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()

    def shut(self) -> None:
        """There is nobody to visit any more, until the next process."""
        self._shut = True

    async def born(self, number: int) -> None:
        """Return at the moment the process with that number begins to start, from 1."""
        while len(self.lives) < number:
            await self._birth.wait()

    async def until(self, done: Callable[[], bool], within: float) -> bool:
        """Return when it is so, or something is wrong; False: it was not, in that time."""
        while not self.wrong and not done():
            if self.loop.time() > within:
                return False
            await self.clock.sleep(1.0)
        return True

    def make(self, number: int) -> "Process":
        """The process with that number."""
        return Process(self, number)

    async def supervise(self) -> None:
        """One process after the other, for ever."""
        while True:
            number = len(self.lives)
            death = self._deaths[number] if number < len(self._deaths) else None
            process = self.make(number)
            self.lives.append(process)
            if death is not None:
                self.loop.after_turns(death.turns, lambda p=process, d=death: p.end(d))  # type: ignore[misc]
            self._admit()
            self._birth.set()
            self._birth = anyio.Event()
            await process.live(self._limits)
            await asyncio.sleep(0)  # until the last of it is gone
            if death is not None and death.down_s:
                await anyio.sleep(death.down_s)  # sleep: in virtual time

    def _written(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record.fact, InputAdmitted):
                key = self.disk.streams[record.stream].key
                self.admitted.setdefault(key, []).append(record.fact)

    async def hear(self, process: "Process", chat: str, messages: Sequence[Message]) -> None:
        """The model is asked: by one drive, about all that came before and the next input."""
        if process is not self.process:
            await anyio.sleep_forever()  # the last step of a task that does not know it is dead
        if chat in process.model.busy:
            self.blame(f"{chat} is driven twice")
        texts = [words_of(m) for m in messages if isinstance(m, User)]
        wanted = [Assistant(reply_to(t)) for t in texts[:-1]]
        known = [f.text for f in self.admitted.get(SessionKey(ME.owner, SessionId(chat)), ())]
        both = min(len(known), len(texts))  # the newest may be on its way to the disk
        if list(messages[1::2]) != wanted or known[:both] != texts[:both]:
            self.blame(f"the model is asked {messages}; admitted are {known}")

    def check(self) -> None:
        """Every input is one run, and they completed one after the other in their order."""
        for key, admitted in self.admitted.items():
            session, ended = Session(key), list[Fact]()
            for record in self.disk.sessions[key].records:
                if isinstance(record.fact, MessageDelta):
                    continue
                session = evolve(session, record.fact, record.at)
                if isinstance(record.fact, TERMINAL):
                    ended.append(record.fact)
            wanted = [(f.run_id, reply_to(f.text)) for f in admitted]
            found = [(f.run_id, f.output) for f in ended if isinstance(f, RunCompleted)]
            if found != wanted or len(ended) != len(found) or session.runs:
                self.blame(f"{key.session_id}: wanted {wanted}, found {ended}")


class Process:
    """One life of the gateway."""

    def __init__(self, world: World, number: int) -> None:
        self.number = number
        self.world = world
        self.model = Parrot(world.random, lambda chat, said: world.hear(self, chat, said))
        self.journal = MemoryJournal(world.disk, lambda: world.random.choice(world.pauses))
        self._scope = anyio.CancelScope()
        self._context = copy_context()
        self._visitors: dict[anyio.CancelScope, None] = {}
        self._service: Service | None = None
        self._begun = anyio.Event()
        self._death: Death | None = None
        self._dead = False
        self._told = anyio.Event()

    async def live(self, limits: Limits) -> None:
        """From the start to the end, whichever that is. Nothing of it is left afterwards."""
        token = _LIFE.set(self.number)
        self._context = copy_context()
        with self._scope:
            async with anyio.create_task_group() as tasks:
                self._service = service = Service(self._parts(limits), tasks)
                self._begun.set()
                await service.start()
                await self._told.wait()
                assert self._death is not None and self._death.drain_s is not None
                await service.stop(self._death.drain_s, CutCause.RESTART)
                await service.end()
                await self.journal.aclose()
                self.kill()
        _LIFE.reset(token)

    def end(self, death: Death) -> None:
        """End it that way."""
        if death.drain_s is None:
            self.kill()
            return
        self._death = death
        self._told.set()
        if death.killed_after:
            self.world.loop.after_turns(death.killed_after, self.kill)

    def kill(self) -> None:
        """From this moment on it does nothing that anybody could notice."""
        if self._dead:
            return
        self._dead = True
        self.world.loop.freeze(_LIFE, f"{self.world.seed}, life {self.number}")
        self.world.shut()
        self._context.run(self.journal.cut)
        self._context.run(self._scope.cancel)
        for visitor in self._visitors:
            visitor.cancel()

    async def host(self, errand: Callable[[Service], Awaitable[T]]) -> T | None:
        """A visitor's errand; None if the process ended before it was done."""
        token, scope = _LIFE.set(self.number), anyio.CancelScope()
        self._visitors[scope] = None
        try:
            with scope:
                if self._service is None:
                    await self._begun.wait()
                assert self._service is not None
                return await errand(self._service)
        except HoldfastError:
            if not self._dead:
                raise
        finally:
            del self._visitors[scope]
            _LIFE.reset(token)
        return None

    def _parts(self, limits: Limits) -> ServiceDeps:
        return ServiceDeps(
            journal=self.journal,
            blobs=_NoBlobs(),
            files=FileRestorer(_NoBlobs()),
            models=Models(Candidate("parrot/it", self.model)),
            tools=tuple,
            clock=self.world.clock,
            limits=limits,
            on_start=OnStart.RESUME,
            home=HOME,
            workspace_roots=(),
            retention_s=DAY_S,
            policy=ApprovalPolicy(ApprovalMode.ASK, 600.0),
            version="sim",
            redactor=Redactor(()),
            hands=IdleHands(),
            audit=_unheard,
        )


class _NoBlobs:
    def put(self, data: bytes) -> str:
        raise AssertionError("nothing here is that big")

    def get(self, name: str) -> bytes:
        raise KeyError(name)


async def _unheard(entry: AuditEntry) -> None:
    """Nobody reads the audit."""


def key_of(chat: int) -> SessionKey:
    """The session of a chat."""
    return SessionKey(ME.owner, SessionId(f"chat{chat}"))
