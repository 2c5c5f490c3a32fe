"""Arguments of every command. The longer texts are in cli/help.py.

A command names its handler, a module with `main`; main.py imports it when the command is called.
"""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import NoReturn

from holdfast import __version__
from holdfast.cli import help

_ABSENT = argparse.SUPPRESS  # a command's default must not override an option before it
_TEXT = argparse.RawDescriptionHelpFormatter
_LINES = "print one JSON object per line"
_MODEL_NAME = "like openai/gpt-5-mini; a provider alone: its usual model; builtin"
_UNKNOWN = re.compile(r"argument COMMAND: invalid choice: '([^']*)'")
# Options before a command that take a value; --resume may do without.
_WITH_VALUE = frozenset({"--session", "--workspace", "--model", "--instructions", "-r", "--resume"})
_ID = "id, unique prefix of the id, or title"


class _Commands:
    """The commands of `holdfast`, or the subcommands of one of them."""

    def __init__(self, of: argparse.ArgumentParser) -> None:
        self._of = of.add_subparsers(
            title="commands",
            metavar="COMMAND",
            parser_class=argparse.ArgumentParser,
            prog=of.prog,
        )
        self.names: list[str] = []

    def add(
        self, name: str, line: str, text: str = "", json: str = "", **defaults: object
    ) -> argparse.ArgumentParser:
        """Add a command with its line in the list, its long text and its defaults."""
        text = text or f"{line[0].upper()}{line[1:]}."
        one = self._of.add_parser(name, help=line, description=text, formatter_class=_TEXT)
        one.set_defaults(parser=one, **defaults)
        self.names.append(name)
        if json:
            one.add_argument("--json", action="store_true", default=_ABSENT, help=json)
        return one


