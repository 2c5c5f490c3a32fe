"""Answers given in chats to what runs ask: by a button, or by a message that can mean nothing else.

A button counts for the request it was shown for, or not at all. A message counts as an answer only
if exactly one request is open in that chat, it was shown there, it offers that choice, and the
sender may answer it; and if the message replies to it, or the request is the last message there: a
run could ask something harmless below the request of another. Any other message goes to the agent.
"""

import logging
from collections.abc import Awaitable, Callable
from itertools import count

from holdfast.channels.channel import Incoming
from holdfast.core import address
from holdfast.core.approval.approval import Choice
from holdfast.core.chat import access
from holdfast.core.chat.access import AccessDenied
from holdfast.core.chat.delivery import DeliveryStatus
from holdfast.core.inbox import InputAdmitted
from holdfast.core.intents import Answer, Principal
from holdfast.core.session import answers, placement, replies
from holdfast.core.types import CallId, DeliveryId, Fact, InputId, Owner, SessionKey, Value
from holdfast.engine.chats.places import ChatPlace
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import Refused
from holdfast.gateway import Gateway
from holdfast.journal.journal import Asked, Journal

log = logging.getLogger(__name__)

OVER = "That is over already."
NOT_WHOLE = "A part of this could not be shown here. Answer it with: holdfast approvals"
AT_MOST = 50  # open questions of one owner that are looked at
LATELY = 200  # messages, in all chats, that are searched for the last one in a place


