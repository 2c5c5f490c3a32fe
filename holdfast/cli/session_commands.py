"""What can be said of sessions on the command line."""

import argparse

from holdfast.cli import about

_ID = "its id, or as much of its beginning as no other has"
_PROGRAMS = "for programs: one JSON object a line"


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `sessions` and all that goes on from it."""
    text, unsaid = argparse.RawDescriptionHelpFormatter, argparse.SUPPRESS
    sessions = commands.add_parser(
        "sessions",
        help="list, search, show, name, fork, export and import them; what cut their work",
        description=about.SESSIONS,
        formatter_class=text,
    )
    sessions.set_defaults(handler="holdfast.cli.sessions", parser=sessions, what="list", limit=20)
    sessions.add_argument("--json", action="store_true", default=unsaid, help=_PROGRAMS)
    said = sessions.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, what: str, *, named: bool = True) -> argparse.ArgumentParser:
        one = said.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
        one.set_defaults(parser=one, what=name)
        one.add_argument("--json", action="store_true", default=unsaid, help=_PROGRAMS)
        if named:
            one.add_argument("session_id", metavar="ID", type=_some_text, help=_ID)
        return one

    listing = command("list", "the latest ones, each with its mark (the default)", named=False)
    search = command("search", "find those in which something was said", named=False)
    search.add_argument("words", nargs="+", metavar="TEXT", help="all of it in one message")
    for one in (listing, search):
        one.add_argument(
            "-n", dest="limit", metavar="N", type=_count, default=20, help="how many (default 20)"
        )
    command("show", "all that was said in one")
    rename = command("rename", "give one a title")
    rename.add_argument("title", nargs="+", metavar="TITLE", help='its title; "" takes it away')
    fork = command("fork", "begin another one where this one is; it stays as it is")
    fork.add_argument("--title", metavar="TITLE", default="", help="what the new one is called")
    _add_exchange(command("export", "write one to a file"), command("import", _IMPORT, named=False))
    command("mark", "have whoever goes on with it told that it was cut")
    command("unmark", "drop its mark: nobody is to be told of the cut any more")
    command("release", "let all runs go on that are held", named=False)


_IMPORT = "bring in sessions of hermes-agent, or one that was exported as JSON"


def _add_exchange(export: argparse.ArgumentParser, bringing: argparse.ArgumentParser) -> None:
    export.add_argument(
        "--format",
        choices=["markdown", "json"],
        help="markdown to be read (the default), json to be imported (also for FILE.json)",
    )
    export.add_argument("-o", "--output", metavar="FILE", help="there, and not to stdout")
    export.add_argument("--force", action="store_true", help="also over a file that is there")
    where = "a file, or what hermes-agent calls its home (default ~/.hermes)"
    bringing.add_argument("path", nargs="?", metavar="PATH", type=_some_text, help=where)


def _some_text(said: str) -> str:
    """Nothing where a name belongs is a variable that was not set, not a wish for the default."""
    if not said.strip():
        raise argparse.ArgumentTypeError("is empty")
    return said


def _count(said: str) -> int:
    if not said.isascii() or not said.isdigit() or not 1 <= int(said) <= 100:
        raise argparse.ArgumentTypeError("must be 1 to 100")
    return int(said)
