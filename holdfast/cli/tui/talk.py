"""What happens between the keyboard and the front door.

Words go out in the order they were typed, each under a name of its own, and stay on the screen as
"on its way" until they are accepted; what is refused comes back into the input line. What they do
to a run at work is decided at the other end, in one step with their acceptance, so no moment is
the wrong one (HALT-01, -02). An interrupt names the run that was on the screen when the key was
pressed, and does not wait behind words.

Whatever the session tells is shown, whoever began it: another terminal, a process that ended, a
chat. If whoever serves the home goes away, the session goes on here from the last event seen.
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

from holdfast import __version__
from holdfast.app.ending import arm_exit
from holdfast.cli.client import latest
from holdfast.cli.client.client import Client, connect
from holdfast.cli.client.frames import Frame
from holdfast.cli.client.input import input_of
from holdfast.cli.client.refusals import NotFound, TooLateExit, WorkspaceFixed
from holdfast.cli.exits import Code, Exit, sole
from holdfast.cli.run import attachments, notes, run
from holdfast.cli.run.options import RunOptions
from holdfast.cli.run.questions import hear_children
from holdfast.cli.tui import commands, status, transcript
from holdfast.cli.tui.actions import (
    Action,
    AnswerQuestion,
    Halt,
    Quit,
    SendMessage,
    TakeBack,
    Unfold,
)
from holdfast.cli.tui.questions import ScreenQuestions
from holdfast.cli.tui.style import cut
from holdfast.cli.tui.ui import Ui
from holdfast.cli.tui.view import View, WaitingMessage
from holdfast.config.settings import Config
from holdfast.core.text.escape import reveal

LEAVE_S = 4.0  # for the way down; then the process is gone, whatever hangs (HALT-05)


async def serve(
    config: Config, wish: RunOptions, ui: Ui, actions: MemoryObjectReceiveStream[Action]
) -> None:
    """Carry out `actions` until one of them is to leave."""

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
        arm_exit(LEAVE_S, lambda: Code.OK)  # from here on nothing can hold us
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
        self.known = bool(wish.session_id)  # to the other end
        self._listening = anyio.CancelScope()
        self._children = tasks  # who hears what the session's children ask
        self._said, self._heard = anyio.create_memory_object_stream[SendMessage | AnswerQuestion](
            math.inf
        )
        self._asking = ScreenQuestions(client, ui, tasks)
        self._runs: set[str] = set()  # whose events are to be shown; others are told of already
        self._ready = anyio.Event()  # which session it is, is known
        self.workspace = wish.workspace
        ui.status = status.line(config, ui, wish.model or config.model)
        ui.holding = self._holding

    @property
    def view(self) -> View:
        return self.ui.view

    # The way up

    async def begin(self) -> None:
        """Say where we are; show what was said before, if it goes on; then listen."""
        async with self._telling():
            model = await run.model_in_use(self.client, self._config)
            self.ui.status = status.line(self._config, self.ui, model)
            self.ui.print(self._greeting(model))
            await self.client.runs(limit=1)  # somebody serves from here on, if only we
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
        """Begin a session of a new name where the one that was named is someone else's."""
        try:
            await latest.check_own(self.client, self.session_id)
        except Exit:
            self.session_id, self.known = f"ses_{token_hex(16)}", False
            self._wish = self._wish.within("")
            raise

    def _greeting(self, model: str) -> list[str]:
        style, where = self.ui.style, reveal(self._wish.workspace)
        told = f"{style.bold('Holdfast')} {__version__} · {model}"
        lines = [
            f"{told} · {where}" if where else told,
            style.dim("/help lists keys and commands · Esc stops a run · Ctrl-D leaves"),
        ]
        lines = [cut(line, self.ui.size.columns) for line in lines]
        if model.partition("/")[0] == "offline":
            lines.append(notes.no_model())
        expected = self._wish.expected
        if expected and model != expected:
            lines.append(notes.other_model(expected, model))
        return [*lines, ""]

    async def _look_at_health(self) -> None:
        health = await self.client.health()
        if health is not None:
            self.view.sandbox = self.view.sandbox or health.sandbox.level
            if health.paused:
                self.ui.print([self.ui.style.bad(f"… held: {health.paused}")])

    async def look_at_session(self) -> None:
        """Have the status line name the session's model, and files be those where it works."""
        found = await self.client.session(self.session_id)
        self.ui.status = status.line(self._config, self.ui, found.model)
        if found.workspace:
            self.workspace = found.workspace
            commands.move(self.ui, Path(found.workspace))

    def _holding(self) -> str:
        """What would end with us, in words; nothing where somebody else serves the home."""
        if not (self.client.is_owner and self.view.processes):
            return ""
        names = ", ".join(self.view.processes)
        return f"leaving ends background processes ({names}); a gateway keeps them: holdfast gateway run"

    async def enter(self, session_id: str, owner: str = "", *, again: bool = True) -> None:
        """Go on in another session, and show what was said there if it is to be shown `again`.

        `owner`: whose it is, if not one's own.
        """
        self._listening.cancel()
        self.client = self.client.for_owner(owner)
        self._asking.forget()
        self.ui.begin_afresh()
        self.session_id, self.known = session_id, True
        self.workspace = self._wish.workspace  # of a new one
        commands.move(self.ui, Path(self.workspace))
        await self._enter(session_id, again=again)

    async def _enter(self, session_id: str, *, again: bool = True) -> None:
        """Show what was said in a session, and go on from there."""
        try:
            known = await self.client.history(session_id)
        except NotFound:
            self.known = False  # its first words begin it
            return
        except Exit:
            self._listen()  # all of it comes as it was, then
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
                            self._show(frame)
                await anyio.sleep(1.0)  # nobody could be found: said above; keep trying

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
        self.ui.print(self.view.hear(event))
        self._bring_back(self.view.take_unread())
        self.ui.app.invalidate()

    # What is done

    def take(self, action: Action) -> None:
        """Begin what a key asks for. Only words wait for words."""
        match action:
            case SendMessage() | AnswerQuestion():
                self._said.send_nowait(action)
            case Halt():
                self._tasks.start_soon(self._halt, action)
            case TakeBack():
                self._tasks.start_soon(self._take_back)
            case Unfold():
                self._unfold()
            case _:
                pass

    async def speak(self) -> None:
        """Carry what is said to the other end, in order."""
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
        lost = why.code is Code.TRY_AGAIN  # the answer, perhaps, and not the words
        self.ui.give_back(said.text, said if lost and isinstance(said, SendMessage) else None)

    async def _submit(self, said: SendMessage) -> None:
        """Hand in words. They are ours no longer when this returns."""
        words, attached = self.ui.pastes.take(said.text, Path(self.workspace))
        attachments.check(attached, words, self._config.limits.body_mb << 20)
        wish = replace(self._wish, session_id=self.session_id)
        if self.known and not wish.insists:
            wish = replace(wish, workspace="")
        given = input_of(words, [one.image for one in attached])
        try:
            said.run_id = await self.client.submit(wish.request(given, said.mode), said.key)
        except WorkspaceFixed:
            if self._wish.insists:
                raise
            self._wish = replace(self._wish, workspace="")
            return await self._submit(said)
        if said.run_id not in self._runs:  # until it is heard of, it waits: Esc finds it
            waiting = WaitingMessage(said.run_id, (words,), len(attached))
            self.view.waiting.setdefault(said.run_id, waiting)
        return self.begun()

    def begun(self) -> None:
        """Words of the session have been accepted: there is something to hear."""
        if not self.known:
            self.known = True
            self._listen()

    async def _halt(self, intent: Halt) -> None:
        """Stop that run and no other. Of what is on its way: as soon as it is there."""
        run_id = intent.run_id
        if intent.sent is not None:
            await intent.sent.arrived.wait()
            run_id = intent.sent.run_id
        async with self._telling():
            try:
                if run_id:
                    self._bring_back(await self.client.stop(run_id))
            except NotFound:
                pass  # it was faster; its own end is on the screen

    async def _take_back(self) -> None:
        if not self.view.waiting:
            return
        last = list(self.view.waiting.values())[-1]
        async with self._telling():
            try:
                self._bring_back(await self.client.take_back(last.run_id))
            except (TooLateExit, NotFound):
                self.ui.hint("it has begun: Esc stops it")

    def _bring_back(self, unread: Sequence[str]) -> None:
        """What nobody will read now is the user's again."""
        if unread:
            self.ui.give_back("\n\n".join(unread))
            self.ui.hint("what was not read is in the input line again")

    def _unfold(self) -> None:
        if self.ui.asked is None:
            self._tasks.start_soon(self._unfold_call)
        else:
            self.ui.unfold()

    async def _unfold_call(self) -> None:
        async with self._telling():
            said = await self.client.transcript(self.session_id) if self.known else ()
            self.ui.print(transcript.unfolded(self.view, said))

    @asynccontextmanager
    async def _telling(
        self, otherwise: Callable[[Exit], None] | None = None
    ) -> AsyncIterator[None]:
        """Whatever fails in the block is told, and the conversation goes on."""
        try:
            yield
        except* Exit as group:
            why = sole(group)
            self.ui.print([self.ui.style.bad(f"holdfast: {why}")])
            if otherwise is not None and isinstance(why, Exit):
                otherwise(why)

    def farewell(self) -> list[str]:
        """What becomes of what goes on, and how to come back."""
        ui, lines = self.ui, list[str]()
        if self.client.is_owner:
            lines.append("Shutting down…")
        if self.view.busy and not self.view.stopping:
            goes_on = "is kept, and goes on with" if self.client.is_owner else "goes on; to see it"
            how = f"--resume {self.session_id}" if self.client.owner else "--continue"
            lines.append(f"what is at work {goes_on}: holdfast {how}")
        lines += [f"not sent: {reveal(said.text)}" for said in ui.sending]
        if self.known:
            lines.append(f"to come back: holdfast --resume {self.session_id}")
        return lines
