"""What a session's events look like: lines that stay, and a few below them that still change.

A line that is final goes to the terminal's own scrollback and is never taken back. What may
still change (half a paragraph, a call at work, what waits) is drawn anew in place. Words stand
where the run that reads them begins, as in the transcript: until then they are shown as waiting.
"""

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.cli import question
from holdfast.cli.live import MARK, fold
from holdfast.cli.markdown import Stream
from holdfast.cli.output import Output
from holdfast.cli.tui.style import Style, cut, cut_before, seconds, took, wrapped
from holdfast.cli.wire import TERMINAL, Event
from holdfast.core.types import Value

CALLS = 50  # whose output is kept for whoever wants to see it
KEPT = 64 * 1024  # characters of one call's output
TAIL = 3  # rows of a call at work
WORDS = 12  # lines of somebody's words; all of them are in the transcript
SUPERSEDED = "superseded"
_WOKEN = "woken"
_OUTCOMES = {"denied": "not allowed", "aborted": "stopped", "unknown": "cut off midway"}


class Call(Value):
    """A tool call, and what it has said."""

    call_id: str
    tool: str
    preview: str
    begun_at: float
    output: str = ""
    ended: str = ""  # how, as its line says


class Waiting(Value):
    """Words that no run has begun to read."""

    run_id: str
    words: tuple[str, ...]
    images: int = 0


