"""`holdfast outbox`: list undelivered chat messages; resend or drop them.

Only a gateway sends messages. Without one, a decision is recorded and carried out when the next
gateway runs.
"""

import argparse
import time

from holdfast.api.schema.operator import DeliveryObject
from holdfast.cli import output
from holdfast.cli.client import connected
from holdfast.cli.client.client import Client
from holdfast.cli.client.refusals import NotFound
from holdfast.cli.exits import Code, Exit
from holdfast.cli.run.approval import span
from holdfast.core.text.escape import reveal

NOTHING_WAITS = "Nothing waits to be sent."
RESENT = "{delivery_id} will be sent again"
_LIST = "list them: holdfast outbox --all"
_ROOM = 76  # columns for the beginning of a message


def main(args: argparse.Namespace) -> int:
    """List, show, resend or drop."""
    if args.what == "list":
        return connected.run(args, _list)
    if not args.delivery_id:
        raise Exit(Code.USAGE, f"the ID is missing: holdfast outbox {args.what} ID; {_LIST}")
    return connected.run(args, _one)


async def _list(client: Client, args: argparse.Namespace) -> int:
    found = await client.unsent(everything=bool(args.all))
    output.print_each(found, _listed, NOTHING_WAITS, output.all_fields if args.json else None)
    return Code.OK


async def _one(client: Client, args: argparse.Namespace) -> int:
    verb = args.what
    delivery_id = await _find(client, args.delivery_id)
    try:
        found = await client.message(delivery_id, "" if verb == "show" else verb)
    except NotFound:
        raise Exit(Code.FAILED, f"there is no message {delivery_id}; {_LIST}") from None
    if args.json:
        print(output.all_fields(found))
    elif verb == "show":
        print(_whole(found))
    elif verb == "drop":
        print(f"{found.delivery_id} dropped")
    else:
        print(RESENT.format(delivery_id=found.delivery_id))
    if verb == "resend" and client.is_owner:
        output.note("no gateway runs; to send the message: holdfast gateway start")
    return Code.OK


async def _find(client: Client, named: str) -> str:
    """Return the id with that prefix; a complete or unknown one is for the server to judge."""
    ids = [m.delivery_id for m in await client.unsent(everything=True)]
    if named in ids or not any(i.startswith(named) for i in ids):
        return named
    return output.only(ids, str, named, "messages", "")


def _listed(one: DeliveryObject) -> str:
    head = f"{one.delivery_id}  {one.status}  {_chat(one)}  {_age(one)} old, {_tries(one)}"
    lines = [head, one.reason, f"“{output.short(one.text, _ROOM)}”"]
    return "\n  ".join(reveal(" ".join(line.split("\n"))) for line in lines if line)


def _whole(one: DeliveryObject) -> str:
    fields = {
        "message": one.delivery_id,
        "status": one.status,
        "reason": " ".join(one.reason.split("\n")),
        "to": _chat(one),
        "queued": f"{output.local(one.queued_at):%Y-%m-%d %H:%M:%S}, {_age(one)} ago",
        "tries": _tries(one) + (", it may have arrived" if one.repeated else ""),
        "run": one.run_id,
        "changes": one.edits,
    }
    lines = [f"{name:8} {reveal(value)}" for name, value in fields.items() if value]
    return "\n".join([*lines, "text", *(f"  {reveal(line)}" for line in one.text.split("\n"))])


def _chat(one: DeliveryObject) -> str:
    return f"{one.platform} {one.chat}" + (f", thread {one.thread}" if one.thread else "")


def _tries(one: DeliveryObject) -> str:
    return "1 try" if one.attempts == 1 else f"{one.attempts} tries"


def _age(one: DeliveryObject) -> str:
    return span(max(0.0, time.time() - one.queued_at))  # noqa: TID251  for the eye only
