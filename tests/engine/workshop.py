"""A service over a real journal, with a model and tools that the test holds in its hand.

`Told` answers when it is told to, `Played` by a function; both keep every request. What
leaves `serving` is cut without a word, as by a crash: nothing is marked, nobody drains.
"""

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from holdfast.core.approval.approval import ApprovalMode, Role
from holdfast.core.events import Record
from holdfast.core.intents import DoorCapabilities, Principal, Stop, Submit
from holdfast.core.life.timeline import Reading
from holdfast.core.messages import Message, Proposal
from holdfast.core.redaction import Redactor
from holdfast.core.run.limits import Limits
from holdfast.core.session.session import OnStart
from holdfast.core.types import CallId, Fact, Owner, RunId, SessionId, Usage, kind
from holdfast.engine.clock import Clock
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.runs.approvals import ApprovalPolicy
from holdfast.engine.service import Service
from holdfast.gateway import RunView
from holdfast.journal.audit import AuditEntry
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.models.model import (
    Answer,
    Candidate,
    Model,
    Models,
    Piece,
    Price,
    Reasoning,
    Request,
    Text,
)
from holdfast.tools.fs.restore import FileRestorer
from holdfast.tools.tool import RestoresFiles, RunsCommands, Tool
from tests.fakes.clock import FIRST_BOOT, ManualClock
from tests.fakes.hands import IdleHands

CLI = DoorCapabilities(platform="cli", answerable=True, late=True)
ME = Principal(Owner("me"), CLI, frozenset(Role))
PATIENCE_S = 20.0  # a net below a test that would wait for ever


def call(tool: str, arguments: str = "{}", call_id: str = "c1") -> Proposal:
    """A call as the model asks for it."""
    return Proposal(CallId(call_id), tool, arguments)


async def turn(times: int) -> None:
    """Return when the loop has turned that often."""
    for _ in range(times):
        await anyio.lowlevel.checkpoint()


class Asked:
    """One request, which the test answers."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.cut = False  # nobody wants the answer any more
        self._pieces: deque[Piece | Exception] = deque()
        self._told = anyio.Event()

    @property
    def messages(self) -> Sequence[Message]:
        return self.request.messages

    def say(self, text: str) -> None:
        """Stream some text."""
        self._tell(Text(text))

    def think(self, text: str) -> None:
        """Stream some reasoning."""
        self._tell(Reasoning(text))

    def answer(self, text: str = "", *calls: Proposal) -> None:
        """Come to the end of the answer."""
        self._tell(Answer(text, calls=calls, usage=Usage(3, 2)))

    def fail(self, error: Exception) -> None:
        """Break off."""
        self._tell(error)

    def _tell(self, piece: Piece | Exception) -> None:
        self._pieces.append(piece)
        self._told.set()

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """What the test says, as it says it."""
        try:
            while True:
                while not self._pieces:
                    self._told = anyio.Event()
                    await self._told.wait()
                piece = self._pieces.popleft()
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        except anyio.get_cancelled_exc_class():
            self.cut = True
            raise


class Told:
    """A model that says what the test tells it."""

    name = "told"

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self._came = anyio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        asked = Asked(request)
        self.requests.append(asked)
        self._came.set()
        self._came = anyio.Event()
        async for piece in asked.pieces():
            yield piece

    async def asked(self, times: int) -> Asked:
        """The request with that number, from 1, once it is there."""
        with anyio.fail_after(PATIENCE_S):
            while len(self.requests) < times:
                await self._came.wait()
        return self.requests[times - 1]

    async def check(self) -> str:
        return "told"

    async def aclose(self) -> None:
        """Nothing is held."""


class Played:
    """A model that answers by a function, with some turns of the loop before each piece."""

    name = "played"

    def __init__(
        self, play: Callable[[Request], Iterable[Piece]], turns: Callable[[], int] = lambda: 1
    ) -> None:
        self.requests: list[Request] = []
        self._play = play
        self._turns = turns

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        self.requests.append(request)
        for piece in self._play(request):
            await turn(self._turns())
            yield piece

    async def check(self) -> str:
        return "played"

    async def aclose(self) -> None:
        """Nothing is held."""


@asynccontextmanager
async def journaled(
    directory: Path, *, max_pages: int = 0, now: Reading = FIRST_BOOT
) -> AsyncIterator[SqliteJournal]:
    """The journal of `directory`, open."""
    journal = await SqliteJournal.open(
        directory / "journal.db",
        Blobs(directory),
        now=now,
        max_pages=max_pages,
    )
    try:
        yield journal
    finally:
        with anyio.CancelScope(shield=True):
            await journal.aclose()


def parts(
    directory: Path,
    journal: Journal,
    model: Model,
    tools: Sequence[Tool[Any]] | Callable[[], Sequence[Tool[Any]]] = (),
    clock: Clock | None = None,
    limits: Limits | None = None,
    on_start: OnStart = OnStart.RESUME,
    redactor: Redactor | None = None,
    hands: RunsCommands | None = None,
    window: int = 0,
    fallbacks: Sequence[Candidate] = (),
    small: Candidate | None = None,
    files: RestoresFiles | None = None,
    price: Price | None = None,
) -> ServiceDeps:
    """What a service is made of, with the test's own where it brings something."""
    return ServiceDeps(
        journal=journal,
        blobs=Blobs(directory),
        files=files or FileRestorer(Blobs(directory)),
        models=Models(
            Candidate(f"{model.name}/it", model, window, price=price or Price()),
            tuple(fallbacks),
            small=small,
        ),
        tools=tools if callable(tools) else lambda: tools,
        clock=clock or ManualClock(),
        limits=limits or Limits(),
        on_start=on_start,
        home=directory,
        workspace_roots=(),
        retention_s=86_400.0,
        policy=ApprovalPolicy(ApprovalMode.ASK, 600.0),
        version="test",
        redactor=redactor or Redactor(()),
        hands=hands or IdleHands(),
        audit=_unheard,
    )


