"""What a strict reader of the chats found, each as it went wrong."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html import escape
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from msgspec.structs import replace

from holdfast import plugins
from holdfast.channels.channel import Incoming
from holdfast.channels.text import render
from holdfast.config.process import Supervision
from holdfast.core.address import Address, ChatType, Groups, Idle, Never, Reset
from holdfast.core.approval.approval import ApprovalRequested, Choice, Role
from holdfast.core.approval.rules import HostRule
from holdfast.core.chat import access
from holdfast.core.chat.chats import UpdateTaken
from holdfast.core.chat.delivery import DeliveryPolicy, DeliveryQueued, OnAmbiguous
from holdfast.core.events import Record
from holdfast.core.inbox import Mode
from holdfast.core.life.lifecycle import Supervisor
from holdfast.core.run.call import OnCrash
from holdfast.core.run.child import ChildBegun
from holdfast.core.run.run import Origin, RunCompleted, RunQueued
from holdfast.core.session import delegation, replies, session
from holdfast.core.session.session import Session, SessionOpened, SessionSuspended
from holdfast.core.session.session import SessionStatus as SessionStatus
from holdfast.core.types import (
    CallId,
    DeliveryId,
    Fact,
    InputId,
    Owner,
    RequestId,
    RunId,
    SessionId,
    SessionKey,
    Usage,
)
from holdfast.engine.chats.inbound import Inbound
from holdfast.engine.chats.outbox import Outbox
from holdfast.engine.chats.places import Connected, Outlet
from holdfast.engine.messenger import Chatting
from holdfast.engine.service import Service
from holdfast.engine.sessions import Sessions
from holdfast.errors import JournalUnavailable, Transient
from holdfast.host.control import GatewayControl
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast.tools.tool import Context, Done, Effect, Outcome, Permission, Question, Tool, free
from tests.engine import workshop
from tests.engine.workshop import PATIENCE_S, Asked, Told
from tests.fakes.channel import Chat
from tests.fakes.clock import ManualClock

pytestmark = pytest.mark.anyio

NEVER = Never()
ANN, BOB = "1", "2"
USERS = {
    ANN: frozenset({Role.RUN, Role.APPROVE}),
    BOB: frozenset({Role.RUN}),
}


class Room:
    """One chat of one platform, and the people in it."""

    def __init__(
        self,
        service: Service,
        journal: SqliteJournal,
        platform: Chat,
        model: Told,
        clock: ManualClock,
    ) -> None:
        assert service.messenger is not None
        self.chats: Inbound = service.messenger.chats
        self.service = service
        self.journal = journal
        self.platform = platform
        self.model = model
        self.clock = clock
        self._number = 0

    def incoming(self, text: str, user: str = ANN, *, pressed: str = "") -> Incoming:
        self._number += 1
        at = Address(platform="chat", chat_type=self.kind, chat="room", user=user)
        own = f"{self._number}"
        return Incoming(own, own, at, f"user {user}", text, message_id=own, pressed=pressed)

    kind = ChatType.DIRECT

    async def say(self, text: str, user: str = ANN) -> None:
        """Have it taken."""
        await self.chats.take("chat", self.incoming(text, user))

    async def settled(self) -> None:
        """Return when nothing is on its way, as the journal has it."""
        assert self.service.messenger is not None
        with anyio.fail_after(PATIENCE_S):
            while self.service.messenger.outbox.counts().pending:
                await anyio.lowlevel.checkpoint()

    async def hears(self, part: str) -> str:
        """The first message with `part` in it, once it is there."""
        at = 1
        while part not in (text := (await self.platform.came(at)).text):
            at += 1
        return text


@asynccontextmanager
async def room(
    directory: Path,
    *,
    reset: Reset = NEVER,
    kind: ChatType = ChatType.DIRECT,
    groups: Groups = Groups.PER_USER,
    clock: ManualClock | None = None,
    tools: Sequence[Any] = (),
) -> AsyncIterator[Room]:
    platform, model, clock = Chat(), Told(), clock or ManualClock()
    rules = access.PlatformAccess(USERS, frozenset(ChatType), pairing=True)
    ambiguous = OnAmbiguous.RESEND_MARKED
    connected = Connected(platform, rules, groups, reset, Mode.INTERRUPT, ambiguous, progress=False)
    async with workshop.journaled(directory) as journal:
        made_of = workshop.parts(directory, journal, model, clock=clock, tools=tools)
        chatting = Chatting({"chat": connected}, plugins.find_commands())
        async with workshop.running(replace(made_of, chatting=chatting)) as service:
            found = Room(service, journal, platform, model, clock)
            found.kind = kind
            yield found


async def answered(it: Room, times: int, text: str) -> Asked:
    """Have the model answer its request with that number."""
    asked = await it.model.asked(times)
    asked.answer(text)
    await it.hears(text)
    await it.settled()
    return asked


async def test_a_session_that_was_brought_back_is_not_idle(tmp_path: Path) -> None:
    async with room(tmp_path, reset=Idle(60)) as it:
        await it.say("my name is Ada")
        await answered(it, 1, "noted")
        it.clock.advance(2 * 3600)
        await it.say("hello")
        await answered(it, 2, "hi")
        await it.say("/resume")
        await it.hears("Back in session 1")
        await it.say("what is my name?")
        asked = await it.model.asked(3)
        assert [m.text for m in asked.messages][0] == "my name is Ada"


async def test_a_resume_that_comes_again_brings_back_the_same_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with room(tmp_path) as it:
        await it.say("first things")
        await answered(it, 1, "one")
        await it.say("/new")
        await it.say("second things")
        await it.model.asked(2)
        await it.say("/stop")
        resume = it.incoming("/resume")
        _lose_once(it, monkeypatch, UpdateTaken)
        with pytest.raises(Transient):
            await it.chats.take("chat", resume)
        await it.chats.take("chat", resume)  # the platform sends it again
        await it.say("go on")
        asked = await it.model.asked(3)
        assert [m.text for m in asked.messages][0] == "second things"


def _lose_once(it: Room, monkeypatch: pytest.MonkeyPatch, kind: type[Fact]) -> None:
    """The next append with a fact of that kind fails, as on a full disk."""
    append = it.journal.append

    def failing(stream: int, head: int, at: float, facts: Sequence[Fact], runs: Any) -> Any:
        if any(isinstance(f, kind) for f in facts):
            monkeypatch.setattr(it.journal, "append", append)
            raise JournalUnavailable("the disk is full")
        return append(stream, head, at, facts, runs)

    monkeypatch.setattr(it.journal, "append", failing)


@pytest.mark.promise("STOP-07")
async def test_a_restart_asked_for_twice_has_one_successor(tmp_path: Path) -> None:
    successors: list[str] = []
    async with room(tmp_path) as it:
        watched = Supervision(by=Supervisor.NONE)
        fine = anyio.lowlevel.checkpoint
        control = GatewayControl(it.service, watched, lambda: successors.append("one"), fine)
        await control.restart(workshop.ME)
        await control.restart(workshop.ME)
    assert successors == ["one"]


async def test_a_grant_of_one_member_is_not_the_others(tmp_path: Path) -> None:
    tool = Tool(
        "risky", "Do it.", Nothing, Effect.ACT, OnCrash.UNKNOWN, 10, _done, str, _asks_first
    )
    shared: Any = {"kind": ChatType.GROUP, "groups": Groups.SHARED, "tools": (tool,)}
    async with room(tmp_path, **shared) as it:
        await it.say("do it", ANN)
        (await it.model.asked(1)).answer("", workshop.call("risky"))
        await it.hears("May this run?")
        await it.say("/approve session", ANN)
        await answered(it, 2, "done for Ann")
        await it.say("do it for me", BOB)
        (await it.model.asked(3)).answer("", workshop.call("risky", call_id="c2"))
        with anyio.fail_after(PATIENCE_S):
            while not (asks := [m for m in it.platform.sent if "May this run?" in m.text])[1:]:
                assert len(it.model.requests) < 4, "it ran unasked, by Ann's word"
                await anyio.lowlevel.checkpoint()
        assert len(asks) == 2


class Nothing(msgspec.Struct):
    pass


async def _done(context: Context, asked: Nothing) -> Outcome:
    return Done("done")


async def _asks_first(context: Context, asked: Nothing) -> Permission:
    choices = (Choice.ONCE, Choice.SESSION, Choice.DENY)
    return Question("risky", "does it", "hash", choices, (HOST,))


HOST: Any = HostRule(name="example.org")


@pytest.mark.fault("F-34")
async def test_a_press_for_a_run_of_others_reads_like_one_for_none(tmp_path: Path) -> None:
    async with room(tmp_path) as it:
        await it.say("ask me", ANN)
        await it.model.asked(1)
        row = (await it.journal.unfinished())[0]
        other = replace(it.incoming("", BOB).address, chat="other")
        for run_id in (row.run_id, "run_none"):
            press = it.incoming("", BOB, pressed=f"q:{run_id}:00000000:0")
            await it.chats.take("chat", replace(press, address=other))
        await it.platform.came(2, "other")
        assert len(set(it.platform.texts("other"))) == 1


async def test_a_stop_leaves_the_session_to_others_who_work_in_it(tmp_path: Path) -> None:
    async with room(tmp_path, kind=ChatType.GROUP, groups=Groups.SHARED) as it:
        await it.say("I am Ann", ANN)
        first = await it.model.asked(1)
        await it.say("and I am Bob", BOB)  # it waits: what works for Ann is left alone
        await it.say("/stop", BOB)
        await it.hears("Stopped: 1 run.")
        first.answer("hello Ann")
        await it.hears("hello Ann")
        await it.say("who am I?", ANN)
        assert (await it.model.asked(2)).messages[0].text == "I am Ann"


async def test_a_second_stop_while_the_first_is_at_work_is_no_refusal(tmp_path: Path) -> None:
    begun, may_end = anyio.Event(), anyio.Event()

    async def work(context: Context, asked: Nothing) -> Outcome:
        begun.set()
        with anyio.CancelScope(shield=True):
            await may_end.wait()
        return Done("done")

    tool = Tool("work", "Do it.", Nothing, Effect.ACT, OnCrash.UNKNOWN, 10, work, str, free)
    async with room(tmp_path, tools=(tool,)) as it:
        await it.say("do it")
        (await it.model.asked(1)).answer("", workshop.call("work"))
        await begun.wait()
        await it.say("/stop")
        await it.say("/stop")
        may_end.set()
        await it.platform.came(2)
        assert all("Stopped: 1 run." in text for text in it.platform.texts("room"))


@pytest.mark.promise("BACK-05")
def test_the_end_of_a_task_leaves_a_suspended_chat_suspended() -> None:
    key = SessionKey(Owner("chat:1"), SessionId("agent:main:chat:dm:room"))
    at = Address(platform="chat", chat_type=ChatType.DIRECT, chat="room", user=ANN)
    begun = ChildBegun(
        run_id=RunId("run_1"),
        call_id=CallId("c1"),
        child=RunId("run_2"),
        task="look",
        background=True,
        origin=Origin(platform="chat", late=True, address=at),
    )
    now = Session(key)
    now = session.evolve(now, begun, 1.0)
    now = session.evolve(now, SessionSuspended(reason="stopped"), 1.0)
    ending = RunCompleted(run_id=begun.child, output="found", usage=Usage())
    after = RunQueued(run_id=RunId("run_3"), input_id=InputId("in_3"), origin=begun.origin)
    for fact in delegation.reported(now, now.children[begun.child], ending, after):
        now = session.evolve(now, fact, 2.0)
    assert now.status is SessionStatus.SUSPENDED
    assert list(now.runs) == [after.run_id]


async def test_a_new_message_does_not_wait_for_all_old_deliveries(
    tmp_path: Path,
) -> None:
    many = 600
    async with workshop.journaled(tmp_path) as journal:
        for number in range(many):
            at = Address(platform="chat", chat_type=ChatType.DIRECT, chat=f"{number}")
            key = SessionKey(Owner(f"chat:{number}"), SessionId(at.key))
            opened = SessionOpened(session_id=at.key, workspace="", platform="chat")
            left = DeliveryQueued(delivery_id=DeliveryId(f"d{number}"), address=at, text="late")
            stream = journal.open_stream(key).stream
            journal.append(stream, 0, 1.0, (opened, left), ())  # durable once it is closed
    async with room(tmp_path) as it:
        await it.say("hello")
        assert len(it.platform.sent) < many / 2
        await it.platform.came(many)
        await it.settled()


@pytest.mark.parametrize("words", ["~~", "**Approved.**", "[it](https://x.example)", "```"])
def test_the_reply_to_a_command_is_shown_unchanged(words: str) -> None:
    at = Address(platform="telegram", chat_type=ChatType.DIRECT, chat="1")
    origin = Origin(platform="telegram", address=at)
    queued = RunQueued(run_id=RunId("run_1"), input_id=InputId("in_1"), origin=origin)
    now = session.evolve(Session(SessionKey(Owner("o"), SessionId("s"))), queued, 1.0)
    about = f"Directory: /work/{words}\nTo permit: write to /etc\nThe model says: {words}"
    asked = ApprovalRequested(
        run_id=queued.run_id,
        call_id=CallId("c1"),
        request_id=RequestId("apr_1"),
        command="make",
        description=about,
        execution="",
        choices=(Choice.ONCE, Choice.DENY),
        expires_at=9.0,
    )
    (shown,) = replies.messages(now, now, (asked,), lambda platform, text: (text,))
    part = render.telegram(shown.text, named_hosts=())
    assert part is not None
    assert part.html.endswith(f"<pre>{escape(about)}</pre>")


@pytest.mark.promise("LATE-09")
async def test_nothing_begins_to_be_carried_once_the_process_is_cut(tmp_path: Path) -> None:
    platform, clock = Chat(), ManualClock()
    policy = DeliveryPolicy(idempotent=False, on_ambiguous=OnAmbiguous.RESEND_MARKED)
    late = DeliveryQueued(delivery_id=DeliveryId("d1"), address=platform.address("1"), text="late")
    async with workshop.journaled(tmp_path) as journal, anyio.create_task_group() as tasks:
        sessions = Sessions(journal, clock)
        outbox = Outbox(journal, sessions, clock, {"chat": Outlet(platform, policy)}, tasks)
        await outbox.start()
        tasks.cancel_scope.cancel()
        outbox.committed(Record(1, 1, clock.now(), late))
        assert outbox.counts().lanes == 0
