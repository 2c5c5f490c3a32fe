"""Journal time: the time of every record, deadline and id. It never goes back.

It is the wall clock at the first start after a boot, plus the time that has elapsed since then
(CLOCK_BOOTTIME, which goes on while the machine is suspended). So a step of the wall clock moves
no deadline and reorders nothing; it only changes the `offset` between the two clocks. Every start
within the same boot uses the same anchor.

Across a boot only the wall clock can tell how long the machine was off. That time counts for
everything that expires (an approval, a grant, a pairing code), which may so expire early. It does
not count for what is retained (request keys, deltas), which is kept longer. If the wall clock
shows less than before the boot, the downtime is unknown: the start is `doubtful`, and users have
to be asked again about pending approvals.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.types import Value

BEHIND_S = 60.0  # a battery clock may be behind by so much after a boot without doubt
STEP_S = 2.0  # a larger difference between the clocks is a step, not noise


class Reading(Value):
    """The machine's clocks at one moment."""

    boot_id: str  # changes with each boot; empty: unknown
    boot_s: float  # since the boot, suspend included
    wall: float  # since the epoch


class TimeAnchor(Value):
    """The same moment in journal time and on the clock of one boot."""

    boot_id: str
    boot_s: float
    at: float
    offset: float = 0.0  # wall clock minus journal time, when last compared

    def time(self, boot_s: float) -> float:
        """Return the journal time at that moment of the boot."""
        return self.at + (boot_s - self.boot_s) if boot_s > self.boot_s else self.at


class Downtime(Value):
    """Journal time that passed during a reboot, according to the wall clock only."""

    until: float
    length: float


class Begun(Value):
    """Journal time after a start."""

    anchor: TimeAnchor
    downtime: Downtime | None = None  # None: within the same boot, or at the very first start
    doubtful: bool = False  # it is unknown how long the machine was off


def is_same_boot(known: TimeAnchor, now: Reading) -> bool:
    """Tell if elapsed time can be measured from the anchor."""
    return bool(known.boot_id) and known.boot_id == now.boot_id and now.boot_s >= known.boot_s


def begin(known: TimeAnchor | None, newest: float, now: Reading) -> Begun:
    """Continue from the last anchor; `newest` is the newest recorded time, 0 if there is none."""
    if known is not None and is_same_boot(known, now):
        return Begun(known)
    if not newest:
        return Begun(TimeAnchor(now.boot_id, now.boot_s, now.wall))
    elapsed = now.wall - newest - (known.offset if known else 0.0)
    at = max(newest + max(elapsed, 0.0), now.wall)
    anchor = TimeAnchor(now.boot_id, now.boot_s, at, now.wall - at)
    return Begun(anchor, Downtime(at, at - newest), doubtful=elapsed < -BEHIND_S)


def after_step(anchor: TimeAnchor, now: Reading) -> TimeAnchor | None:
    """Return the anchor with a new offset if the wall clock was set; otherwise None."""
    offset = now.wall - anchor.time(now.boot_s)
    return replace(anchor, offset=offset) if abs(offset - anchor.offset) > STEP_S else None


def measured_before(before: float, downtimes: Iterable[Downtime]) -> float:
    """Move a retention limit back by every downtime within it; `downtimes`: latest first."""
    for down in downtimes:
        if before < down.until:
            before -= down.length
    return before
