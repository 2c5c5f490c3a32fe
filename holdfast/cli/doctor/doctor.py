"""`holdfast doctor`: check the configuration and what it needs, and say what to do next.

It takes a second or two, with or without a network, and changes nothing that another command would
not change. With --fix, cli/doctor/fix.py runs first. If the configuration itself is wrong, that is
reported beside everything that can be checked without one.
"""

import argparse
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn

import anyio
from msgspec.structs import asdict

import holdfast
from holdfast.app.resolve import resolve
from holdfast.cli.doctor import channels, files, fix, serving
from holdfast.cli.doctor.check import Check, CheckResult, Checks, bad
from holdfast.cli.exits import Code
from holdfast.config import process as configuration
from holdfast.config import settings, tables
from holdfast.config.secrets import Secret
from holdfast.config.settings import Config
from holdfast.errors import Misconfigured
from holdfast.host.lock import Owner, is_locked, read_owner

_MARKS = {CheckResult.OK: "✓", CheckResult.NOTE: "!", CheckResult.BAD: "✗"}

Show = Callable[[Path, Config | None, Checks], None]


def main(args: argparse.Namespace) -> int:
    """Check, report, and tell by the exit code whether it is usable."""
    home = configuration.process_home()
    config: Config | None = None
    mistake: Checks = []
    fixed = fix.fix_home(home) if args.fix else []
    try:
        config = configuration.from_process({})
    except Misconfigured as error:
        mistake = bad("config", str(error), error.hint)
    fixed += fix.fix(home, config) if args.fix else []
    show = _print_json if args.json else _print
    anyio.run(_examine, home, config, mistake, fixed, show)
    return Code.OK


async def _examine(
    home: Path, config: Config | None, mistake: Checks, fixed: Checks, show: Show
) -> NoReturn:
    owner = read_owner(home) if is_locked(home) else None
    checks = [*files.version(), *files.home(home)]
    if config is None:
        checks += await serving.owner(home, owner)
        checks += [check for check in mistake if check.finding != checks[1].finding]
    else:
        config = await resolve(config)
        checks += await _configured(config, owner)
    checks += [*files.variables(), *fixed]
    show(home, config, checks)
    sys.stdout.flush()
    # A name server that does not answer holds a thread for seconds; it must not hold us.
    failed = any(check.verdict is CheckResult.BAD for check in checks)
    os._exit(Code.CONFIG if config is None else Code.FAILED if failed else Code.OK)


async def _configured(config: Config, owner: Owner | None) -> Checks:
    """Check what needs a configuration; what waits for others, all at once."""
    found: dict[str, Checks] = {}

    async def look(name: str, check: Awaitable[Checks]) -> None:
        found[name] = await check

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look, "model", serving.model(config))
        tasks.start_soon(look, "owner", serving.owner(config.home, owner))
        tasks.start_soon(look, "sandbox", serving.sandbox_and_runs(config, owner))
        tasks.start_soon(look, "audit", files.audit_log(config.home))
        tasks.start_soon(look, "journal", files.journal(config.home))
        tasks.start_soon(look, "channels", channels.look(config))
    sandbox, *runs = found["sandbox"]
    first = [
        *found["owner"],
        *files.config_file(config),
        *found["model"],
        *serving.fallbacks(config),
        sandbox,
        *found["audit"],
    ]
    stored = [*files.memory(config), *files.versions_kept(config), *files.strays(config.home)]
    rest = [*files.plugins(config), *files.secrets(config), *files.unit(config)]
    doors = [*serving.door(config, owner), *found["channels"]]
    return [*first, *stored, *runs, *found["journal"], *rest, *doors]


def _print(_: Path, config: Config | None, checks: list[Check]) -> None:
    for check in checks:
        print(f"{_MARKS[check.verdict]} {check.name:8} {check.finding}")
    for key, value, origin in _set(config):
        print(f"  {key} = {value}  # {origin}")
    steps = [check.next_step for check in checks if check.next_step]
    print("\nNext:" if steps else '\nAll is well. Try: holdfast run "list the files here"')
    for step in steps:
        print(f"  {step}")


def _print_json(home: Path, config: Config | None, checks: list[Check]) -> None:
    report = {
        "usable": all(check.verdict is not CheckResult.BAD for check in checks),
        "version": holdfast.__version__,
        "home": str(home),
        "model": config.model if config else None,
        "model_reason": config.model_reason if config else None,
        "checks": [asdict(check) for check in checks],
        "set": {key: {"value": value, "origin": origin} for key, value, origin in _set(config)},
    }
    print(json.dumps(report, ensure_ascii=False))


def _set(config: Config | None) -> list[tuple[str, str, str]]:
    """Return the settings that differ from the default, and their origin."""
    rows = settings.shown(config) if config else ()
    return [(key, _plain(value), origin) for key, value, origin in rows if origin != "default"]


def _plain(value: object) -> str:
    return str(value) if isinstance(value, str | Secret) else tables.toml(value)
