"""Replies: the chat messages that follow from the facts of a run that works for a chat.

A message is queued in the same append as the fact it is about, so none can be lost between the
two. Its id is made from what it is about, so none can be queued twice. A question has buttons.
Each button carries its meaning and the id of the question, so it can answer nothing else. Once
a question is answered, its message is replaced by one that shows the answer and has no buttons.
"""

import re
from collections.abc import Callable, Sequence
from hashlib import sha256

from holdfast.core.approval import approval
from holdfast.core.approval.approval import ApprovalRequested, Choice
from holdfast.core.chat.delivery import DeliveryQueued
from holdfast.core.inbox import InputPromoted
from holdfast.core.run import call, run
from holdfast.core.run.run import Run
from holdfast.core.session.session import Session
from holdfast.core.types import CallId, DeliveryId, Fact, RequestId, RunId, Value

Split = Callable[[str, str], Sequence[str]]  # (platform, text) → the messages it takes

SUPERSEDED = "superseded"  # the stop reason of a run that was displaced by a newer message
UNREAD = "\n\nIt had not read all your messages. Send again what you still need."
PASSED_ON = "\n\nThe messages you sent meanwhile come next."
EMPTY_ANSWER = "(Done; there is no answer to show.)"
CUT_ANSWER = "(The answer was cut at the model's limit of tokens. Ask it to go on.)"
BUSY_MODEL = "The model's server is busy ({status}). I keep trying: {attempt} in {wait:.0f} s. /stop ends it."
NO_MODEL = "The model does not answer. I keep trying: {attempt} in {wait:.0f} s. /stop ends it."
SHOWN = 32_000  # characters of an answer that are shown in a chat
STEP = 80  # characters of a call that are shown
QUESTION, ANSWER = 700, 300  # characters of each that are kept once it is answered
GONE_S = 5.0  # so long after a question expired, a message may still be meant for it


class Answers(Value):
    """The meaning of a button of an approval."""

    request_id: RequestId
    choice: Choice


class Chooses(Value):
    """The meaning of a button of a question: the option with that number."""

    run_id: RunId
    mark: str
    option: int


def parse_button(data: str) -> Answers | Chooses | None:
    """Return the meaning of a pressed button; None if it is not one of ours."""
    match data.split(":"):
        case ["a", request_id, choice] if choice in set(Choice):
            return Answers(RequestId(request_id), Choice(choice))
        case ["q", run_id, mark, option] if _NUMBER.fullmatch(option):
            return Chooses(RunId(run_id), mark, int(option))
        case _:
            return None


_NUMBER = re.compile("[0-9]{1,3}")


def mark(call_id: CallId) -> str:
    """Return a short name of fixed length for a call id, which a model chose."""
    return sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]


class QueuedReply(Value):
    """A chat message, and when it was queued."""

    queued: DeliveryQueued
    at: float


def is_unambiguous(request_id: RequestId, recent: Sequence[QueuedReply], now: float) -> bool:
    """Tell if an answer typed in a chat can only mean that request.

    `recent`: the last messages sent to the chat, newest first. The answer is ambiguous if a run
    has sent more below the request, if another question is open there, or if a question expired
    or was withdrawn a moment ago: the user may have meant that one.
    """
    own = DeliveryId(f"ask_{request_id}")
    shown = [one.queued.delivery_id for one in recent]
    if own not in shown:
        return False
    below = recent[: shown.index(own)]
    return not (
        any(one.queued.of_run and not one.queued.edits for one in below)
        or any(_ends_unanswered(one.queued) and now - one.at < GONE_S for one in recent)
        or _open_questions(recent) - {own}
    )


def _ends_unanswered(queued: DeliveryQueued) -> bool:
    """Tell if the message replaces a question that expired or was withdrawn."""
    return bool(queued.edits) and queued.text.startswith((EXPIRED, WITHDRAWN))


def _open_questions(recent: Sequence[QueuedReply]) -> set[DeliveryId]:
    """Return the messages with an open question; of several parts, the last."""
    shown = {one.queued.delivery_id for one in recent if not one.queued.edits}
    over = {one.queued.edits for one in recent}
    asked = {name for name in shown - over if name.startswith("ask_")}
    return {name for name in asked if name.rpartition(".")[0] not in shown}


def messages(
    before: Session, after: Session, facts: Sequence[Fact], split: Split
) -> tuple[DeliveryQueued, ...]:
    """Return the messages to the chats that the runs of `facts` work for."""
    queued: list[DeliveryQueued] = []
    for fact in facts:
        if type(fact) not in REPORTED:
            continue
        run_id: RunId = getattr(fact, "run_id")  # noqa: B009  all of these have one
        found = before.runs.get(run_id) or after.runs.get(run_id)
        if found is not None and found.origin.address is not None:
            queued += _messages_for(before, found, fact, tuple(sorted(after.hosts)), split)
    return tuple(queued)


