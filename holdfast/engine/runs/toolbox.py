"""The tools of the moment: found by name when a call starts, described when a turn starts.

Tools may come and go while the process runs. The source returns the same sequence as long as
nothing has changed, so the descriptions are made once for each change.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.core.session.compaction import tokens
from holdfast.models.model import Profile, ToolSpec
from holdfast.tools.tool import Tool, schema

RECALL = "recall"  # the tool that is offered once results may have been shortened

Source = Callable[[], Sequence[Tool[Any]]]


class Toolbox:
    """The tools that there are now."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._seen: Sequence[Tool[Any]] | None = None
        self._tools: Mapping[str, Tool[Any]] = {}
        self._all: list[ToolSpec] = []
        self._without_recall: list[ToolSpec] = []
        self._size = 0

    def find(self, name: str) -> Tool[Any] | None:
        """Return the tool of that name, if there is one now."""
        self._refresh()
        return self._tools.get(name)

    @property
    def names(self) -> list[str]:
        """The names of all tools, sorted."""
        self._refresh()
        return sorted(self._tools)

    @property
    def size(self) -> int:
        """The tokens that the descriptions of all tools take, roughly."""
        self._refresh()
        return self._size

    def offered(self, profile: Profile, *, compacted: bool) -> Sequence[ToolSpec]:
        """Return the descriptions of the tools that a model may call."""
        self._refresh()
        if profile.tools:
            return [spec for spec in self._all if spec.name in profile.tools]
        return self._all if compacted else self._without_recall

    def _refresh(self) -> None:
        tools = self._source()
        if tools is self._seen:
            return
        self._seen = tools
        self._tools = {tool.name: tool for tool in tools}
        self._all = [
            ToolSpec(t.name, t.description, t.schema or schema(t.arguments)) for t in tools
        ]
        self._without_recall = [spec for spec in self._all if spec.name != RECALL]
        self._size = sum(tokens(f"{s.name}{s.description}{s.schema}") for s in self._all)
