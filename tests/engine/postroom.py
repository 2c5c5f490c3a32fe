"""An outbox over a real journal, with a platform that the test holds in its hand.

What leaves `sending` is cut without a word, as by a crash.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.lowlevel
from typing_extensions import override

from holdfast.core.address import Address
from holdfast.core.chat.delivery import (
    Delivery,
    DeliveryPolicy,
    DeliveryQueued,
    DeliveryStatus,
    OnAmbiguous,
)
from holdfast.core.events import Record
from holdfast.core.run.run import Run
from holdfast.core.session.session import SessionOpened
from holdfast.core.types import DeliveryId, Fact, Owner, SessionId, SessionKey
from holdfast.engine.chats.outbox import Outbox
from holdfast.engine.chats.places import Outlet
from holdfast.engine.commits import Commits
from holdfast.engine.sessions import Sessions
from holdfast.journal.blobs import Blobs
from holdfast.journal.journal import Outbound
from holdfast.journal.sqlite.journal import SqliteJournal
from tests.fakes.channel import PATIENCE_S, Chat
from tests.fakes.clock import FIRST_BOOT, ManualClock

T = TypeVar("T")

MAX_PAGES = 2000  # of 4 KB: the journal's size, less than what spoils it


class Spoiled(SqliteJournal):
    """A journal whose commits fail when they hold what the test names, and whose reads can wait."""

    spoils: type[Fact] | None = None
    pause: anyio.Event | None = None  # what was read is told only when this is set
    reads = 0

    @override
    async def undelivered(self) -> list[Outbound]:
        return await self._paused(await super().undelivered())

    @override
    async def delivery(self, delivery_id: DeliveryId) -> Outbound | None:
        return await self._paused(await super().delivery(delivery_id))

    async def _paused(self, read: T) -> T:
        self.reads += 1
        if self.pause is not None:
            await self.pause.wait()
        return read

    @override
    def append(
        self, stream: int, expected_seq: int, at: float, facts: Sequence[Fact], runs: Sequence[Run]
    ) -> Any:
        pending = super().append(stream, expected_seq, at, facts, runs)
        if self.spoils is not None and any(isinstance(f, self.spoils) for f in facts):
            other = self.open_stream(SessionKey(Owner("spoiler"), SessionId("big")))
            big = SessionOpened(session_id="big", workspace="x" * 9_000_000, platform="")
            super().append(other.stream, 0, at, [big], [])  # it has no place to go
        return pending


class Desk:
    """One process's outbox."""

    def __init__(
        self,
        journal: Spoiled,
        directory: Path,
        clock: ManualClock,
        outbox: Outbox,
        sessions: Sessions,
    ) -> None:
        self.journal = journal
        self.outbox = outbox
        self.sessions = sessions
        self.clock = clock
        self._directory = directory
        self._changed = anyio.Event()
        self.failures = 0
        journal.on_commit(self._committed)
        journal.on_failure(self._failed)

    def _committed(self, records: Sequence[Record]) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _failed(self) -> None:
        self.failures += 1
        self._committed(())

    async def say(self, chat: str, *facts: Fact) -> None:
        """Have facts of the chat's session committed."""
        key = SessionKey(Owner(chat), SessionId(chat))
        async with self.sessions.load(key) as held:
            first: tuple[Fact, ...] = ()
            if held is None:
                held = self.sessions.create(key)
                first = (SessionOpened(session_id=chat, workspace="", platform="chat"),)
            await self.sessions.append(held, *first, *facts).wait()

    async def become(self, delivery_id: str, *status: DeliveryStatus) -> Delivery:
        """The delivery, once the journal has it so."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                changed = self._changed
                found = await self.journal.delivery(DeliveryId(delivery_id))
                if found is not None and found.now.status in status:
                    return found.now
                await changed.wait()

    async def fail(self, times: int) -> None:
        """Return when so many commits have failed."""
        with anyio.fail_after(PATIENCE_S):
            while self.failures < times:
                await self._changed.wait()

    async def due(self, seconds: float) -> None:
        """Return when somebody sleeps who is due that soon."""
        with anyio.fail_after(PATIENCE_S):
            await self.clock.due_within(seconds)

    async def passes(self, seconds: float) -> None:
        """Let so much time pass, once somebody waits for it."""
        await self.due(seconds)
        self.clock.advance(seconds)

    async def read(self, times: int) -> None:
        """Return when so much was read since the reads were paused, and nobody reads more."""
        with anyio.fail_after(PATIENCE_S):
            while self.journal.reads < times:
                await anyio.lowlevel.checkpoint()
        for _ in range(50):
            await anyio.lowlevel.checkpoint()

    def pause(self) -> anyio.Event:
        """From now on what is read is told only when this is set."""
        self.journal.pause, self.journal.reads = anyio.Event(), 0
        return self.journal.pause

    async def idle(self) -> None:
        """Return when nothing is on its way."""
        with anyio.fail_after(PATIENCE_S):
            while self.outbox.counts().lanes:
                await anyio.lowlevel.checkpoint()

    def spoil(self, fact: type[Fact] | None) -> None:
        """From now on no commit with such a fact succeeds; None: all do again."""
        self.journal.spoils = fact
        there, away = self._directory / "blobs", self._directory / "away"
        if fact is not None and there.exists():
            there.rename(away)
        elif fact is None and away.exists():
            away.rename(there)


@asynccontextmanager
async def sending(
    directory: Path,
    *channels: Chat,
    clock: ManualClock | None = None,
    on_ambiguous: OnAmbiguous = OnAmbiguous.RESEND_MARKED,
    start: bool = True,
    home: Address | None = None,
) -> AsyncIterator[Desk]:
    """An outbox with these channels; cut off at the end."""
    clock = clock or ManualClock()
    path, blobs = directory / "journal.db", Blobs(directory)
    journal = await Spoiled.open(path, blobs, now=FIRST_BOOT, max_pages=MAX_PAGES)
    assert isinstance(journal, Spoiled)
    try:
        async with anyio.create_task_group() as tasks:
            sessions = Sessions(journal, clock)
            outlets = {
                c.name: Outlet(c, DeliveryPolicy(c.capabilities.idempotent_send, on_ambiguous))
                for c in channels
            }

            async def at_home() -> Address | None:
                return home

            outbox = Outbox(journal, sessions, clock, outlets, tasks, at_home)
            outbox.subscribe(Commits(journal, lambda records: None))
            desk = Desk(journal, directory, clock, outbox, sessions)
            if start:
                await outbox.start()
            try:
                yield desk
            finally:
                tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await journal.aclose()


def message(
    channel: Chat,
    chat: str,
    name: str,
    *,
    edits: str = "",
    buttons: tuple[tuple[str, str], ...] = (),
    perishable: bool = False,
) -> DeliveryQueued:
    """A message whose text is its name."""
    return DeliveryQueued(
        delivery_id=DeliveryId(name),
        address=channel.address(chat),
        text=name,
        edits=DeliveryId(edits),
        buttons=buttons,
        perishable=perishable,
    )
