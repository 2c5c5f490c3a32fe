"""Find tools, commands and channels: our own, and those of plugins that the operator configured.

A plugin is a module with a `TOOLS`, a `COMMANDS` or a `CHANNELS` tuple, or several of them. It is
loaded only if the configuration names it, never because it is installed or is in a workspace: the
operator decides what may run here. Our own commands are in the `COMMANDS` of the modules of
holdfast/commands, each of our own channels is a file with a `CHANNEL`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from holdfast import commands
from holdfast.channels import OWN
from holdfast.channels.channel import ChannelKind
from holdfast.commands import help as help_command
from holdfast.commands.command import Command
from holdfast.commands.parse import NAME
from holdfast.errors import Misconfigured
from holdfast.tools import ask, delegate, files, recall
from holdfast.tools.tool import Tool


def find_tools(
    configured: Sequence[str], own: Sequence[Tool[Any]] = (), umask: int = 0o022
) -> list[Tool[Any]]:
    """Return all tools. Two tools of the same name are a configuration error."""
    ours: list[Tool[Any]] = [*files.tools(umask), *ask.TOOLS, *delegate.TOOLS, *recall.TOOLS, *own]
    found = {t.name: t for t in ours}
    for name in dict.fromkeys(configured):
        for tool in _tools_of(name):
            if tool.name in found:
                raise Misconfigured(
                    f"plugin {name} has a tool {tool.name!r}, which exists already",
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
    """Return all slash commands by name: our own in order, then those of the plugins."""
    found: dict[str, Command] = {}
    ours = sorted([*_own_commands(), help_command.create(found)], key=lambda c: c.name)
    all_ = [(commands.__name__, command) for command in ours]
    all_ += [(name, c) for name in dict.fromkeys(configured) for c in _commands_of(name)]
    for name, command in all_:
        if not NAME.fullmatch(command.name):
            raise Misconfigured(
                f"plugin {name} has a command with an invalid name: {command.name!r}",
                "use 1 to 32 small letters and underscores, or remove it from `plugins`",
            )
        if command.name in found:
            raise Misconfigured(
                f"plugin {name} has a command /{command.name}, which exists already",
                "remove the module from `plugins`",
            )
        found[command.name] = command
    return found


def _own_commands() -> Iterator[Command]:
    for module in iter_modules(commands.__path__, f"{commands.__name__}."):
        yield from _commands_of(module.name)


def _commands_of(name: str) -> Sequence[Command]:
    found: Sequence[Command] = getattr(_plugin(name), "COMMANDS", ())
    return found


def find_channels(
    wanted: Collection[str], configured: Sequence[str] = ()
) -> Mapping[str, ChannelKind]:
    """Return our own channels of these names, and all of the plugins; import no others."""
    found: dict[str, ChannelKind] = {
        name: import_module(f"holdfast.channels.{name}").CHANNEL for name in OWN if name in wanted
    }
    for plugin in dict.fromkeys(configured):
        kinds: Sequence[ChannelKind] = getattr(_plugin(plugin), "CHANNELS", ())
        for kind in kinds:
            if kind.name in found or kind.name in OWN:
                raise Misconfigured(
                    f"plugin {plugin} has a channel {kind.name}, which exists already",
                    "remove the module from `plugins`",
                )
            found[kind.name] = kind
    return found
