"""What a run looks like: on a terminal or in a pipe as text, for programs as JSON lines.

The model's words go to stdout and nothing else does, so that a pipe gets the answer;
tools and notes go to stderr. On a terminal the words come as they are written. Text of
a turn that turned out void is there already: we say so, and what counts comes again.
Anywhere else nothing can be taken back by saying so: a turn's words are held until they
stand, that is until a tool starts, the next turn begins or the run ends.
"""

import sys
from contextlib import suppress
from typing import Protocol

from holdfast.cli.wire import Event, Frame

# What a model or a tool says must not steer the terminal.
_VISIBLE: dict[int, int | None] = {c: 0x2400 + c for c in range(32) if chr(c) not in "\n\t\r"}
_VISIBLE |= {ord("\r"): None, 0x7F: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


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

    def __init__(self) -> None:
        self._turn = 0
        self._shown = ""  # of the current turn
        self._held = ""  # of the current turn, not shown yet
        self._live = sys.stdout is not None and sys.stdout.isatty()

    def note(self, text: str) -> None:
        self._break()
        with suppress(OSError):  # that nobody reads the notes must not cost the answer
            print(text.translate(_VISIBLE), file=sys.stderr, flush=True)

    def show(self, frame: Frame) -> None:
        event = frame.event
        match event.event:
            case "message.delta":
                self._say(event)
            case "message.void":
                self._held = ""
                self.note("… that answer was cut off and does not count; it is asked for again")
                self._shown = ""
            case "tool.started":
                self._stand()
                self.note(f"→ {event.tool} {event.preview}".rstrip())
            case "tool.completed" if event.error:
                self.note(f"✗ {event.tool} ({event.outcome or 'failed'}){_why(event)}")
            case "run.resumed":
                self.note("… the run goes on after an interruption")
            case "approval.request":
                self.note("? the run waits for an approval")
            case "run.completed":
                self._finish(event.output)
            case "run.failed":
                self._stand()
                self.note(f"holdfast: the run failed{_why(event)}")
            case "run.cancelled":
                self._stand()
                self.note("… the run was stopped")
            case _:
                pass  # started, reasoning, progress: nothing a reader of the answer needs

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
        self._shown += text
        print(text.translate(_VISIBLE) if self._live else text, end="", flush=True)

    def _break(self) -> None:
        if self._shown and not self._shown.endswith("\n"):
            self._write("\n")

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


def _why(event: Event) -> str:
    match event.error:
        case str(text):
            return f": {text}"
        case {"message": str(text)}:
            return f": {text}"
        case _:
            return f": {event.reason}" if event.reason else ""