class _Top(argparse.ArgumentParser):
    """The parser of `holdfast`. An unknown command is answered with the nearest one."""

    names: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:  # type: ignore[explicit-override]  # 3.12
        """Say what is wrong with the command line, and exit."""
        if found := _UNKNOWN.search(message):
            word = found[1]
            near = difflib.get_close_matches(word, self.names, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            message = f"there is no command {word}: {meant}{help.TO_TALK.format(word)}"
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands and options."""
    top = _Top(
        prog="holdfast",
        description="A self-hosted AI agent that finishes every request it has accepted.",
        epilog=help.TOP,
        formatter_class=_TEXT,
        usage=help.USAGE,
    )
    top.add_argument("-V", "--version", action="version", version=f"holdfast {__version__}")
    top.set_defaults(handler="tui.main", words=[], images=[], parser=top)
    commands = _Commands(top)
    top.names = commands.names
    _add_run_options(top, None)
    what = "continue a session, by id, prefix of the id, or title; without ID: choose from a list"
    top.add_argument("-r", "--resume", metavar="ID", nargs="?", const="", help=what)
    line = "do one run; print its answer to stdout as it arrives"
    run = commands.add("run", line, help.RUN, handler="run.run")
    run.add_argument("words", nargs="*", metavar="MESSAGE", help="the message; - reads stdin")
    what = "attach a picture; repeat for more"
    images = run.add_argument(
        "--image", metavar="FILE", action="append", default=_ABSENT, help=what
    )
    images.dest = "images"
    _add_run_options(run, _ABSENT)
    _add_gateway(commands)
    _add_setup(commands)
    line = "list the latest runs, or follow one to its end"
    runs = commands.add("runs", line, help.RUNS, "print JSON", handler="run.runs")
    runs.add_argument("run_id", nargs="?", metavar="RUN", help="the run to follow")
    _add_sessions(commands)
    _add_approvals(commands)
    _add_processes(commands)
    _add_ports(commands)
    _add_outbox(commands)
    _add_chats(commands)
    _add_records(commands)
    return top


def with_message(argv: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return the options, and the message that a conversation begins with: `holdfast "words"`.

    A text with a space where a command could be is a message, and so is everything after `--`. A
    single word is a command, known or not: then argparse says which ones there are.
    """
    for at, word in enumerate(argv):
        if word == "--":
            return argv[:at], " ".join(argv[at + 1 :])
        if word.startswith("-") or (at and argv[at - 1] in _WITH_VALUE):
            continue
        if word.split() == [word] or not word.strip():
            return argv, ""
        rest = [*argv[:at], *argv[at + 1 :]]
        return rest, word
    return argv, ""


def _add_run_options(to: argparse.ArgumentParser, absent: str | None) -> None:
    def option(name: str, metavar: str, what: str) -> None:
        to.add_argument(name, metavar=metavar, default=absent, help=what, type=_some_text)

    def flag(what: str, *names: str) -> argparse.Action:
        return to.add_argument(*names, action="store_true", default=absent, help=what)

    option("--session", "ID", "continue a session; a conversation first shows what happened since")
    flag("continue the latest session of this directory", "-c", "--continue").dest = "goes_on"
    option("--workspace", "DIR", "work in this directory")
    option("--model", "M", "provider/name")
    what = "instructions for the model"
    to.add_argument("--instructions", metavar="TEXT", default=absent, help=what)
    flag(_LINES, "--json")
    flag("for one run: print only the answer and errors; ask nothing", "-q", "--quiet")
    flag("confirm the workspace without a question", "--yes")


def _add_gateway(commands: _Commands) -> None:
    line = "run the server, or install it as a service"
    inner = _Commands(commands.add("gateway", line, help.GATEWAY, handler=""))

    def add(what: str, module: str, line: str, json: str = "") -> argparse.ArgumentParser:
        return inner.add(what, line, json=json, handler=f"service.{module}", what=what)

    serve = add("run", "run", "serve in the foreground until a signal arrives")
    start = add("start", "service", "start in the background; return when it serves")
    for one in (serve, start):
        one.add_argument("--host", help="address to listen on (default 127.0.0.1)")
        one.add_argument("--port", help="port to listen on (default 8642)")
    _flag(serve, "--boot", "do not start after `gateway stop`: for containers")
    add("stop", "service", "stop it and keep it stopped; return when it has ended")
    add("restart", "service", "stop and start it; return when it serves").epilog = help.RESTART
    add("status", "service", "show its state (exit code 3: not running)", "print JSON")
    install = add("install", "unit", "install it as a service: write and enable its unit")
    _flag(install, "--system", "for all users (needs root)")
    install.add_argument("--user", metavar="NAME", help="with --system: the user it runs as")
    _flag(install, "--force", "replace an existing unit")
    _flag(install, "--print", "print the unit, write nothing")
    add("uninstall", "unit", "stop it and remove its unit; the home stays")
    logs = add("logs", "unit", "show its log")
    _number(logs, 50, "number of lines (default 50)", "-n", "--lines")
    logs.add_argument("-f", "--follow", action="store_true", help="continue with new lines")


def _add_setup(commands: _Commands) -> None:
    line = "find a model, try it, and save it"
    setup = commands.add("setup", line, help.SETUP, "print JSON", handler="setup.setup")
    setup.add_argument("--model", metavar="M", default=_ABSENT, help="name of the model")
    setup.add_argument("--base-url", metavar="URL", help="address of the server; look for no other")
    setup.add_argument("--yes", action="store_true", default=_ABSENT, help="ask no questions")
    _flag(setup, "--save-key", "also write the key to the file, readable only by you")
    ports = "ports to try on this machine, like 11434,1234"
    setup.add_argument("--ports", metavar="LIST", help=ports)
    _add_models(commands)
    line = "check the configuration, and what to do next"
    doctor = commands.add("doctor", line, help.DOCTOR, "print JSON", handler="doctor.doctor")
    _flag(doctor, "--fix", "first repair what needs no decision")
    line = "list every setting and its origin"
    config = commands.add("config", line, help.CONFIG, "print JSON", handler="ops.config")
    what = "show: list every setting (the default); path: print the path of the file"
    config.add_argument("what", nargs="?", choices=["show", "path"], default="show", help=what)
    line = "print a completion script for your shell"
    completion = commands.add("completion", line, help.COMPLETION, handler="complete")
    completion.add_argument("shell", choices=["bash", "zsh", "fish"])


def _add_models(commands: _Commands) -> None:
    line = "list, choose, try and fetch models"
    defaults = {"handler": "models.models", "what": "list", "which": ""}
    inner = _Commands(commands.add("models", line, help.MODELS, "print JSON", **defaults))

    def add(what: str, line: str, *, json: str = "", optional: bool = False) -> None:
        one = inner.add(what, line, json=json, what=what)
        nargs, default = ("?", "") if optional else (None, None)
        one.add_argument("which", metavar="NAME", nargs=nargs, default=default, help=_MODEL_NAME)

    add("list", "list the models that can be used (the default)", json="print JSON", optional=True)
    add("use", "save a model in the settings")
    add("test", "ask a model once, to see whether it answers", json="print JSON", optional=True)
    add("pull", "fetch the built-in model")
    add("remove", "remove the built-in model")


def _add_sessions(commands: _Commands) -> None:
    line = "list, search, show, diff, rename, fork, export and import sessions"
    defaults = {"handler": "sessions.sessions", "what": "list", "limit": 20}
    inner = _Commands(commands.add("sessions", line, help.SESSIONS, _LINES, **defaults))

    def add(name: str, line: str) -> argparse.ArgumentParser:
        return inner.add(name, line, json=_LINES, what=name)

    def named(name: str, line: str) -> argparse.ArgumentParser:
        one = add(name, line)
        one.add_argument("session_id", metavar="ID", type=_some_text, help=_ID)
        return one

    listing = add("list", "list the latest sessions with their marks (the default)")
    search = add("search", "find sessions by their text, best and newest first")
    what = "words that must all be in one message"
    search.add_argument("words", nargs="+", metavar="TEXT", help=what)
    for one in (listing, search):
        _number(one, 20, "number of sessions (default 20)", "-n", dest="limit", type=_count)
    named("show", "print the whole conversation")
    diff = add("diff", "show the files that a session changed")
    where = f"{_ID} (default: the latest session of this directory)"
    diff.add_argument("session_id", nargs="?", metavar="ID", type=_some_text, help=where)
    what = "only of this run: its id, a unique prefix of it, or last"
    diff.add_argument("--run", metavar="RUN", type=_some_text, help=what)
    diff.add_argument("--path", metavar="PATH", type=_some_text, help="only below this path")
    _flag(diff, "--stat", "one line for each file")
    rename = named("rename", "set the title")
    rename.add_argument("title", nargs="+", metavar="TITLE", help='the title; "" removes it')
    fork = named("fork", "start a new session from this one, which stays as it is")
    fork.add_argument("--title", metavar="TITLE", default="", help="title of the new session")
    export = named("export", "write a session to a file")
    what = "markdown to read (the default), json to import (default for FILE.json)"
    export.add_argument("--format", choices=["markdown", "json"], help=what)
    export.add_argument("-o", "--output", metavar="FILE", help="write to FILE, not to stdout")
    _flag(export, "--force", "replace an existing file")
    bringing = add("import", "import sessions of hermes-agent, or one that was exported as JSON")
    where = "a file, or the home of hermes-agent (default ~/.hermes)"
    bringing.add_argument("path", nargs="?", metavar="PATH", type=_some_text, help=where)
    works = "workspace of the imported sessions (default: a new directory for each)"
    bringing.add_argument("--workspace", metavar="DIR", type=_some_text, help=works)
    _flag(bringing, "--yes", "confirm the workspace without a question")
    named("mark", "set the interruption mark: the next run is told")
    named("unmark", "clear the interruption mark")
    add("release", "continue all runs that are on hold")


def _add_approvals(commands: _Commands) -> None:
    line = "list approval requests; approve or deny them; list permissions"
    defaults = {"handler": "ops.approvals", "what": "list"}
    approvals = commands.add("approvals", line, help.APPROVALS, _LINES, **defaults)
    inner = _Commands(approvals)
    inner.add("list", "list what waits, and when it expires (the default)", json=_LINES)
    text = "Let it run, once unless an option says otherwise."
    approve = inner.add("approve", "let it run", text, what="approve", choice="once")
    wider = approve.add_mutually_exclusive_group()
    for choice, what in (
        ("session", "allow the same for the rest of the session"),
        ("always", "allow the same from now on; if you may not, for the session"),
    ):
        wider.add_argument(
            f"--{choice}", dest="choice", action="store_const", const=choice, help=what
        )
    line, text = "do not let it run; the model is told", "Without ID: the only request that waits."
    deny = inner.add("deny", line, f"Do not let it run. {text}", what="deny", choice="deny")
    for one in (approve, deny):
        one.add_argument("request_id", nargs="?", metavar="ID", type=_some_text)
    deny.add_argument("--because", metavar="TEXT", default="", help="the reason, for the model")
    text = "permit commands that match PATTERN in the sandbox, unasked from now on"
    allow = inner.add("allow", text, help.ALLOW, what="allow")
    allow.add_argument("pattern", nargs="?", metavar="PATTERN", type=_some_text)
    _flag(allow, "--list", "list permissions, as `rules` does")
    inner.add("rules", "list permissions given by `always` or `allow`", json=_LINES, what="rules")
    text = "Revoke a permission given by `always` or `allow`. What runs already continues."
    revoke = inner.add("revoke", "revoke such a permission", text, what="revoke")
    revoke.add_argument("name", metavar="NAME", type=_some_text)
    approvals.epilog = approve.epilog = deny.epilog = help.REQUEST_ID
    revoke.epilog = help.RULE_NAME


def _add_processes(commands: _Commands) -> None:
    line = "list background processes; show their output or kill them"
    processes = commands.add("ps", line, help.PS, "print JSON", handler="ops.ps")
    verbs = ["list", "output", "kill"]
    processes.add_argument("what", nargs="?", choices=verbs, default="list")
    processes.add_argument("process_id", nargs="?", metavar="ID", type=_some_text)
    _flag(processes, "--all", "also list those that have ended lately")


def _add_ports(commands: _Commands) -> None:
    line = "list published ports of background processes; publish or close one"
    ports = commands.add("ports", line, help.PORTS, "print JSON", handler="ops.ports")
    ports.add_argument("what", nargs="?", choices=["list", "open", "close"], default="list")
    ports.add_argument("port", nargs="?", metavar="PORT", type=_port)
    what = "of this process (default: the one that was started last)"
    ports.add_argument("--process", metavar="ID", type=_some_text, help=what)
    what = "of a process of this session"
    ports.add_argument("--session", metavar="ID", type=_some_text, help=what)
    what = "the port on this machine (default: the same number, or a free one)"
    ports.add_argument("--on", metavar="PORT", default=0, type=_port, help=what)


def _add_outbox(commands: _Commands) -> None:
    line = "list undelivered chat messages; resend or drop them"
    outbox = commands.add("outbox", line, help.OUTBOX, "print JSON", handler="ops.outbox")
    verbs = ["list", "show", "resend", "drop"]
    outbox.add_argument("what", nargs="?", choices=verbs, default="list")
    outbox.add_argument("delivery_id", nargs="?", metavar="ID", type=_some_text)
    _flag(outbox, "--all", "also list dead messages of no use")


def _add_chats(commands: _Commands) -> None:
    line = "list the chat channels and their state"
    commands.add("channels", line, help.CHANNELS, "print JSON", handler="ops.channels")
    line = "let in the person who was shown a code in a chat"
    pair = commands.add("pair", line, help.PAIR, handler="ops.pair")
    pair.add_argument("code", metavar="CODE")
    what = "what the person may do (default run,approve)"
    pair.add_argument("--roles", metavar="ROLES", default="run,approve", help=what)
    pair.add_argument("--yes", action="store_true", default=_ABSENT, help="do not ask; for scripts")
    line, defaults = "list who may use the chats; remove a person", {"what": "list"}
    users = commands.add("users", line, help.USERS, "print JSON", handler="ops.users", **defaults)
    inner = _Commands(users)
    inner.add("list", "list all of them (the default)", json="print JSON")
    remove = inner.add("remove", "remove a person who was paired, or who waits", what="remove")
    remove.add_argument("user", metavar="USER", help="as the list shows it: telegram:678")


def _add_records(commands: _Commands) -> None:
    line = "show how well commands are confined; accept a lower level"
    sandbox = commands.add("sandbox", line, help.SANDBOX, "print JSON", handler="ops.sandbox")
    sandbox.add_argument("what", nargs="?", choices=["show", "accept"], default="show")
    line = "show who allowed what; verify the record"
    audit = commands.add("audit", line, help.AUDIT, "print JSON", handler="ops.audit")
    audit.add_argument("what", nargs="?", choices=["show", "verify"], default="show")
    audit.add_argument("--run", metavar="RUN", help="only entries about this run")
    _number(audit, 50, "number of entries (default 50)", "--last")
    for what, line, text in (
        ("backup", "write the home to one file", help.BACKUP),
        ("restore", "restore a backup into the home", help.RESTORE),
    ):
        command = commands.add(what, line, text, handler="ops.backup", what=what)
        command.add_argument("file", metavar="FILE")
        _flag(command, "--force", "replace existing files")


def _flag(to: argparse.ArgumentParser, name: str, what: str) -> None:
    to.add_argument(name, action="store_true", help=what)


def _number(
    to: argparse.ArgumentParser, default: int, what: str, *names: str, **more: object
) -> None:
    options: dict[str, object] = {"metavar": "N", "type": int, "default": default, "help": what}
    to.add_argument(*names, **(options | more))  # type: ignore[arg-type]  # by name


def _some_text(given: str) -> str:
    """Refuse an empty value: it is a shell variable that was not set, not a choice."""
    if not given.strip():
        raise argparse.ArgumentTypeError("is empty")
    return given


def _port(given: str) -> int:
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= 65535:
        raise argparse.ArgumentTypeError("must be 1 to 65535")
    return int(given)


def _count(given: str) -> int:
    if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= 100:
        raise argparse.ArgumentTypeError("must be 1 to 100")
    return int(given)
