"""The world of chats: two platforms, and a gateway that has channels to both.

What a person says is numbered; the model says which numbers it has heard. So it can be seen, at
once or at the end, that each message was read once and in its order, and what became of it.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence

import anyio
import msgspec
from msgspec.structs import replace
from typing_extensions import override

from holdfast.channels.channel import Outgoing
from holdfast.core.address import ChatType, Groups, KeyBound, Reset
from holdfast.core.approval.approval import ApprovalGranted, ApprovalRequested, Choice, Role
from holdfast.core.chat import access
from holdfast.core.chat.delivery import DeliveryQueued, DeliveryStatus, OnAmbiguous, SendHeld
from holdfast.core.events import Record
from holdfast.core.inbox import InputAdmitted, InputPromoted, Mode, UpdateRef
from holdfast.core.messages import Message, User
from holdfast.core.run.call import CallSettled, OnCrash, Outcome
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import RunFailed
from holdfast.core.session.session import SessionOpened
from holdfast.core.types import CallId, DeliveryId, InputId, RequestId, Value
from holdfast.engine.chats.places import Connected
from holdfast.engine.chats.queues import NOTHING_TO_CHANGE, TOO_LATE
from holdfast.engine.deps import ServiceDeps
from holdfast.engine.messenger import Chatting
from holdfast.models.model import Candidate, Models
from holdfast.plugins import find_commands
from holdfast.tools import tool
from holdfast.tools.tool import Context, Done, Effect, Question, Tool
from tests.fakes.simloop import SimLoop
from tests.sim.listener import Listener, marks, workspace_of
from tests.sim.platforms import Hears, Platform, Polled, Polls, Pushed
from tests.sim.world import Death, Process, World

COMMANDS = find_commands()
CHOICES = (Choice.ONCE, Choice.DENY)


class Setting(Value):
    """What the configuration says of both channels."""

    busy: Mode
    reset: Reset
    progress: bool


class ChatWorld(World):
    """Two platforms, and what was heard and done."""

    def __init__(
        self,
        loop: SimLoop,
        seed: int,
        deaths: Sequence[Death],
        setting: Setting,
        places: int,
        trouble: float,
    ) -> None:
        super().__init__(loop, seed, deaths, places)
        self.setting = setting
        self.polled = Polled(self, trouble)
        self.pushed = Pushed(self, trouble)
        self.platforms: tuple[Platform, ...] = (self.polled, self.pushed)
        self.people: list[str] = []
        self.read: dict[int, list[int]] = {}  # by chat, in order
        self.held: set[DeliveryId] = set()  # ever
        self.touched: set[str] = set()  # updates that change no word
        self.bound: list[KeyBound] = []
        self.acted: Counter[CallId] = Counter()
        self._streams: dict[str, int] = {}  # by workspace
        self._texts: dict[InputId, str] = {}
        self._promoted: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        self._inputs: Counter[tuple[str, str]] = Counter()
        self._asked: dict[RequestId, CallId] = {}
        self._granted: set[CallId] = set()

    @override
    def make(self, number: int) -> Process:
        return ChatProcess(self, number)

    async def listen(
        self, process: "ChatProcess", session: str, messages: Sequence[Message]
    ) -> None:
        """The model is asked: by one drive of the session, about all it has read, and more."""
        if process is not self.process:
            await anyio.sleep_forever()
        if session in process.listener.busy:
            self.blame(f"a session is driven twice, with {messages}")
        said = marks(messages)
        known = self._promoted[self._streams[workspace_of(session)]]
        if said[: len(known)] != known or sorted(set(said)) != said:
            self.blame(f"the model has read {known} and is asked about {said}")

    def act(self, process: Process, call_id: CallId) -> None:
        """The effect of a call."""
        if call_id not in self._granted:
            self.blame(f"{call_id} acts, and nobody said so")
        self.acted[call_id] += 1
        if self.acted[call_id] > 1:
            self.blame(f"{call_id} acts twice")

    @override
    def _written(self, records: Sequence[Record]) -> None:
        super()._written(records)
        for record in records:
            self._note(record.fact)
            self._follow(record.stream, record.fact)
        self.polled.look_at_cursor()

    def _follow(self, stream: int, fact: object) -> None:
        """What has been read in which session: durably, for a crash takes back what is not."""
        match fact:
            case SessionOpened():
                self._streams[fact.workspace] = stream
            case InputAdmitted():
                self._texts[fact.input_id] = fact.text
            case InputPromoted():
                said = marks([User(self._texts[fact.input_id])])
                self._promoted[stream] += said
                for chat, number in said:
                    read = self.read.setdefault(chat, [])
                    if read and read[-1] >= number:
                        self.blame(f"chat {chat}: {number} is read after {read}")
                    read.append(number)
            case _:
                pass

    def _note(self, fact: object) -> None:
        came: UpdateRef | None = getattr(fact, "came", None)
        if came is not None:
            platform = self.polled if came.channel == self.polled.name else self.pushed
            platform.taken.add(came.external_id)
        match fact:
            case InputAdmitted(came=came) if came is not None:
                if came.external_id in self.touched:
                    self.blame(f"{came} is taken for words, and has none that are new")
                self._inputs[came.channel, came.external_id] += 1
                if self._inputs[came.channel, came.external_id] > 1:
                    self.blame(f"{came} is taken twice")
            case RunFailed():
                self.blame(f"a run failed: {fact}")
            case ApprovalRequested():
                self._asked[fact.request_id] = fact.call_id
            case ApprovalGranted():
                self._granted.add(self._asked[fact.request_id])
            case CallSettled(outcome=Outcome.OK):
                if not self.acted[fact.call_id]:
                    self.blame(f"{fact.call_id} is done, and never acted")
            case KeyBound():
                self._check_bound(fact)
                self.bound.append(fact)
            case SendHeld():
                self.held.add(fact.delivery_id)
            case _:
                pass

    def _check_bound(self, bound: KeyBound) -> None:
        """Nobody is told of a fresh start twice: there were words since the last."""
        before = [b.session_id for b in self.bound if b.key == bound.key]
        if bound.reason.automatic and not any(k.session_id == before[-1] for k in self.admitted):
            self.blame(f"afresh again, with nothing said since: {bound}")

    def taken(self, platform: Platform, external_id: str) -> bool:
        """Whether those words are in the journal."""
        return (platform.name, external_id) in self._inputs

    def quiet(self) -> bool:
        """Whether nothing is on its way."""
        return all(o.now.status.final for o in self.disk.outbox.values())

    @override
    def check(self) -> None:
        for one in self.disk.outbox.values():
            dead = one.now.status is DeliveryStatus.DEAD
            if dead and one.now.reason not in (NOTHING_TO_CHANGE, TOO_LATE):
                self.blame(f"given up: {one}")
        queued = [r.fact for r in self.disk.log if isinstance(r.fact, DeliveryQueued)]
        for platform in self.platforms:
            self._check_order(platform, queued)

    def _check_order(self, platform: Platform, queued: Sequence[DeliveryQueued]) -> None:
        """Each place saw its messages in the order they were queued, but for those held."""
        order = {q.delivery_id: n for n, q in enumerate(queued)}
        last: dict[str, Outgoing] = {}
        for message in platform.arrived:
            if message.delivery_id in self.held:
                continue
            before = last.get(message.address.chat)
            if before and order[before.delivery_id] > order[message.delivery_id]:
                self.blame(f"{message} overtaken by {before}")
            last[message.address.chat] = message


class What(msgspec.Struct):
    what: str


class ChatProcess(Process):
    """One life of a gateway with channels."""

    def __init__(self, world: ChatWorld, number: int) -> None:
        super().__init__(world, number)
        self._world = world
        self.listener = Listener(world.random, lambda s, m: world.listen(self, s, m))

    @override
    def _parts(self, limits: Limits) -> ServiceDeps:
        world = self._world
        channels = (Polls(world.polled, self), Hears(world.pushed, self))
        people = access.PlatformAccess(
            {name: frozenset(Role) for name in world.people},
            frozenset({ChatType.DIRECT}),
            pairing=False,
        )
        said = world.setting
        connected = {
            channel.name: Connected(
                channel,
                people,
                Groups.PER_USER,
                said.reset,
                said.busy,
                OnAmbiguous.RESEND_MARKED,
                progress=said.progress,
            )
            for channel in channels
        }
        tools = (self._tool(),)
        return replace(
            super()._parts(limits),
            models=Models(Candidate("listener/it", self.listener)),
            tools=lambda: tools,
            chatting=Chatting(connected, COMMANDS),
        )

    def _tool(self) -> Tool[What]:
        async def act(context: Context, arguments: What) -> tool.Outcome:
            pauses = self.world.random.choices((0.0, 0.01, 2.0), k=2)
            await asyncio.sleep(pauses[0])  # sleep: in virtual time
            if self is not self.world.process:
                await anyio.sleep_forever()
            self._world.act(self, context.call_id)
            await asyncio.sleep(pauses[1])  # sleep: in virtual time
            return Done("done")

        async def permit(context: Context, arguments: What) -> tool.Permission:
            return Question(arguments.what, "acts", arguments.what, CHOICES)

        described = ("act", "Acts.", What, Effect.ACT, OnCrash.UNKNOWN, 60.0)
        return Tool(*described, act, lambda arguments: arguments.what, permit)
