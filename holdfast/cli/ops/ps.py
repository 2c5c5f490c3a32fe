"""`holdfast ps`: list background processes, show the end of their output, kill them."""

import argparse
import time

from holdfast.api.schema.processes import ProcessObject
from holdfast.cli import output
from holdfast.cli.client import connected
from holdfast.cli.client.client import Client
from holdfast.cli.client.refusals import NotFound
from holdfast.cli.exits import Code, Exit
from holdfast.cli.run.approval import span
from holdfast.core.text.escape import reveal

NOTHING_RUNS = "Nothing runs in the background."
_LIST = "list them: holdfast ps --all"
_ROOM = 76  # columns for a command, and for the last line
_PREFIX = "proc_"


def main(args: argparse.Namespace) -> int:
    """List, show the output, or kill."""
    if args.what == "list":
        return connected.run(args, _list)
    if not args.process_id:
        raise Exit(Code.USAGE, f"the ID is missing: holdfast ps {args.what} ID; {_LIST}")
    return connected.run(args, _one)


async def _list(client: Client, args: argparse.Namespace) -> int:
    found = await client.processes(ended=bool(args.all))
    output.print_each(found, _listed, NOTHING_RUNS, output.all_fields if args.json else None)
    return Code.OK


async def _one(client: Client, args: argparse.Namespace) -> int:
    process_id = await _find(client, args.process_id)
    try:
        if args.what == "output":
            text = await client.process_output(process_id)
            print(output.as_json({"process_id": process_id, "output": text}) if args.json else text)
            return Code.OK
        killed = await client.kill_process(process_id)
    except NotFound:
        raise Exit(Code.FAILED, f"there is no process {process_id}; {_LIST}") from None
    print(output.all_fields(killed) if args.json else f"{process_id}: {killed.how}")
    return Code.OK


async def _find(client: Client, named: str) -> str:
    """Return the id that begins so; a complete or unknown one is for the server to judge."""
    ids = [p.process_id for p in await client.processes(ended=True)]
    full = named if named.startswith(_PREFIX) else _PREFIX + named
    if full in ids or not any(i.startswith(full) for i in ids):
        return full
    return output.only(ids, str, full, "processes", "")


def _listed(one: ProcessObject) -> str:
    age = span(max(0.0, time.time() - one.started_at))  # noqa: TID251  for the eye only
    state = f"{one.how}, after {span(one.duration_s)}" if one.how else f"runs for {age}"
    detached = ", detached" if one.detach else ""
    head = f"{one.process_id}  {state}{detached}  session {one.session_id}"
    lines = [head, output.short(one.command, _ROOM)]
    if one.last_line:
        lines.append(f"last line: {output.short(one.last_line, _ROOM)}")
    return "\n  ".join(reveal(line) for line in lines)
