"""An answer that is being received: pieces for live readers now, the whole answer at the end.

Parsers of wire formats use it. Adjacent text of one kind, fed between two flushes, becomes one
piece. Nothing here does I/O.
"""

import secrets
from dataclasses import dataclass, field

from holdfast.core.messages import Assistant, Proposal
from holdfast.core.types import CallId, Usage
from holdfast.models.model import Answer, Reasoning, Request, Text
from holdfast.models.peer import Peer

HELD_LIMIT = 16 << 20  # bytes of one line, or of one answer that is not streamed


@dataclass(slots=True)
class GrowingCall:
    """A tool call that is still being received."""

    id: str = ""
    tool: str = ""
    arguments: list[str] = field(default_factory=list)


class Lines:
    """Bytes cut into lines, however they arrive."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._held: list[bytes] = []  # the beginning of a line
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Add `data`, and return the lines that are complete."""
        self._held.append(data)
        if b"\n" not in data:
            self._size += len(data)
            if self._size > HELD_LIMIT:
                raise self._peer.cut(f"sent {self._size} bytes without an end of line")
            return []
        lines = b"".join(self._held).split(b"\n")
        last = lines.pop()
        self._held, self._size = [last], len(last)
        return lines

    def rest(self) -> bytes:
        """Return what followed the last line."""
        return b"".join(self._held)


class Building:
    """The answer as far as it has arrived."""

    def __init__(self, peer: Peer) -> None:
        self.calls: list[GrowingCall] = []
        self.usage = Usage()
        self.opaque = ""
        self._cut = False  # at its limit of tokens
        self._peer = peer
        self._pieces: list[Text | Reasoning] = []
        self._kind: type[Text] | type[Reasoning] = Text
        self._run: list[str] = []  # neighbouring deltas of that kind
        self._text: list[str] = []
        self._reasoning: list[str] = []

    def add_text(self, text: str) -> None:
        self._text.append(text)
        self._add(Text, text)

    def add_reasoning(self, text: str) -> None:
        self._reasoning.append(text)
        self._add(Reasoning, text)

    def cut_short(self) -> None:
        """Accept an answer that reached its limit of tokens, unless it was only reasoning."""
        if not self.calls and not "".join(self._text).strip():
            raise self._peer.cut("reached its limit of tokens before it said anything")
        self._cut = True

    def flush(self) -> list[Text | Reasoning]:
        """Return the pieces since the last flush."""
        self._flush_run()
        pieces, self._pieces = self._pieces, []
        return pieces

    def answer(self, request: Request) -> Answer:
        """Return the complete answer, with call ids that are new in this conversation."""
        calls: tuple[Proposal, ...] = ()
        if self.calls:
            taken = {
                c.call_id for m in request.messages if isinstance(m, Assistant) for c in m.calls
            }
            calls = tuple(self._proposal(call, taken) for call in self.calls)
        text, thought = "".join(self._text), "".join(self._reasoning)
        return Answer(text, thought, calls, self.usage, self.opaque, cut=self._cut)

    def _add(self, kind: type[Text] | type[Reasoning], text: str) -> None:
        if kind is not self._kind:
            self._flush_run()
            self._kind = kind
        self._run.append(text)

    def _flush_run(self) -> None:
        if self._run:
            self._pieces.append(self._kind("".join(self._run)))
            self._run = []

    def _proposal(self, call: GrowingCall, taken: set[CallId]) -> Proposal:
        if not call.tool:
            raise self._peer.cut("sent a tool call without a name")
        call_id = CallId(call.id)
        if not call_id or call_id in taken:
            call_id = CallId(f"call_{secrets.token_hex(12)}")
        taken.add(call_id)
        return Proposal(call_id, call.tool, "".join(call.arguments).strip() or "{}")
