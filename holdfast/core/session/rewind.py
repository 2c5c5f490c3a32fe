"""The timeline of a session: to which points it can go back, and what that changes.

A *point* is the state before an exchange, that is before a run read its first message. Going back
to a point takes back the messages from there on, or what was done to files since, or both. For
each file the timeline has the changes that are in effect, oldest first. Going back to a point
removes those behind it: the file gets the content from before the first of them. This is safe only
if the file has the content that the last of them left, and each began with what the one before had
left. Otherwise another hand changed it in between, and it is not touched unless that is wanted.

A redo brings back what the last rewind took away, until a run reads another message.

Like the transcript, this is a fold of the journal. It is made when it is needed, from the facts in
`TIMELINE_FACTS`, and is not kept in memory.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec.structs import replace

from holdfast.core.inbox import InputAdmitted, InputPromoted, UpdateRef
from holdfast.core.intents import Principal
from holdfast.core.messages import Message, User
from holdfast.core.run.files import FileChanged
from holdfast.core.session.rewound import FileResult, FileStep, RewindScope, Rewound, SeedPoint
from holdfast.core.session.session import SessionReset, SessionSeeded, Undone
from holdfast.core.types import Fact, InputId, RunId, Value
from holdfast.errors import Refused

NO_POINT = "There is no message here to undo or repeat."
NO_FILES = "No file was changed here that could be restored."
NO_SUCH_POINT = "There is no such point. /rewind lists the points that there are."
NOTHING_TO_REDO = "There is nothing to redo: nothing was undone since the last message."


class Rewind(Value):
    """Take a session back to a point, or bring back what was taken back last."""

    by: Principal
    point: RunId | None = None  # the state before this run; None: before the last exchange
    what: RewindScope = RewindScope.BOTH
    force: bool = False  # also overwrite what another hand changed
    redo: bool = False
    came: UpdateRef | None = None  # the request: the same again is carried out once


class RewindDone(Value):
    """A rewind as it was recorded, and the message that it takes back or brings back."""

    fact: Rewound
    text: str
    repeated: bool = False  # the same request was carried out before


class RewindChoice(Value):
    """What a user wants to be taken back."""

    point: int | None = None  # its number; None: before the last exchange
    what: RewindScope = RewindScope.BOTH
    force: bool = False  # also overwrite what another hand changed
    redo: bool = False  # bring back what was taken back last


class FileTotal(Value):
    """What was done to one file."""

    path: str
    added: int  # lines
    removed: int


class Point(Value):
    """A point to which the session can go back."""

    number: int  # from 1, the oldest
    run_id: RunId
    at: float
    text: str  # of the messages that the run read
    counts: bool  # False: its messages were undone, but not what it did to files
    files: tuple[FileTotal, ...]  # changed from here to the next point


class SeenFile(Value):
    """A file as it is on disk."""

    blob: str = ""  # the hash of its content; empty: no file
    mode: int = 0
    trouble: str = ""  # why it can be neither read nor restored


class RewindPlan(Value):
    """What a rewind changes, as far as the journal knows."""

    point: RunId
    what: RewindScope
    runs: tuple[RunId, ...]
    files: tuple[FileStep, ...]
    torn: frozenset[str] = frozenset()  # paths that another hand changed in between
    redo: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(step.path for step in self.files)


@dataclass(slots=True)
class _Exchange:
    order: int
    run_id: RunId
    at: float
    texts: list[str]
    counts: bool = True


@dataclass(frozen=True, slots=True)
class _Change:
    order: int
    fact: FileChanged


@dataclass(slots=True)
class _Taken:
    """What a rewind took away."""

    fact: Rewound
    changes: dict[str, list[_Change]] = field(default_factory=dict)


class Timeline:
    """The points of a session, built fact by fact."""

    def __init__(self) -> None:
        self._order = 0
        self._exchanges: list[_Exchange] = []
        self._changes: dict[str, list[_Change]] = {}  # in effect
        self._taken: list[_Taken] = []  # may be redone, the last first
        self._waiting: dict[InputId, InputAdmitted] = {}
        self.undone: set[RunId] = set()  # the runs whose messages do not count

    def add(self, fact: Fact, at: float) -> None:
        """Apply one more fact."""
        if (take := self.TAKES.get(type(fact))) is not None:
            self._order += 1
            take(self, fact, at)

    def _seed(self, fact: SessionSeeded, at: float) -> None:
        ends = [point.position for point in fact.points[1:]]
        for point, end in zip(fact.points, [*ends, len(fact.messages)], strict=False):
            self._order += 1
            texts = _texts_of(fact.messages[point.position : end])
            self._exchanges.append(_Exchange(self._order, point.run_id, point.at, texts))
            for change in point.changes:
                self._order += 1
                self._change(change, at)

    def _admit(self, fact: InputAdmitted, at: float) -> None:
        self._waiting[fact.input_id] = fact

    def _read(self, fact: InputPromoted, at: float) -> None:
        if (admitted := self._waiting.pop(fact.input_id, None)) is None:
            return
        if admitted.history is not None:
            self._exchanges = []
        self._taken = []
        last = self._exchanges[-1] if self._exchanges else None
        if last is None or last.run_id != fact.run_id:
            last = _Exchange(self._order, fact.run_id, at, [])
            self._exchanges.append(last)
        last.texts.append(admitted.text)

    def _change(self, fact: FileChanged, at: float) -> None:
        self._changes.setdefault(fact.path, []).append(_Change(self._order, fact))

    def _reset(self, fact: SessionReset, at: float) -> None:
        self._exchanges, self._taken = [], []

    def _undo_last(self, fact: Undone, at: float) -> None:
        for exchange in reversed(self._exchanges):
            if exchange.counts:
                exchange.counts = False
                self.undone.add(exchange.run_id)
                return

    def _rewind(self, fact: Rewound, at: float) -> None:
        taken = self._taken.pop() if fact.redo and self._taken else _Taken(fact)
        for exchange in self._exchanges:
            if exchange.run_id in fact.runs:
                exchange.counts = fact.redo
        (self.undone.difference_update if fact.redo else self.undone.update)(fact.runs)
        done = [step.path for step in fact.files if step.result.done]
        if fact.redo:
            for path in done:
                self._changes.setdefault(path, []).extend(taken.changes.get(path, ()))
            return
        start = self._order_of(fact.point)
        for path in done:
            known = self._changes.get(path, [])
            taken.changes[path] = [c for c in known if c.order > start]
            self._changes[path] = [c for c in known if c.order <= start]
        self._taken.append(taken)

    TAKES: ClassVar[dict[type[Fact], Callable[[Any, Any, float], None]]] = {
        SessionSeeded: _seed,
        InputAdmitted: _admit,
        InputPromoted: _read,
        FileChanged: _change,
        SessionReset: _reset,
        Undone: _undo_last,
        Rewound: _rewind,
    }

    def _order_of(self, run_id: RunId) -> int:
        return next((e.order for e in self._exchanges if e.run_id == run_id), self._order)

    def changes(self) -> tuple[FileChanged, ...]:
        """Return the changes that are in effect, oldest first."""
        found = [change for some in self._changes.values() for change in some]
        return tuple(c.fact for c in sorted(found, key=lambda c: c.order))

    def points(self) -> tuple[Point, ...]:
        """Return the points, oldest first."""
        found: list[Point] = []
        ends = [e.order for e in self._exchanges[1:]]
        for exchange, end in zip(self._exchanges, [*ends, self._order], strict=False):
            files = self._totals(exchange.order, end)
            if exchange.counts or files:
                text = "\n\n".join(filter(None, exchange.texts))
                number, run_id = len(found) + 1, exchange.run_id
                found.append(Point(number, run_id, exchange.at, text, exchange.counts, files))
        return tuple(found)

    def _totals(self, start: int, end: int) -> tuple[FileTotal, ...]:
        found: list[FileTotal] = []
        for path, changes in sorted(self._changes.items()):
            some = [c.fact for c in changes if start < c.order <= end]
            if some:
                added, removed = sum(c.added for c in some), sum(c.removed for c in some)
                found.append(FileTotal(path, added, removed))
        return tuple(found)

    def last_point(self, what: RewindScope) -> RunId:
        """Return the point before the last exchange that counts; for files: that changed any."""
        for point in reversed(self.points()):
            if point.files if what is RewindScope.FILES else point.counts:
                return point.run_id
        raise Refused("nothing_said", NO_FILES if what is RewindScope.FILES else NO_POINT)

    def text_of(self, run_id: RunId) -> str:
        """Return the text of the messages that a run read."""
        found = (e.texts for e in self._exchanges if e.run_id == run_id)
        return "\n\n".join(filter(None, next(found, [])))

    def rewind(self, point: RunId, what: RewindScope) -> RewindPlan:
        """Return what it takes to go back to `point`."""
        if all(p.run_id != point for p in self.points()):
            raise Refused("no_such_point", NO_SUCH_POINT, param="point")
        start = self._order_of(point)
        behind = [e for e in self._exchanges if e.order >= start and e.counts]
        runs = tuple(e.run_id for e in behind) if what.has_conversation else ()
        steps, torn = list[FileStep](), set[str]()
        for path, changes in sorted(self._changes.items()) if what.has_files else ():
            some = [c.fact for c in changes if c.order > start]
            if some:
                steps.append(_back(some))
                if any(a.after != b.before for a, b in zip(some, some[1:], strict=False)):
                    torn.add(path)
        return RewindPlan(point, what, runs, tuple(steps), frozenset(torn))

    def redo(self) -> RewindPlan:
        """Return what it takes to bring back what the last rewind took away."""
        if not self._taken:
            raise Refused("nothing_to_redo", NOTHING_TO_REDO)
        last = self._taken[-1].fact
        steps = tuple(_swapped(step) for step in last.files if step.result.done)
        return RewindPlan(last.point, last.what, last.runs, steps, redo=True)

    def seed_points(self, positions: Mapping[RunId, int]) -> tuple[SeedPoint, ...]:
        """Return the points for a fork that begins with the messages at these positions."""
        counted = [e for e in self._exchanges if e.counts and e.run_id in positions]
        ends = [e.order for e in counted[1:]]
        found = [change for some in self._changes.values() for change in some]
        found.sort(key=lambda c: c.order)
        return tuple(
            SeedPoint(
                run_id=e.run_id,
                position=positions[e.run_id],
                at=e.at,
                changes=tuple(c.fact for c in found if e.order < c.order <= end),
            )
            for e, end in zip(counted, [*ends, self._order], strict=False)
        )


TIMELINE_FACTS: tuple[type[Fact], ...] = tuple(Timeline.TAKES)


def _texts_of(messages: tuple[Message, ...]) -> list[str]:
    return [m.text for m in messages if isinstance(m, User)]


def _back(changes: list[FileChanged]) -> FileStep:
    """Return the step from after the last of these changes to before the first."""
    first, last = changes[0], changes[-1]
    return FileStep(
        path=first.path,
        was_blob=last.after,
        new_blob=first.before,
        was_mode=last.mode_after,
        new_mode=first.mode_before,
    )


def _swapped(step: FileStep) -> FileStep:
    return FileStep(
        path=step.path,
        was_blob=step.new_blob,
        new_blob=step.was_blob,
        was_mode=step.new_mode,
        new_mode=step.was_mode,
    )


def steps(
    plan: RewindPlan, seen: Mapping[str, SeenFile], kept: Collection[str]
) -> tuple[FileStep, ...]:
    """Return the steps of a plan, given the files as they are and the versions that are kept.

    A step that is still `PLANNED` is safe. The others say why they are not, or that nothing is
    left to do.
    """
    return tuple(_step(one, seen[one.path], plan.torn, kept) for one in plan.files)


def _step(step: FileStep, seen: SeenFile, torn: Collection[str], kept: Collection[str]) -> FileStep:
    if seen.trouble:
        return replace(step, result=FileResult.FAILED, reason=seen.trouble)
    if _has(seen, step):
        return replace(step, was_blob=seen.blob, was_mode=seen.mode, result=FileResult.UNCHANGED)
    if step.new_blob and step.new_blob not in kept:
        return replace(step, result=FileResult.GONE)
    if seen.blob != step.was_blob or step.path in torn:
        return replace(step, was_blob=seen.blob, was_mode=seen.mode, result=FileResult.CHANGED)
    return replace(step, was_mode=seen.mode)


def _has(seen: SeenFile, step: FileStep) -> bool:
    """Return whether the file is as the step wants it. Only a step of the mode compares modes."""
    only_mode = step.was_blob == step.new_blob
    return seen.blob == step.new_blob and (not only_mode or seen.mode == step.new_mode)


def forced(found: tuple[FileStep, ...]) -> tuple[FileStep, ...]:
    """Return the steps that also overwrite what another hand changed. It was stored before."""
    return tuple(
        replace(step, result=FileResult.PLANNED) if step.result is FileResult.CHANGED else step
        for step in found
    )


def judged(step: FileStep, seen: SeenFile) -> FileStep:
    """Return a planned step as it stands: still planned, done, or refused.

    After a crash, a step that was carried out is recognised by the content that the file has.
    """
    if step.result is not FileResult.PLANNED:
        return step
    if seen.trouble:
        return replace(step, result=FileResult.FAILED, reason=seen.trouble)
    if _has(seen, step):
        return carried_out(step)
    if seen.blob == step.was_blob:
        return step
    return replace(step, result=FileResult.CHANGED)


def carried_out(step: FileStep) -> FileStep:
    """Return the step as done."""
    return replace(step, result=FileResult.RESTORED if step.new_blob else FileResult.DELETED)
