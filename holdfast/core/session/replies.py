"""Replies: which messages what happened makes, for a run that works for a chat.

They are queued in the same append as the facts they speak of, so none can be lost between
the two, and each has a name made from what it speaks of, so none can be queued twice. A
question has buttons; what a press of one means is written in it, with the name of what it
answers: it can answer nothing else. Once it is answered, the message says so and has none.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256

from holdfast.core import approval, call, run
from holdfast.core.approval import ApprovalRequested, Choice
from holdfast.core.delivery import DeliveryQueued
from holdfast.core.run import Run
from holdfast.core.session import Session
from holdfast.core.types import CallId, DeliveryId, Fact, RequestId, RunId, Value

Split = Callable[[str, str], Sequence[str]]  # a platform and a text: the messages it takes

SUPERSEDED = "superseded"  # the reason of a run that made way for newer words
UNREAD = "\n\nIt had not read all you said. Say again what still matters."
PASSED_ON = "\n\nWhat you said meanwhile comes next."
STEP = 80  # characters of a call that are shown
QUESTION, ANSWER = 700, 300  # characters of each that stay, once it is answered


class Answers(Value):
    """A button of an approval."""

    request_id: RequestId
    choice: Choice


class Chooses(Value):
    """A button of a question: the option of that number."""

    run_id: RunId
    mark: str
    option: int


def read_press(data: str) -> Answers | Chooses | None:
    """What a pressed button means; None: it is none of ours."""
    match data.split(":"):
        case ["a", request_id, choice] if choice in set(Choice):
            return Answers(RequestId(request_id), Choice(choice))
        case ["q", run_id, mark, option] if _NUMBER.fullmatch(option):
            return Chooses(RunId(run_id), mark, int(option))
        case _:
            return None


_NUMBER = re.compile("[0-9]{1,3}")


def mark(call_id: CallId) -> str:
    """A short name for a call of a run, whatever its model calls it."""
    return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def messages(
    before: Session, after: Session, facts: Sequence[Fact], split: Split
) -> tuple[DeliveryQueued, ...]:
    """What is to be said in the chats that the runs of `facts` work for."""
    told: list[DeliveryQueued] = []
    for fact in facts:
        if type(fact) not in _TOLD:
            continue
        run_id: RunId = getattr(fact, "run_id")  # noqa: B009  all of these have one
        found = before.runs.get(run_id) or after.runs.get(run_id)
        if found is not None and found.origin.address is not None:
            told += _told(before, found, fact, tuple(sorted(after.hosts)), split)
    return tuple(told)


_TOLD: frozenset[type[Fact]] = frozenset(
    {
        run.RunCompleted,
        run.RunFailed,
        run.RunCancelled,
        call.CallStarted,
        call.CallParked,
        call.CallSettled,
        ApprovalRequested,
        approval.ApprovalGranted,
        approval.ApprovalDenied,
        approval.ApprovalExpired,
        approval.ApprovalWithdrawn,
    }
)


def _unread(found: Run, code: str) -> str:
    """What becomes of the words that a run which fails has not read (words.passed_on)."""
    joined = any(i != found.input_id for i in found.unread)
    if joined and code not in _SUSPENDS:
        return PASSED_ON
    return UNREAD if found.unread else ""


_SUSPENDS = frozenset({"stuck", "suspended"})  # and what is said next begins afresh


def _told(
    before: Session, found: Run, fact: Fact, hosts: tuple[str, ...], split: Split
) -> list[DeliveryQueued]:
    match fact:
        case run.RunCompleted(output=output) if found.parent is None:
            text = output.strip() or "(Done; there is nothing to say.)"
            answer = _message(found, f"out_{found.id}", text, hosts, split, reply=True)
            return [*_progress_ends(found, "Done"), *answer]
        case run.RunFailed(error=error, code=code) if found.parent is None:
            text = f"This did not work: {error}{_unread(found, code)}"
            answer = _message(found, f"out_{found.id}", text, hosts, split, reply=True)
            return [*_progress_ends(found, "Given up"), *answer]
        case run.RunCancelled():
            return _progress_ends(found, "Stopped")
        case call.CallStarted(quiet=False) if found.origin.progress and not found.steps:
            text = f"Working: {step(fact)}"
            return [] if found.parent else _message(found, f"pro_{found.id}", text, hosts, _whole)
        case call.CallParked(question=question) if question:
            return _question(found, fact, hosts, split)
        case call.CallSettled() if _asked(found, fact.call_id):
            return [_question_ends(found, fact, hosts)]
        case ApprovalRequested():
            return _approval(found, fact, hosts, split)
        case _:
            return _approval_ends(before, found, fact)


def _message(
    found: Run,
    name: str,
    text: str,
    hosts: tuple[str, ...],
    split: Split,
    *,
    buttons: tuple[tuple[str, str], ...] = (),
    reply: bool = False,
    verbatim: bool = False,
) -> list[DeliveryQueued]:
    """One text in as many messages as it takes: a reply with the first, buttons with the last."""
    assert found.origin.address is not None
    place = found.origin.address.place
    parts = tuple(split(place.platform, text)) or (text,)
    last = len(parts) - 1
    return [
        DeliveryQueued(
            delivery_id=DeliveryId(name if at == last else f"{name}.{at + 1}"),
            address=place,
            text=part,
            of_run=found.id,
            reply_to=found.origin.reply_to if reply and at == 0 else "",
            buttons=buttons if at == last else (),
            hosts=hosts,
            verbatim=verbatim,
        )
        for at, part in enumerate(parts)
    ]


def _whole(platform: str, text: str) -> Sequence[str]:
    return (text,)


def _changed(found: Run, name: str, text: str, hosts: tuple[str, ...] = ()) -> DeliveryQueued:
    assert found.origin.address is not None
    return DeliveryQueued(
        delivery_id=DeliveryId(f"{name}.end"),
        address=found.origin.address.place,
        text=text,
        of_run=found.id,
        edits=DeliveryId(name),
        hosts=hosts,
    )


def _cut(text: str, length: int) -> str:
    return text[:length] + ("…" if len(text) > length else "")


def step(started: call.CallStarted) -> str:
    """What a call does, in a line."""
    line = " ".join(started.preview.split())
    shown = _cut(line, STEP)
    return f"{started.tool}: {shown}" if shown else started.tool


def _progress_ends(found: Run, word: str) -> list[DeliveryQueued]:
    if not (found.origin.progress and found.steps) or found.parent is not None:
        return []
    steps = "1 step" if found.steps == 1 else f"{found.steps} steps"
    return [_changed(found, f"pro_{found.id}", f"{word} after {steps}.")]


_LABELS = {Choice.ONCE: "Allow once", Choice.SESSION: "Allow in this session", Choice.DENY: "Deny"}


def _approval(
    found: Run, asked: ApprovalRequested, hosts: tuple[str, ...], split: Split
) -> list[DeliveryQueued]:
    # The description too: it names what the model has named, and ends with the model's own words.
    text = f"**May this run?**\n{_block(asked.command)}\n{_block(asked.description)}"
    buttons = tuple(
        (label, f"a:{asked.request_id}:{choice}")
        for choice, label in _LABELS.items()
        if choice in asked.choices
    )
    name = f"ask_{asked.request_id}"
    return _message(found, name, text, hosts, split, buttons=buttons, reply=True, verbatim=True)


def _block(text: str) -> str:
    """As it is: a fence longer than what it holds, so that nothing in it is read as markdown."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, 1 + longest)
    return f"{fence}\n{text}\n{fence}"


