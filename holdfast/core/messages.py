"""What a model reads and writes. Provider formats are made from these at the edge."""

import msgspec

from holdfast.core.types import CallId


class Proposal(msgspec.Struct, frozen=True):
    """A tool call as the model wrote it. `arguments` is its raw JSON text, good or bad."""

    call_id: CallId
    tool: str
    arguments: str


class Image(msgspec.Struct, frozen=True):
    """A picture. Its media type is what its bytes are: see core/images.py."""

    media_type: str
    data: bytes


class User(msgspec.Struct, frozen=True, tag="user", tag_field="role", omit_defaults=True):
    """Somebody's words, and the pictures that came with them. There is one or the other."""

    text: str
    images: tuple[Image, ...] = ()


class Assistant(msgspec.Struct, frozen=True, tag="assistant", tag_field="role", omit_defaults=True):
    """The model's words and the calls it wants made."""

    text: str
    calls: tuple[Proposal, ...] = ()


class ToolResult(msgspec.Struct, frozen=True, tag="tool", tag_field="role"):
    """What became of one call, as the model is told."""

    call_id: CallId
    text: str


class System(msgspec.Struct, frozen=True, tag="system", tag_field="role"):
    """Instructions. Only callers write these into a history; our own prompt travels apart."""

    text: str


Message = User | Assistant | ToolResult | System
