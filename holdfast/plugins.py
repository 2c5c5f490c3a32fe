"""Finds the parts that are one file each: our own, then what others have installed.

A module that brings tools has a `TOOLS` tuple. It is found because it is ours, because
an installed package names it under the entry point group `holdfast.tools`, or because
the operator's configuration names it. A workspace is never searched.
"""

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from holdfast.errors import Misconfigured
from holdfast.tools import files
from holdfast.tools.tool import Tool

GROUP = "holdfast.tools"


def find_tools(configured: Sequence[str]) -> list[Tool[Any]]:
    """Every tool there is. Two of one name are a mistake that only the operator can mend."""
    modules = [entry.value.partition(":")[0] for entry in entry_points(group=GROUP)]
    found: dict[str, Tool[Any]] = {t.name: t for t in files.TOOLS}
    for name in dict.fromkeys((*modules, *configured)):
        for tool in _tools_of(name):
            if tool.name in found:
                raise Misconfigured(
                    f"plugin {name} brings a tool {tool.name!r}, which exists already",
                    "remove the module from `plugins`, or uninstall one of the two",
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
