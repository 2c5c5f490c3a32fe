"""Identifiers, and the base classes of facts and values."""

from functools import cache
from typing import NamedTuple, NewType, dataclass_transform

import msgspec

Owner = NewType("Owner", str)
SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
InputId = NewType("InputId", str)
CallId = NewType("CallId", str)
RequestId = NewType("RequestId", str)
DeliveryId = NewType("DeliveryId", str)
ProcessId = NewType("ProcessId", str)
RewindId = NewType("RewindId", str)

OPERATOR = Owner("operator")


class SessionKey(NamedTuple):
    """The identity of a session: the same id under two owners is two sessions."""

    owner: Owner
    session_id: SessionId


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _FactMeta(msgspec.StructMeta):
    pass


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", metaclass=_FactMeta):
    """The base of everything recorded or sent: frozen, keyword-only, tagged by subclasses."""


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _ValueMeta(msgspec.StructMeta):
    pass


class Value(msgspec.Struct, frozen=True, metaclass=_ValueMeta):
    """The base of values inside the process. Faster to define than a dataclass (1 ms each)."""


class Part(msgspec.Struct, eq=False):
    """The base of objects that are made of parts and keep state. Compared by identity."""


def kind(fact: Fact | type[Fact]) -> str:
    """Return the tag of a fact in the journal."""
    return kind_of(fact if isinstance(fact, type) else type(fact))


@cache
def kind_of(fact: type[Fact]) -> str:
    """Return the tag of a type of facts. For every record, this is cheaper than `kind`."""
    return str(fact.__struct_config__.tag)


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens used, added up over the model requests of one run."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input: read from the server's cache
    cost_usd: float = 0.0  # 0: not known

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cost_usd + other.cost_usd,
        )
