"""Detection of a journal that was restored from a backup.

The journal is compared with evidence outside of it. Every entry of the audit has the number of
synced commits that the journal had at that time: a journal with fewer is older than the audit.
The journal has the number of audit entries at its last start: an audit with fewer is older than
the journal. The journal has the inode number of its own file: a copy of a whole home has
another one. And both numbers are in the name of a file, the mark: an older home that is copied
over this one, file by file, brings its own mark and leaves the newer one.
"""

from enum import StrEnum

from holdfast.core.types import Value

OLDER_THAN_AUDIT = "it is older than the audit beside it"
OLDER_THAN_MARK = "a mark in the home says that it was further"
COPIED = "its file is a copy"
AUDIT_IS_OLDER = "the audit beside it is older than the journal, or was cut"
CUT_SINCE_MARK = "a mark in the home says that the audit was longer"


class Doubt(StrEnum):
    """The reason why a start does not trust its records. The last one includes the others."""

    CLOCK = "clock"
    AUDIT = "audit"
    RESTORED = "restored"


class Own(Value):
    """The journal's own knowledge, as of its last start and last commit."""

    commits: int  # synced ones
    file: int  # the inode number of its file; 0: unknown
    audited: int  # entries of the audit


class Mark(Value):
    """The position of both when the mark was moved last; zeros: there is none."""

    commits: int = 0  # synced ones, of the journal
    entries: int = 0  # of the audit


class Outside(Value):
    """The evidence outside of the journal."""

    commits: int  # of the journal, according to the last entry of the audit
    file: int  # the inode number; 0: inode numbers are not reliable here
    audited: int
    mark: Mark = Mark()


class Finding(Value):
    doubt: Doubt
    why: str


def compare(own: Own, outside: Outside) -> Finding | None:
    """Return what is wrong with the journal at this start; None if nothing is."""
    if own.commits < outside.commits:
        return Finding(Doubt.RESTORED, OLDER_THAN_AUDIT)
    if own.commits < outside.mark.commits:
        return Finding(Doubt.RESTORED, OLDER_THAN_MARK)
    if own.file and outside.file and own.file != outside.file:
        return Finding(Doubt.RESTORED, COPIED)
    if outside.audited < own.audited:
        return Finding(Doubt.AUDIT, AUDIT_IS_OLDER)
    if outside.audited < outside.mark.entries:
        return Finding(Doubt.AUDIT, CUT_SINCE_MARK)
    return None
