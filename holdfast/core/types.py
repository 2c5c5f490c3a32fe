"""Identifiers, and the base of every record that is written down or sent."""

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

OPERATOR = Owner("operator")


class SessionKey(NamedTuple):
    """What names a session: the same id under two owners is two sessions."""

    owner: Owner
    session_id: SessionId


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class _FactMeta(msgspec.StructMeta):
    pass


class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", metaclass=_FactMeta):
    """Frozen, keyword-only, tagged. Subclasses pass only `tag`."""


@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class _ValueMeta(msgspec.StructMeta):
    pass


class Value(msgspec.Struct, frozen=True, metaclass=_ValueMeta):
    """Stays inside the process. A frozen struct: a dataclass takes a millisecond to define."""


def kind(fact: Fact | type[Fact]) -> str:
    """The name a fact goes by in the journal."""
    return _tag(fact if isinstance(fact, type) else type(fact))


@cache
def _tag(fact: type[Fact]) -> str:
    return str(fact.__struct_config__.tag)


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens spent. Adds up over the model requests of one run."""

    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens, self.output_tokens + other.output_tokens
        )
