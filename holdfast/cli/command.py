"""The command line: what can be said, who does it, and what the shell is told.

Handlers are imported when they are called: `--help` must not wait for an engine. Every
error ends here, as one line that says what to do and an exit code (cli/exits.py).
"""

import argparse
import errno
import gc
import importlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from holdfast import __version__
from holdfast.cli import about, chat_commands, first_run, session_commands
from holdfast.cli.exits import Code, Exit, sole
from holdfast.cli.first_run import described

_EPILOG = """\
Without a command: a conversation, or one run if the words come through a pipe.

exit codes:
  0 done   1 the run failed, or something needs mending   2 wrong usage
  4 the model's server refused for good   70 our fault   74 output not written
  75 try again: nobody could be reached, or the run is held   78 configuration   130 interrupted
"""
_ABOUT_RUN = """The answer goes to stdout, everything else to stderr; the end is the exit code.

A run may ask for an approval before it does something. On a terminal the question is put
there: what would run, whole, and the choices. Nothing is chosen beforehand and Enter alone
chooses nothing. What was typed before the question appeared is dropped and answers nothing.
With --json the question is an event: answer it with `holdfast approvals`. Where stdin is no
terminal nobody can be asked: what needs an approval is denied, and the model is told.

No work is done where commands are confined worse than before, until `holdfast sandbox accept`.
The run is kept and held; where stdin is no terminal, or with --json, the exit code is 75.
A background process that a run leaves ends with this command where no gateway serves the home.
"""
_ABOUT_GATEWAY = """The server, and how it runs by itself.

Where its unit is installed (`install`), start, stop and restart go through the service manager;
elsewhere `start` makes a process of its own, and its words go to log/gateway.log in the home.
What was accepted outlives every one of them: work that a stop or restart cuts goes on after the
next start. A stop is remembered: `run --boot` does not undo it, `start` and `run` do.
"""
_ABOUT_RESTART = """Where no unit is installed, the next one has the environment and the flags of
the first start, works in the home, and goes on in the background: its words go to
log/gateway.log in the home. It is not restarted while its configuration is wrong."""
_ABOUT_APPROVALS = """What runs ask for before they do it, and the answers.

  holdfast approvals                 all that waits: what would run, whole, and how long it waits
  holdfast approvals approve ID      let it run, this once
  holdfast approvals deny ID         do not let it run; the model is told, and goes on
  holdfast approvals rules           what `always` has permitted for good, each with its name
  holdfast approvals revoke NAME     take such a permission back

A request is answered once: by whoever is first, here, at the terminal of its run or over HTTP.
One that nobody answers in time is denied. It outlives a restart, and a yes is good only for
exactly what was shown: if that has changed since, it is not run.
"""
_ABOUT_ID = """ID is the request's id, or as much of its beginning as no other request has.

exit codes: 0 answered; 1 nothing waits under that ID, or it does not offer that choice;
2 no ID was given, or several requests begin with it
"""
_ABOUT_SANDBOX = """How well commands are confined, and whether work is held for that.

  holdfast sandbox                   the level, what it means, and why no work is done, if so
  holdfast sandbox accept            go on, although commands are confined worse than before

Levels: L3 a container, L2 a sandbox of the system, L1 a weaker one, L0 none. Where the level is
lower than when work went on last, nothing runs until you accept it: what was submitted is kept.
What you accept is the level that counts from then on: work is held again if it gets lower still,
or after a start has found a better one and a later start a worse. To mend it: holdfast doctor

exit codes: 0 shown, or accepted; 1 no work is done
"""
_ABOUT_RULE = """NAME is the permission's name, or as much of its beginning as no other has.

exit codes: 0 revoked; 1 nothing is permitted under that NAME; 2 several begin with it
"""
_SPOKEN = {"help": "--help", "version": "--version"}


