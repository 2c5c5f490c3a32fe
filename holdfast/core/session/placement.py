"""Placement: which run reads a message that arrives while a session is busy.

Over HTTP every request gets its own run, queued behind the others, unless the request says
otherwise. In a chat and at a terminal the mode decides: *interrupt* stops the active run and
starts another, *queue* waits for it, *steer* joins it. In the modes interrupt and steer, a run of
the same user that has not started yet, or has to go on after a cut, reads the message too; only
in the mode queue does the message get its own run behind it. While a run waits for an answer from
its user, a chat message is that answer, in any mode; a terminal names the question it answers.
While a run waits for an approval, a message that is no answer joins it instead of stopping it.
"""

from hashlib import sha256

from msgspec.structs import replace

from holdfast.core.inbox import InputAdmitted, Mode
from holdfast.core.run import call
from holdfast.core.run.run import Run, RunQueued
from holdfast.core.session import session
from holdfast.core.session.replies import SUPERSEDED
from holdfast.core.session.session import Session
from holdfast.core.types import CallId, Fact, InputId, Owner, RunId, Value

_TIME = len("run_") + 12  # the beginning of a run id: the time when it was made


class OwnRun(Value):
    """The message gets its own run, behind the others; `displaces` is stopped for it."""

    displaces: RunId | None = None


class Join(Value):
    """That run reads the message before its next turn; `displaces` is stopped for it."""

    run_id: RunId
    displaces: RunId | None = None


class Replies(Value):
    """The message is the answer that a call of that run waits for."""

    run_id: RunId
    call_id: CallId


Placement = OwnRun | Join | Replies


class Speaker(Value):
    """The user who sent a message; several users may share a session."""

    owner: Owner
    admin: bool


def place(now: Session, mode: Mode, by: Speaker, *, answers: bool = True) -> Placement:
    """Decide which run reads a message. Runs of other users are left alone.

    `answers`: the message may be the answer to an open question.
    """
    busy = session.current(now)
    if busy is None:
        return OwnRun()
    mine = {r.id for r in now.runs.values() if by.admin or works_for(now, r) == by.owner}
    if answers and busy.id in mine and (asked := question(busy)) is not None:
        return Replies(busy.id, asked)
    if mode is Mode.QUEUE:
        return OwnRun()
    at_work = busy.id in mine and not busy.stop_reason
    if at_work and (mode is Mode.STEER or waits_for_approval(now, busy)):
        return Join(busy.id)
    last = list(now.runs.values())[-1]
    displaces = busy.id if at_work and not _reads_on(busy) else None
    return Join(last.id, displaces) if last.id in mine and _reads_on(last) else OwnRun(displaces)


def waits_for_approval(now: Session, found: Run) -> bool:
    """Tell if a person is asked for an approval: a message is no answer, and ends nothing then."""
    return any(
        asked.requested.run_id == found.id and not asked.status.final
        for asked in now.approvals.values()
    )


def asks_in_chat(now: Session) -> bool:
    """Tell if the active run asks its questions in a chat; if not, a chat message is no answer."""
    busy = session.current(now)
    return busy is not None and busy.origin.address is not None


def works_for(now: Session, found: Run) -> Owner:
    """Return the user whose input the run works on."""
    return found.origin.works_for or now.key.owner


def _reads_on(found: Run) -> bool:
    """Tell if the run has not started, or not resumed after a cut, and so reads all inputs."""
    return not found.stop_reason and (not found.driven or bool(found.cut_by))


def question(found: Run, named: CallId | None = None) -> CallId | None:
    """Return the call that waits for the user's answer: the named one, or else the oldest."""
    if found.stop_reason:
        return None
    asked = (k for k, c in found.calls.items() if c.question)
    return next((k for k in asked if named is None or k == named), None)


def admitted(
    now: Session, placement: Placement, message: InputAdmitted, queued: RunQueued
) -> tuple[Fact, ...]:
    """Return the facts that place `message`; `queued` is its own run, if it gets one."""
    match placement:
        case Replies(run_id=run_id, call_id=call_id):
            return (*answer(now, run_id, call_id, message), *_images(run_id, message))
        case Join(run_id=run_id, displaces=displaces):
            reply_to = _reply_to(now.runs[run_id], queued)
            message = replace(message, run_id=run_id, mode=Mode.STEER, reply_to=reply_to)
            joined = _with_unread(now, displaces, message)
            return (*_displace(now, displaces), *session.requeue_interrupted(now), joined)
        case _:  # OwnRun
            displaced = _displace(now, placement.displaces)
            own = _with_unread(now, placement.displaces, message)
            requeued = session.requeue_interrupted(now)
            return (*session.admit(now), *displaced, *requeued, own, queued)


def _reply_to(found: Run, queued: RunQueued) -> str:
    """Return the chat message that `found` now replies to; empty: this one is from elsewhere."""
    here, there = queued.origin.address, found.origin.address
    same = here is not None and there is not None and here.place == there.place
    return queued.origin.reply_to if same else ""


def _displace(now: Session, displaced: RunId | None) -> tuple[Fact, ...]:
    return () if displaced is None else session.stop(now, displaced, SUPERSEDED)


def _with_unread(now: Session, displaced: RunId | None, message: InputAdmitted) -> InputAdmitted:
    """Put the displaced run's unread inputs before `message`, so that no input is lost."""
    unread = () if displaced is None else now.runs[displaced].unread
    if not unread:
        return message
    inputs = [*(now.inputs[i].admitted for i in unread), message]
    text = "\n\n".join(one.text for one in inputs if one.text)
    images = tuple(image for one in inputs for image in one.images)
    return replace(message, text=text, images=images)


def _images(run_id: RunId, message: InputAdmitted) -> tuple[Fact, ...]:
    """Pass on the images of an answer: a tool's result is text, so the run reads them after it."""
    alone = replace(message, run_id=run_id, mode=Mode.STEER, text="", came=None)
    return (alone,) if message.images else ()


def answer(
    now: Session, run_id: RunId, call_id: CallId, message: InputAdmitted
) -> tuple[Fact, ...]:
    """Return the facts that answer the question of a call with `message`."""
    tool = now.runs[run_id].calls[call_id].proposal.tool
    return (
        *session.requeue_interrupted(now),
        call.CallAnswered(run_id=run_id, call_id=call_id, came=message.came),
        call.CallSettled(
            run_id=run_id, call_id=call_id, tool=tool, outcome=call.Outcome.OK, text=message.text
        ),
    )


def requeue_unread(now: Session, ending: Run) -> tuple[Fact, ...]:
    """Give the unread inputs that joined a failing run a run of their own.

    There is no such run for a displaced run, whose successor has these inputs already, or for a
    child run, which has no user.
    """
    inputs = [now.inputs[i].admitted for i in ending.unread if i != ending.input_id]
    if not inputs or ending.stop_reason or ending.parent is not None:
        return ()
    name = sha256(f"{ending.id} {inputs[0].input_id}".encode()).hexdigest()
    run_id = RunId(f"{ending.id[:_TIME]}{name[:20]}")
    merged = InputAdmitted(
        input_id=InputId(f"in_{name[:24]}"),
        run_id=run_id,
        text="\n\n".join(one.text for one in inputs),
        images=tuple(image for one in inputs for image in one.images),
        hosts=tuple(dict.fromkeys(host for one in inputs for host in one.hosts)),
    )
    model, origin = ending.model, ending.origin
    return merged, RunQueued(run_id=run_id, input_id=merged.input_id, model=model, origin=origin)
