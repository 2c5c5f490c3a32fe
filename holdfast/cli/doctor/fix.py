"""`holdfast doctor --fix`: repair what needs no decision of the user.

It only tightens modes, and only of our own files, never of those in a workspace. It removes only
our own leftovers, and what is rebuilt when it is needed. Accepted work, keys and settings are not
touched. It reports everything it did, and what it could not do.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio

from holdfast.cli.doctor.check import Check, Checks, note, ok
from holdfast.cli.exits import Exit
from holdfast.cli.service import unit, units
from holdfast.cli.service.service import manage
from holdfast.cli.setup.config_file import DRAFT
from holdfast.config import process as configuration
from holdfast.config.home import check_home
from holdfast.config.settings import Config
from holdfast.errors import Misconfigured
from holdfast.host.machine import SystemClock
from holdfast.journal import search

LEFT_S = 60.0  # an older draft is no longer in use

_DRAFTS = (DRAFT, ".api_key.", ".holdfast-")
_OPEN_DIRECTORIES = ("log", "run")  # whose files are ours as well
_OTHERS = 0o077


def fix_home(home: Path) -> Checks:
    """Make the home, or make it private."""
    try:
        if not home.exists():
            check_home(home)
            home.mkdir(mode=0o700, parents=True)
            return _done(f"{home} was missing and was made")
        mode = stat.S_IMODE(home.stat().st_mode)
        if not home.is_dir() or mode & 0o777 == 0o700:
            return []
        home.chmod(0o700)
    except OSError as error:
        return _failed(home, error)
    except Misconfigured:
        return []  # a check says why
    return _done(f"{home} had mode {mode:04o} and has 0700 now")


def fix(home: Path, config: Config | None) -> Checks:
    """Repair everything in a home that exists."""
    if not home.is_dir():
        return []
    checks = [*_modes(home), *_leftovers(home), *_index(home / search.FILE)]
    return [*checks, *_unit(config)] if config is not None else checks


def _modes(home: Path) -> Iterator[Check]:
    for path in _ours(home):
        try:
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) or not mode & _OTHERS:
                continue
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
        except FileNotFoundError:
            continue  # it existed for a moment only
        except OSError as error:
            yield from _failed(path, error)
        else:
            yield from _done(f"{path} was open to other users and is private now")


def _ours(home: Path) -> Iterator[Path]:
    yield from sorted(home.iterdir())
    for name in _OPEN_DIRECTORIES:
        if (home / name).is_dir():
            yield from sorted((home / name).iterdir())


def _leftovers(home: Path) -> Iterator[Check]:
    for path in sorted(home.iterdir()):
        if not path.name.startswith(_DRAFTS):
            continue
        try:
            if path.lstat().st_mtime > SystemClock().now() - LEFT_S:
                continue
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            yield from _failed(path, error)
        else:
            yield from _done(f"{path} was left behind and was removed")


def _index(path: Path) -> Iterator[Check]:
    """Remove a damaged search index; the next search rebuilds it."""
    if not path.exists() or _is_whole(path):
        return
    try:
        search.Index(path).discard()
    except OSError as error:
        yield from _failed(path, error)
    else:
        yield from _done(f"{path} was damaged and was removed; the next search rebuilds it")


def _is_whole(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as index:
            found = index.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        return True  # in use, or not ours to open: not damaged
    except sqlite3.DatabaseError:
        return False
    return bool(found and found[0] == "ok")


def _unit(config: Config) -> Iterator[Check]:
    """Write an installed unit again if it does not match the settings."""
    found = units.installed(config)
    if found is None or not units.disagreement(config, found):
        return
    if found.scope is units.Scope.SYSTEM:
        return  # only its operator knows the user it runs as; a check says how
    wanted = units.unit(config, found.scope, configuration.search_path())
    try:
        unit.write(wanted)
        for verb in ("reload", "enable"):
            anyio.run(manage, wanted, verb)
    except Exit as error:
        finding = f"{found.path} could not be written: {error}"
        yield from note("mended", finding, f"try it by hand: {units.REPAIR}")
    else:
        restart = "to use it: holdfast gateway restart"
        yield from _done(f"{found.path} matches the settings now; {restart}")


def _done(what: str) -> Checks:
    return ok("mended", what)


def _failed(path: Path, error: OSError) -> Checks:
    finding = f"{path} cannot be repaired: {error.strerror}"
    return note("mended", finding, f"repair it as its owner: {os.fspath(path)}")
