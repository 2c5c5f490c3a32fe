"""No model at all: explicit commands drive the real tools, and it says that it is none.

It reads the user's last words as one command and proposes the call that it means, if
the request offers that tool; what the tool answers is its answer. Everything else gets
a short text: that no model is configured, what can be done without one, and how to
configure one. Pictures nobody looks at, and it says so.
"""

import re
import secrets
from collections.abc import AsyncGenerator, Sequence

import msgspec

from holdfast.core.messages import Message, Proposal, ToolResult, User
from holdfast.core.types import CallId
from holdfast.models.model import Answer, Piece, Request, Text, ToolSpec

NOTE = "(offline: no model is configured; this is the tool's own output)"
UNSEEN = "(I have not looked at what you attached: pictures need a model.)\n"
HELP = """\
No model is configured, so I cannot think or chat. I can still work with your files:

  list the files here          ls [path]
  read notes.txt               cat notes.txt
  write notes.txt: some text
  search word [in path]        find word
  replace "old" with "new" in notes.txt
  !command                     where running commands is possible

To configure a model: `holdfast setup` finds what is there and tries it. By hand: set
OPENAI_API_KEY, or OPENAI_BASE_URL and HOLDFAST_MODEL for a server of your own
(HOLDFAST_MODEL=openai/its-model). `holdfast doctor` says what it found.
"""

_PATH = r"(?:\"(?P<quoted>[^\"\n]+)\"|(?P<path>\S+))"
_WORD = r"(?:\"(?P<exact>[^\"\n]+)\"|(?P<pattern>\S+))"
_COMMANDS = tuple(
    (re.compile(pattern, re.IGNORECASE | re.DOTALL), tool)
    for pattern, tool in (
        (r"(?:list|show) (?:all )?(?:the |my )?files(?: here)?[.?!]?", "list_files"),
        (rf"(?:list|show) (?:all )?(?:the |my )?files in {_PATH}", "list_files"),
        (rf"ls(?:\s+{_PATH})?", "list_files"),
        (rf"(?:read|cat|show|open)\s+(?:the file |file )?{_PATH}", "read_file"),
        (rf"write\s+{_PATH}(?::[ \t]?|[ \t]*\n)(?P<content>.*)", "write_file"),
        (rf"replace\s+\"(?P<old>.+?)\"\s+with\s+\"(?P<new>.*?)\"\s+in\s+{_PATH}", "patch"),
        (rf"(?:search|find)\s+(?:for\s+)?{_WORD}(?:\s+in\s+{_PATH})?", "search_files"),
        (rf"grep\s+{_WORD}(?:\s+{_PATH})?", "search_files"),
        (r"!\s*(?P<command>.+)", "terminal"),
    )
)


class _Ran(msgspec.Struct):
    output: str
    exit_code: int | None
    error: str = ""


class Offline:
    """The provider that is there when no other is."""

    name = "offline"

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Obey a command, hand over a tool's result, or say what is missing."""
        said = _obey(request)
        if isinstance(said, Proposal):
            yield Answer("", calls=(said,))
            return
        said = _unseen(request.messages) + said
        for line in said.splitlines(keepends=True):
            yield Text(line)
        yield Answer(said)

    async def check(self) -> str:
        """There is nothing to reach."""
        return "offline: no model is configured; explicit commands drive the tools"

    async def aclose(self) -> None:
        """Nothing is held."""


def _obey(request: Request) -> Proposal | str:
    words, results = _last(request.messages)
    if results:
        return "\n".join((NOTE, *map(_plain, results)))
    tools = {tool.name: tool for tool in request.tools}
    for pattern, name in _COMMANDS:
        if found := pattern.fullmatch(words):
            if name not in tools:
                return _impossible(name)
            return _propose(tools[name], found.groupdict())
    return HELP


def _plain(result: str) -> str:
    """What a command has written, without what is around it for models."""
    try:
        said = msgspec.json.decode(result, type=_Ran)
    except msgspec.DecodeError:
        return result
    code = f"[exit code {said.exit_code}]" if said.exit_code else ""
    return "\n".join(part for part in (said.output.rstrip("\n"), said.error, code) if part)


def _last(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """The user's last words, or the tool results that came after them."""
    results: list[str] = []
    for message in reversed(messages):
        match message:
            case ToolResult(_, text):
                results.insert(0, text)
            case User(text):
                words = _words(text)
                if (words or message.images) and not results:
                    return words.strip(), []
                if results:
                    break
            case _:
                if results:
                    break
    return "", results


def _unseen(messages: Sequence[Message]) -> str:
    """What to say of the pictures that came with the user's last words."""
    said = (m for m in reversed(messages) if isinstance(m, User) and (m.images or _words(m.text)))
    return UNSEEN if next(said, User("")).images else ""


def _words(text: str) -> str:
    """What a user really said: our own note about a cut may stand before it, or alone."""
    return text.partition("]\n\n")[2] if text.startswith("[System note:") else text


def _propose(tool: ToolSpec, found: dict[str, str | None]) -> Proposal:
    """The call a command means. Only arguments that the tool has, and that were given."""
    given = {
        **found,
        "path": found.get("quoted") or found.get("path"),
        "pattern": found.get("exact") or found.get("pattern"),
    }
    known = tool.schema.get("properties", {})
    arguments = {
        name: value for name, value in given.items() if name in known and value is not None
    }
    raw = msgspec.json.encode(arguments).decode()
    return Proposal(CallId(f"call_{secrets.token_hex(12)}"), tool.name, raw)


def _impossible(tool: str) -> str:
    what = "Running commands" if tool == "terminal" else f"The tool {tool}"
    return f"{what} is not possible here. No model is configured either; say `help` for more.\n"
