"""Servers that send nonsense: whatever a value is replaced by, the error is one of ours."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from holdfast.core.messages import User
from holdfast.errors import HoldfastError
from holdfast.models.model import Request
from holdfast.models.peer import Peer
from tests.fakes.model_server import SETTINGS, Reply
from tests.models.wires import REMOTES, Remote

ASK = Request("fake", "", [User("hello")], [])
ODD: tuple[Any, ...] = (None, True, -1, 1.5, "", "odd", [], ["odd"], {}, {"odd": "odd"}, [None])
_encode = msgspec.json.Encoder().encode


@pytest.mark.parametrize("remote", REMOTES, ids=lambda remote: str(remote.name))
@pytest.mark.parametrize("kind", ["text", "calls"])
def test_a_value_of_the_wrong_kind_never_breaks_anything_of_ours(remote: Remote, kind: str) -> None:
    wire = remote.wire
    reply = (
        wire.say("one two", 2, reasoning="hm")
        if kind == "text"
        else wire.call([("ls", '{"path":"a"}')])
    )
    events = [(prefix, msgspec.json.decode(data)) for prefix, data in _events(reply)]
    tried = 0
    for at, (_, event) in enumerate(events):
        for path in _paths(event):
            for odd in ODD:
                changed = [*events[:at], (events[at][0], _replaced(event, path, odd))]
                _read(remote, [*changed, *events[at + 1 :]])
                tried += 1
    assert tried > 100


def _events(reply: Reply) -> Iterator[tuple[bytes, bytes]]:
    """The events of an answer: what stands before the JSON, and the JSON."""
    for step in reply.steps:
        assert isinstance(step, bytes)
        for line in step.splitlines():
            if line.endswith(b"}"):
                start = line.index(b"{")
                yield line[:start], line[start:]


def _paths(value: object, so_far: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    yield so_far
    match value:
        case dict():
            for name, inner in value.items():
                yield from _paths(inner, (*so_far, str(name)))
        case list():
            for index, inner in enumerate(value):
                yield from _paths(inner, (*so_far, index))
        case _:
            pass


def _replaced(value: Any, path: tuple[str | int, ...], odd: object) -> Any:
    if not path:
        return odd
    first, *rest = path
    inner = _replaced(value[first], tuple(rest), odd)
    if isinstance(value, list):
        assert isinstance(first, int)
        return [*value[:first], inner, *value[first + 1 :]]
    return {**value, first: inner}


def _read(remote: Remote, events: list[tuple[bytes, Any]]) -> None:
    parser = remote.parser(Peer(remote.name, "host", "m", "", SETTINGS))
    try:
        for prefix, event in events:
            parser.feed(prefix + _encode(event) + b"\n\n")
        parser.end()
        parser.answer(ASK)
    except HoldfastError:
        pass  # judged, not broken
