"""The transcript: events in, model messages out.

An input stands where a run read it. A call the journal knows no result of is given
one, because providers refuse a conversation with open calls: a crash leaves such
calls, and so do a run that ended between two records and a caller's own history. While
the session's mark stands (a run was cut and none has completed since), each run that starts
or goes on tells the model so, once, before its words. Only the run at work has open calls;
the end of another one (stopped in the queue) touches none.
"""

from collections import Counter

from msgspec.structs import replace

from holdfast.core.call import UNKNOWN_TEXT, CallSettled
from holdfast.core.inbox import InputAdmitted, InputPromoted, InputRefused, InputSuperseded
from holdfast.core.messages import Assistant, Image, Message, ToolResult, User
from holdfast.core.run import (
    Cause,
    ModelAnswered,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunResumed,
)
from holdfast.core.session import MarkCleared, SessionMarked, SessionReset, SessionSeeded, Undone
from holdfast.core.types import CallId, Fact, InputId, RunId

# The only facts a transcript is made of: a cold session reads these and no others.
MESSAGE_FACTS: tuple[type[Fact], ...] = (
    InputAdmitted,
    InputPromoted,
    InputSuperseded,
    InputRefused,
    ModelAnswered,
    CallSettled,
    RunInterrupted,
    RunResumed,
    RunCompleted,
    RunFailed,
    RunCancelled,
    SessionReset,
    SessionSeeded,
    SessionMarked,
    MarkCleared,
    Undone,
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


RESULTS_NOTE = (
    "[System note: The conversation above ends with tool results that nobody has dealt with. "
    "See what each tool result says, then turn to the message below.]"
)


class Transcript:
    """A session's messages, grown fact by fact. The same facts give the same messages."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._past: list[Message] = []  # what the model no longer reads
        self._undone: list[tuple[int, list[Message]]] = []  # nor this; before which it stood
        self.instructions: dict[RunId, str] = {}  # of unfinished runs
        self._waiting: dict[InputId, InputAdmitted] = {}
        self._open: dict[CallId, None] = {}
        self._mark = ""  # the cause of the cut after which no run has completed
        self._note = ""  # what the model has not been told yet
        self._at_work = RunId("")  # none yet
        self._begun: dict[RunId, int] = {}  # where what each run read and said begins

    def add(self, fact: Fact) -> None:
        """Take one more fact into account. Facts that carry no message change nothing."""
        match fact:
            case InputAdmitted():
                self._waiting[fact.input_id] = fact
                if fact.instructions:
                    self.instructions[fact.run_id] = fact.instructions
            case InputPromoted():
                self._at_work = fact.run_id
                first = fact.run_id not in self._begun
                self._read(self._waiting.pop(fact.input_id), first=first)
                self._begun.setdefault(fact.run_id, len(self.messages) - 1)
            case InputSuperseded() | InputRefused():
                self._waiting.pop(fact.input_id, None)
            case ModelAnswered():
                self._note = ""
                self._take(Assistant(fact.text, fact.calls))
            case CallSettled():
                self._take(ToolResult(fact.call_id, fact.text))
            case RunResumed(cause=cause) if cause and self._mark and self.messages:
                self._at_work = fact.run_id
                self._note = resume_note(self._mark)
            case RunCompleted() | RunFailed() | RunCancelled():
                self._end(fact.run_id)
            case SessionReset():
                self._past += self._begin_afresh()
            case SessionSeeded(messages=messages):
                self._seed(messages)
            case Undone():
                self._undo()
            case _:
                pass
        self._follow_mark(fact)

    def _follow_mark(self, fact: Fact) -> None:
        match fact:
            case RunInterrupted() | SessionMarked():
                self._mark = fact.cause
            case RunCompleted():
                self._mark = ""
            case MarkCleared() | SessionReset():
                self._mark = self._note = ""
            case _:
                pass

    def for_model(self) -> list[Message]:
        """What the model reads now: no call without a result, and the note, if any."""
        messages = self.so_far()
        if self._note and (at := self._unanswered(messages)) < len(messages):
            messages[at] = replace(messages[at], text=f"{self._note}\n\n{messages[at].text}")
        elif self._note:
            messages.append(User(self._note))
        return messages

    def so_far(self) -> list[Message]:
        """The same without a note: what another session may begin with."""
        return [*self.messages, *(ToolResult(call_id, UNKNOWN_TEXT) for call_id in self._open)]

    def _unanswered(self, messages: list[Message]) -> int:
        """Where the words begin that the run at work has read last; the end: there are none."""
        at = len(messages)
        begun = self._begun.get(self._at_work, at)
        while at > begun and isinstance(messages[at - 1], User):
            at -= 1
        return at

    def whole(self) -> tuple[Message, ...]:
        """Everything that was ever said, for people."""
        return (*self._past, *self._said())

    def settled(self, run_id: RunId) -> tuple[Message, ...]:
        """Everything that was said before that run's own words, if it has read any yet."""
        return (*self._past, *self._said(self._begun.get(run_id)))

    def last_words(self) -> str:
        """All that was said to the run that read something last; empty: there is none."""
        return "\n\n".join(m.text for m in self._last_said() if m.text)

    def last_images(self) -> tuple[Image, ...]:
        """The pictures that came with the last words."""
        return tuple(image for m in self._last_said() for image in m.images)

    def _last_said(self) -> list[User]:
        last = self.messages[max(self._begun.values()) :] if self._begun else ()
        return [m for m in last if isinstance(m, User)]

    def _said(self, end: int | None = None) -> list[Message]:
        """All since the last fresh start, what was undone included; up to the message at `end`."""
        said, at = list[Message](), 0
        for where, undone in self._undone:
            if end is not None and where > end:
                break
            said += (*self.messages[at:where], *undone)
            at = where
        return said + self.messages[at:end]

    def _undo(self) -> None:
        if self._begun:
            last = max(self._begun, key=self._begun.__getitem__)
            at = self._begun.pop(last)
            self._close_open_calls()
            before = [(where, undone) for where, undone in self._undone if where < at]
            stays = at + sum(len(undone) for _, undone in before)
            self._undone = [*before, (at, self._said()[stays:])]
            del self.messages[at:]

    def _begin_afresh(self) -> list[Message]:
        """Leave what has been said so far."""
        self._begun = {}
        self._close_open_calls()
        said, self.messages, self._undone = self._said(), [], []
        return said

    def _seed(self, messages: tuple[Message, ...]) -> None:
        """It is mended like a history of the caller's, and never taken back: no run has read it."""
        for message in messages:
            self._take(message)
        self._close_open_calls()

    def _read(self, admitted: InputAdmitted, *, first: bool) -> None:
        if admitted.history is not None:
            said = self._begin_afresh()
            for message in admitted.history:
                self._take(message)
            self._leave(said)
        self._close_open_calls()
        if first:
            self._note = self._first_note()
        self._take(User(admitted.text, admitted.images))

    def _first_note(self) -> str:
        """What a run's first words are preceded by: nothing where there is nothing to resume."""
        if not self.messages:
            return ""
        if self._mark:
            return resume_note(self._mark)
        return RESULTS_NOTE if isinstance(self.messages[-1], ToolResult) else ""

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
