"""What one can do at the terminal. Keys become these, and the talk carries them out, in order."""

from secrets import token_hex

import anyio

from holdfast.cli.wire import Approval, Question
from holdfast.core.inbox import Mode
from holdfast.core.types import Value


class Say:
    """Words, as they stand in the input line; labels stand for what was pasted.

    `arrived` is set once it is known what has become of them: a run, or nothing. Where that is
    not known, since the answer was lost, they are said again under the same `key`.
    """

    def __init__(self, text: str, mode: Mode) -> None:
        self.text = text
        self.mode = mode
        self.key = token_hex(16)
        self.run_id = ""  # of the run that reads them
        self.arrived = anyio.Event()


class Reply(Value):
    """What was typed to the question that was on the screen."""

    asked: Approval | Question
    text: str


class Halt(Value):
    """Stop the run that was on the screen when the key was pressed; none: that of these words."""

    run_id: str
    sent: Say | None = None


class TakeBack(Value):
    """Bring back the words that wait last, to be edited."""


class Unfold(Value):
    """Show all of what is only shown in short."""


class Leave(Value):
    """Go, and come back another day."""


Action = Say | Reply | Halt | TakeBack | Unfold | Leave
