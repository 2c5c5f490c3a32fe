"""The transcript: events in, model messages out.

An input stands where a run read it. A call the journal knows no result of is given
one, because providers refuse a conversation with open calls: a crash leaves such
calls, and so do a run that ended between two records and a caller's own history. A
run that goes on after a cut tells the model so, once, in a note of its own. Only the
run at work has open calls; the end of another one (stopped in the queue) touches none.
"""

from collections import Counter

from holdfast.core.call import UNKNOWN_TEXT, CallSettled
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputRefused, InputSuperseded
from holdfast.core.messages import Assistant, Message, ToolResult, User
from holdfast.core.run import (
    Cause,
    ModelAnswered,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
)
from holdfast.core.session import SessionReset
from holdfast.core.types import CallId, Fact, InputId, RunId

# The only facts a transcript is made of: a cold session reads these and no others.
MESSAGE_FACTS: tuple[type[Fact], ...] = (
    InputAdmitted,
    InputPromoted,
    InputSuperseded,
    InputRefused,
    ModelAnswered,
    CallSettled,
    RunResumed,
    RunCompleted,
    RunFailed,
    RunCancelled,
    SessionReset,
)

_CAUSES: dict[str, str] = {
    Cause.RESTART: "gateway restart",
    Cause.SHUTDOWN: "gateway shutdown",
    Cause.TERMINAL: "gateway shutdown",
    Cause.CRASH: "gateway interruption",
}


def resume_note(cause: str) -> str:
    """What the model is told when a run goes on after `cause` cut it."""
    what = _CAUSES.get(cause, "gateway interruption")
    return (
        f"[System note: Your previous turn was cut by a {what}. The history above is intact. "
        "If tool results are unfinished or unknown, deal with those first, then go on with the "
        "task where it stopped.]"
    )


class Transcript:
    """A session's messages, grown fact by fact. The same facts give the same messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._past: list[Message] = []  # what the model no longer reads
        self.instructions: dict[RunId, str] = {}  # of unfinished runs
        self._waiting: dict[InputId, InputAdmitted] = {}
        self._open: dict[CallId, None] = {}
        self._note = ""  # of a cut the model has not been told of
        self._at_work: RunId | None = None

    def add(self, fact: Fact) -> None:
        """Take one more fact into account. Facts that carry no message change nothing."""
        match fact:
            case InputAdmitted():
                self._waiting[fact.input_id] = fact
                if fact.instructions:
                    self.instructions[fact.run_id] = fact.instructions
            case InputPromoted():
                self._at_work = fact.run_id
                self._read(self._waiting.pop(fact.input_id))
            case InputSuperseded() | InputRefused():
                self._waiting.pop(fact.input_id, None)
            case ModelAnswered():
                self._note = ""
                self._take(Assistant(fact.text, fact.calls))
            case CallSettled():
                self._take(ToolResult(fact.call_id, fact.text))
            case RunResumed(cause=cause) if cause and self.messages:
                self._at_work = fact.run_id
                self._note = resume_note(cause)
            case RunCompleted() | RunFailed() | RunCancelled():
                self._end(fact.run_id)
            case SessionReset():
                self._past += self._begin_afresh()
                self._note = ""
            case _:
                pass

    def for_model(self) -> list[Message]:
        """What the model reads now: no call without a result, and the note of a cut, if any."""
        messages = list(self.messages)
        messages.extend(ToolResult(call_id, UNKNOWN_TEXT) for call_id in self._open)
        if self._note:
            last = messages[-1]
            words = f"\n\n{messages.pop().text}" if isinstance(last, User) else ""
            messages.append(User(self._note + words))
        return messages

    def whole(self) -> tuple[Message, ...]:
        """Everything that was ever said, for people."""
        return (*self._past, *self.messages)

    def _begin_afresh(self) -> list[Message]:
        """Leave what has been said so far."""
        self._close_open_calls()
        said, self.messages = self.messages, []
        return said

    def _read(self, admitted: InputAdmitted) -> None:
        if admitted.history is not None:
            said = self._begin_afresh()
            for message in admitted.history:
                self._take(message)
            self._leave(said)
        self._take(User(admitted.text))

    def _leave(self, said: list[Message]) -> None:
        """Past is what the caller's history does not say again: most say all of it each time."""
        again = Counter(self.messages)
        for message in said:
            if again[message]:
                again[message] -= 1
            else:
                self._past.append(message)

    def _take(self, message: Message) -> None:
        if isinstance(message, ToolResult):
            if message.call_id in self._open:  # providers refuse a result nobody asked for
                del self._open[message.call_id]
                self.messages.append(message)
            return
        self._close_open_calls()
        self.messages.append(message)
        if isinstance(message, Assistant):
            self._open = dict.fromkeys(c.call_id for c in message.calls)

    def _end(self, run_id: RunId) -> None:
        self.instructions.pop(run_id, None)
        if run_id == self._at_work:
            self._close_open_calls()
            self._note = ""

    def _close_open_calls(self) -> None:
        self.messages.extend(ToolResult(call_id, UNKNOWN_TEXT) for call_id in self._open)
        self._open = {}
