"""The tools of a request as JSON."""

from collections.abc import Callable, Sequence

import msgspec

from holdfast.models.model import ToolSpec

_encode = msgspec.json.Encoder().encode


class Declared:
    """Tools in one wire format, encoded once as long as they are the same object.

    A gateway declares the same tools in almost every request.
    """

    def __init__(self, wire: Callable[[Sequence[ToolSpec]], object]) -> None:
        self._wire = wire
        self._tools: Sequence[ToolSpec] | None = None
        self._encoded = msgspec.Raw()

    def encode(self, tools: Sequence[ToolSpec]) -> msgspec.Raw:
        """Return the tools as JSON."""
        if self._tools is not tools:
            self._tools, self._encoded = tools, msgspec.Raw(_encode(self._wire(tools)))
        return self._encoded
