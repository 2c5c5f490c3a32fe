"""Background processes: list them, show their output, publish their ports, kill them."""

from aiohttp import web

from holdfast.api import requests
from holdfast.api.auth import json_response
from holdfast.api.endpoints import Endpoint, RouteContext, query
from holdfast.api.schema import processes as schema
from holdfast.core.run.process import describe_end
from holdfast.core.types import ProcessId
from holdfast.gateway import ProcessView

OUTPUT = 64 * 1024  # bytes of output in one answer


async def index(context: RouteContext, request: web.Request) -> web.Response:
    """List processes."""
    named = request.query.get("session_id")
    session_id = None if named is None else requests.session_id(named)
    found = await context.gateway.background.listed(
        context.asking(request), session_id, ended=requests.truth(request.query.get("ended"))
    )
    return json_response(schema.ProcessList(tuple(map(_object, found))))


async def output(context: RouteContext, request: web.Request) -> web.Response:
    """Show the end of the output of a process."""
    process_id = _named(request)
    text = await context.gateway.background.output(context.asking(request), process_id, OUTPUT)
    return json_response(schema.ProcessOutput(process_id, text))


async def kill(context: RouteContext, request: web.Request) -> web.Response:
    """Kill a process."""
    by = context.asking(request)
    return json_response(_object(await context.gateway.background.kill(by, _named(request))))


async def publish(context: RouteContext, request: web.Request) -> web.Response:
    """Publish a port."""
    by, process_id = context.asking(request), _named(request)
    asked = await context.read(request, schema.PortRequest)
    background = context.gateway.background
    return json_response(
        _object(await background.publish(by, process_id, asked.port, asked.host_port))
    )


async def close_port(context: RouteContext, request: web.Request) -> web.Response:
    """Close a published port."""
    by, process_id = context.asking(request), _named(request)
    if not (named := request.match_info["port"]).isdecimal() or len(named) > 5:
        raise requests.invalid("`port` must be the number of a port.", "port")
    return json_response(
        _object(await context.gateway.background.close_port(by, process_id, int(named)))
    )


def _named(request: web.Request) -> ProcessId:
    return ProcessId(request.match_info["process_id"])


def _object(view: ProcessView) -> schema.ProcessObject:
    process, ended = view.process, view.process.ended
    return schema.ProcessObject(
        process_id=process.id,
        session_id=view.key.session_id,
        owner=view.key.owner,
        run_id=process.started.started_by,
        command=process.started.command,
        status=process.status,
        how=describe_end(ended) if ended else "",
        exit_code=ended.exit_code if ended else None,
        started_at=process.started_at,
        duration_s=ended.duration_s if ended else 0.0,
        detach=process.started.detach,
        last_line=view.last_line,
        ports=tuple(
            schema.PortObject(port, at, f"http://127.0.0.1:{at}")
            for port, at in process.ports.items()
        ),
    )


_ALL = "/api/processes"
_ONE = f"{_ALL}/{{process_id}}"
ENDPOINTS = (
    Endpoint(
        *("GET", _ALL, index),
        "List background processes, of one session or of all; with `ended` also those that have "
        "ended lately",
        schema.ProcessList,
        parameters=(query("session_id", {"type": "string"}), query("ended", {"type": "boolean"})),
    ),
    Endpoint("GET", f"{_ONE}/output", output, "The end of its output", schema.ProcessOutput),
    Endpoint(
        *("POST", f"{_ONE}/ports", publish),
        "Publish a port that it listens on, at 127.0.0.1 of this machine; for the operator",
        *(schema.ProcessObject, schema.PortRequest),
        errors=(403, 409, 503),
    ),
    Endpoint(
        *("DELETE", f"{_ONE}/ports/{{port}}", close_port, "Close a published port"),
        schema.ProcessObject,
        errors=(403, 503),
    ),
    Endpoint("POST", f"{_ONE}/kill", kill, "Kill it with all its children", schema.ProcessObject),
)
