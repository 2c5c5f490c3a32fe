"""`holdfast sessions`: list, search, show, diff, rename, fork, export, import sessions; their marks.

A mark says that a session's work was interrupted and no run has completed since. The next run is
told. Clear it by hand if the work is no longer wanted.
"""

import argparse
import sys
from pathlib import Path

from msgspec.structs import asdict

from holdfast.api.schema.changes import FileDiffObject
from holdfast.api.schema.operator import SessionMark
from holdfast.api.schema.sessions import SearchHit, SessionObject
from holdfast.cli import output, saving
from holdfast.cli.client import connected, latest, operator
from holdfast.cli.client.client import Client
from holdfast.cli.client.refusals import NotFound
from holdfast.cli.exits import Code, Exit
from holdfast.cli.run import workspace
from holdfast.cli.sessions import diff, export, imports
from holdfast.config import process as configuration
from holdfast.core.text.escape import OutputCleaner
from holdfast.core.workspace import inside

NO_SESSIONS = "There are no sessions."
NOTHING_FOUND = "nothing found for"
INCOMPLETE = "the search index is not complete yet: search again"
NONE_HELD = "No run was on hold."
SEARCHES = 20  # of some seconds each, until the index is complete

_ROOM = 90  # columns for a title or the beginning of a message
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_NO_MARK = {"reason": "", "held": 0, "mark": "", "mark_reason": "", "marked_at": 0.0}


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    args.json = bool(args.json)
    config = operator.load({"model": args.model})
    if args.what == "import" and args.workspace:  # it may ask, so before anything starts
        chosen = workspace.choose(config, args.workspace, confirmed=args.yes)
        args.workspace = str(chosen)
    if args.what == "diff":
        return diff.main(args, config)
    return connected.run(args, _DOES[args.what], config)


async def _list(client: Client, args: argparse.Namespace) -> int:
    found = await client.list_sessions(args.limit)
    marks = {one.session_id: one for one in await client.sessions()}
    home = client.config.home

    def mark(one: SessionObject) -> SessionMark | None:
        return None if one.owner else marks.get(one.session_id)

    encode = (lambda one: _encoded(one, mark(one))) if args.json else None
    output.print_each(found, lambda one: _listed(one, mark(one), home), NO_SESSIONS, encode)
    return Code.OK


def _encoded(one: SessionObject, mark: SessionMark | None) -> str:
    more = _NO_MARK if mark is None else asdict(mark)
    return output.as_json({**more, **asdict(one)})


def _listed(one: SessionObject, mark: SessionMark | None, home: Path) -> str:
    reason, held = (mark.reason, mark.held) if mark else ("", 0)
    words = [one.session_id, f"{one.status} ({reason})" if reason else one.status]
    if one.unfinished:
        words.append(f"{one.unfinished} unfinished" + (f", {held} held" if held else ""))
    if mark is not None and mark.mark:
        words.append(
            f"interrupted {_time(mark.marked_at, ':%S')}: {mark.mark} ({mark.mark_reason})"
        )
    name = one.title or (f"“{one.preview}”" if one.preview else "")
    own = inside(one.workspace, str(home.resolve()))  # a directory that Holdfast made
    whose = f"of {one.owner}" if one.owner else ""
    about = [_time(one.updated_at), output.short(name, _ROOM), "" if own else one.workspace, whose]
    return f"{'  '.join(words)}\n  {_harmless('  '.join(filter(None, about)))}"


async def _search(client: Client, args: argparse.Namespace) -> int:
    words = " ".join(args.words).encode(errors="replace").decode()
    found = await client.search(words, args.limit)
    for _ in range(SEARCHES):  # each search indexes more
        if found.complete:
            break
        output.note("… indexing; searching again")
        found = await client.search(words, args.limit)
    for hit in found.data:
        print(output.as_json(hit) if args.json else _shown_hit(hit))
    if not found.complete:
        raise Exit(Code.TRY_AGAIN, INCOMPLETE)
    if not found.data:
        raise Exit(Code.FAILED, f"{NOTHING_FOUND}: {_harmless(words)}")
    return Code.OK


