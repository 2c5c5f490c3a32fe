"""The contract of a model provider: one request in, one stream of pieces out.

A provider sends the request, yields text and reasoning as they arrive, and ends with exactly one
`Answer`, which contains the whole text again: the pieces are for live readers, the answer is what
counts. It keeps no state between requests, never retries and never decides. It raises `Transient`
if the answer was cut off, `Overflow` if the conversation is too long, and `Rejected` if the server
will never accept the request (holdfast.errors); the runner does the rest. Cancelling the consumer
closes the connection.
"""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.core.messages import Message, Proposal
from holdfast.core.session.instructions import MAX_BYTES
from holdfast.core.types import Usage, Value


class ToolSpec(Value):
    """The description of a tool for the model. `schema` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: Mapping[str, Any]


class Request(Value):
    """The request to the model for one turn."""

    model: str  # the provider's name of the model, without the provider's prefix
    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    max_output: int = 0  # tokens that the answer may have; 0: the server's own limit


class Text(Value):
    text: str


class Reasoning(Value):
    text: str


class Answer(Value):
    """The model's complete answer. Its call ids are unique, whatever the server sent."""

    text: str
    reasoning: str = ""
    calls: tuple[Proposal, ...] = ()
    usage: Usage = Usage()
    opaque: str = ""  # JSON that only this provider can read; it gets it back with the message
    cut: bool = False  # it reached its limit of tokens


Piece = Text | Reasoning | Answer


class Model(Protocol):
    """A provider. `name` is the part of `HOLDFAST_MODEL` before the slash."""

    @property
    def name(self) -> str: ...

    def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces, then one `Answer`; or raise as described above."""
        ...

    async def check(self) -> str:
        """Try to reach the server without using tokens; return a line for `doctor`, or raise."""
        ...

    async def aclose(self) -> None:
        """Close the connections. Called once, at the end of the process."""
        ...


class Price(Value):
    """US dollars for a million tokens; all 0: not known, unless it is free."""

    input: float = 0.0
    output: float = 0.0
    cached: float = 0.0  # input that the server read from its cache; 0: costs as other input
    free: bool = False  # it runs on a machine of the user's

    @property
    def known(self) -> bool:
        return self.free or bool(self.input or self.output)

    def cost(self, usage: Usage) -> float:
        """Return what the usage costs."""
        cached = usage.cached_tokens if self.cached else 0
        fresh = usage.input_tokens - cached
        spent = fresh * self.input + cached * self.cached + usage.output_tokens * self.output
        return spent / 1e6


class ListedModel(Value):
    """A model that a server offers."""

    name: str
    window: int = 0  # tokens that it reads at once; 0: the server does not say
    price: Price = Price()


class RemoteModel(Model, Protocol):
    """A provider whose server can list its models."""

    async def list_models(self) -> list[ListedModel]:
        """Return the server's models, within a second; or raise as described above."""
        ...


class Profile(Value):
    """How a model is used. The default: the whole prompt, all tools, the usual approvals."""

    tools: tuple[str, ...] = ()  # names of the tools that it is offered; empty: all
    prompt: str = ""  # takes the place of the standing instructions; may contain {workspace}
    instructions: int = MAX_BYTES  # of files with instructions that it reads; 0: none
    cautious: bool = False  # commands always ask, and at a terminal writes ask too
    banner: str = ""  # one line for people


class Candidate(Value):
    """A model that can be asked."""

    name: str  # with its provider: "openai/gpt-5-mini"
    model: Model
    window: int = 0  # tokens that it reads at once; 0: not known
    profile: Profile = Profile()
    price: Price = Price()
    key: int = 1  # which one of several keys for its server
    spares: tuple["Candidate", ...] = ()  # the same model, with the other keys

    @property
    def id(self) -> str:
        """The name for those who count failures: each key has its own."""
        return self.name if self.key == 1 else f"{self.name} with key {self.key}"


class Models(Value):
    """The models of a gateway."""

    main: Candidate  # the configured one
    fallbacks: tuple[Candidate, ...] = ()  # asked in this order if the one before fails
    others: tuple[Candidate, ...] = ()  # that a request or a session may name
    small: Candidate | None = None  # writes notes on long histories; None: the main one
    reason: str = ""  # one line: why the main one is used
    # Returns a model of a configured server, as it is known now; None: there is no such server.
    find: Callable[[str], Candidate | None] | None = None

    @property
    def all(self) -> tuple[Candidate, ...]:
        """Every model, once each."""
        small = (self.small,) if self.small is not None else ()
        known = (self.main, *self.fallbacks, *self.others, *small)
        return tuple({c.name: c for c in reversed(known)}.values())[::-1]

    def serves(self, wanted: str) -> bool:
        """Tell whether a request may name this model."""
        return self._named(wanted) is not None

    def full_name(self, given: str) -> str:
        """Return the name with its provider, by default the main model's; empty: none is served."""
        main = self.main.name.partition("/")[0]
        name = given if "/" in given or self.serves(given) else f"{main}/{given}"
        return name if self.serves(name) else ""

    @property
    def providers(self) -> tuple[str, ...]:
        """The providers of all models, once each."""
        return tuple(dict.fromkeys(c.name.partition("/")[0] for c in self.all))

    def named(self, wanted: str) -> Candidate:
        """Return the model of that name; the main one if there is none of its provider."""
        return self._named(wanted or self.main.name) or self._now(self.main)

    def _named(self, wanted: str) -> Candidate | None:
        known = (self.main, *self.fallbacks, *self.others)
        for candidate in known:
            if candidate.name == wanted:
                return self._now(candidate)
        if self.find is not None:
            return self.find(wanted)
        provider, _, name = wanted.partition("/")
        for candidate in known:
            if name and candidate.name.partition("/")[0] == provider:
                return Candidate(wanted, candidate.model, profile=candidate.profile)
        return None

    def _now(self, candidate: Candidate) -> Candidate:
        """Return the candidate as it is known now: its window may be known by now."""
        found = self.find(candidate.name) if self.find is not None else None
        return found or candidate

    def chain(self, wanted: str, first: str) -> tuple[Candidate, ...]:
        """Return the candidates for a run, in order: `wanted`, then the fallbacks.

        `first`, if it is one of them, goes first, and those before it last: a run that was cut goes
        on where it was. A model with several keys is several candidates.
        """
        one = self.named(wanted)
        models = (one, *(self._now(c) for c in self.fallbacks if c.name != one.name))
        chain = tuple(c for model in models for c in (model, *model.spares))
        at = next((i for i, c in enumerate(chain) if c.name == first), 0)
        return (*chain[at:], *chain[:at])


def without_note(text: str) -> str:
    """Return a user's text without our own note about an interruption before it."""
    return text.partition("]\n\n")[2] if text.startswith("[System note:") else text
