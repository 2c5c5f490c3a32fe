"""No incoming or outgoing text blocks the event loop while it is parsed.

Each parser that runs on the loop is given the most it can be given there: a megabyte, or what it
is capped to before. The texts repeat what makes careless patterns look again and again. The bound
is 50 ms of CPU on a machine that hashes 64 MB in about 50 ms, and as much more as this one is
slower; a parser whose time is not in proportion to its text is beyond it by far.

Bodies of requests over a quarter of a megabyte are read in a thread; a decoder that takes long
holds the loop all the same, so the bound is for them too. The configuration is read before there is
a loop: it has a second, and no text makes it fail but in plain words.
"""

import json
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import process_time

import pytest

from holdfast.api import intents, requests
from holdfast.api.schema.approvals import ApprovalRequest
from holdfast.api.schema.runs import RunRequest, SteerRequest
from holdfast.channels.telegram.channel import Telegram, TelegramSettings
from holdfast.channels.text.links import hosts
from holdfast.channels.text.render import telegram
from holdfast.commands import parse
from holdfast.config import load as settings
from holdfast.core.inbox import digest_of
from holdfast.core.material import fenced
from holdfast.core.redaction import Redactor
from holdfast.core.session.answers import parse_choice
from holdfast.core.session.library import one_line
from holdfast.core.session.replies import SHOWN
from holdfast.errors import Misconfigured, Refused
from holdfast.models.completions import AnswerParser
from holdfast.models.peer import Peer, Settings
from holdfast.tools.exec import shell
from tests.engine.workshop import ME
from tests.fakes.clock import ManualClock

BOUND_S = 0.05
MB = 1_000_000
A_MESSAGE = 4096
A_READ = 131_072  # more than one read of a socket gives
TIMES = 3  # the best of so many counts
UNITS = (
    "a", "a.", "a-", "a+", "+a", "_a", "a@", "1.", "-a.", "http://", "http://,", "<http://", "[",
    "[a](", "`a", "**a", "~~", "> ", "/", " ", "a.bc/!", "\u3002", "\n", "://", "a.b?!", "x y. ",
)  # fmt: skip

BOT = Telegram(TelegramSettings(), "1:a", ManualClock())
REDACTOR = Redactor(["a-secret-of-some-length", "another.secret"])


def stream(text: str) -> None:
    """A model's stream, in lines that say nothing and in the beginning of one that has no end."""
    incoming = AnswerParser(Peer("openai", "model", "m", "key", Settings("", "")))
    incoming.feed(b": " + text.encode())
    incoming.feed(b"\n" + text.encode()[:65_536])


PARSERS: dict[str, tuple[int, Callable[[str], object]]] = {
    "hosts": (MB, hosts),
    "command": (MB, parse.read),
    "digest": (MB, digest_of),
    "parse_choice": (MB, parse_choice),
    "material": (MB, lambda text: fenced(text, text)),
    "preview": (MB, lambda text: one_line(text, 80)),
    "shell": (MB, shell.parse),
    "stream": (A_READ, stream),
    "redaction": (65_536, REDACTOR.clean),
    "render": (A_MESSAGE, lambda text: telegram(text, named_hosts=())),
    "split": (SHOWN, BOT.split),
}
SLOWER = {"split": 8}  # an answer of eight messages


def _spent(work: Callable[[], object]) -> float:
    begun = process_time()
    work()
    return process_time() - begun


