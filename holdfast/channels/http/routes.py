"""The routes and their handlers. Handlers own no work: they call the front door and read.

A handler that is cancelled because its client went away undoes nothing.
"""

from collections.abc import Awaitable, Callable

from aiohttp import web
from msgspec.structs import replace

from holdfast.channels.http import bodies, sessions, wire
from holdfast.channels.http.bodies import ApprovalRequest, RunRequest, SteerRequest
from holdfast.channels.http.door import json_response
from holdfast.channels.http.openapi import document
from holdfast.channels.http.stream import stream_events
from holdfast.core.approval import Choice
from holdfast.core.intents import Answer, Principal
from holdfast.core.run import Status
from holdfast.core.types import RequestId, RunId
from holdfast.errors import Refused
from holdfast.gateway import Gateway, RunQuery

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_CHOICES = {
    "once": Choice.ONCE,
    "approve": Choice.ONCE,
    "approved": Choice.ONCE,
    "allow": Choice.ONCE,
    "session": Choice.SESSION,
    "always": Choice.ALWAYS,
    "deny": Choice.DENY,
}

# A status of the API → the statuses of the run it stands for.
_STATUSES = {
    "queued": {Status.QUEUED, Status.INTERRUPTED},
    "running": {Status.RUNNING},
    "stopping": {Status.QUEUED, Status.RUNNING, Status.WAITING, Status.INTERRUPTED},
    "waiting_for_approval": {Status.WAITING},
    "completed": {Status.COMPLETED},
    "failed": {Status.FAILED},
    "cancelled": {Status.CANCELLED},
}


