"""All commands are found, once each, and the document says the same."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from holdfast import commands
from holdfast.commands.help import usage
from holdfast.commands.parse import GivenCommand, read
from holdfast.errors import Misconfigured
from holdfast.plugins import find_commands
from tests.commands.fake_chat import COMMANDS, FakeChat

DOCUMENT = Path(__file__).parents[2] / "docs" / "commands.md"


def test_every_command_of_a_file_is_found() -> None:
    files = sorted(path.stem for path in Path(commands.__path__[0]).glob("[a-z]*.py"))
    modules = [import_module(f"{commands.__name__}.{name}") for name in files]
    names = [c.name for module in modules for c in getattr(module, "COMMANDS", ())]
    assert sorted([*names, "help"]) == sorted(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_can_be_given_and_says_in_a_line_what_it_does(name: str) -> None:
    command = COMMANDS[name]
    assert command.name == name and read(f"/{name}") == GivenCommand(name, "")
    assert command.help.endswith(".") and "\n" not in command.help and len(command.help) < 90


def _plugin(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[str]:
    module = ModuleType("brings_commands")
    vars(module)["COMMANDS"] = tuple(replace(COMMANDS["stop"], name=name) for name in names)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return [module.__name__, module.__name__]


async def test_a_plugin_may_bring_commands_and_help_knows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = find_commands(_plugin(monkeypatch, "halt"))
    assert set(found) == {*COMMANDS, "halt"}
    assert "\n/halt: " in await found["help"].run(FakeChat(), "")


@pytest.mark.parametrize("names", [("stop",), ("help",), ("halt", "halt")])
def test_two_commands_of_one_name_are_a_mistake(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    with pytest.raises(Misconfigured, match=f"command /{names[0]}, which exists already"):
        find_commands(_plugin(monkeypatch, *names))


@pytest.mark.parametrize("name", ["Halt", "halt2", "", "a" * 33, "halt\n"])
def test_a_command_name_that_cannot_be_typed_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with pytest.raises(Misconfigured, match="invalid name"):
        find_commands(_plugin(monkeypatch, name))


def test_a_plugin_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(Misconfigured, match="plugin not_there_at_all cannot be imported"):
        find_commands(["not_there_at_all"])


def test_the_document_lists_every_command_as_it_is() -> None:
    rows = []
    for command in COMMANDS.values():
        written = usage(command).replace("|", "\\|")  # or a table would take it for its own
        rows.append(f"| `{written}` | {command.help} | {command.needs} |")
    lines = DOCUMENT.read_text().splitlines()
    assert [line for line in lines if line.startswith("| `/")] == rows
