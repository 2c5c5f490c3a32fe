"""Slash commands of the operator at a terminal: the same commands, for a named session.

Unlike a chat, a terminal knows its session, shows every run, and keeps the busy mode itself. So a
stop suspends nothing, /new and /resume only say which session to continue with, and /busy only says
what was chosen.

If the response was lost, a command may be sent again under its key. What must not happen twice
(a message, an undo, an answer to an approval) is recorded with that key, and found by it.
"""

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from secrets import token_hex
from weakref import WeakValueDictionary

import anyio
from msgspec import field

from holdfast.commands import parse
from holdfast.commands.command import Command
from holdfast.core.approval.approval import Choice, Role
from holdfast.core.inbox import Mode, UpdateRef
from holdfast.core.intents import Principal, RequestKey, Steer, Submit
from holdfast.core.session.compaction import Filling
from holdfast.core.session.rewind import Point, RewindChoice, RewindDone
from holdfast.core.session.session import SessionOpened
from holdfast.core.types import Owner, Part, RunId, SessionId, SessionKey, Usage, Value
from holdfast.engine.admin.sessions import RUNS
from holdfast.engine.commands.deps import CommandDeps, ProcessControl
from holdfast.engine.commands.session import CommandSession, named_model
from holdfast.engine.permission import check_admin
from holdfast.errors import Misconfigured, Refused
from holdfast.gateway import (
    ChatSession,
    ChatStatus,
    CommandDone,
    CommandGiven,
    CommandView,
    FileDiff,
    ProcessView,
)
from holdfast.journal.journal import RunFilter

ROUTE = "/commands"  # the scope of keys of commands with a message
CHANNEL = "/commands"  # and of other commands; no channel has that name
LEFT = 256  # sessions whose previous session is remembered

ONLY_A_CHAT = "Only a chat can be the home: send /home there."
DONE_BEFORE = "This command was executed before; only the response was lost."

_OF_A_CHILD = re.compile(r"~run_[0-9a-f]+$")


class TerminalCommands(Part):
    """Executes the operator's commands."""

    _parts: CommandDeps
    _load: Callable[[], Mapping[str, Command]]  # at first use, because it is slow
    _need: Callable[[Principal, SessionKey], Awaitable[None]]  # resumes a deferred session
    _control: ProcessControl | None  # None: there is no process to restart
    _left: OrderedDict[SessionId, SessionId] = field(default_factory=OrderedDict)
    _taking: WeakValueDictionary[SessionId, anyio.Lock] = field(default_factory=WeakValueDictionary)

    def commands(self, by: Principal) -> Sequence[CommandView]:
        """List all commands."""
        check_admin(by)
        found = self._commands().values()
        return [CommandView(c.name, c.arguments, c.help) for c in found]

    def _commands(self) -> Mapping[str, Command]:
        try:
            return self._load()
        except Misconfigured as wrong:
            raise Refused("misconfigured", f"{wrong}: {wrong.hint}") from None

    async def take(self, by: Principal, given: CommandGiven) -> CommandDone:
        """Execute a command and return its result."""
        check_admin(by)
        call = parse.read(given.text)
        if call is None:
            raise Refused("invalid_request", "`input` is not a command.", param="input")
        commands = self._commands()
        lock = self._taking.setdefault(given.session_id, anyio.Lock())
        # If the caller is cancelled, finish the command, so that its key is known.
        with anyio.CancelScope(shield=True):
            async with lock:
                if (done := await self._done(by, given)) is not None:
                    return done
                await self._need(by, SessionKey(by.owner, given.session_id))
                target = TerminalTarget(self._parts, by, given, self._left, self._control)
                output = await parse.answer(call, target, commands)
                for then in target.afterwards:
                    await then()
        while len(self._left) > LEFT:
            self._left.popitem(last=False)
        return target.done(output)

    async def _done(self, by: Principal, given: CommandGiven) -> CommandDone | None:
        """Return the result of the same command, if it must not be repeated."""
        if not given.key:
            return None
        said = await self._parts.journal.replay(by.owner, ROUTE, given.key)
        if said is not None:
            return CommandDone("", said.session_id, run_id=said.run_id, owner=by.owner)
        if await self._parts.journal.seen(CHANNEL, given.key):
            return CommandDone(DONE_BEFORE, given.session_id, owner=by.owner)
        return None


