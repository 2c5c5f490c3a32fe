"""Export a session: Markdown for people, JSON for `holdfast sessions import`. Pure.

The Markdown has every message under a heading, with calls and results in fenced blocks. Messages
are Markdown themselves and stay as they are, except that a fenced block that a message leaves open
is closed. Our own blocks have a longer fence than any fence inside them.

The JSON is lossless: imported, it is the same session.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import asdict

from holdfast.api.schema.changes import FileDiffObject
from holdfast.api.schema.sessions import ImportRequest, MessageObject, SessionObject, ToolCallObject
from holdfast.cli import output
from holdfast.core.run.files import describe

KIND = "holdfast.session"
VERSION = 1

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_TICKS = re.compile("`{3,}")


class Exported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session with all its messages."""

    object: str
    version: int
    session_id: str
    title: str = ""
    created_at: float = 0.0
    updated_at: float = 0.0
    workspace: str = ""
    platform: str = ""
    model: str = ""
    owner: str = ""
    messages: tuple[MessageObject, ...] = ()


_FIELDS = frozenset(Exported.__struct_fields__)


def exported(info: SessionObject, messages: tuple[MessageObject, ...]) -> Exported:
    """Return the session in the form of the file."""
    fields = {name: value for name, value in asdict(info).items() if name in _FIELDS}
    return Exported(object=KIND, version=VERSION, messages=messages, **fields)


def encode(session: Exported) -> str:
    """Return the session as JSON."""
    return msgspec.json.format(msgspec.json.encode(session), indent=2).decode() + "\n"


def decode(content: bytes) -> Exported | None:
    """Return the session in a file; None if it is not our export, or of a later version."""
    try:
        found = msgspec.json.decode(content, type=Exported)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.object == KIND and found.version == VERSION else None


def back(session: Exported) -> ImportRequest:
    """Return the import request for an exported session."""
    return ImportRequest(
        session_id=session.session_id,
        messages=session.messages,
        source="export",
        title=session.title or None,
        created_at=session.created_at or None,
        updated_at=session.updated_at or None,
        workspace=session.workspace or None,
    )


def markdown(session: Exported, changes: Sequence[FileDiffObject] = ()) -> str:
    """Return the session as Markdown. `changes`: of files by its calls, oldest first."""
    about = {
        "session": f"`{session.session_id}`",
        "of": f"`{session.owner}`" if session.owner else "",
        "begun": _time(session.created_at),
        "last": _time(session.updated_at),
        "workspace": f"`{session.workspace}`" if session.workspace else "",
        "model": session.model,
    }
    head = [f"# {session.title or session.session_id}", ""]
    head += [f"- {name}: {value}" for name, value in about.items() if value]
    tools: dict[str, str] = {}
    parts = ["\n".join(head)]
    results = Counter(message.tool_call_id for message in session.messages)
    for message in session.messages:
        parts += _shown(message, tools)
        made = [c for c in changes if c.call_id == message.tool_call_id]
        if made and results[message.tool_call_id] == 1:  # an id may be used in several runs
            parts.append(f"Changed: {', '.join(map(_changed, made))}")
        tools |= {call.id: call.function.name for call in message.calls}
    return "\n\n".join(parts) + "\n"


def _shown(message: MessageObject, tools: dict[str, str]) -> Iterator[str]:
    if message.role == "tool":
        yield f"### Result of {_name(tools.get(message.tool_call_id or '', 'a call'))}"
        yield _fenced(message.text)
        return
    yield f"## {message.role.capitalize()}"
    if message.text.strip():
        yield _closed(message.text.strip("\n"))
    if message.images:
        yield f"*[{message.images} {'picture' if message.images == 1 else 'pictures'}]*"
    for call in message.calls:
        yield f"### Call of {_name(call.function.name)}"
        yield _fenced(_arguments(call), "json")


def _changed(change: FileDiffObject) -> str:
    return f"`{describe(change).replace('`', chr(39))}`"


def _arguments(call: ToolCallObject) -> str:
    """Indent the arguments; if they are not JSON, leave them as they are."""
    try:
        return msgspec.json.format(call.function.arguments, indent=2)
    except msgspec.DecodeError:
        return call.function.arguments


def _name(tool: str) -> str:
    return " ".join(tool.split()).replace("`", "'")


def _fenced(text: str, language: str = "") -> str:
    """Return a fenced block that nothing in `text` can close."""
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"


def _closed(text: str) -> str:
    """Close a fenced block that `text` leaves open."""
    opened = ""
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            continue
        mark, rest = fence.groups()
        if not opened:
            opened = mark if mark[0] == "~" or "`" not in rest else ""
        elif mark[0] == opened[0] and len(mark) >= len(opened) and not rest.strip():
            opened = ""
    return f"{text}\n{opened}" if opened else text


def _time(at: float) -> str:
    return f"{output.local(at):%Y-%m-%d %H:%M %z}" if at else ""