def _slowness() -> float:
    """How much slower this machine is than the one the bound is meant for, at least 1."""
    data = b"x" * (64 * MB // 4)
    return max(1.0, min(_spent(lambda: sha256(data).digest()) for _ in range(3)) / 0.0125)


@pytest.mark.promise("CHAT-07")
@pytest.mark.parametrize("name", PARSERS)
def test_no_text_blocks_the_event_loop(name: str) -> None:
    size, work = PARSERS[name]
    bound = BOUND_S * SLOWER.get(name, 1) * _slowness() * 2
    for unit in UNITS:
        text = (unit * (size // len(unit) + 1))[:size]
        took = min(_spent(partial(work, text)) for _ in range(TIMES))
        assert took < bound, f"{name} takes {took * 1000:.0f} ms for {unit!r} * {size // len(unit)}"


def _many(before: str, unit: str, after: str, size: int = MB) -> str:
    """`unit` again and again, with commas between, `size` characters in all."""
    times = (size - len(before) - len(after)) // (len(unit) + 1)
    return before + ",".join([unit] * times) + after


def _named(form: str, size: int = MB) -> str:
    """Different names, one after another."""
    return "".join(form.format(at) for at in range(size // len(form.format(size))))


PICTURE = b64encode(b"\x89PNG\r\n\x1a\n" + bytes(MB * 7 // 10)).decode()
BODIES = {
    "deep list": '{"input": "x", "webhook": ' + "[" * MB,
    "deep and closed": '{"input": "x", "other": ' + "[" * (MB // 2) + "]" * (MB // 2) + "}",
    "deep object": '{"input": "x", "webhook": ' + '{"a":' * (MB // 5),
    "many lists": _many('{"input": "x", "all": true, "webhook": [', "[[[[[[]]]]]]", "]}"),
    "many lists for a word": _many('{"choice": "once", "all": [', "[[[[[[]]]]]]", "]}"),
    "long text": json.dumps({"input": "a b. " * (MB // 5)}),
    "escapes": '{"input": "' + "\\u00e9" * (MB // 6) + '"}',
    "line ends": json.dumps({"input": "\n" * (MB // 2)}),
    "history": _many(
        '{"input": "x", "conversation_history": [', '{"role":"user","content":""}', "]}"
    ),
    "messages": _many('{"input": [', '{"role":"user","content":"a"}', "]}"),
    "parts": _many('{"input":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}"),
    "pictures": _many(
        '{"input":[{"role":"user","content":[', '{"type":"image_url","image_url":"data:"}', "]}]}"
    ),
    "picture": '{"input":[{"role":"user","content":[{"type":"image_url","image_url":'
    f'"data:image/png;base64,{PICTURE}"' + "}]}]}",
    "no picture": '{"input":[{"role":"user","content":[{"type":"image_url","image_url":'
    f'"data:image/png;base64,{"a " * (MB // 2)}"' + "}]}]}",
    "metadata": '{"input": "x", "metadata": {' + _named('"{}": "",') + '"a": ""}}',
    "fields": '{"input": "x", ' + _named('"{}": 1,') + '"a": 1}',
    "number": '{"input": "x", "webhook": ' + "9" * MB + "}",
    "session": json.dumps({"input": "x", "session_id": "a" * MB}),
    "role": json.dumps({"input": [{"role": "a" * MB, "content": "x"}]}),
    "mode": json.dumps({"input": "x", "mode": "`$." * (MB // 3)}),
    "spaces": " " * MB,
}


def _read(raw: bytes) -> None:
    """As the routes do, whatever it is the body of."""
    with suppress(Refused):
        intents.submit_of(requests.decode(raw, RunRequest), ME, raw, "key")
    with suppress(Refused):
        intents.text_of(requests.decode(raw, SteerRequest).input)
    with suppress(Refused):
        requests.flag(requests.decode(raw, ApprovalRequest).all)


@pytest.mark.promise("CHAT-07")
@pytest.mark.parametrize("name", BODIES)
def test_no_request_body_blocks_the_event_loop(name: str) -> None:
    raw = BODIES[name].encode()
    took = min(_spent(partial(_read, raw)) for _ in range(TIMES))
    assert took < BOUND_S * _slowness() * 2, f"{name} takes {took * 1000:.0f} ms"


A_FILE = 100_000
FILES = {
    "deep list": "a = " + "[" * A_FILE,
    "deep table": "a = " + "{a=" * (A_FILE // 3),
    "tables": _named("[t{}]\n", A_FILE),
    "arrays of tables": "[[a]]\n" * (A_FILE // 6),
    "keys": _named("k{} = 1\n", A_FILE),
    "digits": "a = " + "9" * A_FILE,
    "comments": "#\n" * (A_FILE // 2),
    "long text": 'model = "' + "a" * A_FILE + '"',
    "text without an end": 'a = """' + "\n" * A_FILE,
    "escapes": 'a = "' + "\\u00e9" * (A_FILE // 6) + '"',
    "users": "[channels.telegram.users]\n" + _named('"{}" = ["admin"]\n', A_FILE),
    "too long": "#" * (2 * MB),
}


@pytest.mark.fault("F-25")
@pytest.mark.parametrize("name", FILES)
def test_any_config_file_is_read_quickly_or_refused_with_a_message(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "config.toml").write_text(FILES[name])

    def load() -> None:
        with suppress(Misconfigured):
            settings.load({"HOLDFAST_HOME": str(tmp_path), "HOME": str(tmp_path)}, {})

    assert _spent(load) < _slowness() * 2