def parser() -> argparse.ArgumentParser:
    """Everything that can be said on the command line."""
    top = argparse.ArgumentParser(
        prog="holdfast",
        description="A self-hosted AI agent that holds what it has accepted.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("-V", "--version", action="version", version=f"holdfast {__version__}")
    top.set_defaults(handler="holdfast.cli.tui.main", words=[], images=[], parser=top)
    unsaid = argparse.SUPPRESS  # a command's default must not undo what was said before it
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(top, None)
    what = "go on with this session, by its id, the beginning of it, or its title; without: choose"
    top.add_argument("-r", "--resume", metavar="ID", nargs="?", const="", help=what)
    run = commands.add_parser(
        "run",
        help="one run; its answer comes to stdout as it is written",
        description=_ABOUT_RUN,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument("words", nargs="*", metavar="WORDS", help="what to do; - reads stdin")
    what = "a picture that goes with the words; again for more"
    run.add_argument(
        "--image", metavar="FILE", dest="images", action="append", default=unsaid, help=what
    )
    run.set_defaults(handler="holdfast.cli.run", parser=run)
    _add_run(run, unsaid)
    _add_gateway(commands)
    first_run.add(commands)
    runs = described(commands, "runs", "list the latest runs, or follow one to its end", about.RUNS)
    runs.add_argument("run_id", nargs="?", metavar="RUN", help="the run to follow")
    runs.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    runs.set_defaults(handler="holdfast.cli.runs", parser=runs)
    session_commands.add(commands)
    _add_approvals(commands)
    _add_outbox(commands)
    chat_commands.add(commands)
    _add_sandbox(commands)
    _add_audit(commands)
    return top


def _add_audit(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    audit = described(
        commands, "audit", "who allowed what, and whether that is all of it", about.AUDIT
    )
    audit.add_argument("what", nargs="?", choices=["show", "verify"], default="show")
    audit.add_argument("--run", metavar="RUN", help="only what concerns this run")
    audit.add_argument("--last", metavar="N", type=int, default=50, help="how many (default 50)")
    audit.add_argument(
        "--json", action="store_true", default=argparse.SUPPRESS, help="for programs"
    )
    audit.set_defaults(handler="holdfast.cli.audit", parser=audit)


def _add_gateway(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text, unsaid = argparse.RawDescriptionHelpFormatter, argparse.SUPPRESS
    gateway = commands.add_parser(
        "gateway",
        help="the server: run it here, or have it run by itself",
        description=_ABOUT_GATEWAY,
        formatter_class=text,
    )
    gateway.set_defaults(handler="", parser=gateway)
    said = gateway.add_subparsers(title="commands", metavar="COMMAND")

    def add(what: str, handler: str, about: str) -> argparse.ArgumentParser:
        one = said.add_parser(what, help=about, description=f"{about[0].upper()}{about[1:]}.")
        one.set_defaults(handler=f"holdfast.cli.{handler}", parser=one, what=what)
        return one

    serve = add("run", "gateway", "serve until a signal comes")
    start = add("start", "gateway_service", "have it run in the background; done when it serves")
    for one in (serve, start):
        one.add_argument("--host", help="address to listen on (default 127.0.0.1)")
        one.add_argument("--port", help="port to listen on (default 8642)")
    boot = "stay down if the operator has stopped it: for containers"
    serve.add_argument("--boot", action="store_true", help=boot)
    add("stop", "gateway_service", "end it, and keep it down; done when it is gone")
    restart = add("restart", "gateway_service", "end it and start it anew; done when it serves")
    restart.epilog = _ABOUT_RESTART
    status = add("status", "gateway_service", "how it is doing (exit code 3: it does not run)")
    status.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    install = add("install", "gateway_unit", "have the system run it: write and enable its unit")
    install.add_argument("--system", action="store_true", help="for all users (needs root)")
    install.add_argument("--user", metavar="NAME", help="with --system: who it runs as")
    install.add_argument("--force", action="store_true", help="replace a unit that is there")
    install.add_argument("--print", action="store_true", help="only show it")
    add("uninstall", "gateway_unit", "stop it and take its unit away; the home stays")
    logs = add("logs", "gateway_unit", "what it has said in the background")
    logs.add_argument("-n", "--lines", type=int, default=50, metavar="N", help="(default 50)")
    logs.add_argument("-f", "--follow", action="store_true", help="and what it says from now on")


def _add_approvals(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    text = argparse.RawDescriptionHelpFormatter
    approvals = commands.add_parser(
        "approvals",
        help="what waits for your approval; approve or deny it; what is permitted for good",
        description=_ABOUT_APPROVALS,
        epilog=_ABOUT_ID,
        formatter_class=text,
    )
    handler = "holdfast.cli.approvals"
    approvals.set_defaults(handler=handler, parser=approvals, what="list")
    programs = "for programs: one JSON object a line"
    unsaid = argparse.SUPPRESS
    approvals.add_argument("--json", action="store_true", default=unsaid, help=programs)
    said = approvals.add_subparsers(title="commands", metavar="COMMAND")
    listing = said.add_parser("list", help="all that waits (the default)")
    listing.add_argument("--json", action="store_true", default=unsaid, help=programs)
    listing.set_defaults(parser=listing)
    about = "Let it run: this once, if nothing else is said."
    approve = said.add_parser(
        "approve", help="let it run", description=about, epilog=_ABOUT_ID, formatter_class=text
    )
    approve.add_argument("request_id", nargs="?", metavar="ID", type=_some_text)
    wider = approve.add_mutually_exclusive_group()
    for choice, what in (
        ("session", "let the same run for the rest of its session, too"),
        ("always", "let the same run from now on; where you may not, it is for the session"),
    ):
        wider.add_argument(
            f"--{choice}", dest="choice", action="store_const", const=choice, help=what
        )
    approve.set_defaults(parser=approve, what="approve", choice="once")
    about = "Do not let it run. Without ID: the one that waits, if there is just one."
    deny = said.add_parser(
        "deny", help="do not let it run", description=about, epilog=_ABOUT_ID, formatter_class=text
    )
    deny.add_argument("request_id", nargs="?", metavar="ID", type=_some_text)
    deny.set_defaults(parser=deny, what="deny", choice="deny")
    rules = said.add_parser("rules", help="what is permitted for good")
    rules.add_argument("--json", action="store_true", default=unsaid, help=programs)
    rules.set_defaults(parser=rules, what="rules")
    about = "Take back what an `always` has permitted. What runs already is not ended by that."
    revoke = said.add_parser(
        "revoke",
        help="take such a permission back",
        description=about,
        epilog=_ABOUT_RULE,
        formatter_class=text,
    )
    revoke.add_argument("name", metavar="NAME", type=_some_text)
    revoke.set_defaults(parser=revoke, what="revoke")


def _add_outbox(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    outbox = described(
        commands, "outbox", "messages to chats that are not sent; resend or drop one", about.OUTBOX
    )
    words = ["list", "show", "resend", "drop"]
    outbox.add_argument("what", nargs="?", choices=words, default="list")
    outbox.add_argument("delivery_id", nargs="?", metavar="ID", type=_some_text)
    outbox.add_argument("--all", action="store_true", help="whatever was given up, too")
    unsaid = argparse.SUPPRESS
    outbox.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    outbox.set_defaults(handler="holdfast.cli.outbox", parser=outbox)


def _add_sandbox(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    sandbox = commands.add_parser(
        "sandbox",
        help="how well commands are confined; accept it where it got worse",
        description=_ABOUT_SANDBOX,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sandbox.add_argument("what", nargs="?", choices=["show", "accept"], default="show")
    unsaid = argparse.SUPPRESS
    sandbox.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    sandbox.set_defaults(handler="holdfast.cli.sandbox", parser=sandbox)


def _add_run(to: argparse.ArgumentParser, absent: str | None) -> None:
    def option(name: str, metavar: str, what: str) -> None:
        to.add_argument(name, metavar=metavar, default=absent, help=what, type=_some_text)

    option("--session", "ID", "go on with this session; a conversation first shows what came late")
    what = "go on where you last spoke in this directory"
    to.add_argument(
        "-c", "--continue", dest="goes_on", action="store_true", default=absent, help=what
    )
    option("--workspace", "DIR", "work there, not here")
    option("--model", "M", "provider/name")
    to.add_argument("--instructions", metavar="TEXT", default=absent, help="for the model")
    to.add_argument("--json", action="store_true", default=absent, help="one JSON object a line")
    quiet = "of one run: only the answer, and errors; nobody is asked"
    to.add_argument("-q", "--quiet", action="store_true", default=absent, help=quiet)
    to.add_argument("--yes", action="store_true", default=absent, help="confirm the workspace")


def _some_text(said: str) -> str:
    """Nothing where a name belongs is a variable that was not set, not a wish for the default."""
    if not said.strip():
        raise argparse.ArgumentTypeError("is empty")
    return said


def main(argv: Sequence[str]) -> int:
    """Do what `argv` says; returns the exit code. Never raises."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # what a terminal cannot show must not end a run
            stream.reconfigure(errors="replace")
    try:
        code = _obey([_SPOKEN.get(word, word) for word in argv[:1]] + list(argv[1:]))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  the last supervisor: it becomes an exit code
        code = _explain(sole(error))
    _leave(sys.stdout)
    _leave(sys.stderr)
    return code


def _obey(argv: Sequence[str]) -> int:
    try:
        args, rest = parser().parse_known_args(argv)
        if rest:  # told by whoever was spoken to: its usage is what helps
            args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    except SystemExit as end:  # argparse has said why
        return end.code if isinstance(end.code, int) else Code.USAGE
    if not args.handler:
        args.parser.print_help(sys.stderr)
        return Code.USAGE
    gc.disable()  # modules make objects by the ten thousand, and no garbage: 15 ms of looking
    handler = importlib.import_module(args.handler)
    gc.freeze()
    gc.enable()
    code: int = handler.main(args)
    return code


def _leave(stream: TextIO | None) -> None:
    """The interpreter flushes at exit and must not stumble over what cannot be written."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _explain(error: BaseException) -> int:
    from holdfast import config  # noqa: PLC0415  start-up budget
    from holdfast.errors import JournalUnavailable, Misconfigured  # noqa: PLC0415  start-up budget

    if config.debugging():
        sys.excepthook(type(error), error, error.__traceback__)
    match error:
        case Exit():
            code, line = error.code, str(error)
        case Misconfigured():
            code, line = Code.CONFIG, f"{error}: {error.hint}"
        case JournalUnavailable():
            code, line = Code.TRY_AGAIN, str(error)
        case KeyboardInterrupt():
            code, line = Code.INTERRUPTED, "interrupted"
        case BrokenPipeError():
            return Code.UNREAD
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG | errno.EIO):
            code, line = (
                Code.OUTPUT,
                f"cannot write {error.filename or 'the output'}: {error.strerror}",
            )
        case SystemExit():
            return error.code if isinstance(error.code, int) else Code.INTERNAL
        case _:
            code, line = Code.INTERNAL, _confess(error)
    with suppress(OSError):  # nobody may be there to read it
        print(f"holdfast: {line}", file=sys.stderr, flush=True)
    return code


def _confess(error: BaseException) -> str:
    from holdfast import config, observe  # noqa: PLC0415  start-up budget

    what = observe.clean(f"{type(error).__name__}: {error}".splitlines()[0])
    file = config.process_home() / observe.CLI_LOG
    try:
        observe.setup("warning", file)
        observe.log.critical("unexpected error", exc_info=error)
    except OSError:
        return f"unexpected error ({what}); HOLDFAST_DEBUG=1 shows the trace"
    return f"unexpected error ({what}); the trace is in {file}"
