"""Sessions as people keep them: what they are called, and those that begin with another's words.

A fork begins with what the model of its source reads at that moment, in the same workspace; what
was granted there is not granted here. An import begins with what was said elsewhere, at the time
it was said. Both have no run before somebody speaks, and what they begin with stays.
"""

import re
from collections.abc import Sequence

from holdfast.core.messages import Message, User
from holdfast.core.session import (
    ModelChosen,
    Session,
    SessionOpened,
    SessionSeeded,
    SessionTitled,
)
from holdfast.core.types import Fact, Owner, SessionId, Value
from holdfast.errors import Refused

TITLE = 120  # characters
PREVIEW = 80
SOURCE = 200

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Imported(Value):
    """A session as it was somewhere else."""

    session_id: SessionId
    title: str
    source: str
    messages: tuple[Message, ...]
    created_at: float = 0.0  # 0: nobody knows
    updated_at: float = 0.0
    workspace: str = ""


def one_line(text: str, length: int) -> str:
    """How `text` begins: one line, and no more than that."""
    begins = " ".join(text.lstrip()[: 4 * length].split())
    line = _UNFIT.sub("", begins)
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def preview(messages: Sequence[Message]) -> str:
    """The first words that somebody said."""
    said = (one_line(m.text, PREVIEW) for m in messages if isinstance(m, User))
    return next(filter(None, said), "")


def titled(title: str, by: Owner) -> SessionTitled:
    """What it takes to give a session another name, or none."""
    fits = title.strip()
    if len(fits) > TITLE or _UNFIT.search(fits):
        raise Refused(
            "invalid_request",
            f"`title` must be one line of up to {TITLE} characters.",
            param="title",
        )
    return SessionTitled(title=fits, by=by)


def fork(
    source: Session,
    messages: Sequence[Message],
    session_id: SessionId,
    platform: str,
    named: SessionTitled,
) -> tuple[Fact, ...]:
    """A session that begins where `source` is; `named` without a title is named after it."""
    opened = SessionOpened(session_id=session_id, workspace=source.workspace, platform=platform)
    begins = SessionSeeded(messages=tuple(messages), source=f"fork of {source.key.session_id}")
    if not named.title and source.title:
        named = SessionTitled(title=one_line(f"{source.title} (fork)", TITLE), by=named.by)
    chosen = (ModelChosen(model=source.model, by=named.by),) if source.model else ()
    return (opened, begins, *chosen, *_name(named))


def imported(what: Imported, workspace: str, platform: str, by: Owner) -> tuple[Fact, ...]:
    """A session that was somewhere else. A title that does not fit is cut."""
    opened = SessionOpened(session_id=what.session_id, workspace=workspace, platform=platform)
    begins = SessionSeeded(
        messages=what.messages,
        source=one_line(what.source, SOURCE),
        began_at=what.created_at,
        said_at=max(what.created_at, what.updated_at),
    )
    return (opened, begins, *_name(SessionTitled(title=one_line(what.title, TITLE), by=by)))


def _name(named: SessionTitled) -> tuple[Fact, ...]:
    return (named,) if named.title else ()