# The facts of which a chat may hear.
REPORTED: frozenset[type[Fact]] = frozenset(
    {
        run.RunCompleted,
        run.RunFailed,
        run.RunCancelled,
        run.ModelFailed,
        InputPromoted,
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
    """Tell the user about inputs that a failed run has not read (placement.requeue_unread)."""
    joined = any(i != found.input_id for i in found.unread)
    if joined and code not in _SUSPENDS:
        return PASSED_ON
    return UNREAD if found.unread else ""


CAUSES = {
    "model_unavailable": "The model cannot be reached. Try again in a few minutes.",
    "model_rejected": "The model's server refused the request. Tell the operator of this agent.",
    "answer_filtered": "The model's filter refused this. Change the request, or choose another /model.",
    "context_overflow": "This conversation is too long for the model. Start a new one with /new.",
    "internal_error": "There was an internal error. Tell the operator of this agent.",
}


SOME_ADDRESS = "(an address)"
_ADDRESS = re.compile(r"\w+://[^\s)\]>\"']+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\blocalhost:\d+")


def _cause(found: Run, error: str, code: str) -> str:
    """Return the cause for people in a chat; details for the operator stay in the run's status."""
    cause = CAUSES.get(code)
    if cause is None:
        return f"This did not work: {_ADDRESS.sub(SOME_ADDRESS, error)}"
    return f"{cause} (run {found.id})"


_SUSPENDS = frozenset({"stuck", "suspended"})  # the next message starts a new conversation


def _messages_for(
    before: Session, found: Run, fact: Fact, hosts: tuple[str, ...], split: Split
) -> list[DeliveryQueued]:
    match fact:
        case run.RunCompleted(output=output) if found.parent is None:
            text = _capped(output.strip()) or EMPTY_ANSWER
            if fact.incomplete is run.Incomplete.CUT:
                text += f"\n\n{CUT_ANSWER}"
            answer = _message(found, f"out_{found.id}", text, hosts, split, reply=True)
            return [*_progress_ends(found, "Done"), *answer]
        case run.RunFailed(error=error, code=code) if found.parent is None:
            text = f"{_cause(found, error, code)}{_unread(found, code)}"
            answer = _message(found, f"out_{found.id}", text, hosts, split, reply=True)
            return [*_progress_ends(found, "Given up"), *answer]
        case InputPromoted() if _follows_answer(found, fact):
            # The run gave a final answer, and now reads another input.
            name = f"out_{found.id}.t{found.turn}"
            return _message(found, name, _capped(found.output.strip()), hosts, split)
        case run.RunCancelled():
            return _progress_ends(found, "Stopped")
        case run.ModelFailed():
            return _retry(found, fact, hosts)
        case call.CallStarted(quiet=False) if found.origin.progress and not found.steps:
            text = f"Working: {step(fact)}"
            return [] if found.parent else _message(found, f"pro_{found.id}", text, hosts, _whole)
        case call.CallParked(question=question) if question:
            return _question(found, fact, hosts, split)
        case call.CallSettled() if _has_question(found, fact.call_id):
            return [_question_ends(found, fact, hosts)]
        case ApprovalRequested():
            return _approval(found, fact, hosts, split)
        case _:
            return _approval_ends(before, found, fact)


def _retry(found: Run, failed: run.ModelFailed, hosts: tuple[str, ...]) -> list[DeliveryQueued]:
    """Tell of the first long wait for an answer; the rest is in /status."""
    if failed.wait_s < run.LONG_WAIT_S or found.waited or found.parent is not None:
        return []
    attempt = f"attempt {failed.attempt + 1}" + (f" of {failed.of}" if failed.of else "")
    text = BUSY_MODEL if failed.status else NO_MODEL
    said = text.format(status=failed.status, attempt=attempt, wait=failed.wait_s)
    return _message(found, f"try_{found.id}.t{failed.turn}", said, hosts, _whole)


def _capped(text: str) -> str:
    """Shorten an answer to what a chat shows: splitting it into messages blocks the event loop."""
    if len(text) <= SHOWN:
        return text
    left = len(text) - SHOWN
    return f"{text[:SHOWN]}\n\n(The answer has {left} more characters. Ask for the rest.)"


def _follows_answer(found: Run, promoted: InputPromoted) -> bool:
    """Tell if this is the first input that the run reads after a final answer."""
    answered = found.answered and bool(found.output.strip()) and found.parent is None
    return answered and found.unread[:1] == (promoted.input_id,)


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
    """Split a text into messages: the first one is the reply, the last one has the buttons."""
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
    """Describe a call in one line."""
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
    # The description is shown verbatim too, because it contains text from the model.
    text = f"**May this run?**\n{_block(asked.command)}\n{_block(asked.description)}"
    buttons = tuple(
        (label, f"a:{asked.request_id}:{choice}")
        for choice, label in _LABELS.items()
        if choice in asked.choices
    )
    name = f"ask_{asked.request_id}"
    return _message(found, name, text, hosts, split, buttons=buttons, reply=True, verbatim=True)


def _block(text: str) -> str:
    """Fence `text` so that nothing in it is read as markdown: no run of backticks is as long."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, 1 + longest)
    return f"{fence}\n{text}\n{fence}"


EXPIRED, WITHDRAWN = "Denied: no answer in time", "No longer needed"
GRANTED = {
    Choice.ONCE: "Allowed once",
    Choice.SESSION: "Allowed in this session",
    Choice.ALWAYS: "Always allowed",
}


def _approval_ends(before: Session, found: Run, fact: Fact) -> list[DeliveryQueued]:
    match fact:
        case approval.ApprovalGranted(choice=choice):
            word = GRANTED[choice]
        case approval.ApprovalDenied():
            word = "Denied"
        case approval.ApprovalExpired():
            word = EXPIRED
        case approval.ApprovalWithdrawn():
            word = WITHDRAWN
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
    """Replace the message of a question by one that shows the question with its answer."""
    asked = _cut(found.calls[settled.call_id].question, QUESTION)
    answered = f"{asked}\n\n→ {_cut(settled.text, ANSWER)}"
    text = answered if settled.outcome is call.Outcome.OK else "No longer asked."
    return _changed(found, _question_id(found, settled.call_id), text, hosts)


def _question_id(found: Run, call_id: CallId) -> str:
    return f"ask_{found.id}.{mark(call_id)}"


def _has_question(found: Run, call_id: CallId) -> bool:
    """Tell if the call has asked the user a question."""
    waiting = found.calls.get(call_id)
    return waiting is not None and bool(waiting.question)
