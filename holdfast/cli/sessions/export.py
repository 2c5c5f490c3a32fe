"""A session as a file: markdown for people, JSON for `holdfast sessions import`. Pure.

The markdown shows who said what, with calls and their results in fenced blocks. Text that was
said is markdown itself and stays as it is, except that a block it leaves open is closed, so that
what follows does not fall into it. A block of ours has a longer fence than any in it.

The JSON is lossless: read back, it is the same session.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from holdfast.cli.wire_sessions import Called, Import, Said, SessionInfo

KIND = "holdfast.session"
VERSION = 1

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_TICKS = re.compile("`{3,}")


class Exported(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session, whole."""

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
    messages: tuple[Said, ...] = ()


def exported(info: SessionInfo, messages: tuple[Said, ...]) -> Exported:
    """The session as a file has it."""
    return Exported(
        object=KIND,
        version=VERSION,
        session_id=info.session_id,
        title=info.title,
        created_at=info.created_at,
        updated_at=info.updated_at,
        workspace=info.workspace,
        platform=info.platform,
        model=info.model,
        owner=info.owner,
        messages=messages,
    )


def encode(session: Exported) -> str:
    """The session as JSON."""
    return msgspec.json.format(msgspec.json.encode(session), indent=2).decode() + "\n"


def decode(content: bytes) -> Exported | None:
    """The session that a file holds; None if it is no export of ours, or of a later version."""
    try:
        found = msgspec.json.decode(content, type=Exported)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.object == KIND and found.version == VERSION else None


def back(session: Exported) -> Import:
    """What is brought in of it."""
    return Import(
        session_id=session.session_id,
        messages=session.messages,
        source="export",
        title=session.title,
        created_at=session.created_at,
        updated_at=session.updated_at,
        workspace=session.workspace,
    )


def markdown(session: Exported) -> str:
    """The session for people."""
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
    for message in session.messages:
        parts += _shown(message, tools)
        tools |= {call.id: call.function.name for call in message.tool_calls}
    return "\n\n".join(parts) + "\n"


def _shown(message: Said, tools: dict[str, str]) -> Iterator[str]:
    if message.role == "tool":
        yield f"### Result of {_name(tools.get(message.tool_call_id, 'a call'))}"
        yield _fenced(message.text)
        return
    yield f"## {message.role.capitalize()}"
    if message.text.strip():
        yield _closed(message.text.strip("\n"))
    if message.images:
        yield f"*[{message.images} {'picture' if message.images == 1 else 'pictures'}]*"
    for call in message.tool_calls:
        yield f"### Call of {_name(call.function.name)}"
        yield _fenced(_arguments(call), "json")


def _arguments(call: Called) -> str:
    """As they read best; where they are no JSON, as they are."""
    try:
        return msgspec.json.format(call.function.arguments, indent=2)
    except msgspec.DecodeError:
        return call.function.arguments


def _name(tool: str) -> str:
    return " ".join(tool.split()).replace("`", "'")


def _fenced(text: str, language: str = "") -> str:
    """A block that nothing in `text` can end."""
    fence = "`" * max(3, 1 + max(map(len, _TICKS.findall(text)), default=0))
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"


def _closed(text: str) -> str:
    """`text` with the end of a block that it leaves open."""
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
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M %z}" if at else ""
