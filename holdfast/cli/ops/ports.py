"""`holdfast ports`: list published ports of background processes; publish one, or close it."""

import argparse
from collections.abc import Sequence

from holdfast.api.schema.processes import PortObject, ProcessObject
from holdfast.cli import output
from holdfast.cli.client import connected
from holdfast.cli.client.client import Client
from holdfast.cli.exits import Code, Exit
from holdfast.core.text.escape import reveal

NO_PORTS = "No port is published."
NOT_PUBLISHED = "port {port} is not published; list: holdfast ports"
_PREFIX = "proc_"
_ROOM = 60  # columns for a command


def main(args: argparse.Namespace) -> int:
    """List, open or close."""
    if args.what == "list":
        return connected.run(args, _list)
    if args.port is None:
        raise Exit(Code.USAGE, f"the PORT is missing: holdfast ports {args.what} PORT")
    return connected.run(args, _open if args.what == "open" else _close)


async def _list(client: Client, args: argparse.Namespace) -> int:
    running = await client.processes(ended=False)
    found = [(process, port) for process in running for port in process.ports]
    output.print_each(found, _row, NO_PORTS, _encoded if args.json else None)
    return Code.OK


async def _open(client: Client, args: argparse.Namespace) -> int:
    process = _chosen(await client.processes(ended=False), args.process or "", args.session or "")
    after = await client.publish_port(process.process_id, args.port, args.on)
    port = next(p for p in after.ports if p.port == args.port)
    print(_encoded((after, port)) if args.json else _row((after, port)))
    return Code.OK


async def _close(client: Client, args: argparse.Namespace) -> int:
    closed = 0
    for process in await client.processes(ended=False):
        for port in process.ports:
            if args.port in (port.port, port.host_port):
                await client.close_port(process.process_id, port.port)
                closed += 1
    if not closed:
        raise Exit(Code.FAILED, NOT_PUBLISHED.format(port=args.port))
    return Code.OK


def _chosen(running: Sequence[ProcessObject], named: str, session: str) -> ProcessObject:
    """Return the process that is meant; without a name the one that was started last."""
    full = named if named.startswith(_PREFIX) or not named else _PREFIX + named
    those = [
        p for p in running if p.process_id.startswith(full) and p.session_id.startswith(session)
    ]
    if not those:
        raise Exit(Code.FAILED, "no such process runs in the background; list: holdfast ps")
    if named:
        return output.only(those, lambda p: p.process_id, full, "processes", "")
    return those[-1]


def _row(found: tuple[ProcessObject, PortObject]) -> str:
    process, port = found
    whose = f"port {port.port} of {process.process_id}, session {process.session_id}"
    return reveal(f"{port.url}  {whose}: {output.short(process.command, _ROOM)}")


def _encoded(found: tuple[ProcessObject, PortObject]) -> str:
    process, port = found
    return output.as_json(
        {
            "url": port.url,
            "port": port.port,
            "host_port": port.host_port,
            "process_id": process.process_id,
            "session_id": process.session_id,
            "command": process.command,
        }
    )
