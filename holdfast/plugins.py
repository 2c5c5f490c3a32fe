"""Finds the parts that are one file each: our own, then what the operator has named.

A module that brings tools has a `TOOLS` tuple, one that brings commands a `COMMANDS` tuple,
one that brings channels a `CHANNELS` tuple.
It is loaded because it is ours or because the configuration names it, never because it
happens to be installed or to lie in a workspace: what may act here is somebody's decision.
Of our own commands each is a file with a `COMMAND`, of our own channels one with a `CHANNEL`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from holdfast import commands
from holdfast.channels import OWN
from holdfast.channels.channel import Kind
from holdfast.commands import help as help_command
from holdfast.commands.command import Command
from holdfast.commands.parse import NAME
from holdfast.errors import Misconfigured
from holdfast.tools import ask, delegate, files
from holdfast.tools.tool import Tool


def find_tools(configured: Sequence[str], own: Sequence[Tool[Any]] = ()) -> list[Tool[Any]]:
    """Every tool there is. Two of one name are a mistake that only the operator can mend."""
    ours: list[Tool[Any]] = [*files.TOOLS, *ask.TOOLS, *delegate.TOOLS, *own]
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
    tools: Sequence[Tool[Any]] = getattr(_plugin(name), "TOOLS", ())
    return tools


def _plugin(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise Misconfigured(
            f"plugin {name} cannot be imported: {error}", "install it, or remove it from `plugins`"
        ) from None


def find_commands(configured: Sequence[str] = ()) -> Mapping[str, Command]:
    """Every slash command by its name: our own in order, then those of the plugins."""
    found: dict[str, Command] = {}
    ours = sorted([*_own_commands(), help_command.create(found)], key=lambda c: c.name)
    brought = [(commands.__name__, command) for command in ours]
    brought += [(name, c) for name in dict.fromkeys(configured) for c in _commands_of(name)]
    for name, command in brought:
        if not NAME.fullmatch(command.name):
            raise Misconfigured(
                f"plugin {name} brings a command {command.name!r}, which nobody could give",
                "name it in 1 to 32 small letters and underscores, or remove it from `plugins`",
            )
        if command.name in found:
            raise Misconfigured(
                f"plugin {name} brings a command /{command.name}, which exists already",
                "remove the module from `plugins`",
            )
        found[command.name] = command
    return found


def _own_commands() -> Iterator[Command]:
    for module in iter_modules(commands.__path__, f"{commands.__name__}."):
        command = getattr(import_module(module.name), "COMMAND", None)
        if isinstance(command, Command):
            yield command


def _commands_of(name: str) -> Sequence[Command]:
    brought: Sequence[Command] = getattr(_plugin(name), "COMMANDS", ())
    return brought


def find_channels(wanted: Collection[str], configured: Sequence[str] = ()) -> Mapping[str, Kind]:
    """Our own channels of these names, and all of the plugins. The rest is not even imported."""
    found: dict[str, Kind] = {
        name: import_module(f"holdfast.channels.{name}").CHANNEL for name in OWN if name in wanted
    }
    for plugin in dict.fromkeys(configured):
        brought: Sequence[Kind] = getattr(_plugin(plugin), "CHANNELS", ())
        for kind in brought:
            if kind.name in found or kind.name in OWN:
                raise Misconfigured(
                    f"plugin {plugin} brings a channel {kind.name}, which exists already",
                    "remove the module from `plugins`",
                )
            found[kind.name] = kind
    return found
