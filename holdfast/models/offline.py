"""The provider for use without a model: explicit commands run the real tools.

With any other model it runs the user's own commands (`!make test`): the call and its result are a
run of the session, so the model reads them with the next message.

It reads the user's last message as one command and proposes the matching call, if the request
offers that tool; the tool's result is its answer. Any other message gets a short text: that no
model is configured, what is possible without one, and how to configure one. It cannot see images,
and says so.
"""

import re
import secrets
from collections.abc import AsyncGenerator, Sequence

import msgspec

from holdfast.core.messages import Message, Proposal, ToolResult, User
from holdfast.core.types import CallId
from holdfast.models.model import Answer, Piece, Request, Text, ToolSpec, without_note

OWN = "!"  # begins a command of the user's own, with every model
SHOWN = 40  # lines of its output in the answer
NOTE = "(offline: no model is configured; this is the tool's own output)"
UNSEEN = "(I cannot see the images you attached: that needs a model.)\n"
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
    """The provider if no other is configured."""

    name = "offline"

    def __init__(self, command: str = "holdfast") -> None:
        self._help = HELP.replace("`holdfast ", f"`{command} ")

    async def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Run a command, return a tool's result, or say that no model is configured."""
        reply = _obey(request, self._help)
        if isinstance(reply, Proposal):
            yield Answer("", calls=(reply,))
            return
        reply = _unseen(request.messages) + reply
        for line in reply.splitlines(keepends=True):
            yield Text(line)
        yield Answer(reply)

    async def check(self) -> str:
        """Return the line for `doctor`: there is no server to reach."""
        return "offline: no model is configured; explicit commands drive the tools"

    async def aclose(self) -> None:
        """Do nothing: there are no connections."""


def _obey(request: Request, otherwise: str) -> Proposal | str:
    command, results = _last(request.messages)
    if results and command.startswith(OWN):
        return "\n".join(fenced(_plain(result)) for result in results)
    if results:
        return "\n".join((NOTE, *map(_plain, results)))
    tools = {tool.name: tool for tool in request.tools}
    for pattern, name in _COMMANDS:
        if found := pattern.fullmatch(command):
            if name not in tools:
                return _impossible(name)
            return _propose(tools[name], found.groupdict())
    return otherwise


def _plain(result: str) -> str:
    """Return the output of a command, without the JSON around it for models."""
    try:
        ran = msgspec.json.decode(result, type=_Ran)
    except msgspec.DecodeError:
        return result
    code = f"[exit code {ran.exit_code}]" if ran.exit_code else ""
    return "\n".join(part for part in (ran.output.rstrip("\n"), ran.error, code) if part)


def fenced(output: str) -> str:
    """Return the end of a command's output as a code block; the whole is in the tool's result."""
    lines = output.split("\n") if output else ["(no output)"]
    if len(lines) > SHOWN:
        lines = [f"… {len(lines) - SHOWN} earlier lines", *lines[-SHOWN:]]
    text = "\n".join(lines)
    fence = "`" * (1 + max(map(len, re.findall("`{2,}", text)), default=2))
    return f"{fence}\n{text}\n{fence}"


def _last(messages: Sequence[Message]) -> tuple[str, list[str]]:
    """Return the user's last message, and the tool results after it."""
    results: list[str] = []
    called = False  # the results of the call before are not asked for
    for message in reversed(messages):
        match message:
            case ToolResult(_, text) if not called:
                results.insert(0, text)
            case User(text):
                command = without_note(text)
                if command or message.images:
                    return command.strip(), results
            case _:
                called = bool(results)
    return "", results


def _unseen(messages: Sequence[Message]) -> str:
    """Return a notice if the user's last message has images."""
    users = (m for m in reversed(messages) if isinstance(m, User))
    sent = (m for m in users if m.images or without_note(m.text))
    return UNSEEN if next(sent, User("")).images else ""


def _propose(tool: ToolSpec, found: dict[str, str | None]) -> Proposal:
    """Return the call for a command, with those given arguments that the tool has."""
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
