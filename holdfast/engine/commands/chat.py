"""One conversation in a chat, as a command sees it: what it may look at, and what it may change.

What changes the chats themselves (a fresh session behind a key, the home) is left for the
command's own record, so that it is done once however often the command is taken. What it does
to the session behind the key is done at once: that is its dialogue.
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
from holdfast.core.session.session import SessionSuspended
from holdfast.core.types import Fact, Owner, SessionId, SessionKey, Usage
from holdfast.engine.chats.book import ChatBook
from holdfast.engine.chats.places import ChatPlace
from holdfast.engine.commands.session import CommandDeps, Dialogue, ProcessControl, named_model
from holdfast.errors import Refused
from holdfast.gateway import ChatSession, ChatStatus


class Conversation:
    """The conversation of one place, for the time of one command."""

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
        """Stop what the speaker may stop, and leave the session if that is all; how many it is."""
        leaves = SessionSuspended(reason="stopped")
        return await (await self._current()).stop("Stopped in the chat", leaves)

    async def begin(self) -> None:
        """A fresh session from the next words on; what is at work is stopped."""
        await (await self._current()).give_way()
        keys = (await self._book.known()).keys
        reason = Why.FIRST if address.current(keys, self._place.key) is None else Why.NEW
        self.facts.append(address.begin(keys, self._place.key, reason))

    async def say(self, text: str, mode: Mode | None) -> None:
        """Words for the agent."""
        await self._book.say(self._place, text, mode)

    async def choose_busy_mode(self, mode: Mode) -> None:
        """Choose what a message does to a busy run here, from now on."""
        self.facts.append(address.BusyModeChosen(key=self._place.key, mode=mode))

    async def choose_model(self, name: str) -> str:
        """Choose another model for this session; empty: the configured one."""
        chosen = named_model(self._parts.models, name)
        here = await self._session(await self._book.route(self._place))
        return await here.choose_model(chosen)

    async def answer(self, choice: Choice, request_id: str) -> Choice:
        """Answer an approval of this conversation: the oldest, if none is named."""
        return await (await self._current()).answer(choice, request_id)

    async def retry(self) -> None:
        """Say again what was said last, in place of what came of it."""
        said = await (await self._current()).last_words()
        await self._book.say(self._place, said, Mode.QUEUE, instead=True)

    async def undo(self) -> str:
        """Take back the last exchange; the words it began with."""
        return await (await self._current()).undo()

    async def usage(self) -> Usage:
        """Tokens this session has spent."""
        return await (await self._current()).usage()

    async def context(self) -> Filling:
        """Return what fills the model's window."""
        return await (await self._current()).context()

    async def compact(self, focus: str) -> Filling | None:
        """Replace the beginning of what the model reads by notes."""
        return await (await self._current()).compact(focus)

    async def sessions(self) -> Sequence[ChatSession]:
        """Every session this conversation has had, the oldest first."""
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
        """Bring back an earlier session; None: the one before."""
        had = await self.sessions()
        wanted = next((s.session_id for s in had if s.number == number), None)
        if number is not None and wanted is None:
            raise Refused("session_not_found", f"There is no session {number} in this chat.")
        current = next((s for s in had if s.current), None)
        if current is not None and wanted in (None, current.session_id):
            # Taken with it: the same word again would bring back the one before.
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
        """Restart the gateway, once it is written down who is to hear that it is back."""
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

    async def _current(self) -> Dialogue:
        """The session behind the key; one that is not there yet, if there was none."""
        keys = (await self._book.known()).keys
        current = address.current(keys, self._place.key)
        return await self._session(current or SessionId(self._place.key))

    async def _session(self, session_id: SessionId) -> Dialogue:
        policy, place = await self._book.policy(), self._place

        def may(needs: Role, works_for: Owner) -> bool:
            judge = access.may_answer if needs is Role.APPROVE else access.may_stop
            return not isinstance(judge(policy, place.address.sender, works_for), AccessDenied)

        key = SessionKey(place.by.owner, session_id)
        return Dialogue(self._parts, key, place.by, may, place.came)
