"""`holdfast backup FILE` and `holdfast restore FILE`: write the home to one file, and restore it."""

import argparse
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.exits import Code, Exit
from holdfast.config import process as configuration
from holdfast.host import archive, machine
from holdfast.host.archive import BadArchive, Manifest
from holdfast.host.control import JOURNAL
from holdfast.host.lock import read_owner, take_lock

SAY_EVERY_S = 2.0


def main(args: argparse.Namespace) -> int:
    """Back up or restore."""
    machine.keep_private()
    home, file = configuration.process_home(), Path(args.file).absolute()
    with _one_line_an_error(file):
        done = _back_up(home, file, args) if args.what == "backup" else _restore(home, file, args)
    print(done, file=sys.stderr)
    return Code.OK


def _back_up(home: Path, file: Path, args: argparse.Namespace) -> str:
    if not (home / JOURNAL).exists():
        raise Exit(Code.FAILED, f"nothing to back up: {home} has no journal")
    if file.exists() and not args.force:
        raise Exit(Code.USAGE, f"{file} exists; choose another name, or pass --force")
    if file.is_relative_to(home):
        raise Exit(Code.USAGE, f"{file} is inside the home; choose another directory")
    manifest = archive.write(home, file, _progress())
    return f"backed up {home} to {file}: {_amount(manifest)}. It contains keys: keep it private."


def _restore(home: Path, file: Path, args: argparse.Namespace) -> str:
    lock = take_lock(home)
    if lock is None:
        raise Exit(
            Code.FAILED,
            f"{home} is in use (pid {read_owner(home).pid}); stop it first: holdfast gateway stop",
        )
    try:
        if not archive.is_empty(home) and not args.force:
            raise Exit(
                Code.FAILED,
                f"{home} is not empty; pass --force to restore anyway: its present content is kept "
                f"in {home}/{archive.KEPT}-TIME",
            )
        manifest, kept = _put_in_place(home, file)
    finally:
        lock.release()
    left = f" The former content is in {kept}." if kept.exists() else ""
    return (
        f"restored {home} from {file}: {_amount(manifest)}.{left} The next start ends the "
        "runs that were unfinished in the backup; review holdfast approvals rules and holdfast users. "
        "A client that repeats a request made after the backup starts another run."
    )


def _put_in_place(home: Path, file: Path) -> tuple[Manifest, Path]:
    staging = home / archive.STAGING
    kept = home / f"{archive.KEPT}-{time.strftime('%Y%m%d-%H%M%S')}"
    archive.discard(staging)  # left by a killed restore
    try:
        manifest = archive.unpack(file, staging, _progress())
        with _undisturbed():
            archive.put_in_place(staging, home, kept)
        return manifest, kept
    finally:
        archive.discard(staging)


@contextmanager
def _one_line_an_error(file: Path) -> Iterator[None]:
    try:
        yield
    except BadArchive as error:
        raise Exit(Code.FAILED, f"{error}. Nothing was changed.") from None
    except sqlite3.Error as error:
        raise Exit(Code.FAILED, f"the journal cannot be copied: {error}") from None
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        name = error.filename or file
        raise Exit(Code.FAILED, f"{name}: {error.strerror}. Nothing was changed.") from None


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Block signals: they must not interrupt the renames."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _progress() -> archive.Progress:
    """Report progress at most every other second, and only on a terminal."""
    said_at = time.monotonic()

    def say(line: str) -> None:
        nonlocal said_at
        if sys.stderr.isatty() and time.monotonic() - said_at >= SAY_EVERY_S:
            said_at = time.monotonic()
            print(f"… {line}", file=sys.stderr, flush=True)

    return say


def _amount(manifest: Manifest) -> str:
    size = sum(member.size for member in manifest.members)
    return f"{len(manifest.members)} files, {size / 1_000_000:.1f} MB"
