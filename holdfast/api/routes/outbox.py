"""Undelivered messages to chats: list, resend and drop them. At the operator's socket only."""

from aiohttp import web
from msgspec.structs import replace

from holdfast.api.auth import json_response
from holdfast.api.contracts import KeepsOutbox
from holdfast.api.schema.operator import DeliveryList, DeliveryObject
from holdfast.core.intents import Principal
from holdfast.core.types import DeliveryId
from holdfast.journal.journal import Outbound

OUTBOX = "/v1/operator/outbox"
PREVIEW = 120  # characters of a message in a list


def add_routes(app: web.Application, outbox: KeepsOutbox, by: Principal) -> None:
    """GET the undelivered messages (`?all=1`: all of them) or one; POST …/resend or …/drop."""

    async def index(request: web.Request) -> web.Response:
        everything = request.query.get("all", "") not in ("", "0", "false")
        found = map(_delivery, await outbox.unsent(by, everything=everything))
        return json_response(DeliveryList(tuple(replace(d, text=d.text[:PREVIEW]) for d in found)))

    async def show(request: web.Request) -> web.Response:
        return json_response(_delivery(await outbox.message(by, _named(request))))

    async def resend(request: web.Request) -> web.Response:
        await outbox.resend(by, _named(request))
        return await show(request)

    async def drop(request: web.Request) -> web.Response:
        await outbox.drop(by, _named(request))
        return await show(request)

    one = f"{OUTBOX}/{{delivery_id}}"
    app.router.add_get(OUTBOX, index)
    app.router.add_get(one, show)
    app.router.add_post(f"{one}/resend", resend)
    app.router.add_post(f"{one}/drop", drop)


def _named(request: web.Request) -> DeliveryId:
    return DeliveryId(request.match_info["delivery_id"])


def _delivery(message: Outbound) -> DeliveryObject:
    queued, now = message.queued, message.now
    return DeliveryObject(
        delivery_id=now.id,
        status=now.status,
        platform=queued.address.platform,
        chat=queued.address.chat,
        thread=queued.address.thread,
        run_id=queued.of_run,
        edits=queued.edits,
        queued_at=now.queued_at,
        updated_at=message.updated_at,
        due_at=now.due_at,
        attempts=now.attempts,
        repeated=now.repeated,
        reason=now.reason,
        text=queued.text,
    )