async def _unheard(entry: AuditEntry) -> None:
    """Nobody reads the audit of these tests."""


@asynccontextmanager
async def running(made_of: ServiceDeps) -> AsyncIterator[Service]:
    """A service that has started; cut off at the end."""
    async with anyio.create_task_group() as tasks:
        service = Service(made_of, tasks)
        await service.start()
        try:
            yield service
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def serving(directory: Path, model: Model, **brought: Any) -> AsyncIterator[Service]:
    """A service over the journal of `directory`."""
    async with journaled(directory) as journal:
        async with running(parts(directory, journal, model, **brought)) as service:
            yield service


async def submit(service: Service, text: str, session: str | None = None) -> RunId:
    """Have it taken; the run's id."""
    to = None if session is None else SessionId(session)
    return (await service.send(Submit(ME, text, to))).run_id


async def stop(service: Service, run_id: RunId) -> None:
    """Ask for its end."""
    await service.send(Stop(ME, run_id, "enough"))


async def follow(service: Service, run_id: RunId, after: int = 0) -> list[Record]:
    """Every record after `after`, to the end of the run or of the reading."""
    records: list[Record] = []
    with anyio.fail_after(PATIENCE_S):
        async with service.follow(ME, run_id, after) as batches:
            if batches is not None:
                async for batch in batches:
                    records.extend(batch)
    return records


async def reach(service: Service, run_id: RunId, fact: type[Fact]) -> Record:
    """The run's first record of that kind, once it is there."""
    with anyio.fail_after(PATIENCE_S):
        async with service.follow(ME, run_id, 0) as batches:
            assert batches is not None
            async for batch in batches:
                for record in batch:
                    if isinstance(record.fact, fact):
                        return record
    raise AssertionError(f"the run ended without {kind(fact)}")


async def finished(service: Service, run_id: RunId) -> RunView:
    """The run as it is when it has ended."""
    await follow(service, run_id)
    return await service.run(ME, run_id)
