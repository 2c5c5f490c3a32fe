"""The protocol with the small model: one JSON object a turn, under a grammar.

A small model writes tool calls of the usual form badly: 2 of 20 tasks. It does well if the grammar
admits nothing but `{"tool": …, "args": {…}}` or `{"answer": …}`, and the prompt has examples. The
prompt is short, because reading it costs most of the time. Nothing here does I/O.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.messages import Assistant, Message, System, ToolResult, User
from holdfast.errors import Rejected
from holdfast.models.building import Building, GrowingCall
from holdfast.models.completions import AnswerParser
from holdfast.models.model import Answer, Profile, Reasoning, Request, Text, ToolSpec
from holdfast.models.peer import Peer

_Step = tuple[str, dict[str, str], str]  # tool, arguments, result

WINDOW = 4096  # tokens
ANSWER_TOKENS = 1024  # of one turn
RESULT_ROOM = 2_400  # characters of one result that the model reads
FACTS = 200  # characters that it writes for itself before an answer, so that it looks first
EARLIER = 80  # characters of an earlier answer that are shown as its facts, which are not kept
CALLS = 12  # after so many calls it has to answer
REPEATS = 2  # the same call with the same result: then it has to answer

PROFILE = Profile(
    tools=("list_files", "read_file", "write_file", "patch", "search_files", "terminal"),
    prompt="You are Holdfast, an agent.",
    instructions=1_200,  # it is slow to read, and follows little of it
    cautious=True,
    banner="small built-in model: it makes mistakes, so check what it says it did",
)

_RULES = """\
You work in a folder with tools. Each turn you write one JSON object: a tool call, or, \
when all is done, the facts that you found and the answer.
{tools}
Do all that the user asks, and nothing else. Read a file before you answer about it or change it. \
If you do not know which file, list_files first. After an error try another way. Answer briefly, \
with each name, number or text that was asked for.
"""
_SHORT = {
    "list_files": "list a folder",
    "read_file": "read a file",
    "write_file": "create or replace a whole file",
    "patch": "replace or remove exact text in a file",
    "search_files": "find which files contain a text",
    "terminal": "run a bash command: python3, mkdir -p, cp, mv, rm, wc, sort, >> to append",
}
# Conversations. Only those are shown whose tools are all offered.
_EXAMPLES: tuple[tuple[str, tuple[_Step, ...], str, str], ...] = (
    ("What is 2 + 3?", (), "2 + 3 = 5", "2 + 3 is 5."),
    (
        "Which port is used?",
        (
            ("read_file", {"path": "port.txt"}, "port.txt: no such file."),
            ("list_files", {"path": "."}, "web.ini (16 bytes)\nrun.py (80 bytes)"),
            ("read_file", {"path": "web.ini"}, "1\thost = x\n2\tport = 81"),
        ),
        "web.ini: port = 81",
        "Port 81, set in web.ini.",
    ),
    (
        "Which file sets LEVEL?",
        (("search_files", {"pattern": "LEVEL"}, "lib/a.py:4: LEVEL = 2\nlib/b.py:9: go(LEVEL)"),),
        "lib/a.py: LEVEL = 2",
        "lib/a.py sets LEVEL to 2.",
    ),
    (
        "Which tool in stock.csv is rarest?",
        (("read_file", {"path": "stock.csv"}, "1\ttool,count\n2\tsaw,7\n3\taxe,3\n4\tnail,90"),),
        "saw 7, axe 3, nail 90; the smallest is 3",
        "The axe, of which there are 3.",
    ),
    (
        "How many pictures are in art?",
        (
            (
                "list_files",
                {"path": "art"},
                "cat.png (5 bytes)\ndog.png (9 bytes)\nme.txt (7 bytes)",
            ),
        ),
        "cat.png, dog.png",
        "2: cat.png and dog.png.",
    ),
    (
        "Read names.txt, write the first name to a.txt and the second to b.txt",
        (
            ("read_file", {"path": "names.txt"}, "1\tBob\n2\tAmy"),
            ("write_file", {"path": "a.txt", "content": "Bob\n"}, "Created a.txt."),
            ("write_file", {"path": "b.txt", "content": "Amy\n"}, "Created b.txt."),
        ),
        "a.txt: Bob, b.txt: Amy",
        "a.txt contains Bob and b.txt contains Amy.",
    ),
    (
        "Double the limit in run.py",
        (
            ("read_file", {"path": "run.py"}, "1\tlimit = 4\n2\tgo(limit)"),
            ("patch", {"path": "run.py", "old": "limit = 4", "new": "limit = 8"}, "Changed."),
        ),
        "limit = 8",
        "The limit in run.py is now 8.",
    ),
    (
        "Add the line end to log.txt and count its lines",
        (("terminal", {"command": "echo end >> log.txt && wc -l log.txt"}, "3 log.txt"),),
        "3 lines",
        "I added end to log.txt. It has 3 lines now.",
    ),
)
_WRITING = ("write_file", "patch")
_QUESTION = re.compile(
    r"(?:what|which|who|whose|when|where|why|how)\b.*\?", re.IGNORECASE | re.DOTALL
)
_BLIND = "[The user sent an image. You cannot see images: say so.]"
_CUT = "\n[… {} more characters]"


class _Wire(msgspec.Struct, frozen=True):
    role: str
    content: str


class _Ran(msgspec.Struct):
    """The result of a command."""

    exit_code: int | None
    output: str
    error: str = ""


def encode(request: Request) -> bytes:
    """Encode the body of a request for a streamed answer."""
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [*_system(request), *_conversation(request)],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": ANSWER_TOKENS,
        "cache_prompt": True,
    }
    if request.tools:
        tools = () if _has_to_answer(request.messages) else _admitted(request)
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "turn", "strict": True, "schema": _schema(tools)},
        }
    return msgspec.json.encode(body)


def _admitted(request: Request) -> Sequence[ToolSpec]:
    """Return the tools that it may call: for a question, none that writes files.

    It would sooner change a file until its answer is right than look for the right answer.
    """
    asked = next((m.text for m in reversed(request.messages) if isinstance(m, User)), "")
    if not _QUESTION.fullmatch(asked.strip()):
        return request.tools
    return [tool for tool in request.tools if tool.name not in _WRITING]


def _schema(tools: Sequence[ToolSpec]) -> dict[str, Any]:
    """Return the schema of one turn: a call of one of `tools`, or an answer."""
    calls = [
        _object({"tool": {"const": tool.name}, "args": _object(_arguments(tool))}) for tool in tools
    ]
    facts = {"type": "string", "maxLength": FACTS}
    return {"anyOf": [*calls, _object({"facts": facts, "answer": {"type": "string"}})]}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _arguments(tool: ToolSpec) -> dict[str, Any]:
    """Return the arguments that the model may give: those that are required, else all.

    It would give the others too, for no reason.
    """
    properties = tool.schema.get("properties", {})
    wanted = tool.schema.get("required") or properties
    return {
        name: {"type": kind.get("type", "string")}
        for name, kind in properties.items()
        if name in wanted
    }


def _system(request: Request) -> Iterator[_Wire]:
    if not request.tools:
        if request.system:
            yield _Wire("system", request.system)
        return
    lines = (f"- {t.name}({', '.join(_arguments(t))}): {_short(t)}" for t in request.tools)
    yield _Wire("system", _RULES.replace("{tools}", "\n".join(lines)) + request.system)
    offered = {tool.name for tool in request.tools}
    for question, steps, facts, answer in _EXAMPLES:
        if offered.issuperset(step[0] for step in steps):
            yield _Wire("user", question)
            for tool, arguments, result in steps:
                yield _Wire("assistant", _call(tool, arguments))
                yield _Wire("user", _result(result))
            yield _Wire("assistant", _answer(answer, facts))


def _short(tool: ToolSpec) -> str:
    """Return what a tool does, in a few words."""
    return _SHORT.get(tool.name) or tool.description.partition(". ")[0].rstrip(".")


def _conversation(request: Request) -> Iterator[_Wire]:
    if not request.tools:
        yield from (_Wire(role, text) for role, text in _plain(request.messages))
        return
    for message in _in_turns(request.messages):
        match message:
            case ToolResult(_, text):
                yield _Wire("user", _result(text))
            case Assistant(text, calls) if calls:
                for call in calls:
                    yield _Wire("assistant", _call(call.tool, _parsed(call.arguments)))
            case Assistant(text):
                yield _Wire("assistant", _answer(text))
            case User(text, images):
                yield _Wire("user", "\n".join((text, _BLIND)) if images else text)
            case System(text):
                yield _Wire("system", text)


def _in_turns(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield each call directly before its result: the model makes one call a turn."""
    results = {m.call_id: m for m in messages if isinstance(m, ToolResult)}
    for message in messages:
        match message:
            case Assistant(_, calls) if len(calls) > 1:
                for call in calls:
                    yield Assistant("", (call,))
                    if call.call_id in results:
                        yield results.pop(call.call_id)
            case ToolResult(call_id) if call_id not in results:
                pass  # it stands behind its call
            case _:
                yield message


