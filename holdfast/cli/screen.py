"""What a run looks like: on a terminal or in a pipe as text, for programs as JSON lines.

The model's words go to stdout as they come and nothing else does, so that a pipe gets
the answer; tools and notes go to stderr. Text of a turn that turned out void has been
written already: we say so, and what counts comes again.
"""

import sys
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
        self._shown = ""  # of the current turn
        self._steers = sys.stdout is not None and sys.stdout.isatty()

    def note(self, text: str) -> None:
        self._break()
        print(text.translate(_VISIBLE), file=sys.stderr, flush=True)

    def show(self, frame: Frame) -> None:
        event = frame.event
        match event.event:
            case "message.delta":
                self._write(event.delta)
            case "message.void":
                self.note("… that answer was cut off and does not count; it is asked for again")
                self._shown = ""
            case "tool.started":
                self.note(f"→ {event.tool} {event.preview}".rstrip())
                self._shown = ""
            case "tool.completed" if event.error:
                self.note(f"✗ {event.tool}{_why(event)}")
            case "run.resumed":
                self.note("… the run goes on after an interruption")
            case "approval.request":
                self.note("? the run waits for an approval")
            case "run.completed":
                self._finish(event.output)
            case "run.failed":
                self.note(f"holdfast: the run failed{_why(event)}")
            case "run.cancelled":
                self.note("… the run was stopped")
            case _:
                pass  # started, reasoning, progress: nothing a reader of the answer needs

    def _write(self, text: str) -> None:
        self._shown += text
        print(text.translate(_VISIBLE) if self._steers else text, end="", flush=True)

    def _break(self) -> None:
        if self._shown and not self._shown.endswith("\n"):
            self._write("\n")

    def _finish(self, output: str) -> None:
        """The output is the truth: what of it has not been seen comes now."""
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
