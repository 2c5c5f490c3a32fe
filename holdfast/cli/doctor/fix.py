"""`holdfast doctor --fix`: what can be mended without a decision of anybody's, and is.

Modes are only ever tightened, and only those of what is ours: never of what lies in a
workspace. What is taken away is a leftover of our own, or derived and made anew. What was
accepted, keys and settings are not touched. Each thing that was done is said, and so is what
could not be.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import anyio

from holdfast import config as configuration
from holdfast.cli import gateway_unit, units
from holdfast.cli.check import Check, Verdict
from holdfast.cli.config_file import DRAFT
from holdfast.cli.exits import Exit
from holdfast.cli.gateway_service import manage
from holdfast.config import Config
from holdfast.errors import Misconfigured
from holdfast.journal import search
from holdfast.machine import SystemClock

LEFT_S = 60.0  # after that nobody is about to use it any more

_DRAFTS = (DRAFT, ".api_key.", ".holdfast-")
_OPEN_DIRECTORIES = ("log", "run")  # whose files are ours as well
_OTHERS = 0o077


def mend_home(home: Path) -> list[Check]:
    """Have a home that only its owner can enter."""
    try:
        if not home.exists():
            configuration.check_home(home)
            home.mkdir(mode=0o700, parents=True)
            return [_done(f"{home} was missing and is there now")]
        mode = stat.S_IMODE(home.stat().st_mode)
        if not home.is_dir() or mode & 0o777 == 0o700:
            return []
        home.chmod(0o700)
    except OSError as error:
        return [_failed(home, error)]
    except Misconfigured:
        return []  # the examination says why
    return [_done(f"{home} had mode {mode:04o} and has 0700 now")]


def mend(home: Path, config: Config | None) -> list[Check]:
    """All the rest, of a home that is there."""
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
            continue  # it was somebody's for a moment
        except OSError as error:
            yield _failed(path, error)
        else:
            yield _done(f"{path} was open to other users and is not any more")


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
            yield _failed(path, error)
        else:
            yield _done(f"{path} was left behind and is gone now")


def _index(path: Path) -> Iterator[Check]:
    """The index of what was said: one that is damaged is made anew when it is asked next."""
    if not path.exists() or _is_whole(path):
        return
    try:
        search.Index(path).discard()
    except OSError as error:
        yield _failed(path, error)
    else:
        yield _done(f"{path} was damaged and is gone; the next search makes it anew")


def _is_whole(path: Path) -> bool:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as index:
            found = index.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:
        return True  # in use, or not ours to open: that is no damage
    except sqlite3.DatabaseError:
        return False
    return bool(found and found[0] == "ok")


def _unit(config: Config) -> Iterator[Check]:
    """An installed unit that is not what the settings ask for is written anew."""
    found = units.installed(config)
    if found is None or not units.disagreement(config, found):
        return
    if found.scope is units.Scope.SYSTEM:
        return  # whose it is, is for its operator to say; the examination tells how
    wanted = units.unit(config, found.scope, configuration.search_path())
    try:
        gateway_unit.write(wanted)
        for verb in ("reload", "enable"):
            anyio.run(manage, wanted, verb)
    except Exit as error:
        again = f"try it by hand: {units.MEND}"
        finding = f"{found.path} could not be written anew: {error}"
        yield Check("mended", Verdict.NOTE, finding, again)
    else:
        restart = "it counts after: holdfast gateway restart"
        yield _done(f"{found.path} is what the settings ask for now; {restart}")


def _done(what: str) -> Check:
    return Check("mended", Verdict.OK, what)


def _failed(path: Path, error: OSError) -> Check:
    finding = f"{path} cannot be mended: {error.strerror}"
    return Check("mended", Verdict.NOTE, finding, f"mend it as its owner: {os.fspath(path)}")
