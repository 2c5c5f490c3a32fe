"""`holdfast sessions diff`: the files that a session changed."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.api.schema.changes import DiffResponse, FileDiffObject
from holdfast.cli import output
from holdfast.cli.client import connected, latest
from holdfast.cli.client.client import Client
from holdfast.cli.exits import Code
from holdfast.cli.text import pager
from holdfast.config import process as configuration
from holdfast.config.settings import Config
from holdfast.core.run.files import describe
from holdfast.core.text.escape import visible

UNCHANGED = "No file was changed."
CUT = "the rest of this diff is too long"
PRUNED = "a version of it is no longer kept"
LAST = "last"
RUNS = 100  # among which a run is looked for

_PLAIN, _BOLD, _RED, _GREEN, _CYAN = "\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m"
_COLOURS = {"@": _CYAN, "+": _GREEN, "-": _RED}


def main(args: argparse.Namespace, config: Config) -> int:
    """Show the diff. The pager starts when the connection is closed: it may stay open for long."""
    found: list[DiffResponse] = []

    async def ask(client: Client, args: argparse.Namespace) -> int:
        found.append(await _ask(client, args))
        return Code.OK

    connected.run(args, ask, config)
    (diff,) = found
    if args.json:
        output.print_each(diff.data, str, "", output.all_fields)
    elif not diff.data:
        output.note(UNCHANGED)
    elif args.stat:
        sys.stdout.writelines(f"{line}\n" for line in _stat(diff))
    else:
        coloured = sys.stdout.isatty() and not configuration.wants_no_colour()
        pager.show("".join(f"{line}\n" for line in _lines(diff, coloured=coloured)))
    return Code.OK


async def _ask(client: Client, args: argparse.Namespace) -> DiffResponse:
    if args.session_id:
        meant = await latest.named(client, args.session_id)
    else:
        meant = await latest.latest(client, str(Path.cwd().resolve()))
    theirs = client.for_owner(meant.owner)
    run_id = ""
    if args.run:
        runs = await theirs.runs(meant.session_id, 1 if args.run == LAST else RUNS)
        start = "" if args.run == LAST else args.run
        none = f"no run of {meant.session_id} has that id; see: holdfast runs"
        run_id = output.only(runs, lambda run: run.run_id, start, "runs", none).run_id
    return await theirs.diff(meant.session_id, run_id, args.path or "")


def _stat(diff: DiffResponse) -> Iterator[str]:
    for one in diff.data:
        yield f" {_described(one)}"
    files = "1 file" if len(diff.data) == 1 else f"{len(diff.data)} files"
    yield f" {files} changed, +{diff.added} −{diff.removed}"


def _described(one: FileDiffObject) -> str:
    return describe(one) + (f": {PRUNED}" if one.pruned else "")


def _lines(diff: DiffResponse, *, coloured: bool) -> Iterator[str]:
    for one in diff.data:
        if one.pruned:
            yield f"# {_described(one)}"
            continue
        head = True
        for line in visible(one.diff).splitlines():
            head = head and not line.startswith("@@")
            colour = _BOLD if head else _COLOURS.get(line[:1], "")
            yield f"{colour}{line}{_PLAIN}" if coloured and colour else line
        if one.cut:
            yield f"# {describe(one)}: {CUT}"
