"""A request for approval as text: whole, and so that nothing in it can pass for our own words.

What would run is shown to the last character, however long it is: a yes is for all of it.
The server has escaped what hides. What a tool left as it is, is escaped here, so that a
terminal cannot be steered and no text reads like another. The request's own lines are
indented; ours are not.
"""

import time
from collections.abc import Sequence

from holdfast.cli.wire import Approval, Question
from holdfast.core.execution import hidden

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86_400.0
_NAME = 9  # characters: a line of 80 must hold the longest choice of choices, too
_SUBJECT = 28


def body(asked: Approval, *, command_first: bool = False) -> str:
    """Why it asks, and what would run; where only the beginning may be seen, that first."""
    what = ["  would run:", *(f"    {line}" for line in visible_lines(asked.command))]
    why = [f"  {line}" for line in visible_lines(asked.description) if line]
    return "\n".join([*what, *why] if command_first else [*why, *what])


def expires(asked: Approval) -> str:
    """How long it can still be answered, in words."""
    return in_words(asked.expires_at - time.time())  # noqa: TID251  for the eye only


def in_words(left: float) -> str:
    """The same for so many seconds."""
    if left <= 0:
        return "has expired"
    for limit, unit, name in ((90, 1.0, "s"), (90 * _MINUTE, _MINUTE, "min"), (_DAY, _HOUR, "h")):
        if left < limit:
            return f"expires in {max(round(left / unit), 1)} {name}"
    return f"expires in {round(left / _DAY)} d"


def line(asked: Question) -> str:
    """The line that waits for words."""
    return "your answer, or a number ? " if asked.options else "your answer ? "


def elsewhere(asked: Approval | Question) -> str:
    """How it is answered from another terminal."""
    if isinstance(asked, Question):
        return f"to answer it: holdfast runs {asked.run_id}"
    name = asked.request_id
    return f"to answer it: holdfast approvals approve {name}, or: holdfast approvals deny {name}"


def prompt(asked: Approval) -> str:
    """The line that waits for an answer: what it is about, in short, and every choice there is."""
    return f"{_short(asked.request_id, _NAME)} {subject(asked)}  {choices(asked)}"


def choices(asked: Approval) -> str:
    """Every choice there is, none of them chosen beforehand."""
    short = {choice: key for key, choice in words(asked.choices).items() if len(key) == 1}
    spelt = (f"[{c[0]}]{c[1:]}" if c in short else f"[{c}]" for c in asked.choices)
    return f"{'  '.join(spelt)} ? "


def subject(asked: Approval) -> str:
    """What would run, as short as a line has room for. All of it stands above."""
    first, *more = visible_lines(asked.command)
    return _short(first.strip(), _SUBJECT - bool(more)) + "…" * bool(more)


def _short(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"


def words(choices: Sequence[str]) -> dict[str, str]:
    """What may be typed → the choice it is: its name, or its first letter if no other has it."""
    letters = [choice[:1] for choice in choices]
    short = {c[:1]: c for c in choices if letters.count(c[:1]) == 1}
    return short | {choice: choice for choice in choices}


def answered(choice: str) -> str:
    """What an answer means."""
    return "denied" if choice == "deny" else f"approved ({choice})"


def asks(asked: Question) -> str:
    """What a run asks its user, and what may be chosen; any other words will do too."""
    lines = [f"  {line}" for line in visible_lines(asked.question)]
    return "\n".join([*lines, *_numbered(asked)])


def _numbered(asked: Question) -> list[str]:
    return [f"    {at}  {visible(option)}" for at, option in enumerate(asked.options, 1)]


def reply(asked: Question, typed: str) -> str:
    """The answer that a typed line is: an option by its number, or the words themselves."""
    words = typed.strip()
    if words.isascii() and words.isdigit() and 0 < int(words) <= len(asked.options):
        return asked.options[int(words) - 1]
    return words


def visible(line: str) -> str:
    """A line with what hides in it made visible. What is escaped already stays so."""
    return "".join(f"\\u{{{ord(c):x}}}" if hidden(c) else c for c in line)


def visible_lines(text: str) -> list[str]:
    """The lines of a text, each with what hides in it made visible."""
    return [visible(line) for line in text.split("\n")]
