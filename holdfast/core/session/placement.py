"""Words that come while a session is busy: which run reads them, and what becomes of the others.

Over HTTP every request is a run of its own, behind those before it, unless it says otherwise. In
a chat and at a terminal the mode decides: *interrupt* ends the run at work and begins another,
*queue* waits for it, *steer* joins it. Only what is queued waits behind other words of the same
speaker: else what has not begun yet, or is to go on after a cut, reads them too. While a run has
asked its user something, words in a chat are the answer, in any mode; a terminal names the
question that it answers.
"""

from hashlib import sha256

from msgspec.structs import replace

from holdfast.core import call, session
from holdfast.core.inbox import InputAdmitted, Mode
from holdfast.core.replies import SUPERSEDED
from holdfast.core.run import Run, RunQueued
from holdfast.core.session import Session
from holdfast.core.types import CallId, Fact, InputId, Owner, RunId, Value

_TIMED = len("run_") + 12  # characters of a run's id that say when it was made


class OwnRun(Value):
    """They get a run of their own, behind those before it; the one named makes way."""

    displaces: RunId | None = None


class Join(Value):
    """That run reads them before its next turn; the other one named makes way for it."""

    run_id: RunId
    displaces: RunId | None = None


class Replies(Value):
    """They are the answer that a call of that run waits for."""

    run_id: RunId
    call_id: CallId


Placement = OwnRun | Join | Replies


class Speaker(Value):
    """Who says them, where a session is several people's."""

    owner: Owner
    admin: bool


def place(now: Session, mode: Mode, by: Speaker, *, answers: bool = True) -> Placement:
    """Where words go; whether they are the answer to what is asked. Others' runs are left alone."""
    busy = session.current(now)
    if busy is None:
        return OwnRun()
    mine = {r.id for r in now.runs.values() if by.admin or works_for(now, r) == by.owner}
    if answers and busy.id in mine and (asked := question(busy)) is not None:
        return Replies(busy.id, asked)
    if mode is Mode.QUEUE:
        return OwnRun()
    at_work = busy.id in mine and not busy.stop_reason
    if mode is Mode.STEER and at_work:
        return Join(busy.id)
    last = list(now.runs.values())[-1]
    displaces = busy.id if at_work and not _reads_on(busy) else None
    return Join(last.id, displaces) if last.id in mine and _reads_on(last) else OwnRun(displaces)


def asks_in_chat(now: Session) -> bool:
    """Whether what the run at work asks is read in a chat. What is asked elsewhere is not theirs."""
    busy = session.current(now)
    return busy is not None and busy.origin.address is not None


def works_for(now: Session, found: Run) -> Owner:
    """Whose words the run was given."""
    return found.origin.works_for or now.key.owner


def _reads_on(found: Run) -> bool:
    """Whether it has not begun, or not begun again: then it reads whatever there is."""
    return not found.stop_reason and (not found.driven or bool(found.cut_by))


def question(found: Run, named: CallId | None = None) -> CallId | None:
    """The call that waits for an answer of the user's: the named one, else the oldest."""
    if found.stop_reason:
        return None
    asked = (k for k, c in found.calls.items() if c.question)
    return next((k for k in asked if named is None or k == named), None)


def admitted(
    now: Session, placement: Placement, words: InputAdmitted, queued: RunQueued
) -> tuple[Fact, ...]:
    """What it takes to place `words`; `queued` is the run they get if they get one."""
    match placement:
        case Replies(run_id=run_id, call_id=call_id):
            return (*answer(now, run_id, call_id, words), *_pictures(run_id, words))
        case Join(run_id=run_id, displaces=displaces):
            newest = _newest(now.runs[run_id], queued)
            words = replace(words, run_id=run_id, mode=Mode.STEER, reply_to=newest)
            joined = _with_unread(now, displaces, words)
            return (*_make_way(now, displaces), *session.go_on(now), joined)
        case _:  # OwnRun
            way = _make_way(now, placement.displaces)
            own = _with_unread(now, placement.displaces, words)
            return (*session.admit(now), *way, *session.go_on(now), own, queued)


def _newest(found: Run, queued: RunQueued) -> str:
    """The message that `found` is to answer after these words; empty: they came elsewhere."""
    here, there = queued.origin.address, found.origin.address
    same = here is not None and there is not None and here.place == there.place
    return queued.origin.reply_to if same else ""


def _make_way(now: Session, displaced: RunId | None) -> tuple[Fact, ...]:
    return () if displaced is None else session.stop(now, displaced, SUPERSEDED)


def _with_unread(now: Session, displaced: RunId | None, words: InputAdmitted) -> InputAdmitted:
    """What a run that makes way has not read comes along: nothing that was said is lost."""
    unread = () if displaced is None else now.runs[displaced].unread
    if not unread:
        return words
    said = [*(now.inputs[i].admitted for i in unread), words]
    text = "\n\n".join(one.text for one in said if one.text)
    return replace(words, text=text, images=tuple(image for one in said for image in one.images))


def _pictures(run_id: RunId, words: InputAdmitted) -> tuple[Fact, ...]:
    """The pictures of an answer: a tool's result is text, so the run reads them right after it."""
    alone = replace(words, run_id=run_id, mode=Mode.STEER, text="", came=None)
    return (alone,) if words.images else ()


def answer(now: Session, run_id: RunId, call_id: CallId, words: InputAdmitted) -> tuple[Fact, ...]:
    """What it takes to answer the question of a call with `words`."""
    tool = now.runs[run_id].calls[call_id].proposal.tool
    return (
        *session.go_on(now),
        call.CallAnswered(run_id=run_id, call_id=call_id, came=words.came),
        call.CallSettled(
            run_id=run_id, call_id=call_id, tool=tool, outcome=call.Outcome.OK, text=words.text
        ),
    )


def passed_on(now: Session, ending: Run) -> tuple[Fact, ...]:
    """What a run that fails was given on its way and has not read gets a run of its own.

    Of one that makes way, whoever it makes way for has it already; of a child, nobody waits.
    """
    said = [now.inputs[i].admitted for i in ending.unread if i != ending.input_id]
    if not said or ending.stop_reason or ending.parent is not None:
        return ()
    name = sha256(f"{ending.id} {said[0].input_id}".encode()).hexdigest()
    run_id = RunId(f"{ending.id[:_TIMED]}{name[:20]}")
    words = InputAdmitted(
        input_id=InputId(f"in_{name[:24]}"),
        run_id=run_id,
        text="\n\n".join(one.text for one in said),
        images=tuple(image for one in said for image in one.images),
        hosts=tuple(dict.fromkeys(host for one in said for host in one.hosts)),
    )
    model, origin = ending.model, ending.origin
    return words, RunQueued(run_id=run_id, input_id=words.input_id, model=model, origin=origin)
