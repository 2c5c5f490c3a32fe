"""Show a run: as text on a terminal or in a pipe, as JSON lines for programs.

Only the answer goes to stdout, so that a pipe gets nothing else; tools and notes go to stderr.
On a terminal the answer is printed as it arrives. If the connection breaks in the middle of it,
a note says so and the answer is printed again. Elsewhere printed text cannot be taken back: the
text of a turn is held until it is final, that is until a tool starts, the next turn begins or
the run ends.

While a question waits for an answer, its line stays the last one: our own notes are printed
above it, and the output of the run follows the answer. The output of commands has a mark in the
margin (live.py), so that it cannot be mistaken for a question.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from holdfast.api.schema.events import Event
from holdfast.cli.client.frames import Frame, approval_of, question_of
from holdfast.cli.output import ERASE, is_clever, tell
from holdfast.cli.run import approval, notes
from holdfast.cli.run.live import MARK, HeldOutput, Margin, marked
from holdfast.core.text.escape import reveal, visible

_CONFINED = frozenset({"", "L2", "L3"})  # no warning: confined well, or unknown
_HOW_TO_BE_ASKED = (
    f"{notes.DENIED_HERE}\n"
    "  To be asked, start it on a terminal; with --json answer there with: holdfast approvals\n"
    '  To be asked less: mode = "sandboxed" under [approval] (see: holdfast config path)'
)
_DIM, _BRIGHT = "\x1b[2m", "\x1b[0m"


class Screen(Protocol):
    """A place where a run is shown."""

    def show(self, frame: Frame) -> None:
        """Show one event."""
        ...

    def note(self, text: str) -> None:
        """Show a note of our own."""
        ...


class JsonScreen:
    """Print each event as the line of JSON it arrived as."""

    def show(self, frame: Frame) -> None:
        print(frame.line, flush=True)

    def note(self, text: str) -> None:
        pass


class Plain:
    """Print the answer on stdout and everything else on stderr."""

    def __init__(self, *, answerable: bool = True) -> None:
        self._turn = 0
        self._shown = ""  # of the current turn
        self._held = ""  # of the current turn, not shown yet
        self._live = sys.stdout is not None and sys.stdout.isatty()
        self._clever = is_clever()
        self._margin = Margin()
        self._waiting: HeldOutput | None = None  # what comes after the answer to a question
        self._explains = not answerable  # say once why approvals are denied
        self._question = ""  # the line that waits for an answer
        self._sandbox = ""  # the weak one that was told of

    def note(self, text: str) -> None:
        with self._above():
            self._break()
            tell(visible(text) + "\n")

    def ask(self, line: str) -> None:
        """Show the line to answer, and keep it the last one until it is answered."""
        self._break()
        self._question = line
        tell(line)

    def asked(self, *, ended: bool) -> None:
        """Forget the line after an answer; `ended`: Enter has begun a new line."""
        self._question = ""
        if not ended:
            tell("\n")

    def withdraw(self) -> None:
        """Erase the line to answer, with the text typed to it."""
        if self._question:
            self._question = ""
            tell(ERASE if self._clever else "\n")

    def hold(self) -> None:
        """Hold the output of the run while a question is open."""
        self._waiting = self._waiting or HeldOutput()

    def go_on(self) -> None:
        """Show the held output: the question is closed."""
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            if waiting.cut:
                self.note(f"{MARK}… earlier output is left out …")
            for frame in waiting.take():
                self._show(frame.event)

    def show(self, frame: Frame) -> None:
        if self._waiting is not None:
            self._waiting.add(frame)
        else:
            self._show(frame.event)

    @contextmanager
    def _above(self) -> Iterator[None]:
        """Print the output of the block above the line to answer."""
        line = self._question
        self.withdraw()
        yield
        if line:
            self.ask(line)

    def _show(self, event: Event) -> None:
        match event.event:
            case "message.delta":
                self._say(event)
            case "message.void":
                self._held = ""
                self.note(notes.CONNECTION_LOST)
                self._shown = ""
            case "tool.started":
                self._stand()
                self.note(f"→ {_called(event)}")
            case "tool.progress":
                self._pass_on(event)
            case "tool.completed":
                self._margin.forget(event.call_id)
                if event.error:
                    self._tell_failed(event)
                elif event.summary:
                    self.note(f"└ {event.summary}")
            case "run.completed":
                self._finish(event.output)
                if flaw := notes.incomplete(event):
                    self.note(flaw)
            case "run.failed":
                self._stand()
                self.note(f"holdfast: the run failed{_why(event)}")
            case "run.cancelled":
                self._stand()
                self.note("… the run was stopped")
            case _:
                self._remark(event)

    def _remark(self, event: Event) -> None:
        match event.event:
            case "run.started":
                self._warn(event.sandbox)
            case "run.resumed" if event.reason != notes.WOKEN:
                self.note(notes.RESUMED)
            case "approval.request":
                self._stand()
                self.note(_asks(event))
            case "approval.responded":
                self.note(f"… {approval.answered(event.choice)}")
            case "question.asked":
                self._stand()
                asked = question_of(event)
                self.note(f"? the run asks:\n{approval.asks(asked)}\n  {approval.elsewhere(asked)}")
            case "subagent.completed" if event.background:
                named = f" ({reveal(event.name)})" if event.name else ""
                self.note(f"● task {event.child_run_id}{named}: {event.status}")
            case "process.ended":
                self.note(f"● background process {event.process_id}: {event.how}")
            case "process.matched":
                self.note(f"● background process {event.process_id} wrote:{marked(event.lines)}")
            case "approval.expired":
                self.note(notes.NOT_ANSWERED)
            case _:
                if said := notes.about_model(event):
                    self.note(said)  # else: nothing a reader of the answer needs

    def _tell_failed(self, event: Event) -> None:
        self.note(f"✗ {_called(event)} ({event.outcome or 'failed'}){_why(event)}")
        if event.detail:
            self.note("\n".join(f"{MARK}{line}" for line in event.detail.splitlines()))
        if event.outcome == "denied" and self._explains:
            self._explains = False
            self.note(_HOW_TO_BE_ASKED)

    def _warn(self, sandbox: str) -> None:
        """Warn once if the sandbox is weak."""
        if sandbox not in _CONFINED and sandbox != self._sandbox:
            self._sandbox = sandbox
            self.note(f"{notes.WEAK_SANDBOX} ({sandbox}); see: holdfast doctor")

    def _pass_on(self, event: Event) -> None:
        """Print the output of a command as it arrives."""
        if not (said := self._margin.hear(event)):
            return
        if event.call_id != self._margin.speaker:
            self._break()
        ended = said.endswith("\n")
        shown = self._margin.write(event.call_id, said).removesuffix("\n" * ended)
        tell((f"{_DIM}{shown}{_BRIGHT}" if self._clever else shown) + "\n" * ended)

    def _say(self, event: Event) -> None:
        if event.turn != self._turn:
            self._stand()
            self._turn = event.turn
        if self._live:
            self._write(event.delta)
        else:
            self._held += event.delta

    def _stand(self) -> None:
        """End the turn: its text is final."""
        self._release()
        self._break()
        self._shown = ""

    def _release(self) -> None:
        held, self._held = self._held, ""
        self._write(held)

    def _write(self, text: str) -> None:
        self._end_output()
        self._shown += text
        print(visible(text) if self._live else text, end="", flush=True)

    def _break(self) -> None:
        self._end_output()
        if self._shown and not self._shown.endswith("\n"):
            self._write("\n")

    def _end_output(self) -> None:
        if end := self._margin.end():
            tell(end)

    def _finish(self, output: str) -> None:
        """Print the part of the final output that has not been printed."""
        self._release()
        if output.startswith(self._shown):
            self._write(output[len(self._shown) :])
        elif not self._shown.rstrip().endswith(output.rstrip()):
            self._break()
            self._write(output)
        self._break()
        self._shown = ""


class Quiet:
    """Print the answer on stdout and errors on stderr, nothing else."""

    def __init__(self) -> None:
        self._denied = False  # that something was has been told

    def note(self, text: str) -> None:
        pass

    def show(self, frame: Frame) -> None:
        event = frame.event
        match event.event:
            case "run.completed" if event.output:
                _answer(event.output)
            case "run.failed":
                tell(visible(f"holdfast: the run failed{_why(event)}\n"))
            case "run.cancelled":
                tell("holdfast: the run was stopped\n")
            case "tool.completed" if event.outcome == "denied" and not self._denied:
                self._denied = True
                what = f"{event.tool} was denied: --quiet asks no questions"
                tell(visible(f"holdfast: {what}\n"))
            case _:
                pass


def _answer(text: str) -> None:
    shown = visible(text) if sys.stdout.isatty() else text
    print(shown, end="" if shown.endswith("\n") else "\n", flush=True)


def _called(event: Event) -> str:
    """Describe a call in one line."""
    return f"{event.tool} {event.preview}".rstrip().replace("\n", " ⏎ ")


def _asks(event: Event) -> str:
    """Describe an approval that cannot be answered here."""
    asked = approval_of(event)
    head = f"? the run waits for an approval ({approval.expires(asked)}):"
    return f"{head}\n{approval.body(asked)}\n  {approval.elsewhere(asked)}"


def _why(event: Event) -> str:
    return f": {event.why}" if event.why else ""
