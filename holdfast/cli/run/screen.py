"""What a run looks like: on a terminal or in a pipe as text, for programs as JSON lines.

The model's words go to stdout and nothing else does, so that a pipe gets the answer;
tools and notes go to stderr. On a terminal the words come as they are written. Text of
a turn that turned out void is there already: we say so, and what counts comes again.
Anywhere else nothing can be taken back by saying so: a turn's words are held until they
stand, that is until a tool starts, the next turn begins or the run ends.

While a question waits for an answer its line stays the last one: our own notes are written
above it, and what the run says meanwhile comes after the answer. What commands say bears a mark
in the margin (cli/live.py), so that it cannot pass for a question.
"""

import curses
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from holdfast import config
from holdfast.cli import question
from holdfast.cli.live import MARK, Margin, Waiting, marked
from holdfast.cli.wire import Event, Frame, question_of, requested

# What a model or a tool says must not steer the terminal.
_VISIBLE: dict[int, int | None] = {c: 0x2400 + c for c in range(32) if chr(c) not in "\n\t\r"}
_VISIBLE |= {ord("\r"): None, 0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

_CONFINED = frozenset({"", "L2", "L3"})  # nothing to warn of, or nothing known
_WOKEN = "woken"  # by what it waited for; nothing was interrupted
_HOW_TO_BE_ASKED = (
    "… what needs an approval is denied here, since stdin is no terminal: nobody can be asked.\n"
    "  To be asked, start it on a terminal; with --json answer there with: holdfast approvals\n"
    '  To be asked less: mode = "sandboxed" under [approval] (see: holdfast config path)'
)
_DIM, _BRIGHT = "\x1b[2m", "\x1b[0m"
ERASE = "\r\x1b[K"


class Screen(Protocol):
    """Where a run is shown."""

    def show(self, frame: Frame) -> None:
        """Show one event."""
        ...

    def note(self, text: str) -> None:
        """Tell the user something that is not the run's own."""
        ...


class JsonLines:
    """Every event as the line of JSON it came as, and nothing else."""

    def show(self, frame: Frame) -> None:
        print(frame.line, flush=True)

    def note(self, text: str) -> None:
        pass


class Plain:
    """The answer as text on stdout, everything else on stderr."""

    def __init__(self, *, answerable: bool = True) -> None:
        self._turn = 0
        self._shown = ""  # of the current turn
        self._held = ""  # of the current turn, not shown yet
        self._live = sys.stdout is not None and sys.stdout.isatty()
        self._clever = is_clever()
        self._margin = Margin()
        self._waiting: Waiting | None = None  # what comes after the answer to a question
        self._explains = not answerable  # why nobody was asked; said once
        self._question = ""  # the line that waits for an answer
        self._sandbox = ""  # the weak one that was told of

    def note(self, text: str) -> None:
        with self._above():
            self._break()
            _tell(text.translate(_VISIBLE) + "\n")

    def ask(self, line: str) -> None:
        """Show the line to answer, and keep it the last one until it is answered."""
        self._break()
        self._question = line
        _tell(line)

    def asked(self, *, ended: bool) -> None:
        """Something was typed to it; `ended`: with Enter, which has begun a new line."""
        self._question = ""
        if not ended:
            _tell("\n")

    def withdraw(self) -> None:
        """Take back the line to answer, with what was typed to it."""
        if self._question:
            self._question = ""
            _tell(ERASE if self._clever else "\n")

    def hold(self) -> None:
        """A question is put: what the run says from now on waits."""
        self._waiting = self._waiting or Waiting()

    def go_on(self) -> None:
        """No question is open any more: show what has waited."""
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
        """What is written in the block comes above the line to answer, if there is one."""
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
                self.note("… that answer was cut off and does not count; it is asked for again")
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
            case "run.resumed" if event.reason != _WOKEN:
                self.note("… the run goes on after an interruption")
            case "approval.request":
                self._stand()
                self.note(_asks(event))
            case "approval.responded":
                self.note(f"… {question.answered(event.choice)}")
            case "question.asked":
                self._stand()
                asked = question_of(event)
                self.note(f"? the run asks:\n{question.asks(asked)}\n  {question.elsewhere(asked)}")
            case "subagent.completed" if event.background:
                named = f" ({question.visible(event.name)})" if event.name else ""
                self.note(f"● task {event.child_run_id}{named}: {event.status}")
            case "process.ended":
                self.note(f"● background process {event.process_id}: {event.how}")
            case "process.matched":
                self.note(f"● background process {event.process_id} wrote:{marked(event.lines)}")
            case "approval.expired":
                self.note("… nobody answered in time: it is not run")
            case _:
                pass  # reasoning, steering: nothing a reader of the answer needs

    def _tell_failed(self, event: Event) -> None:
        self.note(f"✗ {_called(event)} ({event.outcome or 'failed'}){_why(event)}")
        if event.outcome == "denied" and self._explains:
            self._explains = False
            self.note(_HOW_TO_BE_ASKED)

    def _warn(self, sandbox: str) -> None:
        """Say once how weak the sandbox is, if it is."""
        if sandbox not in _CONFINED and sandbox != self._sandbox:
            self._sandbox = sandbox
            self.note(f"commands are not well confined here ({sandbox}); see: holdfast doctor")

    def _pass_on(self, event: Event) -> None:
        """What a command says, as it comes."""
        if not (said := self._margin.hear(event)):
            return
        if event.call_id != self._margin.speaker:
            self._break()
        ended = said.endswith("\n")
        shown = self._margin.write(event.call_id, said).removesuffix("\n" * ended)
        _tell((f"{_DIM}{shown}{_BRIGHT}" if self._clever else shown) + "\n" * ended)

    def _say(self, event: Event) -> None:
        if event.turn != self._turn:
            self._stand()
            self._turn = event.turn
        if self._live:
            self._write(event.delta)
        else:
            self._held += event.delta

    def _stand(self) -> None:
        """The turn is over, and its words count."""
        self._release()
        self._break()
        self._shown = ""

    def _release(self) -> None:
        held, self._held = self._held, ""
        self._write(held)

    def _write(self, text: str) -> None:
        self._end_output()
        self._shown += text
        print(text.translate(_VISIBLE) if self._live else text, end="", flush=True)

    def _break(self) -> None:
        self._end_output()
        if self._shown and not self._shown.endswith("\n"):
            self._write("\n")

    def _end_output(self) -> None:
        if end := self._margin.end():
            _tell(end)

    def _finish(self, output: str) -> None:
        """The output is the truth: what of it has not been seen comes now."""
        self._release()
        if output.startswith(self._shown):
            self._write(output[len(self._shown) :])
        elif not self._shown.rstrip().endswith(output.rstrip()):
            self._break()
            self._write(output)
        self._break()
        self._shown = ""


class Quiet:
    """The answer on stdout, what went wrong on stderr, and not a word more."""

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
                _tell(f"holdfast: the run failed{_why(event)}\n".translate(_VISIBLE))
            case "run.cancelled":
                _tell("holdfast: the run was stopped\n")
            case "tool.completed" if event.outcome == "denied" and not self._denied:
                self._denied = True
                what = f"{event.tool} was denied, since --quiet asks nobody"
                _tell(f"holdfast: {what}\n".translate(_VISIBLE))
            case _:
                pass


def _answer(text: str) -> None:
    shown = text.translate(_VISIBLE) if sys.stdout.isatty() else text
    print(shown, end="" if shown.endswith("\n") else "\n", flush=True)


def _tell(text: str) -> None:
    with suppress(OSError):  # that nobody reads the notes must not cost the answer
        print(text, end="", file=sys.stderr, flush=True)


def is_clever() -> bool:
    """Whether the notes go to a terminal that can dim a text and erase a line, and may.

    Who has set NO_COLOR gets no escape at all: it is no worse to read, and sure.
    """
    if sys.stderr is None or not sys.stderr.isatty() or config.wants_no_colour():
        return False
    try:
        curses.setupterm(fd=sys.stderr.fileno())
        return bool(curses.tigetstr("dim") and curses.tigetstr("el"))
    except curses.error:  # nothing is known of it
        return False


def _called(event: Event) -> str:
    """A call in one line of ours, whatever it is called with."""
    return f"{event.tool} {event.preview}".rstrip().replace("\n", " ⏎ ")


def _asks(event: Event) -> str:
    """A question, where it cannot be answered."""
    asked = requested(event)
    head = f"? the run waits for an approval ({question.expires(asked)}):"
    return f"{head}\n{question.body(asked)}\n  {question.elsewhere(asked)}"


def _why(event: Event) -> str:
    return f": {event.why}" if event.why else ""