class View:
    """One session on a screen."""

    def __init__(self, style: Style, width: Callable[[], int], now: Callable[[], float]) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.run_id = ""  # of the run at work; empty: none is
        self.stopping = ""  # the run that was told to stop
        self.interrupted = False  # the run that ended last was
        self.ended_at = 0.0  # when it did; 0: something was said since
        self.begun_at = 0.0
        self.sandbox = ""
        self.calls: deque[Call] = deque(maxlen=CALLS)  # that are over, the latest last
        self.unread: list[str] = []  # by a run that was stopped
        self.processes: dict[str, str] = {}  # in the background: their commands
        self.input_tokens = 0
        self.output_tokens = 0
        self.context_tokens = 0  # of the latest request
        self._style = style
        self._width = width
        self._now = now
        self._at_work: dict[str, Call] = {}
        self._output = Output()
        self._stream: Stream | None = None
        self._turn = 0
        self._said = False  # anything in this run
        self._thought = ""
        self._joined: dict[str, str] = {}  # words that joined the run at work
        self._superseded: list[str] = []

    @property
    def busy(self) -> bool:
        """Whether anything of the session is unfinished."""
        return bool(self.run_id or self.waiting)

    def hear(self, event: Event) -> list[str]:
        """Take in an event; the lines that are final with it."""
        match event.event:
            case "run.queued":
                self.waiting[event.run_id] = Waiting(event.run_id, (event.input,), event.images)
                return []
            case "run.steered":
                return self._steered(event)
            case "input.superseded":
                if event.input_id in self._joined:
                    self._superseded.append(self._joined.pop(event.input_id))
                return []
            case "message.delta":
                return self._say(event)
            case "reasoning.delta":
                self._thought = (self._thought + event.delta)[-400:]
                return []
            case "message.void":
                self._stream = None
                return [self.note("… that answer was cut off and does not count; asked again")]
            case "model.answered":
                return self._count(event)
            case "tool.started" | "tool.progress" | "tool.completed":
                return self._call(event)
            case "run.started" | "run.resumed":
                return self._begin(event)
            case ending if ending in TERMINAL:
                return self._end(event)
            case _:
                return self._remark(event)

    def _begin(self, event: Event) -> list[str]:
        lines = self._begin_reading(event.run_id)
        if event.event == "run.started":
            self.begun_at = event.timestamp
            if event.sandbox and event.sandbox != self.sandbox:
                self.sandbox = event.sandbox
        elif event.reason != _WOKEN:
            lines.append(self.note("… the run goes on after an interruption"))
        self.begun_at = self.begun_at or event.timestamp
        return lines

    def _begin_reading(self, run_id: str) -> list[str]:
        """The run is at work; what it was given stands above what it says."""
        if run_id == self.run_id:
            return []
        lines = self._flush()
        self.run_id, self.begun_at, self._said = run_id, 0.0, False
        self._at_work.clear()
        given = self.waiting.pop(run_id, None)
        if given is not None:
            for words in given.words:
                lines += self.words(words, given.images if words == given.words[0] else 0)
        return lines

    def words(self, text: str, images: int = 0) -> list[str]:
        """What somebody has said."""
        shown = question.visible_lines(text.strip().expandtabs(4))
        if len(shown) > WORDS:
            shown = [*shown[: WORDS - 1], self.note(f"… {len(shown) - WORDS + 1} more lines")]
        if images:
            shown[-1] += self._style.dim(f"  [{images} image{'s' * (images > 1)}]")
        rows = [row for line in shown for row in wrapped(line, self._width() - 2)]
        head, *more = rows or [""]
        return ["", f"{self._style.mine('›')} {head}", *(f"  {row}" for row in more), ""]

    def answer(self, text: str) -> list[str]:
        """What the agent, or a command, has said, whole."""
        stream = Stream(max(self._width(), 10), self._style.colour)
        return [*stream.feed(text), *stream.close()] if text.strip() else []

    def called(self, tool: str, arguments: str, result: str) -> str:
        """A call of earlier, and the beginning of what came of it."""
        room = max(self._width() // 2, 20)
        said = cut(f"→ {_line(tool)}  {_line(arguments)}", room)
        return self._fit(self.note(f"{said}  ⇒ {_line(result)}" if result else said))

    def _steered(self, event: Event) -> list[str]:
        before = self.waiting.get(event.run_id)
        if before is not None:
            self.waiting[event.run_id] = replace(before, words=(*before.words, event.input))
            return []
        self._joined[event.input_id] = event.input
        return [*self._flush(), *self.words(event.input, event.images)]

    def take_unread(self) -> list[str]:
        """Words that a run was stopped before it could read: nobody will."""
        unread, self.unread = self.unread, []
        return unread

    def _say(self, event: Event) -> list[str]:
        lines: list[str] = []
        if event.turn != self._turn or self._stream is None:
            lines += self._flush()
            self._turn = event.turn
            self._stream = Stream(max(self._width(), 10), self._style.colour)
        self._thought = ""
        self._said = True
        return lines + self._stream.feed(event.delta)

    def _flush(self) -> list[str]:
        """The model's words so far stand."""
        stream, self._stream = self._stream, None
        return [] if stream is None else stream.close()

    def _count(self, event: Event) -> list[str]:
        if event.usage is not None:
            self.input_tokens += event.usage.input_tokens
            self.output_tokens += event.usage.output_tokens
            self.context_tokens = event.usage.input_tokens + event.usage.output_tokens
        return []

    def _call(self, event: Event) -> list[str]:
        known = self._at_work.get(event.call_id)
        if event.event == "tool.started":
            self._at_work[event.call_id] = Call(
                event.call_id, _line(event.tool), _line(event.preview), event.timestamp
            )
            return self._flush()
        if event.event == "tool.progress":
            if known is not None:
                text = self._output.text(event.call_id, event.delta)
                kept = replace(known, output=(known.output + text)[-KEPT:])
                self._at_work[event.call_id] = kept
            return []
        self._output.end(event.call_id)
        self._at_work.pop(event.call_id, None)
        call = known or Call(event.call_id, _line(event.tool), "", event.timestamp)
        call = replace(call, ended=self._ending(event))
        self.calls.append(call)
        return [
            *self._flush(),
            self._call_line(call, failed=bool(event.error or event.summary)),
        ]

    def _ending(self, event: Event) -> str:
        how = [_OUTCOMES.get(event.outcome, "failed")] if event.error else []
        if event.duration >= 0.05 or not how:
            how.append(took(event.duration))
        if event.summary:
            how.append(_line(event.summary))
        return " · ".join(how)

    def _call_line(self, call: Call, *, failed: bool) -> str:
        mark = self._style.bad("✗") if failed else self._style.good("✓")
        said = f"{call.tool}  {call.preview}".rstrip()
        return cut_before(f"{mark} {said}", self._style.dim(f" · {call.ended}"), self._width())

    def _end(self, event: Event) -> list[str]:
        begun = event.run_id == self.run_id
        gone = self.waiting.pop(event.run_id, None)
        if not begun and gone is not None:
            return []  # taken back before it began
        lines = self._flush() if begun else []
        self.interrupted = event.event == "run.cancelled"
        match event.event:
            case "run.completed":
                if event.output.strip() and not self._said:
                    lines += self.answer(event.output)
            case "run.failed":
                why = _line(event.why) or "no reason is known"
                lines.append(self._style.bad(f"✗ the run failed: {why}"))
            case _:
                if event.reason != SUPERSEDED:  # else whoever it made way for has them
                    self.unread += self._superseded
                by = " by your next words" if event.reason == SUPERSEDED else ""
                lines.append(self._style.bad(f"■ interrupted{by}"))
        if begun:
            self._joined.clear()
            self._superseded.clear()
            self.run_id, self._thought, self.stopping = "", "", ""
            self.ended_at = self._now()
            self._at_work.clear()
        return [*lines, ""]

    def _remark(self, event: Event) -> list[str]:
        match event.event:
            case "subagent.started":
                name = _line(event.name or event.preview)
                return [*self._flush(), self.note(f"⤷ a helper begins: {name}")]
            case "subagent.completed":
                named = f" ({_line(event.name)})" if event.name else ""
                return [*self._flush(), self.note(f"⤶ helper{named}: {event.status}")]
            case "process.started":
                if not event.detach:
                    self.processes[event.process_id] = event.command
                said = f"● in the background, {event.process_id}: {_line(event.command)}"
                return [self.note(said)]
            case "process.ended":
                self.processes.pop(event.process_id, None)
                return [self.note(f"● background process {event.process_id}: {_line(event.how)}")]
            case "process.matched":
                head = self.note(f"● background process {event.process_id} wrote:")
                return [head, *self._rows(event.lines)]
            case "approval.responded":
                return [self.note(f"… {question.answered(event.choice)}")]
            case "approval.expired":
                return [self.note("… nobody answered in time: it is not run")]
            case _:
                return []

    def live(self, spinner: str, *, asks: bool = False) -> list[str]:
        """What is not final, as it stands now; one that `asks` does not think."""
        lines = self._stream.pending() if self._stream is not None else []
        for call in self._at_work.values():
            since = seconds(max(0.0, self._now() - call.begun_at))
            said = f"{spinner} {call.tool}  {call.preview}".rstrip()
            lines.append(cut_before(said, self._style.dim(f" · {since}"), self._width()))
            lines += [self._style.dim(row) for row in self._rows(call.output)[-TAIL:]]
        if self.run_id and not (self._at_work or lines or asks):
            thought = _line(self._thought)[-(self._width() - 16) :] if self._thought else ""
            doing = "stopping …" if self.stopping == self.run_id else "thinking …"
            lines.append(self._fit(f"{spinner} {doing} {self._style.dim(thought)}"))
        return lines

    def details(self) -> list[str]:
        """Everything the latest call has said, or the one at work."""
        calls = [*self.calls, *self._at_work.values()]
        if not calls:
            return [self.note("no tool has been called yet")]
        last = calls[-1]
        head = self._style.bold(f"{last.tool}  {last.preview}".rstrip())
        rows = self._rows(last.output) or [self.note("  (it has said nothing)")]
        return ["", head, *rows, self.note(last.ended or "at work"), ""]

    @property
    def calling(self) -> bool:
        """Whether a call is at work."""
        return bool(self._at_work)

    def unfolded(self, tool: str, arguments: str, result: str) -> list[str]:
        """All that is known of a call that is over."""
        rows = [*self._rows(arguments), self.note("⇒"), *self._rows(result)]
        return ["", self._style.bold(_line(tool)), *rows, ""]

    def _rows(self, text: str) -> list[str]:
        said = Output().text("", text.expandtabs(4)).rstrip("\n")
        width = max(self._width() - len(MARK), 10)
        return [f"{MARK}{row}" for row in fold(said, width, 0)[0]] if said else []

    def note(self, text: str) -> str:
        """A remark of ours."""
        return self._style.dim(text)

    def _fit(self, line: str) -> str:
        """As much of a line of ours as there is room for."""
        return cut(line, self._width())


def _line(text: str) -> str:
    """A text in one line of ours, whatever it holds."""
    return question.visible(" ⏎ ".join(text.strip().splitlines()))
