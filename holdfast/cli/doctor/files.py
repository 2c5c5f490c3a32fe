"""Checks of the installation and of the files in the home."""

import importlib.util
import os
import platform
from pathlib import Path

import anyio.to_thread

import holdfast
from holdfast.cli.doctor.check import Checks, bad, note, ok
from holdfast.cli.service import service, units
from holdfast.config import process as configuration
from holdfast.config import settings
from holdfast.config.home import check_home, probe
from holdfast.config.secrets import Secret
from holdfast.config.settings import Config
from holdfast.core.redaction import SHORTEST
from holdfast.errors import Misconfigured
from holdfast.host.control import JOURNAL, recorded
from holdfast.host.lock import not_private
from holdfast.journal import audit, versions
from holdfast.plugins import find_tools
from holdfast.tools.exec import record
from holdfast.tools.snapshot.snapshots import usage
from holdfast.tools.terminal import UNASKED_MB

AUDIT_BYTES = 4 * 1024 * 1024  # a longer one takes too long to verify here
_VERIFY = "holdfast audit verify"
_REVIEW = (
    "review what was valid then: holdfast approvals rules, holdfast users, holdfast outbox; a "
    "client that repeats a request from after the backup starts another run"
)


def version() -> Checks:
    """Check for compiled bytecode: without it every start is slow."""
    found = f"holdfast {holdfast.__version__}, Python {platform.python_version()}"
    source = holdfast.__file__
    folder, compiled = os.path.dirname(source), importlib.util.cache_from_source(source)
    if os.path.exists(compiled) or os.access(folder, os.W_OK):
        return ok("version", found)
    finding = f"{found}, without compiled bytecode: every start is slow"
    return note("version", finding, f"run once as its owner: python -m compileall {folder}")


def home(path: Path) -> Checks:
    """Check that the home exists or can be made, is writable and is private."""
    try:
        check_home(path)
        if not path.exists():
            return ok("home", f"{path}, made at first use")
        if why := probe(path):
            raise Misconfigured(f"nothing can be made {why}", "set HOLDFAST_HOME to another")
        if (refused := not_private(path)) is not None:
            raise refused
    except Misconfigured as error:
        return bad("home", str(error), error.hint)
    if path.stat().st_mode & 0o077:
        return note("home", f"{path} is open to other users", f"chmod 700 {path}")
    return ok("home", f"{path}, writable")


def config_file(config: Config) -> Checks:
    """Check that a file with a key is private."""
    try:
        mode = config.file.stat().st_mode
    except FileNotFoundError:
        return ok("config", f"{config.file} does not exist; defaults and environment")
    holds_secret = any(
        isinstance(value, Secret) and origin == str(config.file)
        for _, value, origin in settings.shown(config)
    )
    if holds_secret and mode & 0o077:
        finding = f"{config.file} holds a key and is open to other users"
        return note("config", finding, f"chmod 600 {config.file}")
    return ok("config", f"{config.file}, every key known")


def secrets(config: Config) -> Checks:
    """Find keys that are too short to be hidden: hiding them would garble other text."""
    short = [
        name
        for name, value, _ in settings.shown(config)
        if isinstance(value, Secret) and len(value.reveal()) < SHORTEST
    ]
    finding = f"{', '.join(short)}: under {SHORTEST} characters, so not hidden in output"
    return note("secrets", finding, "if it is a real key, use a longer one") if short else []


def variables() -> Checks:
    """Find variables that look like ours and are not."""
    return [
        check
        for name, hint in configuration.unknown_variables()
        for check in note("environ", f"{name} means nothing", f"{name}: {hint}")
    ]


def plugins(config: Config) -> Checks:
    """Import every plugin."""
    names = ", ".join(config.plugins)
    try:
        find_tools(config.plugins)
    except Misconfigured as error:
        return bad("plugins", str(error), error.hint)
    except Exception as error:  # noqa: BLE001  foreign code: whatever it raises is the finding
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        step = "fix the module, or remove it from `plugins`"
        return bad("plugins", f"one of {names} fails: {what}", step)
    return ok("plugins", names) if names else []


def unit(config: Config) -> Checks:
    """Compare an installed unit with the settings."""
    found = units.installed(config)
    if found is None:
        return []
    if trouble := units.disagreement(config, found):
        return note("unit", trouble, units.REPAIR)
    return ok("unit", f"{found.path} is installed")


async def journal(path: Path) -> Checks:
    """Tell whether the journal was restored from a backup; nothing if it was not."""
    known = await recorded(path) if (path / JOURNAL).exists() else None
    if known is None or (back := known.restored) is None:
        return []
    finding = service.restored_line(known.restored_at, back.runs, back.messages)
    return note("journal", finding, _REVIEW)


async def audit_log(path: Path) -> Checks:
    """Verify that the audit log is complete."""
    file = path / audit.FILE
    try:
        if file.exists() and file.stat().st_size > AUDIT_BYTES:
            return ok("audit", f"{file} is too long to verify here; run: {_VERIFY}")
        verdict = await anyio.to_thread.run_sync(audit.verify, file)
    except OSError as error:
        return note("audit", f"{file} cannot be read: {error.strerror}", _VERIFY)
    if verdict.why:
        finding = f"{file} is broken at line {verdict.line}: {verdict.why}"
        return bad("audit", finding, f"look at it: {_VERIFY}")
    return ok("audit", f"complete, {verdict.entries} entries")


def strays(path: Path) -> Checks:
    """Find processes of commands that no gateway watches; nothing if there are none."""
    try:
        found = record.strays(path / record.CALLS)
    except OSError as error:
        return note("processes", f"cannot be checked: {error.strerror}")
    pids = sorted(pid for call in found.values() for pid in call)
    if not pids:
        return []
    listed = ", ".join(map(str, pids[:20])) + ", …" * (len(pids) > 20)
    finding = f"{len(pids)} processes of commands run without a gateway: {listed}"
    return note("processes", finding, "start the gateway, which ends them")


def memory(config: Config) -> Checks:
    """Describe how the memory of commands is limited. No cgroup is used, even a delegated one."""
    limit_mb, together = config.terminal.memory_mb, "all commands together have no limit: no cgroup"
    if not limit_mb:
        finding = (
            "a command that you allowed has no limit (terminal.memory_mb is 0), one that ran "
            f"unasked {UNASKED_MB} MiB; {together}"
        )
        return ok("memory", finding)
    finding = (
        f"a command that holds more than {limit_mb} MiB is ended, checked 10 times a second; the "
        f"kernel limits only each process ({4 * limit_mb} MiB) and each of the sandbox's file "
        f"systems in memory ({limit_mb} MiB); {together}"
    )
    return ok("memory", finding)


def versions_kept(config: Config) -> Checks:
    """Measure the versions of changed files, and the snapshots around commands."""
    try:
        kept = versions.usage(config.home)
        snapshots = usage(config.home)
    except OSError as error:
        return note("versions", f"cannot be checked: {error.strerror}")
    days = config.journal.versions_days
    finding = f"{kept.count} versions of files, {kept.size / 2**20:.1f} MiB"
    return [
        *ok("versions", f"{finding}, each kept for {days} days"),
        *ok(
            "snapshots",
            f"{snapshots.count} workspaces as they were after their last command, "
            f"{snapshots.size / 2**20:.1f} MiB, each kept for {days} days after its last use",
        ),
    ]
