"""`holdfast gateway install|uninstall|logs`: the unit of the gateway, and its log."""

import argparse
import os
import pwd
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import anyio

from holdfast.cli.client import operator
from holdfast.cli.exits import Code, Exit
from holdfast.cli.service import service, units
from holdfast.cli.service.service import manage
from holdfast.config import load
from holdfast.config import process as configuration
from holdfast.config.settings import Config
from holdfast.host.control import LOG

FOLLOW_S = 0.25


def main(args: argparse.Namespace) -> int:
    """Run the subcommand."""
    config = operator.load()
    match args.what:
        case "install":
            _install(config, args)
        case "uninstall":
            _uninstall(config)
        case _:
            _logs(config, args.lines, args.follow)
    return Code.OK


def _install(config: Config, args: argparse.Namespace) -> None:
    scope = units.Scope.SYSTEM if args.system else units.here()
    user = (args.user or _owner_of(config.home)) if args.system else ""
    unit = units.unit(config, scope, configuration.search_path(), user)
    if args.print:
        print(unit.text, end="")
        return
    if unit.path.exists() and unit.path.read_text("utf-8", "replace") != unit.text:
        if not args.force:
            system = " --system" if args.system else ""
            replace = f"to replace it: {units.REPAIR}{system}"
            raise Exit(Code.FAILED, f"{unit.path} exists and is different; {replace}")
    write(unit)
    print(f"Written: {unit.path}")
    for verb in ("reload", "enable"):
        anyio.run(manage, unit, verb)
    for hint in _hints(config, scope):
        print(hint)


def _owner_of(home: Path) -> str:
    """Return the owner of the home; this user, if it does not exist yet."""
    return home.owner() if home.exists() else pwd.getpwuid(os.getuid()).pw_name


def write(unit: units.Unit) -> None:
    """Write the unit atomically."""
    draft = unit.path.with_suffix(".new")
    try:
        unit.path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(unit.text, "utf-8")
        draft.chmod(0o644)
        draft.replace(unit.path)
    except OSError as error:
        raise Exit(Code.FAILED, f"cannot write {unit.path}: {error.strerror}") from None


def _hints(config: Config, scope: units.Scope) -> Iterator[str]:
    given = {name: key for name, key in load.ENVIRONMENT.items() if name not in config.vendor_keys}
    given = {n: key for n, key in given.items() if config.origins[key] == f"environment {n}"}
    given |= {
        table.key_origin.removeprefix("environment "): f"{table.section}.api_key"
        for table in config.models.values()
        if table.key_origin.startswith("environment ")
    }
    for name, key in given.items():
        yield f"{name} is set in this shell, not for the service: write {key} to {config.file}"
    if scope is units.Scope.USER:
        yield "It ends when you log out. To prevent that: loginctl enable-linger"
    yield "To start or restart it: holdfast gateway restart"


def _uninstall(config: Config) -> None:
    unit = units.installed(config)
    if unit is None:
        print("No unit is installed for this home.")
        return
    anyio.run(service.stop, config)
    anyio.run(manage, unit, "disable")
    unit.path.unlink()
    anyio.run(manage, unit, "reload")
    print(f"Removed: {unit.path}. The home {config.home} is untouched.")


def _logs(config: Config, lines: int, follow: bool) -> None:  # noqa: FBT001  the flag as given
    unit, log = units.installed(config), config.home / LOG
    missing = (
        f"{log} does not exist: no gateway was started in the background; "
        "a gateway in a terminal logs there"
    )
    if unit is not None and unit.logs and shutil.which(unit.logs[0]):
        if follow or anyio.run(_journaled, unit):
            sys.stdout.flush()
            more = ("--follow",) if follow else ()
            os.execvp(unit.logs[0], [*unit.logs, "--lines", str(lines), *more])
        missing = (
            f"systemd's journal has no log of {units.NAME}: it has not run yet, or there is no "
            f"systemd-journald here. The last lines: {' '.join(unit.command('status'))}; "
            "to see all, stop it and start it in a terminal: holdfast gateway run"
        )
    if not log.exists() and not follow:
        raise Exit(Code.FAILED, missing)
    for text in _read(log, lines, follow):
        print(text, end="", flush=True)


async def _journaled(unit: units.Unit) -> bool:
    """Tell whether systemd's journal has a log of it."""
    done = await anyio.run_process([*unit.logs, "--lines", "1", "--quiet"], check=False)
    return bool(done.returncode or done.stdout.strip())  # journalctl explains its own errors


def _read(log: Path, lines: int, follow: bool) -> Iterator[str]:  # noqa: FBT001  likewise
    """Yield the last lines of the file, then new ones; also of a file that replaces it."""
    known, at = None, 0
    while True:
        try:
            with open(log, encoding="utf-8", errors="replace") as file:
                found = os.fstat(file.fileno())
                if known is None:
                    yield from deque(file, lines)
                else:
                    file.seek(at if known == found.st_ino and at <= found.st_size else 0)
                    yield from file
                known, at = found.st_ino, file.tell()
        except FileNotFoundError:
            known = known or 0
        if not follow:
            return
        time.sleep(FOLLOW_S)
