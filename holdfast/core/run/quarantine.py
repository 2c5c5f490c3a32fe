"""Find the run that crashes the process, by driving fewer and fewer of the suspects.

A crash cuts every run that is driven, and one of them may have caused it. A run that was cut
three times in a row is given up only when no other run can have caused the last crash: no other
run was cut, or this run was driven *isolated* from the other suspects. If there are several
suspects, half of them go on, beginning with those that were cut by most crashes, and the other
runs that the crash cut are *held*. If the process crashes again, the search continues among the
half that went on; if not, it continues with the held ones. So a harmless run is never given up
because of another run, and a run that crashes the process every time it is driven is found after
about log2(n) more starts.

An orderly shutdown is weaker evidence, because people ask for it too. In that case a run is given
up only if orderly shutdowns cut it more often in a row than any other run (it restarts its own
gateway), and no run is held.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum

from holdfast.core.run import run
from holdfast.core.run.run import CutCause, Run, RunPhase
from holdfast.core.types import RunId, Value

HOLD_S = 600.0  # no run is held for longer


class QuarantineVerdict(StrEnum):
    GO_ON = "go on"
    ISOLATE = "isolate"  # it goes on as the only suspect
    HOLD = "hold"
    GIVE_UP = "give up"


class Judgement(Value):
    """The verdicts on the runs that were cut; runs without a verdict go on."""

    verdicts: Mapping[RunId, QuarantineVerdict] = {}
    solved: bool = False  # the crashes are explained: they do not count against other runs
    hold_until: float = 0.0


def judge(
    unfinished: Sequence[Run], just_cut: Collection[RunId], now: float, *, others: bool = False
) -> Judgement:
    """Decide at a start about all unfinished runs. The last cut is counted in them already.

    `just_cut`: the runs that were found running. `others`: there are more runs, which cannot be
    read. It is safe to decide again after only some of the verdicts were recorded: a run is never
    isolated together with another one.
    """
    looping = _looping(unfinished)
    cut = [r for r in unfinished if r.cut_by == CutCause.CRASH]
    stuck = [r for r in cut if run.stuck(r) and _open_to_doubt(r)]
    alone = just_cut if len(cut) == 1 and not others else ()
    guilty = [r.id for r in stuck if r.exposed or r.id in alone]
    if guilty:
        return Judgement(dict.fromkeys((*looping, *guilty), QuarantineVerdict.GIVE_UP), solved=True)
    if not stuck:
        return Judgement(dict.fromkeys(looping, QuarantineVerdict.GIVE_UP))
    doubtful = [r for r in cut if _open_to_doubt(r)]
    verdicts = {r.id: QuarantineVerdict.HOLD for r in doubtful}
    group = _first_half([r for r in doubtful if r.cuts > 1])  # a single cut may be chance
    verdicts |= dict.fromkeys(
        group, QuarantineVerdict.ISOLATE if len(group) == 1 else QuarantineVerdict.GO_ON
    )
    verdicts |= dict.fromkeys(looping, QuarantineVerdict.GIVE_UP)
    return Judgement(verdicts, hold_until=now + HOLD_S)


def _open_to_doubt(found: Run) -> bool:
    """Tell if a run is a suspect. A held run was not driven; a run being stopped only cleans up."""
    return not found.held_until and not found.stop_reason


def _first_half(suspects: Sequence[Run]) -> tuple[RunId, ...]:
    """Return half of the runs that were started last, those with most cuts first.

    A run that has been driven for long is a less likely cause.
    """
    latest = max(r.driven_at for r in suspects)
    recent = [r for r in suspects if latest - r.driven_at <= run.QUICK_CUT_S]
    recent.sort(key=lambda r: (-r.cuts, r.id))
    return tuple(r.id for r in recent[: (len(recent) + 1) // 2])


def _looping(unfinished: Sequence[Run]) -> tuple[RunId, ...]:
    """Return the run that restarts its own gateway: orderly shutdowns cut it most often."""
    cut = [r for r in unfinished if r.cut_by in run.ORDERLY and run.stuck(r) and not r.stop_reason]
    most = max((r.restarts for r in cut), default=0)
    first = [r.id for r in cut if r.restarts == most]
    return tuple(first) if len(first) == 1 else ()


class Release(Value):
    """The held runs that go on now. A run that was isolated until now no longer is."""

    runs: tuple[RunId, ...]
    isolated: bool = False
    over: bool = False  # the search has ended: there are no suspects left


def release(held: Sequence[Run], driven: Sequence[Run], now: float) -> Release | None:
    """Return the next step of the search, or None to wait.

    `driven`: the suspects that were allowed to go on. Neither list has runs that have ended.
    """
    if any(r.held_until <= now for r in held):
        return Release(tuple(r.id for r in held), over=True)
    if any(not _calm(r, now) for r in driven):
        return None
    group = _first_half(held)
    alone = len(group) == 1 and all(_is_cleared(r, now) for r in driven)
    return Release(group, isolated=alone)


def _calm(found: Run, now: float) -> bool:
    """Tell if a run has been driven for a while without a crash, or is not driven at all."""
    if found.status is RunPhase.RUNNING:
        return now - found.driven_at > run.QUICK_CUT_S
    return found.status is not RunPhase.QUEUED


def _is_cleared(found: Run, now: float) -> bool:
    return found.status is RunPhase.RUNNING and run.made_progress(found, now)
