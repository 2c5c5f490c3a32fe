"""Read the timeline of a session from the journal, with what its child runs did to files."""

from collections.abc import Iterable

from holdfast.core.events import Record
from holdfast.core.run.child import ChildBegun
from holdfast.core.run.files import FileChanged
from holdfast.core.session.rewind import TIMELINE_FACTS, Timeline
from holdfast.core.types import Fact
from holdfast.journal.journal import Journal

_READ: tuple[type[Fact], ...] = (*TIMELINE_FACTS, ChildBegun)


async def read_timeline(journal: Journal, stream: int) -> Timeline:
    """Return the timeline of the session with this stream. Changes of children come in by time."""
    records = await journal.facts(stream, _READ, ())
    changes = await _changes_of_children(journal, records)
    line = Timeline()
    for record in records:
        while changes and changes[0].at <= record.at:
            line.add(changes[0].fact, changes.pop(0).at)
        line.add(record.fact, record.at)
    for change in changes:
        line.add(change.fact, change.at)
    return line


async def _changes_of_children(journal: Journal, records: Iterable[Record]) -> list[Record]:
    found: list[Record] = []
    for begun in (r.fact for r in records if isinstance(r.fact, ChildBegun)):
        if (child := await journal.run(begun.child)) is not None:
            facts = await journal.facts(child.stream, (FileChanged, ChildBegun), ())
            found += [r for r in facts if isinstance(r.fact, FileChanged)]
            found += await _changes_of_children(journal, facts)
    return sorted(found, key=lambda r: r.at)
