"""A front door that says what a test tells it to: the operator's socket with nobody behind it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
from aiohttp import web

from holdfast.host.lock import SOCKET
from tests.cli import Place

RUN = "run_1"
EARLIER = "run_0"  # of the same session
REQUEST = {
    "request_id": "apr_1",
    "call_id": "call_1",
    "command": "rm -r build",
    "description": "Sandbox: L2\nDirectory: /work",
    "choices": ["once", "session", "always", "deny"],
    "expires_at": 4e9,
}


class Door:
    """One run whose events are said by the test, and what was asked for meanwhile."""

    def __init__(self) -> None:
        self.submitted: list[dict[str, Any]] = []
        self.answers: list[tuple[str, str]] = []
        self.waiting: list[dict[str, Any]] = []
        self.status = "running"
        self.question: dict[str, Any] | None = None  # that the run asks
        self.steered: list[dict[str, Any]] = []
        self.checked = anyio.Event()  # somebody has asked how the run stands
        self.looked = anyio.Event()  # somebody has asked what waits
        self.answer: Callable[[], web.Response] = lambda: web.json_response(
            {"run_id": RUN, "choice": self.answers[-1][1], "resolved": 1}
        )
        self.health: dict[str, Any] = {
            "sandbox": {"level": "L2", "note": "L2: tight"},
            "paused": "",
        }
        self._events: list[bytes] = []
        self._earlier: list[bytes] = []
        self._news: list[bytes] = []
        self.runs: list[str] = []  # of the session, newest first
        self._said = anyio.Event()

    def say(self, event: str, **fields: object) -> None:
        """The run's next event. A request waits from then on."""
        if event == "approval.request":
            self.waiting.append({"run_id": RUN, **fields})
        self._say(self._events, event, run_id=RUN, **fields)

    def forget(self) -> None:
        """The run begins anew."""
        self._events.clear()

    def say_earlier(self, event: str, **fields: object) -> None:
        """The same for the earlier run."""
        if event == "approval.request":
            self.waiting.append({"run_id": EARLIER, **fields})
        self._say(self._earlier, event, run_id=EARLIER, **fields)

    def tell(self, event: str, **fields: object) -> None:
        """The next event of the session that is not the run's."""
        self._say(self._news, event, **fields)

    def _say(self, events: list[bytes], event: str, **fields: object) -> None:
        seq = len(events) + 1
        body = {"event": event, "timestamp": 0.0, "seq": seq, **fields}
        events.append(b"id: %d\ndata: %s\n\n" % (seq, msgspec.json.encode(body)))
        self._said.set()
        self._said = anyio.Event()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/runs", self._submit)
        app.router.add_get("/v1/runs", self._runs)
        app.router.add_get("/v1/runs/{id}", self._status)
        app.router.add_get("/v1/runs/{id}/events", self._stream)
        app.router.add_get("/api/sessions/s/events", self._session)
        app.router.add_get("/health/detailed", self._health)
        app.router.add_get("/v1/approvals", self._approvals)
        app.router.add_post("/v1/approvals/{id}", self._answer)
        app.router.add_post("/v1/runs/{id}/steer", self._steer)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "openai/fake"}]})

    async def _submit(self, request: web.Request) -> web.Response:
        self.submitted.append(await request.json())
        return web.json_response({"run_id": RUN, "status": "started"}, status=202)

    async def _runs(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [self._run(name) for name in self.runs]})

    async def _status(self, request: web.Request) -> web.Response:
        self.checked.set()
        return web.json_response(self._run(request.match_info["id"]))

    def _run(self, name: str) -> dict[str, Any]:
        run = {"run_id": name, "status": self.status, "session_id": "s", "created_at": 0.0}
        asked = {"question": self.question} if self.question and name == RUN else {}
        more = {"updated_at": 0.0, "last_event": None, "model": "openai/fake"}
        return run | more | asked

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response(self.health)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        ours = request.match_info["id"] == RUN
        return await self._send(request, self._events if ours else self._earlier)

    async def _session(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, self._news)

    async def _send(self, request: web.Request, events: list[bytes]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        sent = int(request.headers["Last-Event-ID"])
        while True:
            while sent == len(events):
                await self._said.wait()
            await response.write(events[sent])
            sent += 1

    async def _approvals(self, request: web.Request) -> web.Response:
        self.looked.set()
        return web.json_response({"data": self.waiting})

    async def _answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.answers.append((request.match_info["id"], body["choice"]))
        return self.answer()

    async def _steer(self, request: web.Request) -> web.Response:
        """Words come too late for whatever was asked."""
        self.steered.append(await request.json())
        error = {"message": "Nobody waits for that answer.", "code": "question_not_waiting"}
        return web.json_response({"error": error}, status=409)


@asynccontextmanager
async def door(
    place: Place, more: Callable[[web.Application], object] | None = None
) -> AsyncIterator[Door]:
    """A door to the home of `place` for the length of a block, with more routes if wanted."""
    it = Door()
    app = it.app()
    if more is not None:
        more(app)
    socket = place.home / SOCKET
    socket.parent.mkdir(mode=0o700, parents=True)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket)).start()
        yield it
    finally:
        await runner.cleanup()
