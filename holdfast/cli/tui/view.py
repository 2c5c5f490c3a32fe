"""Turn the events of a session into lines: final ones, and a few below them that still change.

A final line goes to the terminal's own scrollback and is never redrawn. What may still change
(half a paragraph, an active call, waiting messages) is redrawn in place. A message is printed
where the run that reads it begins, as in the transcript; until then it is shown as waiting.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.api.schema.changes import FileDiffObject
from holdfast.api.schema.events import TERMINAL, Event
from holdfast.cli.run import approval, notes
from holdfast.cli.run.live import MARK
from holdfast.cli.text.markdown import MarkdownStream
from holdfast.cli.tui.style import Style, cut, cut_before, seconds, took, wrapped
from holdfast.cli.tui.unfold import changes
from holdfast.core.text.escape import OutputCleaner, reveal, reveal_lines
from holdfast.core.text.width import fold
from holdfast.core.types import Value

KEPT = 64 * 1024  # characters of one call's output
TAIL = 3  # rows of a call at work
FAILED = 4  # rows of a call that failed
WORDS = 12  # lines of a message; the transcript has all of them
SUPERSEDED = "superseded"
INTERRUPTED = "■ interrupted"
INTERRUPTED_BY_NEXT = f"{INTERRUPTED} by your next message"
_OUTCOMES = {"denied": "not allowed", "aborted": "stopped", "unknown": "cut off midway"}


class ShownCall(Value):
    """A tool call and its output."""

    call_id: str
    tool: str
    preview: str
    begun_at: float
    output: str = ""
    ended: str = ""  # how, as its line says


class WaitingMessage(Value):
    """A message that no run has begun to read."""

    run_id: str
    words: tuple[str, ...]
    images: int = 0


class View:
    """One session on a screen."""

    def __init__(self, style: Style, width: Callable[[], int], now: Callable[[], float]) -> None:
        self.waiting: dict[str, WaitingMessage] = {}
        self.run_id = ""  # of the run at work; empty: none is
        self.stopping = ""  # the run that was told to stop
        self.ended_at = 0.0  # of the last run; 0: the user has sent a message since
        self.begun_at = 0.0
        self.sandbox = ""
        self.unread: list[str] = []  # by a run that was stopped
        self.processes: dict[str, str] = {}  # in the background: their commands
        self.input_tokens = 0
        self.output_tokens = 0
        self.context_tokens = 0  # of the latest request
        self.cost_usd = 0.0  # of what has a known price
        self._style = style
        self._width = width
        self._now = now
        self._at_work: dict[str, ShownCall] = {}
        self._output = OutputCleaner()
        self._stream: MarkdownStream | None = None
        self._turn = 0
        self._said = False  # anything in this run
        self._thought = ""
        self._changes: dict[str, list[Event]] = {}  # files changed by the calls at work
        self.diffs: Sequence[FileDiffObject] = ()  # of the call that ends next
        self._joined: dict[str, str] = {}  # words that joined the run at work
        self._superseded: list[str] = []
        self._aside: list[str] = []  # notes that came in the middle of an answer: they follow it
        self._retry: Event | None = None  # of the model that is waited for

    @property
    def busy(self) -> bool:
        """Tell whether a run is active or a message waits."""
        return bool(self.run_id or self.waiting)

    def hear(self, event: Event) -> list[str]:
        """Take an event; return the lines that are final with it."""
        match event.event:
            case "run.queued":
                self.waiting[event.run_id] = WaitingMessage(
                    event.run_id, (event.input,), event.images
                )
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
                self._retry = None
                self._thought = (self._thought + event.delta)[-400:]
                return []
            case "message.void":
                self._stream = None
                return [self.note(notes.CONNECTION_LOST), *self._flush()]
            case "model.answered":
                self._count(event)
                return self._flush()  # what follows in the journal is below it on the screen
            case "tool.started" | "tool.progress" | "tool.completed" | "file.changed":
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
        elif event.reason != notes.WOKEN:
            lines.append(self.note(notes.RESUMED))
        self.begun_at = self.begun_at or event.timestamp
        return lines

    def _begin_reading(self, run_id: str) -> list[str]:
        """Begin a run: print its messages above its answer."""
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
        """Draw a message of the user; notices of the gateway were shown when they arrived."""
        if approval.notice(text):
            return []
        shown = reveal_lines(text.strip().expandtabs(4))
        if len(shown) > WORDS:
            shown = [*shown[: WORDS - 1], self.note(f"… {len(shown) - WORDS + 1} more lines")]
        if images:
            shown[-1] += self._style.dim(f"  [{images} image{'s' * (images > 1)}]")
        rows = [row for line in shown for row in wrapped(line, self._width() - 2)]
        head, *more = rows or [""]
        return ["", f"{self._style.mine('›')} {head}", *(f"  {row}" for row in more), ""]

    def answer(self, text: str) -> list[str]:
        """Draw a complete answer of the agent or of a command."""
        stream = MarkdownStream(max(self._width(), 10), self._style.colour)
        return [*stream.feed(text), *stream.close()] if text.strip() else []

    def called(self, tool: str, arguments: str, outcome: str, *, failed: bool | None) -> str:
        """Draw an earlier call; `failed` is None where that is not known."""
        marks = {True: self._style.bad("✗"), False: self._style.good("✓"), None: "→"}
        said = f"{marks[failed]} {_line(tool)}  {_line(arguments)}".rstrip()
        shown = _line(OutputCleaner().text("", outcome).expandtabs(1))
        if not shown:
            return self._fit(said)
        room = max(self._width() // 2, 20)
        return cut_before(said, self._style.dim(cut(f" · {shown}", room)), self._width())

    def _steered(self, event: Event) -> list[str]:
        before = self.waiting.get(event.run_id)
        if before is not None:
            self.waiting[event.run_id] = replace(before, words=(*before.words, event.input))
            return []
        self._joined[event.input_id] = event.input
        return [*self._flush(), *self.words(event.input, event.images)]

    def take_unread(self) -> list[str]:
        """Return the messages that a stopped run did not read."""
        unread, self.unread = self.unread, []
        return unread

    def _say(self, event: Event) -> list[str]:
        lines: list[str] = []
        if event.turn != self._turn or self._stream is None:
            lines += self._flush()
            self._turn = event.turn
            self._stream = MarkdownStream(max(self._width(), 10), self._style.colour)
        self._thought, self._retry = "", None
        self._said = True
        return lines + self._stream.feed(event.delta)

    def _flush(self) -> list[str]:
        """End the answer so far: its text is final, and the notes below it are too."""
        stream, self._stream = self._stream, None
        aside, self._aside = self._aside, []
        return [*([] if stream is None else stream.close()), *aside]

    def _beside(self, *lines: str) -> list[str]:
        """Print what is not about the answer: now, or below the answer that has begun."""
        if self._stream is None:
            return list(lines)
        self._aside += lines
        return []

    def _count(self, event: Event) -> None:
        self._retry = None
        if event.usage is not None:
            self.input_tokens += event.usage.input_tokens
            self.output_tokens += event.usage.output_tokens
            self.context_tokens = event.usage.input_tokens + event.usage.output_tokens
            if isinstance(event.usage.cost_usd, float):
                self.cost_usd += event.usage.cost_usd

    def _call(self, event: Event) -> list[str]:
        known = self._at_work.get(event.call_id)
        if event.event == "file.changed":
            self._changes.setdefault(event.call_id, []).append(event)
            return []
        if event.event == "tool.started":
            self._at_work[event.call_id] = ShownCall(
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
        call = known or ShownCall(event.call_id, _line(event.tool), "", event.timestamp)
        call = replace(call, ended=self._ending(event))
        failed = bool(event.error or event.summary)
        why = self._first_lines(event.detail or call.output) if failed else []
        line = self._call_line(call, failed=failed)
        return [*self._flush(), line, *why, *self._changed(call.call_id)]

    def _first_lines(self, output: str) -> list[str]:
        """Draw the beginning of a failed call's output; Ctrl-O shows all of it."""
        rows = self._rows(output)
        shown = [self._style.dim(row) for row in rows[:FAILED]]
        more = len(rows) - FAILED
        return [*shown, self.note(f"{MARK}… {more} more (Ctrl-O)")] if more > 0 else shown

    def changes_of(self, event: Event) -> bool:
        """Tell whether the call that ends with this event has changed files."""
        return event.event == "tool.completed" and event.call_id in self._changes

    def _changed(self, call_id: str) -> list[str]:
        files, diffs, self.diffs = self._changes.pop(call_id, []), self.diffs, ()
        if diffs:
            return changes.below_call(self._style, self._width(), diffs)
        return [self._fit(f"  {changes.summary(self._style, file)}") for file in files]

    def _ending(self, event: Event) -> str:
        how = [_OUTCOMES.get(event.outcome, "failed")] if event.error else []
        if event.duration >= 0.05 or not how:
            how.append(took(event.duration))
        if event.summary:
            how.append(_line(event.summary))
        return " · ".join(how)

    def _call_line(self, call: ShownCall, *, failed: bool) -> str:
        mark = self._style.bad("✗") if failed else self._style.good("✓")
        said = f"{call.tool}  {call.preview}".rstrip()
        return cut_before(f"{mark} {said}", self._style.dim(f" · {call.ended}"), self._width())

    def _end(self, event: Event) -> list[str]:
        begun = event.run_id == self.run_id
        gone = self.waiting.pop(event.run_id, None)
        if not begun and gone is not None:
            return []  # taken back before it began
        lines = self._flush() if begun else []
        match event.event:
            case "run.completed":
                if event.output.strip() and not self._said:
                    lines += self.answer(event.output)
                if flaw := notes.incomplete(event):
                    lines.append(self.note(flaw))
            case "run.failed":
                why = _line(event.why) or "no reason is known"
                lines.append(self._style.bad(f"✗ the run failed: {why}"))
            case _:
                superseded = event.reason == SUPERSEDED
                if not superseded:  # else the next run has them
                    self.unread += self._superseded
                lines.append(self._style.bad(INTERRUPTED_BY_NEXT if superseded else INTERRUPTED))
        if begun:
            self._joined.clear()
            self._superseded.clear()
            self.run_id, self._thought, self.stopping, self._retry = "", "", "", None
            self.ended_at = self._now()
            self._at_work.clear()
        return [*lines, ""]

    def _remark(self, event: Event) -> list[str]:
        match event.event:
            case "subagent.started":
                name = _line(event.name or event.preview)
                return [*self._flush(), self.note(f"⤷ subagent started: {name}")]
            case "subagent.completed":
                named = f" ({_line(event.name)})" if event.name else ""
                return [*self._flush(), self.note(f"⤶ subagent{named}: {event.status}")]
            case "process.started":
                if not event.detach:
                    self.processes[event.process_id] = event.command
                said = f"● in the background, {event.process_id}: {_line(event.command)}"
                return self._beside(self.note(said))
            case "process.ended":
                self.processes.pop(event.process_id, None)
                said = f"● background process {event.process_id}: {_line(event.how)}"
                return self._beside(self.note(said))
            case "process.matched":
                head = self.note(f"● background process {event.process_id} wrote:")
                return self._beside(head, *self._rows(event.lines))
            case "approval.responded":
                return [self.note(f"… {approval.answered(event.choice)}")]
            case "approval.expired":
                return [self.note(notes.NOT_ANSWERED)]
            case _:
                self._retry = event if event.event == "model.retry" else self._retry
                said = notes.about_model(event)
                return [*self._flush(), self.note(said)] if said else []

    def live(self, spinner: str, *, asks: bool = False) -> list[str]:
        """Draw what is not final; while the run `asks`, it is not thinking."""
        lines = self._stream.pending() if self._stream is not None else []
        for call in self._at_work.values():
            since = seconds(max(0.0, self._now() - call.begun_at))
            said = f"{spinner} {call.tool}  {call.preview}".rstrip()
            lines.append(cut_before(said, self._style.dim(f" · {since}"), self._width()))
            lines += [self._style.dim(row) for row in self._rows(call.output)[-TAIL:]]
        if self.run_id and not (self._at_work or lines or asks):
            thought = _line(self._thought)[-(self._width() - 16) :] if self._thought else ""
            doing = "stopping …" if self.stopping == self.run_id else self._doing()
            lines.append(self._fit(f"{spinner} {doing} {self._style.dim(thought)}"))
        return lines

    def _doing(self) -> str:
        """Say what the run does while nothing of it is shown."""
        retry = self._retry
        left = retry.timestamp + retry.wait_s - self._now() if retry is not None else 0.0
        if retry is None or left <= 0:
            return "thinking …"
        return f"next try in {seconds(left)}: {_line(retry.next_model)}, {notes.attempt(retry)}"

    @property
    def active(self) -> list[ShownCall]:
        """The calls at work."""
        return list(self._at_work.values())

    def in_short(self, call: ShownCall) -> str:
        """Draw a call at work in one line."""
        return self._fit(f"→ {call.tool}  {call.preview}".rstrip())

    def details(self, call_id: str) -> list[str] | None:
        """Draw all output of a call at work so far; None if it is not at work."""
        call = self._at_work.get(call_id)
        if call is None:
            return None
        head = self._style.bold(f"{call.tool}  {call.preview}".rstrip())
        rows = self._rows(call.output) or [self.note("(no output)")]
        return [head, *rows, self.note("running")]

    def unfolded(self, tool: str, arguments: str, result: str) -> list[str]:
        """Draw the arguments and the result of a finished call."""
        rows = [*self._rows(arguments), self.note("⇒"), *self._rows(result)]
        return [self._style.bold(_line(tool)), *rows]

    def _rows(self, text: str) -> list[str]:
        said = OutputCleaner().text("", text.expandtabs(4)).rstrip("\n")
        width = max(self._width() - len(MARK), 10)
        return [f"{MARK}{row}" for row in fold(said, width, 0)[0]] if said else []

    def note(self, text: str) -> str:
        """Style a note of our own."""
        return self._style.dim(text)

    def _fit(self, line: str) -> str:
        """Cut a line to the width."""
        return cut(line, self._width())


def _line(text: str) -> str:
    """Join a text into one harmless line."""
    return reveal(" ⏎ ".join(text.strip().splitlines()))
