"""Raw HTTP, for requests that no proper client sends; and SSE frame by frame."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec

from tests.fakes.gateway import KEY, Frame, GatewayProcess

SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}
AUTH = f"Authorization: Bearer {KEY}\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as it came."""

    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        """Its error object; fails if it has none in the form that all have."""
        return check_error(self.status, self.headers, self.body)


def check_error(status: int, headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """The error object of a refusal, once it is found to be in the one form they all have."""
    assert headers.get("content-type", "").startswith("application/json"), (status, body[:200])
    error = msgspec.json.decode(body)["error"]
    kind = "server_error" if status >= 500 else "invalid_request_error"
    assert error["type"] == ("rate_limit_error" if status == 429 else kind), error
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["message"].strip() and error["code"], error
    assert "Traceback" not in error["message"], error
    return dict(error)


def head(method: str, path: str, *fields: str) -> bytes:
    """A request up to its body: good Host and key, then `fields`."""
    lines = (f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *fields)
    return ("\r\n".join(lines) + "\r\n" + AUTH + "\r\n").encode("latin-1")


async def exchange(url: str, request: bytes) -> Answer:
    """Send exactly these bytes; the first response. Closed afterwards, whatever came."""
    async with await anyio.connect_tcp(*_place(url)) as stream:
        await stream.send(request)
        got = b""
        with anyio.fail_after(10):
            while not (answer := _parsed(got)):
                try:
                    got += await stream.receive()
                except anyio.EndOfStream:
                    answer = _parsed(got, over=True)
                    assert answer is not None, got
                    break
        return answer


def _place(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def _parsed(got: bytes, *, over: bool = False) -> Answer | None:
    start, found, body = got.partition(b"\r\n\r\n")
    if not found:
        return None
    first, *lines = start.decode("latin-1").split("\r\n")
    headers = {n.lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
    length = headers.get("content-length")
    if not over and (length is None or len(body) < int(length)):
        return None
    return Answer(int(first.split(" ")[1]), headers, body)


def frames(raw: bytes) -> list[Frame]:
    """The whole frames in `raw`; comments and a torn last one are left out."""
    found = re.findall(rb"(?:^|\n\n)(id: (\d+)\ndata: ([^\n]*))(?=\n\n)", raw)
    return [Frame(int(n), msgspec.json.decode(data), block) for block, n, data in found]


async def take(it: GatewayProcess, run_id: str, after: int, count: int) -> list[Frame]:
    """The next `count` frames after `after`, or fewer if the stream ends; then hang up."""
    headers = {"Last-Event-ID": str(after)} if after else None
    async with it.http.get(f"{it.url}/v1/runs/{run_id}/events", headers=headers) as response:
        if response.status != 200:
            return []
        raw = b""
        async for data in response.content.iter_any():
            raw += data
            if len(got := frames(raw)) >= count:
                return got[:count]
        return frames(raw)


def small_socket(url: str) -> socket.socket:
    """A connection whose end here holds next to nothing; for a reader that does not read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(_place(url))
    return made
