"""Connections without a key: limit their time and their number.

aiohttp waits for the end of a request's headers as long as for the next request of an idle
connection, and accepts any number of connections. A client without a key could open many, finish
none, and keep all others out.

So a connection is a stranger until one of its requests has shown the key. A stranger has
`headers_s` to send its first request. If there are more than `MANY` strangers, those that have
been silent for `GRACE_S` are closed, oldest first. If they hold half of the descriptors of the
process, the oldest is closed whatever it does. Young connections are spared because a thousand
honest clients may arrive in one turn of the loop.

All strangers have the same time, so they are in the order of their deadlines: one timer is enough.
"""

import resource
from asyncio import AbstractEventLoop, TimerHandle, get_running_loop
from typing import Any

from aiohttp import web

MANY = 256
GRACE_S = 2.0
KEEP_ALIVE_S = 75.0  # between two requests of a connection; longer than most clients keep one


class Strangers:
    """The strangers of one server, oldest first. Belongs to the loop it is made in."""

    def __init__(self, headers_s: float) -> None:
        self._headers_s = headers_s
        self._most = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2, 1)
        self._loop: AbstractEventLoop = get_running_loop()
        self._since: dict[Connection, float] = {}  # oldest first
        self._silent: dict[Connection, float] = {}  # those without a request so far
        self._timer: TimerHandle | None = None

    def came(self, connection: "Connection") -> None:
        """Add one; another one may be closed for it."""
        now = self._loop.time()
        self._since[connection] = self._silent[connection] = now
        if self._timer is None:
            self._timer = self._loop.call_at(now + self._headers_s, self._end_silent)
        if len(self._since) > self._most:
            next(iter(self._since)).turn_out()
        elif len(self._silent) > MANY:
            oldest, since = next(iter(self._silent.items()))
            if now - since >= GRACE_S:
                oldest.turn_out()

    def spoke(self, connection: "Connection") -> None:
        """Note that a connection has sent a whole request."""
        self._silent.pop(connection, None)

    def went(self, connection: "Connection") -> None:
        """Remove one that has shown the key or is closed."""
        self._silent.pop(connection, None)
        self._since.pop(connection, None)

    def _end_silent(self) -> None:
        now = self._loop.time()
        self._timer = None
        while self._silent:
            connection, since = next(iter(self._silent.items()))
            if since + self._headers_s > now:
                self._timer = self._loop.call_at(since + self._headers_s, self._end_silent)
                return
            connection.turn_out()


class Connection(web.RequestHandler):
    """A connection. It begins as a stranger if the server has them."""

    __slots__ = ("_strangers",)

    def __init__(self, strangers: Strangers | None, *args: Any, **options: Any) -> None:
        super().__init__(*args, keepalive_timeout=KEEP_ALIVE_S, **options)
        self._strangers = strangers

    def connection_made(self, transport: Any) -> None:  # type: ignore[explicit-override]
        """Extend aiohttp: count the connection."""
        super().connection_made(transport)
        if self._strangers is not None:
            self._strangers.came(self)

    def data_received(self, data: bytes) -> None:  # type: ignore[explicit-override]
        """Extend aiohttp: note the first whole request."""
        super().data_received(data)
        if self._strangers is not None and self._request_count:
            self._strangers.spoke(self)

    def connection_lost(self, exc: BaseException | None) -> None:  # type: ignore[explicit-override]
        """Extend aiohttp: stop counting the connection."""
        self.admit()
        super().connection_lost(exc)

    def admit(self) -> None:
        """Stop counting it: its client has shown the key."""
        if self._strangers is not None:
            self._strangers.went(self)
            self._strangers = None

    def turn_out(self) -> None:
        """Close it: it has taken too long, or others need its descriptor."""
        self.admit()
        self.force_close()
