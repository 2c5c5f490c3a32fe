"""Messages to and from a model. Provider formats are made from these in `models/`."""

import msgspec

from holdfast.core.types import CallId


class Proposal(msgspec.Struct, frozen=True):
    """A tool call as the model wrote it. `arguments` is its raw JSON text, valid or not."""

    call_id: CallId
    tool: str
    arguments: str


class Image(msgspec.Struct, frozen=True):
    """An image. Its media type is decided by its bytes: see core/images.py."""

    media_type: str
    data: bytes


class User(msgspec.Struct, frozen=True, tag="user", tag_field="role", omit_defaults=True):
    """A user's message: text, images, or both."""

    text: str
    images: tuple[Image, ...] = ()


class Assistant(msgspec.Struct, frozen=True, tag="assistant", tag_field="role", omit_defaults=True):
    """The model's text and the calls it proposes.

    `opaque` is JSON that only the model `maker` can read (signatures, encrypted reasoning). It goes
    back to that model, and to no other.
    """

    text: str
    calls: tuple[Proposal, ...] = ()
    opaque: str = ""
    maker: str = ""


class ToolResult(msgspec.Struct, frozen=True, tag="tool", tag_field="role"):
    """The result of one call, for the model."""

    call_id: CallId
    text: str


class System(msgspec.Struct, frozen=True, tag="system", tag_field="role"):
    """Instructions in a history that a client sent. Our own prompt is not a message."""

    text: str


Message = User | Assistant | ToolResult | System
