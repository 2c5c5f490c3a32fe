"""What a session and its children ask: put one after the other, and answered by whoever sits here.

A question closes by itself when it is answered elsewhere, runs out or loses its run. Words that
come too late for it answer no other: they are the next input (HALT-09). An approval is answered
by the name of a choice or its letter, never by Enter alone; whole sentences are words.
"""

from anyio.abc import TaskGroup

from holdfast.cli import question
from holdfast.cli.client import Client
from holdfast.cli.exits import Exit
from holdfast.cli.tui.actions import Reply, Say
from holdfast.cli.tui.ui import Ui
from holdfast.cli.wire import (
    TERMINAL,
    Approval,
    Event,
    NotFound,
    Question,
    TooLate,
    question_of,
    requested,
)

_PLAIN = {"y": "once", "yes": "once", "ok": "once", "n": "deny", "no": "deny"}


class Asking:
    """The questions that are open, oldest first."""

    def __init__(self, client: Client, ui: Ui, tasks: TaskGroup) -> None:
        self._client = client
        self._ui = ui
        self._tasks = tasks
        self._open: dict[str, Approval | Question] = {}
        self._ours: set[str] = set()  # requests that are answered here

    def forget(self) -> None:
        """Another session."""
        self._open.clear()
        self._ui.ask(None)

    def hear(self, event: Event) -> bool:
        """Take in what an event means for them; whether nothing is left to be shown."""
        match event.event:
            case "approval.request":
                self._add(requested(event))
            case "question.asked":
                self._add(question_of(event))
            case "question.answered":
                self._close(question_of(event).key)
            case "approval.responded" | "approval.expired" | "approval.withdrawn":
                self._close(event.request_id)
                return event.request_id in self._ours
            case ending if ending in TERMINAL:
                for key in [k for k, asked in self._open.items() if asked.run_id == event.run_id]:
                    self._close(key)
            case _:
                pass
        return False

    def _add(self, asked: Approval | Question) -> None:
        self._open[asked.key] = asked
        self._tasks.start_soon(self._put, asked)

    def _close(self, key: str) -> None:
        closed = self._open.pop(key, None)
        if closed is not None and self._ui.asked is not None and self._ui.asked.key == key:
            self._ask_next()

    def _ask_next(self) -> None:
        self._ui.ask(next(iter(self._open.values()), None))

    async def _put(self, asked: Approval | Question) -> None:
        """Ask it, if it still waits: the events of an old run tell of old questions."""
        try:
            waits = await self._waits(asked)
        except Exit:
            waits = True  # who could say otherwise? the answer will be refused if it does not
        if asked.key in self._open:
            if not waits:
                del self._open[asked.key]
            elif self._ui.asked is None:
                self._ask_next()

    async def _waits(self, asked: Approval | Question) -> bool:
        if isinstance(asked, Question):
            found = (await self._client.status(asked.run_id)).question
            return found is not None and found.call_id == asked.call_id
        waiting = await self._client.approvals(asked.run_id)
        return any(other.request_id == asked.request_id for other in waiting)

    async def reply(self, given: Reply) -> None:
        """Carry what was typed to a question there."""
        match given.asked:
            case Question() as asked:
                await self._tell(asked, given.text)
            case asked:
                await self._choose(asked, given.text)

    async def _choose(self, asked: Approval, text: str) -> None:
        said = text.strip().lower()
        choice = question.words(asked.choices).get(_PLAIN.get(said, said))
        if choice is None:
            if len(text.split()) > 1:
                return self._say(text)
            return self._ui.hint(f"type one of: {', '.join(asked.choices)}; then Enter")
        self._ours.add(asked.request_id)
        try:
            answered = await self._client.answer(asked, choice)
            note = f" ({answered.note})" if answered.note else ""
            said = f"{question.answered(answered.choice)}: {question.subject(asked)}{note}"
        except TooLate as late:
            said = f"too late: {late}"
        self._ui.print([self._ui.style.dim(f"… {said}")])
        return self._close(asked.key)

    async def _tell(self, asked: Question, text: str) -> None:
        if not text.strip():
            return self._ui.hint("type an answer; then Enter")
        answer = question.reply(asked, self._ui.pastes.expand(text))
        try:
            await self._client.reply(asked, answer)
            self._ui.print(self._ui.view.words(answer))
        except (TooLate, NotFound):
            self._ui.print([self._ui.style.dim("… too late for the question: it is said as words")])
            self._say(text)
        return self._close(asked.key)

    def _say(self, text: str) -> None:
        """These are words, after all."""
        self._ui.say(Say(text, self._ui.mode))
