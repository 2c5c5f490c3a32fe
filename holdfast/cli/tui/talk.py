"""The conversation between the keyboard and the front door.

Messages are sent in the order they were typed, each with its own key, and are shown as "on its way"
until they are accepted; a refused message returns to the input line. The server decides what a
message does to an active run in the step that accepts it, so no moment is wrong (HALT-01, -02). An
interrupt names the run that was on the screen when the key was pressed, and does not wait behind
messages.

Every event of the session is shown, also of runs that another terminal, a background process or a
chat started. If the server of the home ends, the session continues here from the last event seen.
"""

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex

import anyio
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream
from msgspec.structs import replace

from holdfast.app.ending import arm_exit
from holdfast.cli.client import latest
from holdfast.cli.client.client import Client, connect
from holdfast.cli.client.frames import Frame
from holdfast.cli.client.input import input_of
from holdfast.cli.client.refusals import NotFound, TooLateExit, WorkspaceFixed
from holdfast.cli.exits import Code, Exit, sole
from holdfast.cli.run import attachments, options, run
from holdfast.cli.run.options import RunOptions
from holdfast.cli.run.questions import hear_children
from holdfast.cli.tui import commands, status, transcript
from holdfast.cli.tui.actions import (
    Action,
    AnswerQuestion,
    Halt,
    Quit,
    SendMessage,
    ShowCall,
    TakeBack,
    Unfold,
)
from holdfast.cli.tui.questions import ScreenQuestions
from holdfast.cli.tui.ui import Ui
from holdfast.cli.tui.unfolding import Unfolding
from holdfast.cli.tui.view import View, WaitingMessage
from holdfast.config.settings import Config

LEAVE_S = 4.0  # to shut down; then the process exits, whatever hangs (HALT-05)


async def serve(
    config: Config, wish: RunOptions, ui: Ui, actions: MemoryObjectReceiveStream[Action]
) -> None:
    """Carry out `actions` until one of them is `Quit`."""

    def tell(text: str) -> None:
        ui.print([ui.style.dim(f"… {text}")])

    async with (
        connect(config, tell, linger_s=0.0) as client,
        anyio.create_task_group() as tasks,
    ):
        talk = TerminalConversation(config, client, wish, ui, tasks)
        with anyio.CancelScope() as until_left:
            async with anyio.create_task_group() as working:
                working.start_soon(talk.begin)
                working.start_soon(_take, talk, actions, until_left)
                working.start_soon(talk.speak)
        arm_exit(LEAVE_S, lambda: Code.OK)  # from here on nothing can delay the exit
        await ui.leave()
        for line in talk.farewell():
            print(line, flush=True)
        tasks.cancel_scope.cancel()


async def _take(
    talk: "TerminalConversation",
    actions: MemoryObjectReceiveStream[Action],
    until_left: anyio.CancelScope,
) -> None:
    async for action in actions:
        if isinstance(action, Quit):
            until_left.cancel()
        else:
            talk.take(action)


