"""Requests of Gemini's API: encode a request as bytes.

Turns of user and model alternate. Results of calls are a turn of their own, one for each call and
in the order of the calls, because calls need not have ids. A signature goes back in the part that
it came with. From version 3 on the server refuses calls without one; those of another model get
the one that it accepts for them.
"""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.messages import Assistant, Image, Message, Proposal, System, ToolResult, User
from holdfast.models.declare import Declared
from holdfast.models.gemini_schema import subset
from holdfast.models.model import Request, ToolSpec
from holdfast.models.replay import as_object, parts, with_results

_THINKS = re.compile(r"gemini-(2\.5|[3-9]|\d\d|(pro|flash|flash-lite)-latest)(?!.*(image|tts))")
_UNSIGNED = re.compile(r"gemini-[12]\b|^(?!.*gemini)")  # needs no signatures
_FOREIGN = "skip_thought_signature_validator"  # the signature of calls that another model made
_BEGINNING = "(The conversation begins with your own message.)"


class SignedPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of the part that follows, besides its text or call."""

    signature: str = ""
    id: str = ""  # of a call, if the server gave one


class _Call(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    args: msgspec.Raw
    id: str = ""


class _Output(msgspec.Struct, frozen=True):
    result: str


class _Result(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    response: _Output
    id: str = ""


class _Blob(msgspec.Struct, frozen=True, rename="camel"):
    mime_type: str
    data: str


class _Part(msgspec.Struct, rename="camel"):
    text: str | msgspec.UnsetType = msgspec.UNSET
    inline_data: _Blob | msgspec.UnsetType = msgspec.UNSET
    function_call: _Call | msgspec.UnsetType = msgspec.UNSET
    function_response: _Result | msgspec.UnsetType = msgspec.UNSET
    thought_signature: str | msgspec.UnsetType = msgspec.UNSET


class _Turn(msgspec.Struct):
    role: str
    parts: list[_Part]

    def is_results(self) -> bool:
        """Tell if it has results of calls."""
        return self.parts[0].function_response is not msgspec.UNSET


class _System(msgspec.Struct, frozen=True):
    parts: list[_Part]


class _Function(msgspec.Struct, frozen=True):
    name: str
    description: str
    parameters: Mapping[str, Any] | msgspec.UnsetType = msgspec.UNSET


class _Tool(msgspec.Struct, frozen=True, rename="camel"):
    function_declarations: list[_Function]


class _Thinking(msgspec.Struct, frozen=True, rename="camel"):
    include_thoughts: bool = True


class _Settings(msgspec.Struct, frozen=True, rename="camel"):
    thinking_config: _Thinking | msgspec.UnsetType = msgspec.UNSET
    max_output_tokens: int | msgspec.UnsetType = msgspec.UNSET


class _Body(msgspec.Struct, frozen=True, rename="camel"):
    contents: list[_Turn]
    system_instruction: _System | msgspec.UnsetType = msgspec.UNSET
    tools: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    generation_config: _Settings | msgspec.UnsetType = msgspec.UNSET


_encode = msgspec.json.Encoder().encode
_decode_signed = msgspec.json.Decoder(SignedPart).decode


def encode(request: Request) -> bytes:
    """Encode the body of a request for a streamed answer."""
    system = [request.system, *(m.text for m in request.messages if isinstance(m, System))]
    texts = [_Part(text) for text in system if text.strip()]
    thinking = _Thinking() if _THINKS.search(request.model) else msgspec.UNSET
    settings = _Settings(thinking, request.max_output or msgspec.UNSET)
    foreign = "" if _UNSIGNED.search(request.model) else _FOREIGN
    body = _Body(
        _Turns(foreign).of(request.messages),
        _System(texts) if texts else msgspec.UNSET,
        _tools.encode(request.tools) if request.tools else msgspec.UNSET,
        settings if settings != _Settings() else msgspec.UNSET,
    )
    return _encode(body)


def _wire_tools(tools: Sequence[ToolSpec]) -> list[_Tool]:
    return [_Tool([_function(tool) for tool in tools])]


_tools = Declared(_wire_tools)


def _function(tool: ToolSpec) -> _Function:
    schema = subset(tool.schema)
    # A function without parameters has none: an empty object is refused.
    parameters = schema if schema.get("properties") else msgspec.UNSET
    return _Function(tool.name, tool.description, parameters)


class _Turns:
    """The turns of a conversation."""

    def __init__(self, foreign: str) -> None:
        self._foreign = foreign
        self._turns: list[_Turn] = []

    def of(self, messages: Sequence[Message]) -> list[_Turn]:
        """Return the turns of these messages."""
        for message, results in with_results(messages):
            match message:
                case User(text, images):
                    self._add("user", [*_texts(text), *map(_image, images)])
                case Assistant():
                    self._add_answer(message, results)
                case System():
                    pass
        if not self._turns or self._turns[0].role == "model":
            self._turns.insert(0, _Turn("user", [_Part(_BEGINNING)]))
        return self._turns

    def _add(self, role: str, wired: list[_Part]) -> None:
        if not wired:
            return
        last = self._turns[-1] if self._turns else None
        if last is not None and last.role == role and not last.is_results():
            last.parts += wired
        else:
            self._turns.append(_Turn(role, wired))

    def _add_answer(self, message: Assistant, results: Sequence[ToolResult | None]) -> None:
        """Add the turn of an answer, and that of the results of its calls."""
        wired: list[_Part] = []
        given: list[_Part] = []
        found = iter(results)
        kept = SignedPart()
        for part in parts(message):
            if isinstance(part, msgspec.Raw):
                kept = _decode_signed(part)
                continue
            signature = kept.signature or msgspec.UNSET
            if isinstance(part, Proposal):
                call = _Call(part.tool, as_object(part.arguments), kept.id)
                wired.append(_Part(function_call=call, thought_signature=signature))
                if (result := next(found)) is not None:
                    answer = _Result(part.tool, _Output(result.text), kept.id)
                    given.append(_Part(function_response=answer))
            elif part.strip() or kept.signature:
                wired.append(_Part(part, thought_signature=signature))
            kept = SignedPart()
        self._sign(wired)
        self._add("model", wired)
        if given:
            self._turns.append(_Turn("user", given))

    def _sign(self, wired: list[_Part]) -> None:
        """Sign the first call, which must be signed, if another model made it."""
        calls = [part for part in wired if part.function_call is not msgspec.UNSET]
        if calls and self._foreign and calls[0].thought_signature is msgspec.UNSET:
            calls[0].thought_signature = self._foreign


def _texts(text: str) -> list[_Part]:
    return [_Part(text)] if text.strip() else []


def _image(image: Image) -> _Part:
    return _Part(inline_data=_Blob(image.media_type, b64encode(image.data).decode()))
