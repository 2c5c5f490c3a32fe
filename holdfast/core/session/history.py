"""The transcript: events in, model messages out.

An input appears where a run read it. A call without a result in the journal gets one, because
providers refuse a conversation with open calls. Such calls come from a crash, from a run that
ended between two records, and from a history that a client sent. While the session has an
interruption mark (a run was cut and none has completed since), each run that starts or goes on
tells the model so, once, before its input. Only the active run has open calls; the end of another
run (one that was stopped in the queue) does not affect them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from holdfast.core.inbox import InputAdmitted, InputPromoted, InputRefused, InputSuperseded
from holdfast.core.messages import Assistant, Image, Message, ToolResult, User
from holdfast.core.run.call import UNKNOWN_TEXT, CallSettled
from holdfast.core.run.context import HistoryCompacted
from holdfast.core.run.process import ProcessEnd, ProcessEnded, ProcessStarted
from holdfast.core.run.run import (
    ModelAnswered,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunInterrupted,
    RunResumed,
)
from holdfast.core.session import compaction
from holdfast.core.session.compaction import Filling, Measured
from holdfast.core.session.instructions import InstructionsRead
from holdfast.core.session.notes import RESULTS_NOTE, died_note, resume_note
from holdfast.core.session.rewound import Rewound
from holdfast.core.session.session import (
    MarkCleared,
    SessionMarked,
    SessionReset,
    SessionSeeded,
    Undone,
)
from holdfast.core.types import CallId, Fact, InputId, ProcessId, RunId, Value
from holdfast.errors import HoldfastError

_COMMAND = 100  # characters of the command of a process that died


class _Taken(Value):
    """The messages that a rewind removed, and what the transcript knew of them."""

    at: int  # their position
    messages: list[Message]
    begun: dict[RunId, int]
    compactions: list[HistoryCompacted]


class Excerpt(Value):
    """Of a transcript, what the model reads, and all that the next facts need."""

    left_out: int
    messages: tuple[Message, ...]
    compacted: HistoryCompacted | None
    instructions: dict[RunId, str]
    waiting: tuple[InputAdmitted, ...]
    open: tuple[CallId, ...]
    mark: str
    note: str
    at_work: RunId
    begun: dict[RunId, int]
    imported: bool
    since: int
    measured: Measured | None
    files: InstructionsRead | None
    running: dict[ProcessId, str]
    died: dict[str, bool]


class MessagesLeftOut(HoldfastError):
    """A fact is about messages that an excerpt leaves out: read the whole transcript."""


class Transcript:
    """A session's messages, built fact by fact. The same facts give the same messages.

    One that begins with an excerpt serves the model in the same way. It leaves out most messages
    that a compaction stands for, so positions in it count `left_out` less than those in facts, and
    people cannot be shown it.
    """

    def __init__(self) -> None:
        self.left_out = 0  # messages
        self.added: list[Fact] | None = None  # since it began with an excerpt; None: it is whole
        self.messages: list[Message] = []
        self._past: list[Message] = []  # messages the model no longer reads
        self._taken: list[_Taken] = []  # by a rewind; a redo brings back the last
        self.instructions: dict[RunId, str] = {}  # of unfinished runs
        self.files: InstructionsRead | None = None  # with instructions, as read last
        self._waiting: dict[InputId, InputAdmitted] = {}
        self._open: dict[CallId, None] = {}
        self._mark = ""  # the cause of a cut after which no run has completed
        self._note = ""  # a note that the model has not read yet
        self._running: dict[ProcessId, str] = {}  # in the background: no message tells their end
        self._died: dict[str, bool] = {}  # of those; true: the next answer comes after it was told
        self._at_work = RunId("")  # the active run; empty at first
        self._begun: dict[RunId, int] = {}  # the position of each run's first message
        self.imported = False  # the model's messages begin with those of an imported file
        self._compactions: list[HistoryCompacted] = []  # the last one is in force
        self._estimate = 0  # tokens of what the model reads
        self._since = -1  # tokens of the messages since `measured`; -1: it counted others
        self.measured: Measured | None = None  # the model's own count of its last request

    def add(self, fact: Fact) -> None:
        """Apply one more fact. Facts without a message change nothing."""
        if (take := self.TAKES.get(type(fact))) is not None:
            take(self, fact)
            if self.added is not None:
                self.added.append(fact)

    def excerpt(self, unfinished: Collection[RunId]) -> Excerpt:
        """Return what goes on from here, if these are the unfinished runs."""
        done = self.compacted
        hidden = 0 if done is None else done.upto
        asked = [m for m in self.messages[:hidden] if isinstance(m, User) and m.text]
        repeated = asked[:1] + asked[1:][-1:]  # the next compaction repeats these two
        out = hidden - len(repeated)
        return Excerpt(
            left_out=self.left_out + out,
            messages=(*repeated, *self.messages[hidden:]),
            compacted=None if done is None else compaction.moved(done, -out),
            instructions=self.instructions,
            waiting=tuple(self._waiting.values()),
            open=tuple(self._open),
            mark=self._mark,
            note=self._note,
            at_work=self._at_work,
            begun={
                r: max(at - out, 0)
                for r, at in self._begun.items()
                if at >= hidden or r in unfinished
            },
            imported=self.imported,
            since=self._since,
            measured=self.measured,
            files=self.files,
            running=self._running,
            died=self._died,
        )

    @classmethod
    def restored(cls, kept: Excerpt) -> "Transcript":
        """Begin with an excerpt."""
        it = cls()
        it.added, it.left_out = [], kept.left_out
        it.messages, it.instructions = list(kept.messages), dict(kept.instructions)
        it._waiting = {admitted.input_id: admitted for admitted in kept.waiting}
        it._open, it._begun = dict.fromkeys(kept.open), dict(kept.begun)
        it._mark, it._note, it._at_work = kept.mark, kept.note, kept.at_work
        it._compactions = [] if kept.compacted is None else [kept.compacted]
        it.imported, it.measured, it.files = kept.imported, kept.measured, kept.files
        it._running, it._died = dict(kept.running), dict(kept.died)
        it._measure_again()
        it._since = kept.since
        return it

    def _take_input(self, fact: InputAdmitted) -> None:
        self._waiting[fact.input_id] = fact
        if fact.instructions:
            self.instructions[fact.run_id] = fact.instructions

    def _read_input(self, fact: InputPromoted) -> None:
        self._at_work = fact.run_id
        self._taken = []
        self._tell_died()
        first = fact.run_id not in self._begun
        self._read(self._waiting.pop(fact.input_id), first=first)
        self._begun.setdefault(fact.run_id, len(self.messages) - 1)

    def _drop_input(self, fact: InputSuperseded | InputRefused) -> None:
        self._waiting.pop(fact.input_id, None)

    def _take_answer(self, fact: ModelAnswered) -> None:
        self._note = ""
        self._died = {what: told for what, told in self._died.items() if not told}
        if fact.usage.input_tokens:
            self.measured = Measured(fact.usage.input_tokens, self._estimate)
            self._since = 0
        maker = fact.model if fact.opaque else ""
        self._take(Assistant(fact.text, fact.calls, fact.opaque, maker))

    def _take_result(self, fact: CallSettled) -> None:
        self._tell_died()
        self._take(ToolResult(fact.call_id, fact.text))

    def _start_process(self, fact: ProcessStarted) -> None:
        if not (fact.notify or fact.detach):
            self._running[fact.process_id] = " ".join(fact.command.split())[:_COMMAND]

    def _end_process(self, fact: ProcessEnded) -> None:
        command = self._running.pop(fact.process_id, None)
        if command is not None and fact.cause in (ProcessEnd.RESTART, ProcessEnd.LOST):
            self._died[f"{fact.process_id} ({command})"] = False

    def _cut(self, fact: RunInterrupted) -> None:
        """The gateway ends, and with it what runs in the background."""
        self._mark = fact.cause
        self._died |= dict.fromkeys((f"{p} ({c})" for p, c in self._running.items()), False)
        self._running = {}

    def _tell_died(self) -> None:
        """The next request has the note. One that is under way now may have been sent without."""
        self._died = dict.fromkeys(self._died, True)

    def _resume(self, fact: RunResumed) -> None:
        self._tell_died()
        if fact.cause and self._mark and self.messages:
            self._at_work = fact.run_id
            self._note = resume_note(self._mark)

    def _end_run(self, fact: RunCompleted | RunFailed | RunCancelled) -> None:
        self._end(fact.run_id)
        if type(fact) is RunCompleted:
            self._mark = ""

    def _reset(self, fact: SessionReset) -> None:
        self._past += self._clear()
        self._mark = self._note = ""
        self._died = {}

    def _take_seed(self, fact: SessionSeeded) -> None:
        self.imported = fact.imported
        self._seed(fact.messages)
        self._begun = {point.run_id: point.position for point in fact.points}

    def _take_back(self, fact: Undone) -> None:
        if self._begun or self.left_out:
            self._remove(max(self._begun.values(), default=0))

    def _rewind(self, fact: Rewound) -> None:
        if fact.redo:
            if self.added is not None and not self._taken:
                raise MessagesLeftOut
            if self._taken:
                self._bring_back(self._taken.pop())
            return
        known = [self._begun[run_id] for run_id in fact.runs if run_id in self._begun]
        if self.added is not None and len(known) < len(fact.runs):
            raise MessagesLeftOut
        self._taken.append(self._remove(min(known, default=len(self.messages))))

    def _compact(self, fact: HistoryCompacted) -> None:
        if fact.upto - self.left_out <= len(self.messages):  # else these messages are gone
            self._compactions.append(compaction.moved(fact, -self.left_out))
            self._measure_again()

    def _read_files(self, fact: InstructionsRead) -> None:
        self.files = fact

    def _set_mark(self, fact: SessionMarked) -> None:
        self._mark = fact.cause

    def _clear_mark(self, fact: MarkCleared) -> None:
        self._mark = self._note = ""

    TAKES: ClassVar[dict[type[Fact], Callable[[Any, Any], None]]] = {
        InputAdmitted: _take_input,
        InputPromoted: _read_input,
        InputSuperseded: _drop_input,
        InputRefused: _drop_input,
        ModelAnswered: _take_answer,
        CallSettled: _take_result,
        RunInterrupted: _cut,
        RunResumed: _resume,
        RunCompleted: _end_run,
        RunFailed: _end_run,
        RunCancelled: _end_run,
        SessionReset: _reset,
        SessionSeeded: _take_seed,
        SessionMarked: _set_mark,
        MarkCleared: _clear_mark,
        Undone: _take_back,
        Rewound: _rewind,
        HistoryCompacted: _compact,
        InstructionsRead: _read_files,
        ProcessStarted: _start_process,
        ProcessEnded: _end_process,
    }

    @property
    def compacted(self) -> HistoryCompacted | None:
        """The compaction in force."""
        return self._compactions[-1] if self._compactions else None

    def used(self, overhead: int) -> int:
        """Return the tokens of the next request; `overhead`: an estimate of what is around it."""
        factor = compaction.scale(self.measured, overhead)
        if self.measured is not None and self._since >= 0:
            return int(self.measured.tokens + factor * self._since)
        return int(factor * (overhead + self._estimate))

    def filling(self, window: int, overhead: int) -> Filling:
        """Return what fills a window of that many tokens; 0: its size is not known."""
        done = self.compacted
        seen = compaction.view(self.messages, done)
        factor = compaction.scale(self.measured, overhead)
        results = [m for m in seen if isinstance(m, ToolResult)]
        hidden = done.upto if done is not None else 0
        summary = seen[:1] if hidden else []
        others = compaction.estimate_all(seen) - compaction.estimate_all([*results, *summary])
        return Filling(
            window=window,
            used=self.used(overhead),
            overhead=int(factor * overhead),
            summary=int(factor * compaction.estimate_all(summary)),
            messages=int(factor * others),
            results=int(factor * compaction.estimate_all(results)),
            count=len(seen),
            hidden=hidden + self.left_out,
            measured=self._since >= 0,
        )

    def _measure_again(self) -> None:
        self._estimate = compaction.estimate_all(compaction.view(self.messages, self.compacted))
        self._since = -1

    def for_model(self, name: str = "") -> list[Message]:
        """Return the messages for the model `name`: every call has a result, the note is included.

        What another model keeps in a message for itself is left out.
        """
        messages = compaction.view(self.without_note(), self.compacted)
        for at, message in enumerate(messages):
            if isinstance(message, Assistant) and message.opaque and message.maker != name:
                messages[at] = Assistant(message.text, message.calls)
        note = "\n".join(filter(None, (self._note, died_note(self._died))))
        if note and (at := self._unanswered(messages)) < len(messages):
            messages[at] = replace(messages[at], text=f"{note}\n\n{messages[at].text}")
        elif note:
            messages.append(User(note))
        return messages

    def without_note(self) -> list[Message]:
        """Return the same messages without the note, as the start of another session."""
        return [*self.messages, *(ToolResult(call_id, UNKNOWN_TEXT) for call_id in self._open)]

    def _unanswered(self, messages: list[Message]) -> int:
        """Return the position of the active run's last inputs; the end if there are none."""
        at = len(messages)
        shorter = len(self.messages) + len(self._open) - at
        summary = bool(self._compactions and self._compactions[-1].upto)
        begun = max(self._begun.get(self._at_work, at + shorter) - shorter, summary)
        while at > begun and isinstance(messages[at - 1], User):
            at -= 1
        return at

    def whole(self) -> tuple[Message, ...]:
        """Return all messages of the session that count, for people."""
        return (*self._past, *self.messages)

    def settled(self, run_id: RunId) -> tuple[Message, ...]:
        """Return those before the first one of that run, if it has read any yet."""
        return (*self._past, *self.messages[: self._begun.get(run_id)])

    def positions(self) -> Mapping[RunId, int]:
        """Return the position of each run's first message among those the model reads."""
        return self._begun

    def result_of(self, call_id: CallId) -> str | None:
        """Return the result of a call since the last reset, as it was; None if there is none."""
        results = (m for m in reversed(self.messages) if isinstance(m, ToolResult))
        return next((m.text for m in results if m.call_id == call_id), None)

    def last_input(self) -> str:
        """Return the text of all inputs of the run that read one last; empty if there is none."""
        return "\n\n".join(m.text for m in self._last_inputs() if m.text)

    def last_images(self) -> tuple[Image, ...]:
        """Return the images of these inputs."""
        return tuple(image for m in self._last_inputs() for image in m.images)

    def _last_inputs(self) -> list[User]:
        last = self.messages[max(self._begun.values()) :] if self._begun else ()
        return [m for m in last if isinstance(m, User)]

    def _remove(self, at: int) -> "_Taken":
        """Remove the messages from position `at` on, and return what is gone."""
        if self.left_out and at < self._compactions[0].upto:
            raise MessagesLeftOut
        self._close_open_calls()
        begun = {run_id: where for run_id, where in self._begun.items() if where >= at}
        covering = [c for c in self._compactions if c.upto > at]
        taken = _Taken(at, self.messages[at:], begun, covering)
        del self.messages[at:]
        self._begun = {k: v for k, v in self._begun.items() if k not in begun}
        self._compactions = [c for c in self._compactions if c.upto <= at]
        self._measure_again()
        return taken

    def _bring_back(self, taken: "_Taken") -> None:
        del self.messages[taken.at :]
        self.messages += taken.messages
        self._begun |= taken.begun
        self._compactions += taken.compactions
        self._measure_again()

    def _clear(self) -> list[Message]:
        """Remove all messages for the model, and return them."""
        self._begun = {}
        self.imported = False
        self._close_open_calls()
        removed, self.messages, self._taken = self.messages, [], []
        self._compactions = []
        self.left_out = 0
        self._measure_again()
        return removed

    def _seed(self, messages: tuple[Message, ...]) -> None:
        """Add the first messages, repaired. A rewind removes only those with a point."""
        for message in messages:
            self._take(message)
        self._close_open_calls()

    def _read(self, admitted: InputAdmitted, *, first: bool) -> None:
        if admitted.history is not None:
            removed = self._clear()
            for message in admitted.history:
                self._take(message)
            self._keep_missing(removed)
        self._close_open_calls()
        if first:
            self._note = self._first_note()
        self._take(User(admitted.text, admitted.images))

    def _first_note(self) -> str:
        """Return the note before a run's first input; empty if there is nothing to resume."""
        if not self.messages:
            return ""
        if self._mark:
            return resume_note(self._mark)
        return RESULTS_NOTE if isinstance(self.messages[-1], ToolResult) else ""

    def _keep_missing(self, removed: list[Message]) -> None:
        """Keep, for people, the messages that the client's history lacks. Most lack none."""
        repeated = Counter(self.messages)
        for message in removed:
            if repeated[message]:
                repeated[message] -= 1
            else:
                self._past.append(message)

    def _take(self, message: Message) -> None:
        if isinstance(message, ToolResult):
            if message.call_id in self._open:  # providers refuse a result without a call
                del self._open[message.call_id]
                self._append(message)
            return
        self._close_open_calls()
        self._append(message)
        if isinstance(message, Assistant):
            self._open = dict.fromkeys(c.call_id for c in message.calls)

    def _append(self, message: Message) -> None:
        self.messages.append(message)
        size = compaction.estimate(message)
        self._estimate += size
        if self._since >= 0:
            self._since += size

    def _end(self, run_id: RunId) -> None:
        self.instructions.pop(run_id, None)
        if run_id == self._at_work:
            self._close_open_calls()
            self._note = ""

    def _close_open_calls(self) -> None:
        if not self._open:  # the usual case
            return
        for call_id in self._open:
            self._append(ToolResult(call_id, UNKNOWN_TEXT))
        self._open = {}


# The only facts a transcript is made of: a cold session reads these and no others.
MESSAGE_FACTS: tuple[type[Fact], ...] = tuple(Transcript.TAKES)
