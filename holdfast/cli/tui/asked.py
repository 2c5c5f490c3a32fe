"""The question on the screen: how it is shown, and which keys answer it.

An approval is answered by one key (input/answers.py), a question of the model by text and Enter.
Text that was being typed when a question came waits until it is closed, and answers nothing.
"""

from collections.abc import Callable

from prompt_toolkit.key_binding.key_processor import KeyPressEvent

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.cli.client.frames import AskedQuestion
from holdfast.cli.run import approval
from holdfast.cli.tui.actions import Action, AnswerQuestion
from holdfast.cli.tui.attention import Attention
from holdfast.cli.tui.input.answers import AnswerKeys
from holdfast.cli.tui.input.paste import Pastes
from holdfast.cli.tui.layout import Panels
from holdfast.cli.tui.style import folded

ASKS_YOU = "needs your answer"
READ_FIRST = "read the question first, then answer it"
EXPLAIN = "the model reads your reason · Enter denies · Esc goes back"
NO_ANSWER = "that is no answer"
NOT_WHOLE = "there is more of it than you see: Ctrl-O shows all; then answer"


class AskedPanel(Panels):
    """The panel of the question that waits for an answer."""

    do: Callable[[Action], None]
    attention: Attention
    keys: AnswerKeys
    pastes: Pastes
    _draft: str  # the input line when the question came
    _unfolded: bool  # all of the question was shown
    _answered: bool  # the answer is on its way

    def ask(self, asked: ApprovalObject | AskedQuestion | None) -> None:
        """Ask a question, or remove it (None). Text typed before is kept and answers nothing."""
        if asked == self.asked:
            return
        typed = self.buffer.text
        if self.asked is not None:
            typed = "\n".join(filter(str.strip, (self._late(), self._draft)))
        self.buffer.text, self._draft = ("", typed) if asked is not None else (typed, "")
        self.buffer.cursor_position = len(self.buffer.text)
        self.asked, self.hinted, self.chooser = asked, "", None
        self._unfolded = self._answered = self.because = False
        self.keys.open(draft=self._draft)
        if asked is not None:
            self.attention.call(f"{ASKS_YOU}: {approval.topic(asked)}")
        self.app.invalidate()

    def ask_again(self) -> None:
        """Take another answer: the last one did not arrive."""
        self._answered = False

    def _late(self) -> str:
        """Return text typed to a question that has closed: it answers no other (HALT-09)."""
        words = self.keys.drop() + self.buffer.text
        asked = self.asked
        if isinstance(asked, ApprovalObject) and approval.choice(asked.choices, words):
            return ""  # a choice, not a message
        return words

    def press(self, event: KeyPressEvent) -> None:
        """Take a letter that was typed while a question is on the screen."""
        asked, key = self.asked, event.data
        if not key.isprintable():
            return
        if self.keys.flows:
            self._draft += key
            return self.hint(READ_FIRST)
        if (
            not isinstance(asked, ApprovalObject)
            or self.because
            or self.buffer.text
            or self._answered
        ):
            return self.buffer.insert_text(key)
        more = bool(event.key_processor.input_queue)
        text = self.keys.press(key, approval.keys(asked.choices), more=more)
        if not text:
            return self.hint(f"{self.keys.waiting} …")
        self.buffer.insert_text(text)
        return self.hint(self._no_answer(asked) if self.keys.is_seen else READ_FIRST)

    def explain(self) -> None:
        """Tab: deny with a reason, which is typed next; text that is there is its beginning."""
        if isinstance(self.asked, ApprovalObject) and not self.keys.flows:
            self.buffer.insert_text(self.keys.drop())
            self.because = True
            self.hint(EXPLAIN)

    def explain_not(self) -> None:
        """Esc: go back to the choices."""
        self.because = False
        self.hint("")

    def answer_alone(self) -> None:
        """Give the answer of a key that stayed alone."""
        if choice := self.keys.ripe():
            self._give(choice)

    def accept_answer(self, text: str) -> None:
        """Enter: send the typed answer. It never sends a message, and never ends the run."""
        choice = self.keys.waiting
        self.keys.drop()
        if not self.because and (not self.keys.is_seen or self.keys.flows):
            return self.hint(READ_FIRST)
        match self.asked:
            case None:
                return None
            case AskedQuestion() as question:
                self.buffer.reset()
                return self.do(AnswerQuestion(question, text))
            case asked if self.because:
                if not text.strip():
                    return self.hint(EXPLAIN)
                self.buffer.reset()
                return self._give("deny", self.pastes.expand(text).strip())
            case asked:
                if choice := choice or approval.choice(asked.choices, text):
                    self.buffer.reset()
                    return self._give(choice)
                return self.hint(self._no_answer(asked))

    def _no_answer(self, asked: ApprovalObject) -> str:
        letters = ", ".join(sorted(approval.shown_keys(asked.choices).values()))
        waits = "; your text waits" if self._draft or self.buffer.text else ""
        return f"{NO_ANSWER}: press one of {letters} on an empty line{waits}"

    def _give(self, choice: str, reason: str = "") -> None:
        if self._answered or not isinstance(self.asked, ApprovalObject):
            return
        if choice != "deny" and not self.is_whole:
            return self.hint(NOT_WHOLE)
        self._answered, self.hinted = True, ""
        return self.do(AnswerQuestion(self.asked, choice, reason))

    @property
    def is_whole(self) -> bool:
        """Tell whether the whole command is visible or was shown: an approval is for all of it."""
        if self._unfolded or not isinstance(self.asked, ApprovalObject):
            return True
        return self.shows_whole(self.asked)

    def unfolded(self) -> list[str]:
        """Return the whole question, which counts as shown from here on."""
        match self.asked:
            case None:
                return []
            case AskedQuestion() as asked:
                text = approval.asks(asked)
            case asked:
                text = approval.body(asked)
        self._unfolded = True
        return [row for line in text.split("\n") for row in folded(line, self.size.columns)]
