"""Ask the questions of a session and its children in the full terminal, one after the other.

A question closes when it is answered elsewhere, expires or its run ends. Text that comes too
late for it answers no other question: it is the next message (HALT-09). Which keys answer, and
when a yes counts, is in tui/asked.py.
"""

from contextlib import suppress

from anyio.abc import TaskGroup

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.cli.client.client import Client
from holdfast.cli.client.frames import AskedQuestion
from holdfast.cli.client.refusals import NotFound, TooLateExit
from holdfast.cli.exits import Exit
from holdfast.cli.run import approval
from holdfast.cli.run.questions import Asked, OpenQuestions
from holdfast.cli.tui.actions import AnswerQuestion, SendMessage
from holdfast.cli.tui.ui import Ui
from holdfast.core.text.escape import reveal


class ScreenQuestions:
    """The questions that are open, oldest first."""

    def __init__(self, client: Client, ui: Ui, tasks: TaskGroup) -> None:
        self._questions = OpenQuestions(client, self._add, self._close)
        self._open, self.hear = self._questions.open, self._questions.hear
        self._client = client
        self._ours: set[str] = set()  # answered here
        self._typed: set[str] = set()  # runs of commands that the user has typed, not yet asked for
        self._ui = ui
        self._tasks = tasks

    def forget(self) -> None:
        """Drop all questions: another session is shown."""
        self._open.clear()
        self._ui.ask(None)

    def permit(self, run_id: str) -> None:
        """Allow the command of a run once: the user has typed it (`!make test`)."""
        self._typed.add(run_id)
        for asked in [one for one in self._open.values() if one.run_id == run_id]:
            self._tasks.start_soon(self._put, asked)

    def _add(self, asked: Asked) -> bool:
        self._open[asked.key] = asked
        self._tasks.start_soon(self._put, asked)
        return False

    def _close(self, key: str, how: str = "") -> bool:
        closed = self._open.pop(key, None)
        if closed is not None and self._ui.asked is not None and self._ui.asked.key == key:
            self._ask_next()
        return key in self._ours

    def _ask_next(self) -> None:
        self._ui.ask(next(iter(self._open.values()), None))

    async def _put(self, asked: Asked) -> None:
        """Ask a question if it still waits."""
        if isinstance(asked, ApprovalObject) and asked.run_id in self._typed:
            self._typed.discard(asked.run_id)
            with suppress(Exit):  # then it is asked as any other
                return await self._choose(asked, "once")
        try:
            waits = await self._questions.waits(asked)
        except Exit:
            waits = True  # unknown; if it does not wait, the answer will be refused
        if asked.key in self._open:
            if not waits:
                del self._open[asked.key]
            elif self._ui.asked is None:
                self._ask_next()

    async def reply(self, given: AnswerQuestion) -> None:
        """Send the typed answer to its question."""
        match given.asked:
            case AskedQuestion() as asked:
                await self._tell(asked, given.text)
            case asked:
                await self._choose(asked, given.text, given.reason)

    async def _choose(self, asked: ApprovalObject, choice: str, reason: str = "") -> None:
        self._ours.add(asked.request_id)
        try:
            answered = await self._client.answer(asked, choice, reason)
            note = f" ({answered.note})" if answered.note else ""
            said = f"{approval.answered(answered.choice)}: {approval.subject(asked)}{note}"
            said += f" ({approval.BECAUSE} {reveal(reason)})" if reason else ""
        except TooLateExit as late:
            said = f"too late: {late}"
        self._ui.print([self._ui.style.dim(f"… {said}")])
        self._close(asked.key)

    async def _tell(self, asked: AskedQuestion, text: str) -> None:
        if not text.strip():
            return self._ui.hint("type an answer; then Enter")
        answer = approval.reply(asked, self._ui.pastes.expand(text))
        try:
            await self._client.reply(asked, answer)
            self._ui.print(self._ui.view.words(answer))
        except (TooLateExit, NotFound):
            self._ui.print([self._ui.style.dim("… Too late for the question: sent as a message.")])
            self._say(text)
        self._close(asked.key)

    def _say(self, text: str) -> None:
        """Send the text as a message."""
        self._ui.say(SendMessage(text, self._ui.mode))