class Routes:
    """The handlers of one door."""

    def __init__(
        self, gateway: Gateway, by: Principal, body_limit: int, body_wait_s: float
    ) -> None:
        self._gateway = gateway
        self._by = by
        self._body_limit = body_limit
        self._body_wait_s = body_wait_s

    def table(self) -> list[tuple[str, str, Handler]]:
        """Method, path, handler: the whole API."""
        return [
            ("GET", "/health", self.health),
            ("GET", "/v1/health", self.health),
            ("GET", "/health/detailed", self.health_detailed),
            ("GET", "/openapi.json", self.openapi),
            ("GET", "/v1/capabilities", self.capabilities),
            ("GET", "/v1/models", self.models),
            ("GET", "/v1/models/{model_id:.+}", self.model),
            ("POST", "/v1/runs", self.start_run),
            ("GET", "/v1/runs", self.list_runs),
            ("GET", "/v1/runs/{run_id}", self.run),
            ("GET", "/v1/runs/{run_id}/events", self.events),
            ("POST", "/v1/runs/{run_id}/stop", self.stop),
            ("POST", "/v1/runs/{run_id}/steer", self.steer),
            ("POST", "/v1/runs/{run_id}/approval", self.approval),
            ("GET", "/v1/approvals", self.list_approvals),
            ("POST", "/v1/approvals/{request_id}", self.answer_approval),
            ("GET", "/v1/rules", self.list_rules),
            ("POST", "/v1/rules/{name}/revoke", self.revoke_rule),
            ("POST", "/v1/sandbox/accept", self.accept_sandbox),
            ("GET", "/api/sessions/{session_id}/events", self.session_events),
            *sessions.table(self._gateway, self._by, self._body_limit, self._body_wait_s),
        ]

    async def start_run(self, request: web.Request) -> web.Response:
        raw = await self._read(request)
        body = bodies.decode(raw, RunRequest)
        key = request.headers.get("Idempotency-Key")
        by = bodies.asking(request, self._by)
        reply = await self._gateway.send(bodies.submit_of(body, by, raw, key))
        headers = {"Idempotency-Replayed": "true"} if reply.replayed else None
        return json_response({"run_id": reply.run_id, "status": "started"}, 202, headers)

    async def list_runs(self, request: web.Request) -> web.Response:
        asked, by = request.query, bodies.asking(request, self._by)
        limit = bodies.limit(request)
        if (status := asked.get("status")) is not None and status not in _STATUSES:
            known = ", ".join(_STATUSES)
            raise Refused("invalid_request", f"`status` must be one of {known}.", param="status")
        query = RunQuery(
            status=frozenset(_STATUSES[status]) if status else frozenset(),
            session_id=bodies.session_id(asked["session_id"]) if "session_id" in asked else None,
            limit=limit,
            after=bodies.checked_run_id(asked["after"]) if "after" in asked else None,
        )
        data: list[dict[str, object]] = []
        more = True
        while more and len(data) < limit:  # two of our statuses may be one of the API's
            views, more = await self._gateway.runs(by, query)
            found = map(wire.run_object, views)
            data += [run for run in found if status is None or run["status"] == status]
            if views:
                query = replace(query, limit=limit - len(data), after=views[-1].run_id)
        return json_response({"object": "list", "data": data, "has_more": more})

    async def run(self, request: web.Request) -> web.Response:
        return json_response(
            wire.run_object(await self._gateway.run(self._by, bodies.run_id(request)))
        )

    async def events(self, request: web.Request) -> web.StreamResponse:
        run_id, after = bodies.run_id(request), bodies.cursor(request)
        async with self._gateway.follow(self._by, run_id, after) as batches:
            if batches is None:
                return web.Response(status=204)
            return await stream_events(request, batches, ends=True)

    async def stop(self, request: web.Request) -> web.Response:
        run_id = bodies.run_id(request)
        unread = (await self._gateway.send(bodies.stop_of(request, self._by, run_id))).unread
        wanted = request.query.get("unread", "") == "true"
        told = {"unread": unread} if wanted else {}
        return json_response({"run_id": run_id, "status": "stopping", **told})

    async def steer(self, request: web.Request) -> web.Response:
        run_id = bodies.run_id(request)
        body = bodies.decode(await self._read(request), SteerRequest)
        key = request.headers.get("Idempotency-Key")
        await self._gateway.send(bodies.steer_of(body, self._by, run_id, key))
        return json_response({"object": "hermes.run.steer", "run_id": run_id, "accepted": True})

    async def approval(self, request: web.Request) -> web.Response:
        run_id = bodies.run_id(request)
        body = bodies.decode(await self._read(request), ApprovalRequest)
        request_id = None if body.request_id is None else RequestId(body.request_id)
        return await self._respond(run_id, body, request_id)

    async def list_approvals(self, request: web.Request) -> web.Response:
        waiting = await self._gateway.approvals(self._by)
        data = [wire.approval_object(w.asked) | wire.owner_fields(w.owner) for w in waiting]
        return json_response({"object": "list", "data": data, "has_more": False})

    async def answer_approval(self, request: web.Request) -> web.Response:
        request_id = request.match_info["request_id"]
        body = bodies.decode(await self._read(request), ApprovalRequest)
        for waiting in await self._gateway.approvals(self._by):
            asked = waiting.asked
            if asked.request_id == request_id:
                return await self._respond(asked.run_id, body, asked.request_id)
        raise Refused("approval_not_pending", "Nothing waits under that id.")

    async def _respond(
        self, run_id: RunId, body: ApprovalRequest, request_id: RequestId | None
    ) -> web.Response:
        choice = _CHOICES.get(body.choice.strip().lower())
        if choice is None:
            raise Refused(
                "invalid_approval_choice",
                "`choice` must be one of once, session, always, deny.",
                param="choice",
            )
        every = bodies.truth(body.all)
        reply = await self._gateway.send(Answer(self._by, run_id, choice, request_id, every))
        answer: dict[str, object] = {
            "object": "hermes.run.approval_response",
            "run_id": run_id,
            "choice": reply.choice,
            "resolved": reply.resolved,
        }
        if reply.choice is not choice:
            answer["note"] = f"recorded as {reply.choice}: {choice} is for administrators"
        return json_response(answer)

    async def _read(self, request: web.Request) -> bytes:
        return await bodies.read_body(request, self._body_limit, self._body_wait_s)

    async def list_rules(self, request: web.Request) -> web.Response:
        rules = self._gateway.rules(self._by)
        data = [{"name": name, "rule": rule} for name, rule in rules.items()]
        return json_response({"object": "list", "data": data, "has_more": False})

    async def revoke_rule(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        await self._gateway.revoke(self._by, name)
        return json_response({"name": name, "revoked": True})

    async def accept_sandbox(self, request: web.Request) -> web.Response:
        await self._gateway.accept_posture(self._by)
        health = self._gateway.health()
        return json_response({"level": health.sandbox, "note": health.sandbox_note})

    async def session_events(self, request: web.Request) -> web.StreamResponse:
        session_id = bodies.session_id(request.match_info["session_id"])
        after, by = bodies.cursor(request), bodies.asking(request, self._by)
        async with self._gateway.follow_session(by, session_id, after) as batches:
            return await stream_events(request, batches, ends=False)

    async def health(self, request: web.Request) -> web.Response:
        health = self._gateway.health()
        status = "ok" if health.ready else health.status
        return json_response({"status": status, "version": health.version})

    async def health_detailed(self, request: web.Request) -> web.Response:
        health = self._gateway.health()
        return json_response(
            {
                "status": "ok" if health.ready else "degraded",
                "version": health.version,
                "uptime_s": health.uptime_s,
                "checks": {"process": health.status, "journal": health.journal},
                "model": health.model,
                "runs": {
                    "running": health.running,
                    "queued": health.queued,
                    "waiting": health.waiting,
                },
                "paused": health.paused,
                "held": health.held,
                "channels": dict(health.channels),
                "undelivered": health.undelivered,
                "sandbox": {"level": health.sandbox, "note": health.sandbox_note},
                "loop_lag_ms": health.loop_lag_ms,
            },
            200 if health.ready else 503,
        )

    async def openapi(self, request: web.Request) -> web.Response:
        return json_response(document(self._gateway.health().version))

    async def models(self, request: web.Request) -> web.Response:
        data = [_model_object(self._gateway.health().model)]
        return json_response({"object": "list", "data": data})

    async def model(self, request: web.Request) -> web.Response:
        known = self._gateway.health().model
        if request.match_info["model_id"] != known:
            raise Refused("model_not_found", f"There is no such model; {known} is configured.")
        return json_response(_model_object(known))

    async def capabilities(self, request: web.Request) -> web.Response:
        return json_response(
            {
                "object": "hermes.api_server.capabilities",
                "model": self._gateway.health().model,
                "features": {
                    "runs": True,
                    "run_events": True,
                    "run_events_resume": True,
                    "run_stop": True,
                    "run_steer": True,
                    "run_approval": True,
                    "run_question": True,
                    "subagents": True,
                    "idempotency_key": True,
                    "session_events": True,
                    "sessions": True,
                    "session_fork": True,
                    "late_delivery": False,
                    "chat_completions": False,
                    "responses": False,
                },
                "endpoints": [f"{method} {path}" for method, path, _ in self.table()],
            }
        )


def _model_object(model: str) -> dict[str, object]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "holdfast"}
