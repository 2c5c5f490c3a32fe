"""What only the operator's own door has: the messages on their way to chats, and a word to them."""

from collections.abc import Sequence
from typing import Protocol

from aiohttp import web

from holdfast.channels.http.door import json_response
from holdfast.core.delivery import Delivery, DeliveryQueued
from holdfast.core.intents import Principal
from holdfast.core.types import DeliveryId

OUTBOX = "/v1/operator/outbox"
FIRST_WORDS = 120  # characters of a message that a list shows


class Message(Protocol):
    """A message, and what became of it so far."""

    @property
    def queued(self) -> DeliveryQueued: ...
    @property
    def now(self) -> Delivery: ...
    @property
    def updated_at(self) -> float: ...


class Outbox(Protocol):
    """What is on its way, as far as it takes orders."""

    async def unsent(self, by: Principal, *, everything: bool) -> Sequence[Message]:
        """What is not sent, newest first; of what was given up only what somebody may miss."""
        ...

    async def message(self, by: Principal, delivery_id: DeliveryId) -> Message:
        """One of them; refused with `delivery_not_found`."""
        ...

    async def resend(self, by: Principal, delivery_id: DeliveryId) -> None:
        """Send it after all; refused with `delivery_not_waiting` unless it was held or given up."""
        ...

    async def drop(self, by: Principal, delivery_id: DeliveryId) -> None:
        """Give it up; refused with `delivery_not_waiting` if it was sent or given up before."""
        ...


def add_routes(app: web.Application, outbox: Outbox, by: Principal) -> None:
    """GET what is not sent (`?all=1`: whatever of it), GET one; POST …/resend or …/drop."""

    async def index(request: web.Request) -> web.Response:
        everything = request.query.get("all", "") not in ("", "0", "false")
        found = await outbox.unsent(by, everything=everything)
        data = [message_object(m) | {"text": m.queued.text[:FIRST_WORDS]} for m in found]
        return json_response({"object": "list", "data": data, "has_more": False})

    async def show(request: web.Request) -> web.Response:
        return json_response(message_object(await outbox.message(by, _named(request))))

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


def message_object(message: Message) -> dict[str, object]:
    """A message as the operator sees it."""
    queued, now = message.queued, message.now
    return {
        "object": "holdfast.message",
        "delivery_id": now.id,
        "status": now.status,
        "platform": queued.address.platform,
        "chat": queued.address.chat,
        "thread": queued.address.thread,
        "run_id": queued.of_run,
        "edits": queued.edits,
        "queued_at": now.queued_at,
        "updated_at": message.updated_at,
        "due_at": now.due_at,
        "attempts": now.attempts,
        "repeated": now.repeated,
        "reason": now.reason,
        "text": queued.text,
    }
