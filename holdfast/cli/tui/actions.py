"""The actions at the terminal. Keys create them; the conversation carries them out, in order."""

from secrets import token_hex

import anyio

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.cli.client.frames import AskedQuestion
from holdfast.core.inbox import Mode
from holdfast.core.types import Value


class SendMessage:
    """Send a message as typed; labels in it stand for pasted text and images.

    `arrived` is set once the message has become a run or was refused. If the response was lost,
    it is sent again under the same `key`.
    """

    def __init__(self, text: str, mode: Mode) -> None:
        self.text = text
        self.mode = mode
        self.key = token_hex(16)
        self.run_id = ""  # of the run that reads it
        self.arrived = anyio.Event()


class AnswerQuestion(Value):
    """The answer to the question that was on the screen."""

    asked: ApprovalObject | AskedQuestion
    text: str
    reason: str = ""  # of a denial, for the model

    @property
    def chooses(self) -> bool:
        """Tell whether it is a choice, not text."""
        return isinstance(self.asked, ApprovalObject)


class Halt(Value):
    """Stop the run that was on the screen when the key was pressed, or the run of `sent`."""

    run_id: str
    sent: SendMessage | None = None


class TakeBack(Value):
    """Bring the last waiting message back into the input line."""


class Unfold(Value):
    """Show the whole question, or offer the calls of the session."""


class ShowCall(Value):
    """Show all of a call."""

    call_id: str


class Quit(Value):
    """Leave."""


Action = SendMessage | AnswerQuestion | Halt | TakeBack | Unfold | ShowCall | Quit
