"""Draw approvals and questions as text that cannot be mistaken for our own.

A command is shown to the last character, however long it is: a yes is for all of it. The server
has escaped hidden characters. What a tool left unescaped is escaped here, so that it cannot steer
a terminal and no two texts look the same. The lines of a request are indented; ours are not.
"""

import time
from collections.abc import Sequence

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.cli.client.frames import AskedQuestion
from holdfast.core.approval.approval import UNSANDBOXED
from holdfast.core.text.escape import reveal, reveal_lines
from holdfast.core.text.width import clip

_DAY = 86_400.0
_UNITS = ((90, 1.0, "s"), (90 * 60, 60.0, "min"), (2 * _DAY, 3600.0, "h"))
_NAME = 9  # characters: a line of 80 must hold the longest choice of choices, too
_SUBJECT = 28

_PLAIN = {"y": "once", "yes": "once", "ok": "once", "n": "deny", "no": "deny"}
_SAID = {"once": "yes, once", "session": "for this session", "deny": "no"}

BECAUSE = "because"
WANTS = "wants to:"
EXPIRED = "expired: no answer in time"
_NOTICES = ("[Background process ", "[Task ")


def body(asked: ApprovalObject) -> str:
    """Return the reason and the command."""
    return "\n".join([*why(asked), *would_run(asked)])


def why(asked: ApprovalObject) -> list[str]:
    """Return the reason."""
    return [f"  {line}" for line in reveal_lines(asked.description) if line]


def would_run(asked: ApprovalObject) -> list[str]:
    """Return the complete command."""
    return [f"  {WANTS}", *(f"    {line}" for line in reveal_lines(asked.command))]


def head(asked: ApprovalObject) -> str:
    """Return the line above a request, with the warning that must not be overlooked."""
    mark = f"{UNSANDBOXED}; " if asked.description.startswith(UNSANDBOXED) else ""
    return f"? This needs your approval ({mark}{expires(asked)}):"


def expires(asked: ApprovalObject) -> str:
    """Say how long it can still be answered."""
    return in_words(asked.expires_at - time.time())  # noqa: TID251  for the eye only


def in_words(left: float) -> str:
    """Say when `left` seconds run out."""
    return f"expires in {span(max(left, 1))}" if left > 0 else "has expired"


def span(seconds: float) -> str:
    """Round a span of time to one unit."""
    for limit, unit, name in _UNITS:
        if seconds < limit:
            return f"{round(seconds / unit)} {name}"
    return f"{round(seconds / _DAY)} d"


def line(asked: AskedQuestion) -> str:
    """Return the prompt for an answer to a question."""
    return "your answer, or a number ? " if asked.options else "your answer ? "


def elsewhere(asked: ApprovalObject | AskedQuestion) -> str:
    """Say how to answer from another terminal."""
    if isinstance(asked, AskedQuestion):
        return f"to answer it: holdfast runs {asked.run_id}"
    name = asked.request_id
    return f"to answer it: holdfast approvals approve {name}, or: holdfast approvals deny {name}"


def prompt(asked: ApprovalObject) -> str:
    """Return the prompt for an approval: its subject in short, and every choice."""
    return f"{clip(asked.request_id, _NAME)} {subject(asked)}  {choices(asked)}"


def choices(asked: ApprovalObject) -> str:
    """List every choice; there is no default."""
    short = {choice: key for key, choice in words(asked.choices).items() if len(key) == 1}
    spelt = (f"[{c[0]}]{c[1:]}" if c in short else f"[{c}]" for c in asked.choices)
    return f"{'  '.join(spelt)} ? "


def subject(asked: ApprovalObject) -> str:
    """Return the beginning of the command; all of it is shown above."""
    first, *more = reveal_lines(asked.command)
    return clip(first.strip(), _SUBJECT - bool(more)) + "…" * bool(more)


def topic(asked: ApprovalObject | AskedQuestion) -> str:
    """Return what a question is about, in a few words."""
    return subject(asked) if isinstance(asked, ApprovalObject) else reveal(asked.question)


def words(choices: Sequence[str]) -> dict[str, str]:
    """Map each accepted input to its choice: the name, or the first letter if it is unique."""
    letters = [choice[:1] for choice in choices]
    short = {c[:1]: c for c in choices if letters.count(c[:1]) == 1}
    return short | {choice: choice for choice in choices}


def choice(choices: Sequence[str], typed: str) -> str:
    """Return the choice that a person has typed; empty: none."""
    text = typed.strip().lower()
    found = words(choices)
    return found.get(text) or found.get(_PLAIN.get(text, ""), "")


def keys(choices: Sequence[str]) -> dict[str, str]:
    """Map each key that answers to its choice."""
    letters = {key: choice for key, choice in words(choices).items() if len(key) == 1}
    return letters | {key: _PLAIN[key] for key in ("y", "n") if _PLAIN[key] in choices}


def shown_keys(choices: Sequence[str]) -> dict[str, str]:
    """Map each choice to the key that is shown for it; a choice without a key has to be typed."""
    return {choice: key for key, choice in keys(choices).items()}


def choice_keys(choices: Sequence[str]) -> str:
    """List the keys that answer, and their choices; there is no default."""
    shown = shown_keys(choices)
    said = (f"[{shown[c]}] {_SAID.get(c, c)}" if c in shown else f"type {c}" for c in choices)
    return "  ".join([*said, f"[Tab] no, {BECAUSE} …"])


def answered(choice: str) -> str:
    """Describe an answer."""
    return "denied" if choice == "deny" else f"approved ({choice})"


def asks(asked: AskedQuestion) -> str:
    """Draw a question and its options; any other answer is accepted too."""
    lines = [f"  {line}" for line in reveal_lines(asked.question)]
    return "\n".join([*lines, *_numbered(asked)])


def _numbered(asked: AskedQuestion) -> list[str]:
    return [f"    {at}  {reveal(option)}" for at, option in enumerate(asked.options, 1)]


def reply(asked: AskedQuestion, typed: str) -> str:
    """Return the answer: the option with the typed number, or the typed text itself."""
    words = typed.strip()
    if words.isascii() and words.isdigit() and 0 < int(words) <= len(asked.options):
        return asked.options[int(words) - 1]
    return words


def notice(text: str) -> str:
    """Return the first line of a notice of the gateway (a process or a task ended), else empty."""
    head, _, rest = text.partition("\n")
    ours = head.startswith(_NOTICES) and rest.startswith("[material ")
    return reveal(head.strip("[]")) if ours else ""