_GRANTED = {
    Choice.ONCE: "Allowed once",
    Choice.SESSION: "Allowed in this session",
    Choice.ALWAYS: "Allowed for good",
}


def _approval_ends(before: Session, found: Run, fact: Fact) -> list[DeliveryQueued]:
    match fact:
        case approval.ApprovalGranted(choice=choice):
            word = _GRANTED[choice]
        case approval.ApprovalDenied():
            word = "Denied"
        case approval.ApprovalExpired():
            word = "Denied: nobody answered in time"
        case approval.ApprovalWithdrawn():
            word = "No longer needed"
        case _:
            return []
    asked = before.approvals.get(fact.request_id)
    if asked is None:
        return []
    command = " ".join(asked.requested.command.split())
    return [_changed(found, f"ask_{fact.request_id}", _cut(f"{word}: {command}", STEP))]


def _question(
    found: Run, parked: call.CallParked, hosts: tuple[str, ...], split: Split
) -> list[DeliveryQueued]:
    named = mark(parked.call_id)
    buttons = tuple(
        (option, f"q:{found.id}:{named}:{at}") for at, option in enumerate(parked.options)
    )
    name = _question_id(found, parked.call_id)
    return _message(found, name, parked.question, hosts, split, buttons=buttons)


def _question_ends(found: Run, settled: call.CallSettled, hosts: tuple[str, ...]) -> DeliveryQueued:
    """The question stays to be read, with its answer."""
    asked = _cut(found.calls[settled.call_id].question, QUESTION)
    answered = f"{asked}\n\n→ {_cut(settled.text, ANSWER)}"
    text = answered if settled.outcome is call.Outcome.OK else "No longer asked."
    return _changed(found, _question_id(found, settled.call_id), text, hosts)


def _question_id(found: Run, call_id: CallId) -> str:
    return f"ask_{found.id}.{mark(call_id)}"


def _asked(found: Run, call_id: CallId) -> bool:
    """Whether the call has put a question to the user."""
    waiting = found.calls.get(call_id)
    return waiting is not None and bool(waiting.question)
