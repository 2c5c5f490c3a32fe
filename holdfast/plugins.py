"""Finds the parts that are one file each: our own, then what the operator has named.

A module that brings tools has a `TOOLS` tuple. It is loaded because it is ours or because
the configuration names it, never because it happens to be installed or to lie in a
workspace: what may act here is somebody's decision.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from holdfast.errors import Misconfigured
from holdfast.tools import files
from holdfast.tools.tool import Tool


def find_tools(configured: Sequence[str], own: Sequence[Tool[Any]] = ()) -> list[Tool[Any]]:
    """Every tool there is. Two of one name are a mistake that only the operator can mend."""
    ours: list[Tool[Any]] = [*files.TOOLS, *own]
    found = {t.name: t for t in ours}
    for name in dict.fromkeys(configured):
        for tool in _tools_of(name):
            if tool.name in found:
                raise Misconfigured(
                    f"plugin {name} brings a tool {tool.name!r}, which exists already",
                    "remove the module from `plugins`",
                )
            found[tool.name] = tool
    return list(found.values())


def _tools_of(name: str) -> Sequence[Tool[Any]]:
    try:
        module = import_module(name)
    except ImportError as error:
        raise Misconfigured(
            f"plugin {name} cannot be imported: {error}", "install it, or remove it from `plugins`"
        ) from None
    tools: Sequence[Tool[Any]] = getattr(module, "TOOLS", ())
    return tools
