"""The mark: a file in the home whose name says how far the journal and the audit were.

A copy of an older home that is written over this one replaces what every file holds, but takes no
name away. So the highest number in the names is that of this home, not of the copy, and the next
start sees that the journal is older (core/life/evidence.py).

The mark is moved at every start, with every entry of the audit and at a stop that is not a crash. What
it says is on the disk before: it may say less than there is, never more. It survives a kill of the
process. After a power cut it may be an older one, and then it says less.
"""

import logging
import os
import re
from pathlib import Path

from holdfast.core.life.evidence import Mark

log = logging.getLogger(__name__)

PREFIX = "journal.mark-"
_NAME = re.compile(re.escape(PREFIX) + r"(\d{1,19})-(\d{1,19})")


def read(home: Path) -> Mark:
    """The highest numbers in the names of the marks; zeros if there is none."""
    return _highest(_marks(home))


def advance(home: Path, mark: Mark) -> None:
    """Move the mark forward; a number that is lower than the one it has stays."""
    found = _marks(home)
    _move(home, found, _highest([mark, *found]))


def replace(home: Path, mark: Mark) -> None:
    """Have this be the one mark, whatever the others say."""
    _move(home, _marks(home), mark)


def _move(home: Path, found: list[Mark], to: Mark) -> None:
    """Rename one mark, which is all or nothing, then remove the others.

    A failure is no reason to stop: then the mark says less.
    """
    try:
        if to in found:
            found.remove(to)
        elif found:
            os.rename(home / _name(found.pop()), home / _name(to))
        else:
            os.close(os.open(home / _name(to), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        for mark in found:
            os.unlink(home / _name(mark))
    except OSError as error:
        log.warning("the mark could not be moved", extra={"reason": str(error)})


def _marks(home: Path) -> list[Mark]:
    """Every mark in the home, the highest last."""
    try:
        names = [found for name in os.listdir(home) if (found := _NAME.fullmatch(name))]
    except OSError:
        return []
    return sorted((Mark(int(n[1]), int(n[2])) for n in names), key=lambda m: (m.commits, m.entries))


def _highest(marks: list[Mark]) -> Mark:
    commits = max((mark.commits for mark in marks), default=0)
    return Mark(commits, max((mark.entries for mark in marks), default=0))


def _name(mark: Mark) -> str:
    return f"{PREFIX}{mark.commits}-{mark.entries}"