class _Begun(Value):
    """A session, and when it began."""

    session_id: SessionId
    at: float


class TerminalTarget:
    """A terminal's session, during one command."""

    def __init__(
        self,
        parts: CommandDeps,
        by: Principal,
        given: CommandGiven,
        left: OrderedDict[SessionId, SessionId],
        control: ProcessControl | None,
    ) -> None:
        self.roles = by.roles
        self.afterwards: list[Callable[[], Awaitable[None]]] = []
        self._parts = parts
        self._by = by
        self._given = given
        self._left = left  # session → the session before it
        self._control = control
        self._came = UpdateRef(channel=CHANNEL, external_id=given.key) if given.key else None
        self._here = self._session(given.session_id)
        self._mode = given.mode
        self._session_id = given.session_id  # to continue with
        self._owner = by.owner  # of that session
        self._busy: Mode | None = None
        self._run_id: RunId | None = None
        self._undone: str | None = None
        self._refused = False

    def done(self, output: str) -> CommandDone:
        """Return the result of the command."""
        busy, begun, undone = self._busy, self._run_id, self._undone
        return CommandDone(
            output, self._session_id, busy, begun, undone, self._owner, self._refused
        )

    async def status(self) -> ChatStatus:
        """Report the status of the session."""
        return await self._here.status(self._mode)

    async def stop(self) -> int:
        """Stop the active run and waiting ones; the session continues."""
        return await self._here.stop("Stopped at the terminal")

    async def begin(self) -> None:
        """Continue with a new session of the operator; its first message creates it."""
        mine = CommandSession(self._parts, self._here.key, self._by, self._is_mine, self._came)
        await mine.give_way()  # runs for others continue
        await self._leave_for(SessionId(f"ses_{token_hex(16)}"))
        self._owner = self._by.who

    async def say(self, text: str, mode: Mode | None) -> None:
        """Send a message to the agent; if it asks a question, the message is the answer."""
        try:
            await self._say(text, mode)
        except Refused:
            self._refused = True
            raise

    async def _say(self, text: str, mode: Mode | None) -> None:
        if (asked := await self._here.question()) is not None:
            self._run_id, call_id = asked
            told = Steer(self._by, self._run_id, text, call_id, self._came)
            await self._parts.gateway.send(told)
            return
        known = await self._parts.journal.stream_of(self._here.key)
        await self._submit(
            Submit(
                by=self._by,
                text=text,
                session_id=self._given.session_id,
                workspace="" if known else self._given.workspace,
                mode=mode or self._mode,
                request_key=self._request_key(),
            )
        )

    async def _submit(self, intent: Submit) -> None:
        self._run_id = (await self._parts.gateway.send(intent)).run_id

    def _request_key(self) -> RequestKey | None:
        given = self._given
        if not given.key:
            return None
        asked = f"{given.session_id}\n{given.text}".encode("utf-8", "surrogatepass")
        return RequestKey(ROUTE, given.key, sha256(asked).hexdigest())

    async def choose_busy_mode(self, mode: Mode) -> None:
        """Accept a busy mode: the terminal keeps it itself."""
        self._busy = self._mode = mode

    async def choose_model(self, name: str) -> str:
        """Choose another model for this session; empty: the configured one."""
        return await self._here.choose_model(named_model(self._parts.models, name))

    async def answer(self, choice: Choice, request_id: str, reason: str = "") -> Choice:
        """Answer an approval of this session: the oldest, if none is named."""
        return await self._here.answer(choice, request_id, reason)

    async def retry(self) -> None:
        """Send the last message again, and replace its result."""
        said, key = await self._here.last_words(), self._request_key()
        to = self._given.session_id
        await self._submit(Submit(self._by, said, to, request_key=key, instead=True))

    async def points(self) -> Sequence[Point]:
        """Return the points that this session can go back to, oldest first."""
        return await self._here.points()

    async def rewind(self, asked: RewindChoice) -> RewindDone:
        """Go back to a point, and give its message back to the terminal; or forth again."""
        done = await self._here.rewind(asked)
        if done.fact.runs and not done.fact.redo:
            self._undone = done.text
        return done

    async def usage(self) -> Usage:
        """Return the tokens that this session has used."""
        return await self._here.usage()

    async def diff(self, run: str) -> Sequence[FileDiff]:
        """Return the files that this session changed, or one run of it."""
        return await self._here.diff(run)

    async def context(self) -> Filling:
        """Return what fills the model's window."""
        return await self._here.context()

    async def compact(self, focus: str) -> Filling | None:
        """Replace the beginning of what the model reads by notes."""
        return await self._here.compact(focus)

    async def processes(self) -> Sequence[ProcessView]:
        """Return the background processes of this session."""
        return await self._here.processes()

    async def process_output(self, process_id: str) -> str:
        """Return the end of the output of a process of this session."""
        return await self._here.process_output(process_id)

    async def kill_process(self, process_id: str) -> ProcessView:
        """Kill a process of this session."""
        return await self._here.kill_process(process_id)

    async def sessions(self) -> Sequence[ChatSession]:
        """Return the operator's latest sessions, oldest first."""
        found = [await self._begun(session_id) for session_id in await self._latest()]
        return [
            ChatSession(
                number=number,
                session_id=one.session_id,
                begun_at=one.at,
                current=one.session_id == self._given.session_id,
                first_words=await self._session(one.session_id).first_words(),
                now=self._parts.clock.now(),
            )
            for number, one in enumerate(sorted(found, key=lambda one: one.at), 1)
        ]

    async def _latest(self) -> Sequence[SessionId]:
        """Return the sessions of the latest runs, newest first, without those of children."""
        wanted = RunFilter(self._by.owner, frozenset(), None, RUNS, None)
        rows = await self._parts.journal.runs(wanted)
        found = dict.fromkeys(row.key.session_id for row in rows)
        return [one for one in found if not _OF_A_CHILD.search(one)]

    async def _begun(self, session_id: SessionId) -> _Begun:
        row = await self._parts.journal.stream_of(SessionKey(self._by.owner, session_id))
        facts = await self._parts.journal.facts(row.stream, (SessionOpened,), ()) if row else []
        return _Begun(session_id, facts[0].at if facts else 0.0)

    async def resume(self, number: int | None) -> ChatSession:
        """Continue with another session; None: the previous one, or this one if it is suspended."""
        had = await self.sessions()
        current = next((s for s in had if s.current), None)
        if current is not None and number in (None, current.number):
            if await self._here.reopen(self._came) or number is not None:
                return current
        wanted = next((s.session_id for s in had if s.number == number), None)
        if number is None:
            wanted = await self._before({s.session_id for s in had})
        back = next((s for s in had if s.session_id == wanted), None)
        if back is None:
            which = "no earlier session" if number is None else f"no session {number}"
            raise Refused("session_not_found", f"There is {which}. /sessions lists what there is.")
        await self._session(back.session_id).reopen()
        await self._leave_for(back.session_id)
        return back

    async def _before(self, had: Collection[SessionId]) -> SessionId | None:
        """Return the session before this one, or else the latest other one."""
        here = self._given.session_id
        if (left := self._left.get(here)) in had:
            return left
        return next((one for one in await self._latest() if one != here), None)

    async def _leave_for(self, other: SessionId) -> None:
        """Continue in another session, and remember this one, if it exists, as its previous one."""
        here = self._given.session_id
        known = await self._parts.journal.stream_of(self._here.key) is not None
        if (left := here if known else self._left.get(here)) is not None:
            self._left[other] = left
            self._left.move_to_end(other)
        self._session_id = other

    async def restart(self) -> None:
        """Restart the gateway after the command."""
        if self._control is None:
            raise Refused("no_gateway", "Only a gateway can be restarted.")
        await self._control.check()
        self.afterwards.append(partial(self._control.restart, self._by.among(self._by.who)))

    async def make_home(self) -> None:
        """Refuse: a terminal cannot be the home."""
        raise Refused("not_a_chat", ONLY_A_CHAT)

    def _is_mine(self, role: Role, works_for: Owner) -> bool:
        return works_for == self._by.who

    def _session(self, session_id: SessionId) -> CommandSession:
        key = SessionKey(self._by.owner, session_id)
        return CommandSession(self._parts, key, self._by, lambda role, owner: True, self._came)
