"""The contract of a model provider: one request in, one stream of pieces out.

A provider opens the request, yields text and reasoning as they come and ends with
exactly one `Answer`, which holds the whole text again: the pieces are for readers,
the answer is the truth. It keeps nothing between requests, never retries and never
decides: a cut is raised as `Transient`, a conversation that is too long as
`Overflow`, a request the server will never take as `Rejected` (holdfast.errors),
and the runner does the rest. Cancelling the consumer closes the connection.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.core.messages import Message, Proposal
from holdfast.core.types import Usage, Value


class ToolSpec(Value):
    """A tool as the model is told about it. `schema` is JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


class Request(Value):
    """One turn's question to the model."""

    model: str  # the provider's own name of it, without the provider's prefix
    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]


class Text(Value):
    text: str


class Reasoning(Value):
    text: str


class Answer(Value):
    """The model's whole answer. Call ids are unique within it, whatever the server sent."""

    text: str
    reasoning: str = ""
    calls: tuple[Proposal, ...] = ()
    usage: Usage = Usage()


Piece = Text | Reasoning | Answer


class Model(Protocol):
    """A provider. `name` is what `HOLDFAST_MODEL` puts before the slash."""

    @property
    def name(self) -> str: ...

    def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Ask. Yields pieces, then one `Answer`, then ends; or raises as said above."""
        ...

    async def check(self) -> str:
        """Try to reach the server without spending tokens; a line for `doctor`, or raise."""
        ...

    async def aclose(self) -> None:
        """Let go of connections. Called once, at the end of the process."""
        ...
