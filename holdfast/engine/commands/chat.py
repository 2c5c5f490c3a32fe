"""One conversation in a chat, as a slash command sees it.

Changes of the chats themselves (a new session for a place, the home chat) are recorded with the
command, so that they happen once even if the command is taken twice. Changes of the session happen
at once (session.py).
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from holdfast.core import address
from holdfast.core.address import NoSuchSession, Why
from holdfast.core.approval.approval import Choice, Role
from holdfast.core.chat import access
from holdfast.core.chat.access import AccessDenied
from holdfast.core.chat.chats import HomeChosen, RestartAsked
from holdfast.core.inbox import Mode
from holdfast.core.session.compaction import Filling
from holdfast.core.session.rewind import Point, RewindChoice, RewindDone
from holdfast.core.session.session import SessionSuspended
from holdfast.core.types import Fact, Owner, SessionId, SessionKey, Usage
from holdfast.engine.chats.book import ChatBook
from holdfast.engine.chats.places import ChatPlace
from holdfast.engine.commands.deps import CommandDeps, ProcessControl
from holdfast.engine.commands.session import CommandSession, named_model
from holdfast.errors import Refused
from holdfast.gateway import ChatSession, ChatStatus, FileDiff, ProcessView


class Conversation:
    """The conversation of one place, during one command."""

    def __init__(
        self, parts: CommandDeps, book: ChatBook, place: ChatPlace, control: ProcessControl | None
    ) -> None:
        self.roles = place.by.roles
        self.facts: list[Fact] = []
        self.afterwards: list[Callable[[], Awaitable[None]]] = []
        self._parts = parts
        self._book = book
        self._place = place
        self._control = control  # None: there is no process to restart

    async def status(self) -> ChatStatus:
        """Report the status of the conversation."""
        known = await self._book.known()
        mode = address.busy_mode(known.keys, self._place.key, self._place.connected.busy)
        return await (await self._current()).status(mode)

    async def stop(self) -> int:
        """Stop the runs that the sender may stop, and leave the session if that is all of them."""
        leaves = SessionSuspended(reason="stopped")
        return await (await self._current()).stop("Stopped in the chat", leaves)

    async def begin(self) -> None:
        """Start a new session with the next message, and stop the active run."""
        await (await self._current()).give_way()
        keys = (await self._book.known()).keys
        reason = Why.FIRST if address.current(keys, self._place.key) is None else Why.NEW
        self.facts.append(address.begin(keys, self._place.key, reason))

    async def say(self, text: str, mode: Mode | None) -> None:
        """Send a message to the agent."""
        await self._book.say(self._place, text, mode)

    async def choose_busy_mode(self, mode: Mode) -> None:
        """Choose what a message does to a busy run here."""
        self.facts.append(address.BusyModeChosen(key=self._place.key, mode=mode))

    async def choose_model(self, name: str) -> str:
        """Choose another model for this session; empty: the configured one."""
        chosen = named_model(self._parts.models, name)
        here = await self._session(await self._book.route(self._place))
        return await here.choose_model(chosen)

    async def answer(self, choice: Choice, request_id: str, reason: str = "") -> Choice:
        """Answer an approval of this conversation: the oldest, if none is named."""
        return await (await self._current()).answer(choice, request_id, reason)

    async def retry(self) -> None:
        """Send the last message again, and replace its result."""
        said = await (await self._current()).last_words()
        await self._book.say(self._place, said, Mode.QUEUE, instead=True)

    async def points(self) -> Sequence[Point]:
        """Return the points that this session can go back to, oldest first."""
        return await (await self._current()).points()

    async def rewind(self, asked: RewindChoice) -> RewindDone:
        """Go back to a point, or forth again."""
        return await (await self._current()).rewind(asked)

    async def usage(self) -> Usage:
        """Return the tokens that this session has used."""
        return await (await self._current()).usage()

    async def diff(self, run: str) -> Sequence[FileDiff]:
        """Return the files that this session changed, or one run of it."""
        return await (await self._current()).diff(run)

    async def context(self) -> Filling:
        """Return what fills the model's window."""
        return await (await self._current()).context()

    async def compact(self, focus: str) -> Filling | None:
        """Replace the beginning of what the model reads by notes."""
        return await (await self._current()).compact(focus)

    async def processes(self) -> Sequence[ProcessView]:
        """Return the background processes of this session."""
        return await (await self._current()).processes()

    async def process_output(self, process_id: str) -> str:
        """Return the end of the output of a process of this session."""
        return await (await self._current()).process_output(process_id)

    async def kill_process(self, process_id: str) -> ProcessView:
        """Kill a process of this session."""
        return await (await self._current()).kill_process(process_id)

    async def sessions(self) -> Sequence[ChatSession]:
        """Return the sessions of this conversation, oldest first."""
        known = (await self._book.known()).keys
        chat = known.get(self._place.key)
        if chat is None:
            return ()
        current = address.current(known, self._place.key)
        begun = {b.session_id: b.at for b in reversed(chat.bound)}
        return [
            ChatSession(
                number=number,
                session_id=session_id,
                begun_at=begun[session_id],
                current=session_id == current,
                first_words=await (await self._session(session_id)).first_words(),
                now=self._parts.clock.now(),
            )
            for number, session_id in enumerate(chat.sessions, 1)
        ]

    async def resume(self, number: int | None) -> ChatSession:
        """Return to an earlier session; None: the previous one."""
        had = await self.sessions()
        wanted = next((s.session_id for s in had if s.number == number), None)
        if number is not None and wanted is None:
            raise Refused("session_not_found", f"There is no session {number} in this chat.")
        current = next((s for s in had if s.current), None)
        if current is not None and wanted in (None, current.session_id):
            # Recorded with the command: taken again, it would return to the previous session.
            here = await self._session(current.session_id)
            if await here.reopen(self._place.came):
                return current
        keys = (await self._book.known()).keys
        bound = address.resume(keys, self._place.key, wanted)
        if isinstance(bound, NoSuchSession):
            raise Refused("session_not_found", bound.reason)
        await (await self._session(bound.session_id)).reopen()
        self.facts.append(bound)
        return next(s for s in had if s.session_id == bound.session_id)

    async def restart(self) -> None:
        """Restart the gateway, after recording which chat to notify when it is back."""
        self._check_admin()
        control = self._control
        if control is None:
            raise Refused("no_gateway", "Only a gateway can be restarted.")
        await control.check()
        self.facts.append(
            RestartAsked(
                address=self._place.address.place,
                reply_to=self._place.reply_to,
                by=self._place.by.who,
            )
        )
        self.afterwards.append(partial(control.restart, self._place.by))

    async def make_home(self) -> None:
        """Make this chat the home: notices of the gateway go here."""
        self._check_admin()
        self.facts.append(HomeChosen(address=self._place.address.place, by=self._place.by.who))

    def _check_admin(self) -> None:
        if Role.ADMIN not in self.roles:
            raise Refused("admin_only", "Only an administrator may do that.")

    async def _current(self) -> CommandSession:
        """Return the present session; a new one that does not exist yet, if there is none."""
        keys = (await self._book.known()).keys
        current = address.current(keys, self._place.key)
        return await self._session(current or SessionId(self._place.key))

    async def _session(self, session_id: SessionId) -> CommandSession:
        policy, place = await self._book.policy(), self._place

        def may(needs: Role, works_for: Owner) -> bool:
            judge = access.may_answer if needs is Role.APPROVE else access.may_stop
            return not isinstance(judge(policy, place.address.sender, works_for), AccessDenied)

        key = SessionKey(place.by.owner, session_id)
        return CommandSession(self._parts, key, place.by, may, place.came)
