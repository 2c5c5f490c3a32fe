"""The live output of commands, marked so that it cannot be mistaken for anything else.

Every row has a mark in the margin, also the rows of a folded line. A question never has it. Of much
output at once, the first and the last rows are shown; the result has the rest.

While a question waits for its answer, the output of the run is held, and shown after it.
"""

import os
import sys

from msgspec.structs import replace

from holdfast.api.schema.events import Event
from holdfast.cli.client.frames import Frame
from holdfast.core.text.escape import OutputCleaner
from holdfast.core.text.width import fold

MARK = "│ "
ROWS = 40  # of one event
KEPT = 64 * 1024  # characters of output that wait for the end of a question


class Margin:
    """The margin, with the output of one call at a time."""

    def __init__(self) -> None:
        self._output = OutputCleaner()
        self._column = 0
        self.speaker = ""  # the call whose output has not ended its line

    def hear(self, event: Event) -> str:
        """Return the part of the output that can be written now."""
        return self._output.text(event.call_id, event.delta)

    def write(self, call_id: str, said: str) -> str:
        """Return the output with marks; no line of another call may be open."""
        goes_on, ended = bool(self.speaker), said.endswith("\n")
        rows, column = fold(said.removesuffix("\n"), _width(), self._column)
        self.speaker, self._column = ("", 0) if ended else (call_id, column)
        return MARK * (not goes_on) + f"\n{MARK}".join(_few(rows)) + "\n" * ended

    def end(self) -> str:
        """Return the end of the line that a call left open, if one did."""
        spoke, self.speaker, self._column = self.speaker, "", 0
        return "\n" if spoke else ""

    def forget(self, call_id: str) -> None:
        """Forget a call that has ended."""
        self._output.end(call_id)


def marked(text: str) -> str:
    """Return the output of a process as marked rows, each after a line end."""
    said = OutputCleaner().text("", text).rstrip("\n")
    return "".join(f"\n{MARK}{row}" for row in _few(fold(said, _width(), 0)[0]))


def _few(rows: list[str]) -> list[str]:
    if len(rows) <= ROWS:
        return rows
    half = ROWS // 2
    return [*rows[:half], f"… {len(rows) - 2 * half} lines …", *rows[-half:]]


def _width() -> int:
    """Return the number of columns beside the margin; 0: unknown."""
    if sys.stderr is None or not sys.stderr.isatty():
        return 0
    try:
        return max(os.get_terminal_size(sys.stderr.fileno()).columns - len(MARK), 0)
    except (OSError, ValueError):
        return 0


class HeldOutput:
    """The output of a run while a question waits. Of long output the end is kept."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._room = KEPT
        self.cut = False  # some of the output is left out

    def add(self, frame: Frame) -> None:
        """Add an event. Adjacent output of a call is joined."""
        event = frame.event
        if event.event != "tool.progress":
            self._frames.append(frame)
            return
        self._room -= len(event.delta)
        last = self._frames[-1].event if self._frames else None
        if last is not None and (last.event, last.call_id) == (event.event, event.call_id):
            event = replace(last, delta=last.delta + event.delta)
            self._frames.pop()
        self._frames.append(Frame(event, frame.line))
        self._make_room()

    def _make_room(self) -> None:
        """Drop the oldest output until the rest fits."""
        at = 0
        while self._room < 0:
            event = self._frames[at].event
            if event.event != "tool.progress" or not event.delta:
                at += 1
                continue
            dropped = min(-self._room, len(event.delta))
            kept = replace(event, delta=event.delta[dropped:])
            self._frames[at] = Frame(kept, self._frames[at].line)
            self._room += dropped
            self.cut = True

    def take(self) -> list[Frame]:
        """Return all events, oldest first."""
        frames, self._frames, self._room = self._frames, [], KEPT
        return frames
