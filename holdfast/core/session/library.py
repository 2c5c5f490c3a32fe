"""Titles of sessions, forks and imports.

A fork begins with the messages that the model of its source reads at that moment, in the same
workspace; permissions are not copied. An import begins with the messages of a file, with their
times: history and no more. A file cannot give instructions, so its system messages are left out,
and the user who imports it chooses the workspace. Neither has a run before its first input. A fork
also has the points of its source: it can go back to them, with the files. An import has none.
"""

import re
from collections.abc import Sequence

from holdfast.core.messages import Message, System, User
from holdfast.core.session import session
from holdfast.core.session.rewound import SeedPoint
from holdfast.core.types import Fact, Owner, SessionId, Value
from holdfast.errors import Refused

TITLE = 120  # characters
PREVIEW = 80
SOURCE = 200

_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Imported(Value):
    """A session to import."""

    session_id: SessionId
    title: str
    source: str
    messages: tuple[Message, ...]
    created_at: float = 0.0  # 0: unknown
    updated_at: float = 0.0
    workspace: str = ""


def one_line(text: str, length: int) -> str:
    """Shorten `text` to one line of at most `length` characters."""
    start = " ".join(text.lstrip()[: 4 * length].split())
    line = _UNFIT.sub("", start)
    return line if len(line) <= length else f"{line[: length - 1].rstrip()}…"


def preview(messages: Sequence[Message]) -> str:
    """Return the beginning of the first user message that is not empty."""
    lines = (one_line(m.text, PREVIEW) for m in messages if isinstance(m, User))
    return next(filter(None, lines), "")


def titled(title: str, by: Owner) -> session.SessionTitled:
    """Return the fact that gives a session another title, or none if empty; or refuse it."""
    fits = title.strip()
    if len(fits) > TITLE or _UNFIT.search(fits):
        raise Refused(
            "invalid_request",
            f"`title` must be one line of up to {TITLE} characters.",
            param="title",
        )
    return session.SessionTitled(title=fits, by=by)


def fork(
    source: session.Session,
    messages: Sequence[Message],
    session_id: SessionId,
    platform: str,
    named: session.SessionTitled,
    *,
    points: tuple[SeedPoint, ...] = (),
    from_file: bool = False,
) -> tuple[Fact, ...]:
    """Return the facts of a fork of `source`. Without a title it is named after its source."""
    opened = session.SessionOpened(
        session_id=session_id, workspace=source.workspace, platform=platform
    )
    begins = session.SessionSeeded(
        messages=tuple(messages),
        source=f"fork of {source.key.session_id}",
        imported=from_file,
        points=points,
    )
    if not named.title and source.title:
        named = session.SessionTitled(title=one_line(f"{source.title} (fork)", TITLE), by=named.by)
    chosen = (session.ModelChosen(model=source.model, by=named.by),) if source.model else ()
    return (opened, begins, *chosen, *_name(named))


def instructions_in(messages: Sequence[Message]) -> int:
    """Count the system messages, which an import leaves out."""
    return sum(isinstance(message, System) for message in messages)


def imported(
    what: Imported, workspace: str, platform: str, by: Owner, now: float
) -> tuple[Fact, ...]:
    """Return the facts of an import. No time is later than `now`; a title too long is cut."""
    opened = session.SessionOpened(
        session_id=what.session_id, workspace=workspace, platform=platform
    )
    begins = session.SessionSeeded(
        messages=tuple(m for m in what.messages if not isinstance(m, System)),
        source=one_line(what.source, SOURCE),
        began_at=min(what.created_at, now),
        said_at=min(max(what.created_at, what.updated_at), now),
        imported=True,
    )
    return (opened, begins, *_name(session.SessionTitled(title=one_line(what.title, TITLE), by=by)))


def _name(named: session.SessionTitled) -> tuple[Fact, ...]:
    return (named,) if named.title else ()
