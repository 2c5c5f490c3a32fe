"""The command line: what can be said, who does it, and what the shell is told.

Handlers are imported when they are called: `--help` must not wait for an engine. Every
error ends here, as one line that says what to do and an exit code (cli/exits.py).
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from holdfast import __version__
from holdfast.cli.exits import Code, Exit


def parser() -> argparse.ArgumentParser:
    """Everything that can be said on the command line."""
    top = argparse.ArgumentParser(
        prog="holdfast",
        description="A self-hosted AI agent that holds what it has accepted.",
        epilog="Without a command: a conversation, or one run if the words come through a pipe.",
    )
    top.add_argument("-V", "--version", action="version", version=f"holdfast {__version__}")
    top.set_defaults(handler="holdfast.cli.chat", words=[])
    unsaid = argparse.SUPPRESS  # a command's default must not undo what was said before it
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    _add_run(top, None)
    run = commands.add_parser("run", help="one run; its answer comes to stdout as it is written")
    run.add_argument("words", nargs="*", metavar="WORDS", help="what to do; - reads stdin")
    run.set_defaults(handler="holdfast.cli.run")
    _add_run(run, unsaid)
    gateway = commands.add_parser("gateway", help="the server").add_subparsers(
        metavar="COMMAND", required=True
    )
    serve = gateway.add_parser("run", help="serve until a signal comes")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", help="port to listen on (default 8642)")
    serve.set_defaults(handler="holdfast.cli.gateway")
    doctor = commands.add_parser("doctor", help="what is set, what works, what to do next")
    doctor.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    doctor.set_defaults(handler="holdfast.cli.doctor")
    settings = commands.add_parser("config", help="every setting, and where it comes from")
    settings.add_argument("what", nargs="?", choices=["show", "path"], default="show")
    settings.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    settings.set_defaults(handler="holdfast.cli.settings")
    runs = commands.add_parser("runs", help="list the latest runs, or follow one to its end")
    runs.add_argument("run_id", nargs="?", metavar="RUN", help="the run to follow")
    runs.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    runs.set_defaults(handler="holdfast.cli.runs")
    audit = commands.add_parser("audit", help="who allowed what, and whether that is all of it")
    audit.add_argument("what", nargs="?", choices=["show", "verify"], default="show")
    audit.add_argument("--run", metavar="RUN", help="only what concerns this run")
    audit.add_argument("--last", metavar="N", type=int, default=50, help="how many (default 50)")
    audit.add_argument("--json", action="store_true", default=unsaid, help="for programs")
    audit.set_defaults(handler="holdfast.cli.audit")
    return top


def _add_run(to: argparse.ArgumentParser, absent: str | None) -> None:
    to.add_argument("--session", metavar="ID", default=absent, help="go on with this session")
    to.add_argument("--workspace", metavar="DIR", default=absent, help="work there, not here")
    to.add_argument("--model", metavar="M", default=absent, help="provider/name")
    to.add_argument("--instructions", metavar="TEXT", default=absent, help="for the model")
    to.add_argument("--json", action="store_true", default=absent, help="one JSON object a line")
    to.add_argument("--yes", action="store_true", default=absent, help="confirm the workspace")


def main(argv: Sequence[str]) -> int:
    """Do what `argv` says; returns the exit code. Never raises."""
    try:
        args = parser().parse_args(argv)
    except SystemExit as end:  # argparse has said why
        return end.code if isinstance(end.code, int) else Code.USAGE
    try:
        handler = importlib.import_module(args.handler)
        code: int = handler.main(args)
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  the last supervisor: it becomes an exit code
        return _explain(_sole(error))
    return code


def _sole(error: BaseException) -> BaseException:
    """What went wrong, out of the groups that tasks wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


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
            # The interpreter flushes at exit and must not stumble over the same pipe.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Code.UNREAD
        case SystemExit():
            return error.code if isinstance(error.code, int) else Code.INTERNAL
        case _:
            code, line = Code.INTERNAL, _confess(error)
    sys.stderr.write(f"holdfast: {line}\n")
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
