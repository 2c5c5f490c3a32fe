"""Recovery of a session after the process that drove it ended: the facts to append, and no more.

A run that was running was cut. Depending on the policy and on how often it was cut without
progress, it goes on, waits for the user, is held, or is given up; then the session is suspended.
"""

from holdfast.core.run import run
from holdfast.core.run.quarantine import Judgement, QuarantineVerdict, judge
from holdfast.core.run.run import Run
from holdfast.core.session.session import (
    OnStart,
    Session,
    SessionReset,
    SessionSuspended,
    give_up,
)
from holdfast.core.types import Fact


def with_cuts(
    session: Session, cut_at: float, cause: run.CutCause = run.CutCause.CRASH
) -> tuple[tuple[Run, run.RunInterrupted | None], ...]:
    """Return the unfinished runs after the process that drove them ended, each with its cut."""
    found: list[tuple[Run, run.RunInterrupted | None]] = []
    for one in session.runs.values():
        if one.status is run.RunPhase.RUNNING:
            why = _WITHOUT_WARNING[cause]
            cut = run.RunInterrupted(run_id=one.id, cause=cause, reason=why, cut_at=cut_at)
            found.append((run.evolve(one, cut, cut_at), cut))
        else:
            found.append((one, None))
    return tuple(found)


def recover(
    session: Session,
    policy: OnStart,
    cut_at: float,
    cause: run.CutCause = run.CutCause.CRASH,
    judgement: Judgement | None = None,
) -> tuple[Fact, ...]:
    """Return the facts that recover `session` after the process that drove it ended.

    `cut_at` is the time of the last record in its stream. Runs that are still running were cut
    by `cause`; interrupted ones were marked before the process ended. Idempotent: once these
    facts are recorded, the same cut yields no more. Without a `judgement` over all sessions,
    this session is judged as if it were the only one.
    """
    facts: list[Fact] = []
    all_found = with_cuts(session, cut_at, cause)
    if judgement is None:
        judgement = judge([r for r, _ in all_found], [r.id for r, cut in all_found if cut], cut_at)
    for found, cut in all_found:
        own = () if cut is None else (cut,)
        verdict = judgement.verdicts.get(found.id, QuarantineVerdict.GO_ON)
        if judgement.solved and verdict is not QuarantineVerdict.GIVE_UP and _is_counted(found):
            cleared = run.RunCleared(run_id=found.id)
            own, found = (*own, cleared), run.evolve(found, cleared, cut_at)
        facts += (*own, *_hold_or_isolate(verdict, found, judgement.hold_until))
        if found.status is run.RunPhase.INTERRUPTED and verdict is not QuarantineVerdict.HOLD:
            facts += _after_cut(found, policy, verdict)
    given_up = sum(isinstance(f, run.RunFailed) for f in facts)
    if 0 < given_up < len(session.runs):  # the session's next input is queued already
        facts.append(SessionReset(reason="suspended"))
    return tuple(facts)


_WITHOUT_WARNING = {
    run.CutCause.CRASH: "The gateway ended without warning",
    run.CutCause.JOURNAL: "The journal could not be written",
}


def _is_counted(found: Run) -> bool:
    return bool(found.cuts or found.held_until)


def _hold_or_isolate(verdict: QuarantineVerdict, found: Run, until: float) -> tuple[Fact, ...]:
    match verdict:
        case QuarantineVerdict.HOLD:
            return (run.RunHeld(run_id=found.id, until=until),)
        case QuarantineVerdict.ISOLATE if not found.isolated:
            return (run.RunIsolated(run_id=found.id),)
        case _:
            return ()


def _after_cut(cut: Run, policy: OnStart, verdict: QuarantineVerdict) -> tuple[Fact, ...]:
    if cut.stop_reason:  # a stop was requested before the cut: the run goes on only to end
        return (run.RunRequeued(run_id=cut.id),)
    if cut.held_until:
        return ()
    if verdict is QuarantineVerdict.GIVE_UP:
        times = cut.restarts if cut.cut_by in run.ORDERLY else cut.cuts
        return _quarantine(
            cut,
            "stuck",
            f"This run was interrupted {times} times in a row without progress and was given up. "
            "The session's next message starts a new conversation; its history stays readable.",
        )
    if policy is OnStart.RESUME:
        return (run.RunRequeued(run_id=cut.id),)
    if policy is OnStart.SUSPEND and cut.cut_by == run.CutCause.CRASH:
        return _quarantine(
            cut,
            "suspended",
            "A crash interrupted this run, and recovery.on_start is 'suspend'. The session's next "
            "message starts a new conversation; its history stays readable.",
        )
    return ()


def _quarantine(cut: Run, code: str, error: str) -> tuple[Fact, ...]:
    return (
        *give_up(cut, code),
        run.RunFailed(run_id=cut.id, code=code, error=error, usage=cut.usage),
        SessionSuspended(reason=code),
    )
