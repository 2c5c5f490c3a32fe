"""The record of the machine: its last boot, the anchor of journal time, and doubts.

Journal time continues from the anchor that the last start recorded (core/life/timeline.py).
"""

import os
import re
import sqlite3
import sys
from pathlib import Path

from holdfast.core.life import evidence, timeline
from holdfast.core.life.evidence import Doubt, Finding, Outside, Own
from holdfast.core.life.timeline import Begun, Downtime, Reading, TimeAnchor
from holdfast.core.types import Value

SKIP_AFTER_POWER_CUT = 10_000
# File systems that keep the inode number of a file as long as it exists. Others (FUSE, CIFS, FAT,
# shared folders of virtual machines) may change it at the next mount, so it is ignored there.
_KEEP_NUMBERS = frozenset(
    "bcachefs btrfs ext2 ext3 ext4 f2fs jfs nfs nfs4 overlay tmpfs xfs zfs".split()
)
_OCTAL = re.compile(r"\\([0-7]{3})")  # Linux escapes spaces in the names of mount points so
_DOWNTIME_KEPT_S = 60 * 86_400.0  # longer than anything is retained


class Trust(Value):
    """The trust in the journal's records."""

    doubt: Doubt | None  # not None: its consequences are not all recorded yet
    since: float  # grants from before this time do not count


def begin(connection: sqlite3.Connection, now: Reading) -> Begun:
    """Continue journal time; after a boot, record the new anchor."""
    row = connection.execute("SELECT boot_id, boot_s, at, clock_offset FROM machine").fetchone()
    known = TimeAnchor(*row) if row is not None and row[2] else None
    if known is not None and timeline.is_same_boot(known, now):
        return Begun(known)
    begun = timeline.begin(known, _newest(connection), now)
    connection.execute("BEGIN IMMEDIATE")
    if row is None:
        connection.execute("INSERT INTO machine (boot_id) VALUES (?)", (now.boot_id,))
    elif row[0] != now.boot_id:
        _skip_numbers(connection)
    if (down := begun.downtime) is not None:
        connection.execute("INSERT INTO downtime VALUES (?, ?)", (down.until, down.length))
        old = (down.until - _DOWNTIME_KEPT_S,)
        connection.execute("DELETE FROM downtime WHERE until < ?", old)
    anchor = begun.anchor
    connection.execute(
        "UPDATE machine SET boot_id = ?, boot_s = ?, at = ?, clock_offset = ?",
        (anchor.boot_id, anchor.boot_s, anchor.at, anchor.offset),
    )
    if begun.doubtful:
        distrust(connection, Doubt.CLOCK, anchor.at)
    connection.execute("COMMIT")
    return begun


def identify(connection: sqlite3.Connection, outside: Outside, now: float) -> Finding | None:
    """Compare the journal with the evidence outside of it, and record the finding."""
    row = connection.execute("SELECT commits, file, audited FROM machine").fetchone()
    own = Own(*row)
    finding = evidence.compare(own, outside)
    if finding is None and (own.file, own.audited) == (outside.file, outside.audited):
        return None
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(
        "UPDATE machine SET commits = max(commits, ?), file = ?, audited = ?",
        (max(outside.commits, outside.mark.commits), outside.file, outside.audited),
    )
    if finding is not None:
        distrust(connection, finding.doubt, now)
    connection.execute("COMMIT")
    return finding


def file_number(path: Path) -> int:
    """Return the inode number of a file, which a copy does not share; 0 if it is not reliable."""
    real = os.path.realpath(path)
    if sys.platform == "linux" and _file_system(real) not in _KEEP_NUMBERS:
        return 0
    return os.stat(real).st_ino & (2**63 - 1)  # SQLite's integers are signed


def _file_system(path: str) -> str:
    """Return the type of the file system of `path` on Linux."""
    place, kind = "", ""
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), before.split(" ")[4])
        below = f"{path}/".startswith(f"{point.rstrip('/')}/")
        if below and len(point) >= len(place):  # of mounts at the same point, the last is visible
            place, kind = point, after.split(" ")[0]
    return kind


def distrust(connection: sqlite3.Connection, doubt: Doubt, now: float) -> None:
    """Record a doubt, until `trust`. `RESTORED` is not replaced by a lesser doubt."""
    connection.execute(
        "UPDATE machine SET trusted_since = ?, doubt = CASE doubt WHEN ? THEN doubt ELSE ? END",
        (now, Doubt.RESTORED, doubt),
    )


def trust(connection: sqlite3.Connection) -> None:
    """Record that the doubt is settled."""
    connection.execute("UPDATE machine SET doubt = ''")


def trust_in(connection: sqlite3.Connection) -> Trust:
    """Return the recorded trust."""
    doubt, since = connection.execute("SELECT doubt, trusted_since FROM machine").fetchone()
    return Trust(Doubt(doubt) if doubt else None, since)


def keep_offset(connection: sqlite3.Connection, offset: float) -> None:
    """Record the offset of the wall clock from journal time."""
    connection.execute("UPDATE machine SET clock_offset = ?", (offset,))


def measured_before(connection: sqlite3.Connection, before: float) -> float:
    """Return a retention limit that does not count downtimes."""
    rows = connection.execute("SELECT until, length FROM downtime ORDER BY until DESC")
    return timeline.measured_before(before, [Downtime(*row) for row in rows])


def _newest(connection: sqlite3.Connection) -> float:
    """Return the time of the last record in any stream; 0 if there is none."""
    last = "(SELECT at FROM {} t WHERE t.stream = s.stream ORDER BY seq DESC LIMIT 1)"
    found = connection.execute(
        f"SELECT max(max(coalesce({last.format('events')}, 0), "
        f"coalesce({last.format('deltas')}, 0))) FROM sessions s"
    ).fetchone()
    return float(found[0] or 0.0)


def _skip_numbers(connection: sqlite3.Connection) -> None:
    """Skip numbers after a boot: readers may have seen records that a power failure lost."""
    connection.execute(
        "UPDATE sessions SET floor = ? + max(floor, "
        "coalesce((SELECT max(seq) FROM events e WHERE e.stream = sessions.stream), 0), "
        "coalesce((SELECT max(seq) FROM deltas d WHERE d.stream = sessions.stream), 0)) "
        "WHERE stream IN (SELECT stream FROM runs WHERE ended_seq IS NULL)",
        (SKIP_AFTER_POWER_CUT,),
    )