class Answering(Value):
    """Takes answers to approvals and questions."""

    _gateway: Gateway
    _journal: Journal
    _sessions: Sessions
    _clock: Clock
    _policy: Callable[[], Awaitable[access.AccessPolicy]]

    async def press(self, place: ChatPlace, data: str) -> str:
        """Take a pressed button; the text for the person who pressed it, empty if it counts."""
        match replies.parse_button(data):
            case replies.Answers() as press:
                return await self._answer(place, press)
            case replies.Chooses() as press:
                return await self._choose(place, press)
            case _:
                return OVER

    async def hear(self, place: ChatPlace, incoming: Incoming) -> bool:
        """Take a message as the answer to an approval; False: it is not an answer."""
        choice = answers.parse_choice(incoming.text)
        if choice is None or incoming.edited:
            return False
        meant = await self._meant(place, incoming.reply_to)
        if meant is None or choice not in meant.requested.choices:
            return False
        return not await self._answer(place, replies.Answers(meant.requested.request_id, choice))

    async def _meant(self, place: ChatPlace, reply_to: str) -> Asked | None:
        """Return the one approval that a message here can answer."""
        waiting = await self._journal.approvals(place.by.owner, AT_MOST, None)
        found = [asked for asked in waiting if await self._is_shown(asked, place, reply_to)]
        if len(found) != 1 or await self._has_question(found[0]):
            return None
        return found[0] if reply_to or await self._is_plain(found[0], place) else None

    async def _is_plain(self, asked: Asked, place: ChatPlace) -> bool:
        """Return whether a message that replies to nothing is about this request."""
        told = await self._journal.deliveries(_SAID, LATELY)
        here = [
            replies.QueuedReply(one.queued, one.now.queued_at)
            for one in told
            if one.queued.address.place == place.address.place
        ]
        return replies.is_unambiguous(asked.requested.request_id, here, self._clock.now())

    async def _is_shown(self, asked: Asked, place: ChatPlace, reply_to: str) -> bool:
        shown = await self._journal.delivery(DeliveryId(f"ask_{asked.requested.request_id}"))
        if shown is None or shown.queued.address != place.address.place:
            return False
        return shown.now.attempts > 0 and reply_to in ("", shown.now.external_id)

    async def _has_question(self, asked: Asked) -> bool:
        """Return whether a message could also answer a question of the run."""
        async with self._sessions.load(asked.key) as loaded:
            found = loaded.session.runs.get(asked.requested.run_id) if loaded else None
            return found is not None and placement.question(found) is not None

    async def _answer(self, place: ChatPlace, press: replies.Answers) -> str:
        """Answer an approval. A button counts for its own request, or not at all."""
        asked = await self._journal.delivery(DeliveryId(f"ask_{press.request_id}"))
        row = await self._journal.run(asked.queued.of_run) if asked else None
        if asked is None or row is None or asked.queued.address != place.address.place:
            return access.NOTHING_TO_ANSWER
        refused = await self._may_not(place, row.key, asked.queued.of_run, access.may_answer)
        if refused:
            return refused
        if press.choice is not Choice.DENY and not await self._is_whole(asked.queued.delivery_id):
            return NOT_WHOLE
        by = Principal(row.key.owner, place.by.door, place.by.roles, place.by.speaker)
        run_id, came = asked.queued.of_run, place.came
        intent = Answer(by, run_id, press.choice, press.request_id, came=came)
        try:
            await self._gateway.send(intent)
        except Refused as late:
            return OVER if late.code in _LATE else str(late)
        return ""  # the message itself says so

    async def _is_whole(self, asked: DeliveryId) -> bool:
        """Return whether all parts of a request have arrived: the platform may have refused one."""
        for at in count(1):
            part = await self._journal.delivery(DeliveryId(f"{asked}.{at}"))
            if part is None:
                break
            if part.now.status is not DeliveryStatus.SENT:
                return False
        return True

    async def _may_not(
        self,
        place: ChatPlace,
        key: SessionKey,
        run_id: str,
        judge: Callable[[access.AccessPolicy, address.Sender, Owner], access.Verdict],
    ) -> str:
        """Say why the sender may not answer or stop that run; empty: they may."""
        policy = await self._policy()
        async with self._sessions.load(key) as loaded:
            runs = loaded.session.runs if loaded else {}
            found = next((r for r in runs.values() if r.id == run_id), None)
            if loaded is None or found is None:
                works_for = key.owner
            else:
                works_for = placement.works_for(loaded.session, found)
        verdict = judge(policy, place.address.sender, works_for)
        if isinstance(verdict, AccessDenied):
            log.info(
                "not allowed", extra={"sender": place.address.sender.owner, "cause": verdict.cause}
            )
            return access.NOTHING_TO_ANSWER  # as if there were no such run
        return "" if found is not None else OVER

    async def _choose(self, place: ChatPlace, press: replies.Chooses) -> str:
        """Answer a question of a run by a button."""
        row = await self._journal.run(press.run_id)
        if row is None:
            return access.NOTHING_TO_ANSWER
        refused = await self._may_not(place, row.key, press.run_id, access.may_stop)
        if refused:
            return refused
        counts = False

        def decide(loaded: LoadedSession | None) -> tuple[Fact, ...]:
            nonlocal counts
            chosen = _chosen(loaded, place, press)
            counts = chosen is not None
            if loaded is None or chosen is None:
                return ()
            call_id, option = chosen
            given = InputAdmitted(
                input_id=InputId(""), run_id=press.run_id, text=option, came=place.came
            )
            return placement.answer(loaded.session, press.run_id, call_id, given)

        await self._sessions.change(row.key, decide)
        return "" if counts else OVER


_SAID = frozenset(DeliveryStatus) - {DeliveryStatus.DEAD}
_LATE = frozenset({"approval_not_active", "approval_not_pending", "run_not_found", "run_ended"})


def _chosen(
    loaded: LoadedSession | None, place: ChatPlace, press: replies.Chooses
) -> tuple[CallId, str] | None:
    """Return the call whose question had that button, and the text of the button."""
    found = loaded.session.runs.get(press.run_id) if loaded else None
    shown_at = found.origin.address if found else None
    if found is None or shown_at is None or shown_at.place != place.address.place:
        return None
    for call_id, call in found.calls.items():
        options = call.parked.options if call.parked else ()
        if replies.mark(call_id) == press.mark and press.option < len(options):
            return call_id, options[press.option]
    return None
