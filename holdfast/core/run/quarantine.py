"""Which run ends the process? Found by driving fewer of those that may be it, never by guessing.

A crash cuts every run that is driven, and one of them may have caused it. A run that was cut
three times in a row is given up when it was the only one the crash can be due to: nothing else
was cut, or it was let go on *isolated*. Where several may be it, half of them go on, those first
that most crashes cut, and all else that the crash cut is *held*. If the process ends again, the
search goes on among that half; if not, it turns to those that are held. So whoever does no harm
is never given up for what another did, and one that ends the process whenever it is driven is
found after about log2(n) more starts.

An orderly end says less, since people ask for it too: there a run is given up that was cut so
more often in a row than any other (one that restarts its own gateway), and nothing is held.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from holdfast.core import run
from holdfast.core.run import Cause, Run, Status
from holdfast.core.types import RunId, Value

HOLD_S = 600.0  # nothing is held for longer


class Verdict(StrEnum):
    GO_ON = "go on"
    ISOLATE = "isolate"  # it goes on, and is what the next crash is due to
    HOLD = "hold"
    GIVE_UP = "give up"


class Judgement(Value):
    """What becomes of the runs that were cut; those not named go on."""

    verdicts: Mapping[RunId, Verdict] = {}
    solved: bool = False  # the crashes are explained: nobody else is held or counted for them
    hold_until: float = 0.0


def judge(
    unfinished: Sequence[Run], just_cut: Collection[RunId], now: float, *, others: bool = False
) -> Judgement:
    """What a start decides, from every run that has not ended, once its cut is counted.

    `just_cut`: those found running. `others`: there are more, which cannot be read. Safe to ask again when only some of the
    verdicts were written down: it never isolates a run that is not alone.
    """
    looping = _looping(unfinished)
    cut = [r for r in unfinished if r.cut_by == Cause.CRASH]
    stuck = [r for r in cut if run.stuck(r) and _open_to_doubt(r)]
    alone = just_cut if len(cut) == 1 and not others else ()
    guilty = [r.id for r in stuck if r.exposed or r.id in alone]
    if guilty:
        return Judgement(dict.fromkeys((*looping, *guilty), Verdict.GIVE_UP), solved=True)
    if not stuck:
        return Judgement(dict.fromkeys(looping, Verdict.GIVE_UP))
    doubtful = [r for r in cut if _open_to_doubt(r)]
    verdicts = {r.id: Verdict.HOLD for r in doubtful}
    group = _first_half([r for r in doubtful if r.cuts > 1])  # the others may yet be chance
    verdicts |= dict.fromkeys(group, Verdict.ISOLATE if len(group) == 1 else Verdict.GO_ON)
    verdicts |= dict.fromkeys(looping, Verdict.GIVE_UP)
    return Judgement(verdicts, hold_until=now + HOLD_S)


def _open_to_doubt(found: Run) -> bool:
    """One that is held was not driven; one that is being stopped only cleans up."""
    return not found.held_until and not found.stop_reason


def _first_half(of: Sequence[Run]) -> tuple[RunId, ...]:
    """Of those driven last, whom most crashes cut: what was driven for long is less likely it."""
    latest = max(r.driven_at for r in of)
    recent = [r for r in of if latest - r.driven_at <= run.QUICK_CUT_S]
    recent.sort(key=lambda r: (-r.cuts, r.id))
    return tuple(r.id for r in recent[: (len(recent) + 1) // 2])


def _looping(unfinished: Sequence[Run]) -> tuple[RunId, ...]:
    """The run that restarts its own gateway: stuck by orderly ends, as no other is."""
    cut = [r for r in unfinished if r.cut_by in run.ORDERLY and run.stuck(r) and not r.stop_reason]
    most = max((r.restarts for r in cut), default=0)
    first = [r.id for r in cut if r.restarts == most]
    return tuple(first) if len(first) == 1 else ()


class Release(Value):
    """Those held who go on now. Whoever was isolated until then is no longer."""

    runs: tuple[RunId, ...]
    isolated: bool = False
    over: bool = False  # the search is: nobody is in doubt any more


def release(held: Sequence[Run], driven: Sequence[Run], now: float) -> Release | None:
    """What a search does next; None: wait. `driven`: who may be it and goes on meanwhile.

    Both without those that have ended since.
    """
    if any(r.held_until <= now for r in held):
        return Release(tuple(r.id for r in held), over=True)
    if any(not _calm(r, now) for r in driven):
        return None
    group = _first_half(held)
    alone = len(group) == 1 and all(_innocent(r, now) for r in driven)
    return Release(group, isolated=alone)


def _calm(found: Run, now: float) -> bool:
    """It has been driven for a while and nothing happened, or is not driven at all."""
    if found.status is Status.RUNNING:
        return now - found.driven_at > run.QUICK_CUT_S
    return found.status is not Status.QUEUED


def _innocent(found: Run, now: float) -> bool:
    return found.status is Status.RUNNING and run.gets_on(found, now)
