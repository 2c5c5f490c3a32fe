"""What a run or a session did to the files of its workspace: from its facts, and the versions.

The changes of child runs count as changes of the run that delegated them. Versions are stored as
they are, so known secrets are removed from both before they are compared.
"""

from collections.abc import Iterator, Sequence

from anyio import to_thread
from msgspec.structs import replace

from holdfast.core.events import Record
from holdfast.core.redaction import Redactor
from holdfast.core.run.child import ChildBegun
from holdfast.core.run.files import FileChange, FileChanged, combine
from holdfast.core.text.diff import MAX_TEXT, Diff, LineCounts, Version, unified
from holdfast.core.types import CallId, RunId, Value
from holdfast.engine.timeline import read_timeline
from holdfast.gateway import DiffQuery, FileDiff
from holdfast.journal.journal import Journal
from holdfast.tools.tool import VersionStore

MAX_FILES = 1_000  # whose diffs are made at once
MAX_ALL = 4 * 1024 * 1024  # characters of all diffs together


class Changes(Value):
    """Reads changes and makes diffs of them."""

    _journal: Journal
    _versions: VersionStore
    _redactor: Redactor

    async def diff(self, stream: int, query: DiffQuery) -> Sequence[FileDiff]:
        """Return the net changes in a stream: of all, or of one run, one call, one path.

        Of all, those that were undone are left out.
        """
        path = query.path
        facts = await self._facts(stream, query.run_id, query.call_id)
        below = [f for f in facts if not path or f.path == path or f.path.startswith(f"{path}/")]
        if query.each:
            return [FileDiff(fact) for fact in below]
        return await to_thread.run_sync(lambda: list(self._diffs(combine(below))))

    async def _facts(
        self, stream: int, run_id: RunId | None, call_id: CallId | None
    ) -> Sequence[FileChanged]:
        """Return all changes of a run or a call; of a session those that were not undone."""
        if run_id is None and call_id is None:
            return (await read_timeline(self._journal, stream)).changes()
        records = await self._records(stream, run_id, call_id)
        return [r.fact for r in sorted(records, key=_when) if isinstance(r.fact, FileChanged)]

    async def _records(
        self, stream: int, run_id: RunId | None, call_id: CallId | None
    ) -> list[Record]:
        found: list[Record] = []
        for record in await self._journal.facts(stream, (FileChanged, ChildBegun), ()):
            fact = record.fact
            if not isinstance(fact, FileChanged | ChildBegun):
                continue
            if run_id not in (None, fact.run_id) or call_id not in (None, fact.call_id):
                continue
            if isinstance(fact, FileChanged):
                found.append(record)
            elif (child := await self._journal.run(fact.child)) is not None:
                found += await self._records(child.stream, child.run_id, None)
        return found

    def _diffs(self, changes: Sequence[FileChange]) -> Iterator[FileDiff]:
        room = MAX_ALL
        for number, change in enumerate(changes):
            if number >= MAX_FILES or room <= 0:
                yield FileDiff(change, cut=True)
                continue
            try:
                found = self._diff(change, min(room, MAX_TEXT))
            except (KeyError, OSError):
                yield FileDiff(change, pruned=True)
                continue
            room -= len(found.text)
            yield FileDiff(_counted(change, found.counts), found.text, found.cut)

    def _diff(self, change: FileChange, room: int) -> Diff:
        before = Version(self._content(change.before), change.mode_before)
        after = Version(self._content(change.after), change.mode_after)
        return unified(change.path, before, after, room)

    def _content(self, name: str) -> bytes | None:
        if not name:
            return None
        content = self._versions.get(name)
        text = content.decode(errors="surrogateescape")
        clean = self._redactor.clean(text)
        return content if clean is text else clean.encode(errors="surrogateescape")


def _when(record: Record) -> float:
    return record.at


def _counted(change: FileChange, counts: LineCounts) -> FileChange:
    """Return `change` with the counts of its diff; those of a single change are in its fact."""
    if change.added or change.removed:
        return change
    return replace(change, added=counts.added, removed=counts.removed, binary=counts.binary)