def _plain(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield the messages of a request without tools."""
    for message in messages:
        match message:
            case ToolResult(_, text):
                yield "user", _result(text)
            case Assistant(text, calls):
                called = (f"{c.tool} {c.arguments}" for c in calls)
                yield "assistant", "\n".join(part for part in (text, *called) if part)
            case User(text):
                yield "user", text
            case System(text):
                yield "system", text


def _call(tool: str, arguments: object) -> str:
    return json.dumps({"tool": tool, "args": arguments}, ensure_ascii=False)


def _answer(text: str, facts: str = "") -> str:
    shown = facts or text[:EARLIER].partition("\n")[0]
    return json.dumps({"facts": shown, "answer": text}, ensure_ascii=False)


def _parsed(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _result(text: str) -> str:
    """Return the result of a call as the model reads it: short, and without JSON."""
    try:
        ran = msgspec.json.decode(text, type=_Ran)
    except msgspec.DecodeError:
        pass
    else:
        code = f"Error: exit code {ran.exit_code}" if ran.exit_code else ""
        text = "\n".join(part for part in (code, ran.error, ran.output.rstrip("\n")) if part)
    if len(text) > RESULT_ROOM:
        text = text[:RESULT_ROOM] + _CUT.format(len(text) - RESULT_ROOM)
    return f"Result:\n{text or 'Done.'}"


def _has_to_answer(messages: Sequence[Message]) -> bool:
    """Return true if the model runs in circles: it repeats a call, or made too many."""
    made = list[tuple[str, str, str]]()
    results = {m.call_id: m.text for m in messages if isinstance(m, ToolResult)}
    for message in reversed(messages):
        match message:
            case User():
                break
            case Assistant(_, calls):
                made.extend((c.tool, c.arguments, results.get(c.call_id, "")) for c in calls)
            case _:
                pass
    return len(made) >= CALLS or any(made.count(one) >= REPEATS for one in made)


_FACTS = r'"facts"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*'
_SAYS = re.compile(rf'\s*\{{\s*(?:{_FACTS})?"answer"\s*:\s*"')
_STRING = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*')
_HIGH = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")  # the first half of a pair


class TurnParser:
    """The parser of one turn, fed with bytes: the answer's text comes out as it grows."""

    def __init__(self, peer: Peer, request: Request) -> None:
        self._inner = AnswerParser(peer)
        self._peer = peer
        self._plain = not request.tools
        self._raw = ""  # the JSON so far
        self._said = ""  # of the answer's text

    @property
    def whole(self) -> bool:
        """Tell whether the answer is complete, except perhaps for its usage."""
        return self._inner.whole

    @whole.setter
    def whole(self, value: bool) -> None:
        self._inner.whole = value

    @property
    def done(self) -> bool:
        """Tell whether no more data is expected."""
        return self._inner.done

    @done.setter
    def done(self, value: bool) -> None:
        self._inner.done = value

    def feed(self, data: bytes) -> list[Text | Reasoning]:
        """Add `data`, and return the new pieces."""
        return self._grow(self._inner.feed(data))

    def end(self) -> list[Text | Reasoning]:
        """End the stream, and return the last pieces."""
        return self._grow(self._inner.end())

    def answer(self, request: Request) -> Answer:
        """Return the complete answer."""
        whole = self._inner.answer(request)
        if self._plain:
            return whole
        building = Building(self._peer)
        building.usage = whole.usage
        if _SAYS.match(self._raw):
            building.add_text(self._said)
        else:
            building.calls.append(self._called())
        if whole.cut:
            building.cut_short()
        return building.answer(request)

    def _grow(self, pieces: list[Text | Reasoning]) -> list[Text | Reasoning]:
        if self._plain:
            return pieces
        self._raw += "".join(piece.text for piece in pieces)
        if not (start := _SAYS.match(self._raw)):
            return []
        string = _STRING.match(self._raw, start.end())
        known = _HIGH.sub("", string[0]) if string else ""
        text = str(json.loads(f'"{known}"', strict=False))
        more, self._said = text[len(self._said) :], text
        return [Text(more)] if more else []

    def _called(self) -> GrowingCall:
        try:
            turn = json.loads(self._raw, strict=False)
            return GrowingCall("", turn["tool"], [json.dumps(turn["args"], ensure_ascii=False)])
        except (ValueError, KeyError, TypeError):
            raise Rejected(
                f"{self._peer.name} wrote a call that is too long for it; "
                "ask for less at once, or use a larger model"
            ) from None
