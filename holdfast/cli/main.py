"""The command line: the dispatch to handlers, and the exit code.

A handler is imported when it is called, so that `--help` does not wait for an engine. Every
error ends here, as one line that says what to do and an exit code (cli/exits.py).
"""

import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from holdfast.cli.arguments import parser, with_message
from holdfast.cli.exits import Code, Exit, sole
from holdfast.cli.text.guard import guard
from holdfast.core.text.escape import visible

_AS_OPTIONS = {"help": "--help", "version": "--version"}


def main(argv: Sequence[str]) -> int:
    """Run the command in `argv` and return the exit code. Never raises."""
    guard()
    try:
        code = _dispatch([_AS_OPTIONS.get(word, word) for word in argv[:1]] + list(argv[1:]))
        if sys.stdout is not None:
            sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001  the last supervisor: it becomes an exit code
        code = _explain(sole(error))
    _flush(sys.stdout)
    _flush(sys.stderr)
    return code


def _dispatch(argv: Sequence[str]) -> int:
    try:
        argv, message = with_message(argv)
        args, rest = parser().parse_known_args(argv)
        if message:
            args.words = [message]
        if rest:  # the subcommand reports it: its usage is what helps
            args.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    except SystemExit as end:  # argparse has printed why
        return end.code if isinstance(end.code, int) else Code.USAGE
    if not args.handler:
        args.parser.print_help(sys.stderr)
        return Code.USAGE
    gc.disable()  # imports make many objects and no garbage: saves 15 ms
    handler = importlib.import_module(f"holdfast.cli.{args.handler}")
    gc.freeze()
    gc.enable()
    code: int = handler.main(args)
    return code


def _flush(stream: TextIO | None) -> None:
    """Flush, or discard what cannot be written: the interpreter flushes again at exit."""
    if stream is None:
        return
    try:
        stream.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _explain(error: BaseException) -> int:
    from holdfast.config import process as config  # noqa: PLC0415  start-up budget
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
            what = error.filename or "the output"
            code, line = Code.OUTPUT, f"cannot write {what}: {error.strerror}"
        case SystemExit():
            return error.code if isinstance(error.code, int) else Code.INTERNAL
        case _ if _is_damage(error):
            code, line = Code.CONFIG, f"the journal is damaged: {error}; restore it from a backup"
        case _:
            code, line = Code.INTERNAL, _record_bug(error)
    with suppress(OSError):  # stderr may be closed
        print(visible(f"holdfast: {line}"), file=sys.stderr, flush=True)
    return code


def _is_damage(error: BaseException) -> bool:
    """Return true if SQLite found a file that is not a database, or is damaged."""
    sqlite3 = sys.modules.get("sqlite3")  # not imported: no database was opened
    if sqlite3 is None or not isinstance(error, sqlite3.DatabaseError):
        return False
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _record_bug(error: BaseException) -> str:
    from holdfast.config import process as config  # noqa: PLC0415  start-up budget
    from holdfast.host import observe  # noqa: PLC0415  start-up budget

    what = observe.clean(f"{type(error).__name__}: {error}".splitlines()[0])
    file = config.process_home() / observe.CLI_LOG
    try:
        observe.setup("warning", file)
        observe.log.critical("unexpected error", exc_info=error)
    except OSError:
        return f"unexpected error ({what}); HOLDFAST_DEBUG=1 shows the trace"
    return f"unexpected error ({what}); the trace is in {file}"
