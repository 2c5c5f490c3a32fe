"""`holdfast sessions`: list, search, show, rename, fork, export and import them; their marks.

A mark says that a session's work was cut and no run has completed since: whoever goes on with it
is told. To drop it by hand is for work that nobody wants to go on with.
"""

import argparse
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import msgspec

from holdfast import config as configuration
from holdfast.cli import export, imports, resuming, run, saving
from holdfast.cli.client import Client, connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.output import Output
from holdfast.cli.screen import Plain
from holdfast.cli.wire import NotFound, SessionObject
from holdfast.cli.wire_sessions import Hit, SessionInfo
from holdfast.config import Config
from holdfast.core.workspace import inside

SEARCHES = 20  # of some seconds each, until all has been looked through

_ROOM = 90  # for a title, or first words
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
_NO_MARK: dict[str, object] = {
    "reason": "",
    "held": 0,
    "mark": "",
    "mark_reason": "",
    "marked_at": 0.0,
}


def main(args: argparse.Namespace) -> int:
    """Do what was said to sessions."""
    config = run.load(args)
    args.json = bool(getattr(args, "json", False))
    if args.what == "import":
        return anyio.run(imports.bring_in, config, args.path, args.json)
    return anyio.run(_do, config, args)


async def _do(config: Config, args: argparse.Namespace) -> int:
    async with connect(config, Plain().note) as client:
        return await _DOES[args.what](client, args)


async def _list(client: Client, args: argparse.Namespace) -> int:
    found = await client.list_sessions(args.limit)
    marks = {one.session_id: one for one in await client.sessions()}
    for one in found:
        mark = None if one.owner else marks.get(one.session_id)
        print(_encoded(one, mark) if args.json else _listed(one, mark, client.config.home))
    if not found and not args.json:
        print("There are no sessions.")
    return Code.OK


def _encoded(one: SessionInfo, mark: SessionObject | None) -> str:
    more = _NO_MARK if mark is None else msgspec.to_builtins(mark)
    return msgspec.json.encode({**more, **msgspec.to_builtins(one)}).decode()


def _listed(one: SessionInfo, mark: SessionObject | None, home: Path) -> str:
    reason, held = (mark.reason, mark.held) if mark else ("", 0)
    words = [one.session_id, f"{one.status} ({reason})" if reason else one.status]
    if one.unfinished:
        words.append(f"{one.unfinished} unfinished" + (f", {held} held" if held else ""))
    if mark is not None and mark.mark:
        words.append(f"cut {_time(mark.marked_at, '%S')}: {mark.mark} ({mark.mark_reason})")
    name = one.title or (f"“{one.preview}”" if one.preview else "")
    own = inside(one.workspace, str(home.resolve()))  # a directory that nobody has named
    whose = f"of {one.owner}" if one.owner else ""
    about = [_time(one.updated_at), _short(name), "" if own else one.workspace, whose]
    return f"{'  '.join(words)}\n  {_harmless('  '.join(filter(None, about)))}"


async def _search(client: Client, args: argparse.Namespace) -> int:
    words = " ".join(args.words).encode(errors="replace").decode()
    found = await client.search(words, args.limit)
    for _ in range(SEARCHES):  # each time it gets further
        if found.complete:
            break
        Plain().note("… there is more to look through than is indexed yet; going on")
        found = await client.search(words, args.limit)
    for hit in found.data:
        print(msgspec.json.encode(hit).decode() if args.json else _shown_hit(hit))
    if not found.complete:
        raise Exit(Code.TRY_AGAIN, "not all sessions have been looked at yet: search again")
    if not found.data:
        raise Exit(Code.FAILED, f"nothing was found of: {_harmless(words)}")
    return Code.OK


def _shown_hit(hit: Hit) -> str:
    head = f"{hit.session_id}  {_time(hit.at)}  {_harmless(_short(hit.title))}".rstrip()
    snippet = _harmless(hit.snippet)
    if sys.stdout.isatty() and not configuration.wants_no_colour():
        snippet = snippet.replace("⟦", _BOLD).replace("⟧", _PLAIN)
    return f"{head}\n  {hit.role}: {snippet}"


async def _show(client: Client, args: argparse.Namespace) -> int:
    session = await _whole(client, args.session_id)
    if args.json:
        print(msgspec.json.encode(session).decode())
        return Code.OK
    print(_harmless(export.markdown(session)), end="")
    return Code.OK


async def _rename(client: Client, args: argparse.Namespace) -> int:
    meant = await resuming.named(client, args.session_id)
    now = await client.for_owner(meant.owner).rename(meant.session_id, " ".join(args.title))
    if args.json:
        print(msgspec.json.encode(now).decode())
    elif now.title:
        print(f"{now.session_id} is called: {_harmless(now.title)}")
    else:
        print(f"{now.session_id} has no title any more")
    return Code.OK


async def _fork(client: Client, args: argparse.Namespace) -> int:
    meant = await resuming.named(client, args.session_id)
    made = await client.for_owner(meant.owner).fork(meant.session_id, args.title)
    if args.json:
        print(msgspec.json.encode(made).decode())
    else:
        print(f"{made.session_id} begins where {meant.session_id} is")
        Plain().note(f"to go on with it: holdfast --resume {made.session_id}")
    return Code.OK


async def _export(client: Client, args: argparse.Namespace) -> int:
    session = await _whole(client, args.session_id)
    is_json = str(args.output or "").endswith(".json")
    as_json = args.format == "json" or (args.format is None and is_json)
    text = export.encode(session) if as_json else export.markdown(session)
    if args.output in (None, "-"):
        sys.stdout.write(_harmless(text) if sys.stdout.isatty() else text)
    else:
        saving.save(Path(args.output), text, force=args.force, hint="; --force writes over it")
        Plain().note(f"{session.session_id} is in {args.output}")
    return Code.OK


async def _mark(client: Client, args: argparse.Namespace) -> int:
    try:
        meant = await resuming.named(client, args.session_id)
        if meant.owner:
            raise Exit(Code.USAGE, f"only your own are marked; this is of {meant.owner}")
        session_id = meant.session_id
    except NotFound:
        session_id = args.session_id  # one that no list shows can be marked, too
    await client.mark(session_id, args.what)
    print(f"{session_id} {'has its mark' if args.what == 'mark' else 'has no mark any more'}")
    return Code.OK


async def _release(client: Client, args: argparse.Namespace) -> int:
    if not await client.is_served():
        raise Exit(Code.TRY_AGAIN, "nobody serves the home, so nothing is held")
    released = await client.release()
    print(f"{released} runs go on" if released else "No run was held.")
    return Code.OK


async def _whole(client: Client, named: str) -> export.Exported:
    info = await resuming.named(client, named)
    said = await client.for_owner(info.owner).transcript(info.session_id)
    return export.exported(info, said)


def _harmless(text: str) -> str:
    """What was said must not steer the terminal."""
    return Output().text("", text)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _ROOM else f"{line[: _ROOM - 1]}…"


def _time(at: float, seconds: str = "") -> str:
    form = f"%Y-%m-%d %H:%M{':' if seconds else ''}{seconds}"
    return f"{datetime.fromtimestamp(at, UTC).astimezone():{form}}"


_DOES: dict[str, Callable[[Client, argparse.Namespace], Coroutine[Any, Any, int]]] = {
    "list": _list,
    "search": _search,
    "show": _show,
    "rename": _rename,
    "fork": _fork,
    "export": _export,
    "mark": _mark,
    "unmark": _mark,
    "release": _release,
}