class TerminalConversation:
    """One conversation at a terminal."""

    def __init__(
        self, config: Config, client: Client, wish: RunOptions, ui: Ui, tasks: TaskGroup
    ) -> None:
        self.client = client.for_owner(wish.owner)
        self.ui = ui
        self.session_id = wish.session_id or f"ses_{token_hex(16)}"
        self._config = config
        self._wish = wish
        self._tasks = tasks
        self.known = bool(wish.session_id)  # to the server
        self._listening = anyio.CancelScope()
        self._children = tasks  # tasks that follow the child runs
        self._said, self._heard = anyio.create_memory_object_stream[SendMessage | AnswerQuestion](
            math.inf
        )
        self._asking = ScreenQuestions(client, ui, tasks)
        self._unfolding = Unfolding(self)
        self._runs: set[str] = set()  # whose events are shown; others are in the transcript
        self._ready = anyio.Event()  # the session is known
        self.workspace = wish.workspace
        ui.status = status.line(config, ui, wish.model or config.model)
        ui.holding = self._holding

    @property
    def view(self) -> View:
        return self.ui.view

    # Start

    async def begin(self) -> None:
        """Greet, show the transcript of a continued session, and listen to its events."""
        async with self._telling():
            model = await run.model_in_use(self.client, self._config)
            self.ui.status = status.line(self._config, self.ui, model)
            self.ui.print(status.greeting(self.ui, model, self._wish))
            await self.client.runs(limit=1)  # from here on there is a server, if only this process
            self._tasks.start_soon(self._look_at_health)
        try:
            async with self._telling():
                await self._find_session()
        finally:
            self._ready.set()
        async with self._telling():
            await commands.learn(self.client, self.ui)

    async def _find_session(self) -> None:
        if self._wish.goes_on:
            found = await latest.latest(self.client, self._wish.workspace)
            self._wish = self._wish.within(found.session_id)
            self.session_id, self.known = found.session_id, True
        elif self.known and not self.client.owner:
            await self._check_own()
        if self.known:
            await self._enter(self.session_id)

    async def _check_own(self) -> None:
        """Start a session with a new id if the named one belongs to another owner."""
        try:
            await latest.check_own(self.client, self.session_id)
        except Exit:
            self.session_id, self.known = f"ses_{token_hex(16)}", False
            self._wish = self._wish.within("")
            raise

    async def _look_at_health(self) -> None:
        health = await self.client.health()
        if health is not None:
            self.view.sandbox = self.view.sandbox or health.sandbox.level
            if health.paused:
                self.ui.print([self.ui.style.bad(f"… held: {health.paused}")])

    async def look_at_session(self) -> None:
        """Show the session's model in the status line, and complete files of its workspace."""
        found = await self.client.session(self.session_id)
        self.ui.status = status.line(self._config, self.ui, found.model)
        self.ui.name = found.name
        if found.workspace:
            self.workspace = found.workspace
            commands.move(self.ui, Path(found.workspace))

    def _holding(self) -> str:
        """Say what would end with this process; empty if another process serves the home."""
        if not (self.client.is_owner and self.view.processes):
            return ""
        names = ", ".join(self.view.processes)
        return f"leaving ends background processes ({names}); a gateway keeps them: holdfast gateway run"

    async def enter(self, session_id: str, owner: str = "", *, again: bool = True) -> None:
        """Continue in another session, and show its transcript if it is to be shown `again`.

        `owner` is its owner, if that is not the operator.
        """
        self._listening.cancel()
        self.client = self.client.for_owner(owner)
        self._asking.forget()
        self.ui.clear_view()
        self.session_id, self.known = session_id, True
        self.workspace = self._wish.workspace  # of a new one
        commands.move(self.ui, Path(self.workspace))
        await self._enter(session_id, again=again)

    async def _enter(self, session_id: str, *, again: bool = True) -> None:
        """Show the transcript of a session and listen to its events."""
        try:
            known = await self.client.history(session_id)
        except NotFound:
            self.known = False  # its first message creates it
            return
        except Exit:
            self._listen()  # then all of its events are shown
            raise
        runs = await self.client.runs(session_id)
        self._runs = set(known.unfinished)
        if again:
            self.ui.print(transcript.shown(self.view, known.data, runs))
        await self.look_at_session()
        self._listen(known.after)

    def _listen(self, after: int = 0) -> None:
        self._listening = anyio.CancelScope()
        self._tasks.start_soon(self._hear, self.session_id, after, self._listening)

    async def _hear(self, session_id: str, after: int, scope: anyio.CancelScope) -> None:
        with scope:
            while True:
                async with self._telling(), anyio.create_task_group() as self._children:
                    stream = self.client.attend(session_id, after, self._unfinished)
                    async with aclosing(stream) as frames:
                        async for frame in frames:
                            after = frame.event.seq
                            await self._unfolding.learn(frame.event)
                            self._show(frame)
                await anyio.sleep(1.0)  # no server, as was shown above: keep trying

    def _unfinished(self) -> Sequence[str]:
        view = self.view
        return [*([view.run_id] if view.run_id else []), *view.waiting]

    def _show(self, frame: Frame) -> None:
        event = frame.event
        if event.event == "run.queued":
            self._runs.add(event.run_id)
        elif event.run_id and event.run_id not in self._runs:
            return
        if self._asking.hear(event):
            return
        hear_children(self.client, event, self._asking.hear, self._children)
        self.ui.show(event)
        self._bring_back(self.view.take_unread())
        self.ui.app.invalidate()

    # Actions

    def take(self, action: Action) -> None:
        """Start an action. Messages wait for earlier messages, other actions do not."""
        match action:
            case SendMessage() | AnswerQuestion():
                self._said.send_nowait(action)
            case Halt():
                self._tasks.start_soon(self._halt, action)
            case TakeBack():
                self._tasks.start_soon(self._take_back)
            case Unfold():
                self._tasks.start_soon(self._unfold)
            case ShowCall(call_id=call_id):
                self._tasks.start_soon(self._unfold, call_id)
            case _:
                pass

    async def speak(self) -> None:
        """Send messages and answers to the server, in order."""
        await self._ready.wait()
        async for action in self._heard:
            if isinstance(action, SendMessage):
                await self._say(action)
            else:
                async with self._telling(partial(self._give_back, action)):
                    await self._asking.reply(action)

    async def _say(self, said: SendMessage) -> None:
        try:
            async with self._telling(partial(self._give_back, said)):
                if not await commands.obey(self, said):
                    await self._submit(said)
        finally:
            said.arrived.set()
            if said in self.ui.sending:
                self.ui.sending.remove(said)
            self.ui.app.invalidate()

    def _give_back(self, said: SendMessage | AnswerQuestion, why: Exit) -> None:
        if isinstance(said, AnswerQuestion) and said.chooses:
            return self.ui.ask_again()
        lost = why.code is Code.TRY_AGAIN  # the message may have been accepted
        unsure = said if lost and isinstance(said, SendMessage) else None
        return self.ui.give_back(said.text, unsure)

    async def _submit(self, said: SendMessage) -> None:
        """Send a message. When this returns, the server has accepted it."""
        words, attached = self.ui.pastes.take(said.text, Path(self.workspace))
        attachments.check(attached, words, self._config.limits.body_mb << 20)
        wish = replace(self._wish, session_id=self.session_id)
        if self.known and not wish.insists:
            wish = replace(wish, workspace="")
        given = input_of(words, [one.image for one in attached])
        try:
            said.run_id = await self.client.submit(wish.typed(given, said.mode), said.key)
        except WorkspaceFixed:
            if self._wish.insists:
                raise
            self._wish = replace(self._wish, workspace="")
            return await self._submit(said)
        if options.is_own(given):
            self._asking.permit(said.run_id)
        if said.run_id not in self._runs:  # it waits until its first event: Esc finds it
            waiting = WaitingMessage(said.run_id, (words,), len(attached))
            self.view.waiting.setdefault(said.run_id, waiting)
        return self.begun()

    def begun(self) -> None:
        """Listen to the session: a message of it was accepted."""
        if not self.known:
            self.known = True
            self._tasks.start_soon(self._name)
            self._listen()

    async def _name(self) -> None:
        async with self._telling():
            await self.look_at_session()

    async def _halt(self, intent: Halt) -> None:
        """Stop that run and no other; the run of a message on its way once it is accepted."""
        run_id = intent.run_id
        if intent.sent is not None:
            await intent.sent.arrived.wait()
            run_id = intent.sent.run_id
        async with self._telling():
            try:
                if run_id:
                    self._bring_back(await self.client.stop(run_id))
            except NotFound:
                pass  # it has ended, as the screen shows

    async def _take_back(self) -> None:
        if not self.view.waiting:
            return
        last = list(self.view.waiting.values())[-1]
        async with self._telling():
            try:
                self._bring_back(await self.client.take_back(last.run_id))
            except (TooLateExit, NotFound):
                self.ui.hint("its run has started: Esc stops it")

    def _bring_back(self, unread: Sequence[str]) -> None:
        """Return unread messages to the input line."""
        if unread:
            self.ui.give_back("\n\n".join(unread))
            self.ui.hint("the unread message is in the input line again")

    async def _unfold(self, call_id: str = "") -> None:
        async with self._telling():
            if call_id:
                await self._unfolding.open(call_id)
            else:
                await self._unfolding.begin()

    @asynccontextmanager
    async def _telling(
        self, otherwise: Callable[[Exit], None] | None = None
    ) -> AsyncIterator[None]:
        """Show a failure of the block; the conversation continues."""
        try:
            yield
        except* Exit as group:
            why = sole(group)
            self.ui.print([self.ui.style.bad(f"holdfast: {why}")])
            if otherwise is not None and isinstance(why, Exit):
                otherwise(why)

    def farewell(self) -> list[str]:
        """Return the lines that are printed when the conversation is left."""
        session = self.session_id if self.known else ""
        return status.farewell(self.ui, self.client, session)