def _shown_hit(hit: SearchHit) -> str:
    head = (
        f"{hit.session_id}  {_time(hit.at)}  {_harmless(output.short(hit.title, _ROOM))}".rstrip()
    )
    snippet = _harmless(hit.snippet)
    if sys.stdout.isatty() and not configuration.wants_no_colour():
        snippet = snippet.replace("⟦", _BOLD).replace("⟧", _PLAIN)
    return f"{head}\n  {hit.role}: {snippet}"


async def _show(client: Client, args: argparse.Namespace) -> int:
    session = await _whole(client, args.session_id)
    if args.json:
        print(output.as_json(session))
    else:
        print(_harmless(export.markdown(session, await _changes(client, session))), end="")
    return Code.OK


async def _rename(client: Client, args: argparse.Namespace) -> int:
    meant = await latest.named(client, args.session_id)
    now = await client.for_owner(meant.owner).rename(meant.session_id, " ".join(args.title))
    if args.json:
        print(output.all_fields(now))
    elif now.title:
        print(f"{now.session_id} has the title: {_harmless(now.title)}")
    else:
        print(f"{now.session_id} has no title now")
    return Code.OK


async def _fork(client: Client, args: argparse.Namespace) -> int:
    meant = await latest.named(client, args.session_id)
    made = await client.for_owner(meant.owner).fork(meant.session_id, args.title)
    if args.json:
        print(output.all_fields(made))
    else:
        print(f"{made.session_id} is a fork of {meant.session_id}")
        output.note(f"to continue it: holdfast --resume {made.session_id}")
    return Code.OK


async def _export(client: Client, args: argparse.Namespace) -> int:
    session = await _whole(client, args.session_id)
    is_json = str(args.output or "").endswith(".json")
    as_json = args.format == "json" or (args.format is None and is_json)
    if as_json:
        text = export.encode(session)
    else:
        text = export.markdown(session, await _changes(client, session))
    if args.output in (None, "-"):
        sys.stdout.write(_harmless(text) if sys.stdout.isatty() else text)
    else:
        saving.save(Path(args.output), text, force=args.force, hint="; pass --force to replace it")
        output.note(f"{session.session_id} is in {args.output}")
    return Code.OK


async def _mark(client: Client, args: argparse.Namespace) -> int:
    try:
        meant = await latest.named(client, args.session_id)
        if meant.owner:
            line = f"only your own sessions have marks; this one belongs to {meant.owner}"
            raise Exit(Code.USAGE, line)
        session_id = meant.session_id
    except NotFound:
        session_id = args.session_id  # a session that is not listed can have a mark
    await client.mark(session_id, args.what)
    print(f"{session_id} {'is marked' if args.what == 'mark' else 'is not marked now'}")
    return Code.OK


async def _release(client: Client, args: argparse.Namespace) -> int:
    if not await client.is_served():
        raise Exit(Code.TRY_AGAIN, "no gateway runs, so no run is on hold")
    released = await client.release()
    print(f"{released} runs continue" if released else NONE_HELD)
    return Code.OK


async def _whole(client: Client, named: str) -> export.Exported:
    info = await latest.named(client, named)
    said = await client.for_owner(info.owner).transcript(info.session_id)
    return export.exported(info, said)


async def _changes(client: Client, session: export.Exported) -> tuple[FileDiffObject, ...]:
    try:
        return await client.for_owner(session.owner).each_change(session.session_id)
    except NotFound:  # a gateway of an earlier version
        return ()


def _harmless(text: str) -> str:
    """Remove control sequences from text that other people wrote."""
    return OutputCleaner().text("", text)


def _time(at: float, seconds: str = "") -> str:
    return f"{output.local(at):{f'%Y-%m-%d %H:%M{seconds}'}}"


_DOES: dict[str, connected.Action] = {
    "list": _list,
    "search": _search,
    "show": _show,
    "rename": _rename,
    "fork": _fork,
    "export": _export,
    "import": imports.bring_in,
    "mark": _mark,
    "unmark": _mark,
    "release": _release,
}
