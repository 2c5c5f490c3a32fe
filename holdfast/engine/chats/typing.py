"""Typing indicators and progress messages in chats, while a run works.

They are not recorded and need not arrive: a lost one is shown again a moment later, or replaced by
the run's answer. A run that works has one or two tasks here; one that waits or has ended has none.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

import anyio
from anyio.abc import TaskGroup
from msgspec import field

from holdfast.channels.channel import Channel, Doubtful, Later, Outgoing, Sent
from holdfast.core.address import Address
from holdfast.core.events import TERMINAL, Record, run_of
from holdfast.core.run import call, run
from holdfast.core.run.call import CallStarted
from holdfast.core.run.run import Run
from holdfast.core.session.replies import step
from holdfast.core.types import DeliveryId, Fact, Part, RunId
from holdfast.engine.clock import Clock
from holdfast.engine.commits import Commits
from holdfast.engine.sessions import Sessions

log = logging.getLogger(__name__)

TYPING_EVERY_S = 4.0
CHANGE_EVERY_S = 3.0
CHANGE_S = 5.0  # for an edit; the final message waits that long for it at most


async def carry(channel: Channel, message: Outgoing, clock: Clock, within_s: float) -> Sent:
    """Deliver the message; if that takes longer than `within_s`, its outcome is unknown."""
    answer: Sent = Doubtful(f"no answer within {within_s:g} s")

    async def give_up() -> None:
        await clock.sleep(within_s)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(give_up)
        try:
            answer = await channel.deliver(message)
        except Exception as error:
            log.exception("a channel raised", extra={"channel": channel.name})
            answer = Doubtful(f"the channel failed ({type(error).__name__}); the log says how")
        group.cancel_scope.cancel()
    return answer


class _Shown(Part):
    """One run at work."""

    run_id: RunId
    channel: Channel
    address: Address
    typing: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    nap: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    over: bool = False
    text: str = ""  # the text that the message should have
    said: str = ""  # the text that it has
    step: int = 0  # the step in the text
    telling: bool = False
    next_at: float = 0.0

    @property
    def message(self) -> DeliveryId:
        """The id of the progress message."""
        return DeliveryId(f"pro_{self.run_id}")


class Presence(Part):
    """Shows active runs in their chats."""

    _sessions: Sessions
    _clock: Clock
    _channels: Mapping[str, Channel]
    _tasks: TaskGroup
    _message_id: Callable[[DeliveryId], Awaitable[str]]  # the platform's; empty: not sent yet
    _runs: dict[RunId, _Shown] = {}
    _changing: dict[DeliveryId, anyio.Event] = {}
    _open: bool = False

    def subscribe(self, commits: Commits) -> None:
        """Subscribe to the facts that begin and end a display, if there are channels."""
        if self._channels:
            commits.subscribe(_SIGNS, self._committed)

    def _committed(self, record: Record) -> None:
        if self._open and (run_id := run_of(record.fact)) is not None:
            self._look(run_id, record.fact)

    def start(self) -> None:
        """Show runs that begin from now on."""
        self._open = True

    def stop(self) -> None:
        """Stop showing anything."""
        self._open = False
        for run_id in tuple(self._runs):
            self._end(run_id)

    async def settled(self, delivery_id: DeliveryId) -> None:
        """Return when no edit of that message is being sent, so that the next one comes after."""
        if (changed := self._changing.get(delivery_id)) is not None:
            await changed.wait()

    def _look(self, run_id: RunId, fact: Fact) -> None:
        now = self._at_work(run_id)
        if now is None or (address := now.origin.address) is None:
            self._end(run_id)
        elif (channel := self._channels.get(address.platform)) is not None:
            shown = self._runs.get(run_id) or self._begin(run_id, channel, address)
            wanted = now.origin.progress and now.parent is None
            if isinstance(fact, CallStarted) and not fact.quiet and wanted:
                self._progress(shown, now, fact)

    def _at_work(self, run_id: RunId) -> Run | None:
        found = self._sessions.running(run_id)
        if found is None or found[1].status is not run.RunPhase.RUNNING or found[1].stop_reason:
            return None
        return found[1]

    def _begin(self, run_id: RunId, channel: Channel, address: Address) -> _Shown:
        shown = self._runs[run_id] = _Shown(run_id, channel, address.place)
        if channel.capabilities.typing:
            self._tasks.start_soon(self._type, shown)
        return shown

    def _end(self, run_id: RunId) -> None:
        if (shown := self._runs.pop(run_id, None)) is not None:
            shown.over = True
            shown.typing.cancel()
            shown.nap.cancel()

    async def _type(self, shown: _Shown) -> None:
        with shown.typing:
            while self._at_work(shown.run_id) is not None:
                try:
                    await shown.channel.show_typing(shown.address)
                except Exception:
                    log.exception("a channel raised", extra={"channel": shown.channel.name})
                await self._clock.sleep(TYPING_EVERY_S)

    def _progress(self, shown: _Shown, now: Run, started: CallStarted) -> None:
        if not shown.channel.capabilities.edits:
            return
        shown.step, shown.text = now.steps, f"Working, step {now.steps}: {step(started)}"
        if now.steps == 1:
            shown.said = shown.text  # the message is queued with this fact
            shown.next_at = self._clock.now() + CHANGE_EVERY_S
        if not shown.telling and shown.text != shown.said:
            shown.telling = True
            self._tasks.start_soon(self._tell, shown)

    async def _tell(self, shown: _Shown) -> None:
        """Send the newest text, not too often, until it is shown."""
        try:
            while not shown.over and shown.text != shown.said:
                if (wait_s := shown.next_at - self._clock.now()) > 0:
                    with anyio.CancelScope() as shown.nap:
                        await self._clock.sleep(wait_s)
                    continue
                shown.next_at, shown.said = self._clock.now() + CHANGE_EVERY_S, shown.text
                await self._change(shown, shown.step)
        except Exception:
            log.exception("progress was not shown", extra={"run_id": shown.run_id})
        finally:
            shown.telling = False

    async def _change(self, shown: _Shown, step: int) -> None:
        edit = await self._message_id(shown.message)
        if not edit or shown.over:
            return  # the message is not sent yet, or its final text is
        # Its own id: a receiver drops a request whose id it has seen.
        name = DeliveryId(f"{shown.message}.{step}")
        message = Outgoing(name, shown.address, shown.said, edit=edit)
        done = self._changing[shown.message] = anyio.Event()
        try:
            answer = await carry(shown.channel, message, self._clock, CHANGE_S)
        finally:
            del self._changing[shown.message]
            done.set()
        if isinstance(answer, Later):
            shown.next_at = max(shown.next_at, self._clock.now() + answer.after_s)


# The facts with which a run becomes active or stops being active.
_SIGNS: frozenset[type[Fact]] = frozenset(
    {
        run.RunStarted,
        run.RunResumed,
        run.RunInterrupted,
        run.StopAsked,
        *call.Event.__args__,
        *TERMINAL,
    }
)
