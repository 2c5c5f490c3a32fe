"""Restore files of a workspace to versions that were kept, for undo.

A file is opened through `FileGate`, compared by the hash of its content, and replaced or deleted
only if it is as the step expects it, in the same slot that was compared. So a change by another
hand is not overwritten, and a step that was carried out before does nothing. Directories stay.
"""

import errno
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from msgspec.structs import replace

from holdfast.core.session.rewind import SeenFile, carried_out, judged
from holdfast.core.session.rewound import FileResult, FileStep
from holdfast.core.types import Value
from holdfast.errors import ToolFailed
from holdfast.tools.fs.workspace import TEMPORARY, FileGate, Slot, identity
from holdfast.tools.tool import VersionStore


class LinkSlot(Slot):
    """A slot that may have a symbolic link, whose content is its target. It is not followed.

    Its temporary file has the same name each time: what a crash has left is removed.
    """

    def __init__(self, directory: int, name: str, real: str, why: str, *, mode: int) -> None:
        try:
            super().__init__(directory, name, real, why, mode=mode)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            state = os.stat(name, dir_fd=directory, follow_symlinks=False)
            self._seen = identity(state)
            self.former_mode = state.st_mode
            self.former = os.fsencode(os.readlink(name, dir_fd=directory))
        self._temporary = f"{TEMPORARY}{sha256(os.fsencode(real)).hexdigest()[:16]}.tmp"
        with suppress(FileNotFoundError):
            os.unlink(self._temporary, dir_fd=directory)


class FileRestorer(Value):
    """Restores files from a store of versions. Blocks; use it in a worker thread."""

    _versions: VersionStore
    _umask: int = 0o022  # for new directories

    def look(self, workspace: Path, paths: Sequence[str]) -> Mapping[str, SeenFile]:
        """Return these files as they are. Their content is stored as a version before."""
        with FileGate(workspace, umask=self._umask, slots=LinkSlot) as gate:
            return {path: self._look(gate, path) for path in paths}

    def _look(self, gate: FileGate, path: str) -> SeenFile:
        try:
            with gate.found(path) as slot:
                if slot is None or slot.former is None:
                    return SeenFile()
                return SeenFile(self._versions.put(slot.former), slot.former_mode)
        except (ToolFailed, OSError) as failed:
            return SeenFile(trouble=str(failed))

    def kept(self, blobs: Collection[str]) -> frozenset[str]:
        """Return those of these versions that can be restored."""
        return frozenset(blob for blob in blobs if self._get(blob) is not None)

    def restore(self, workspace: Path, steps: Sequence[FileStep]) -> tuple[FileStep, ...]:
        """Carry out these steps, and return each with its result."""
        with FileGate(workspace, umask=self._umask, slots=LinkSlot) as gate:
            return tuple(self._restore(gate, step) for step in steps)

    def _restore(self, gate: FileGate, step: FileStep) -> FileStep:
        if step.result is not FileResult.PLANNED:
            return step
        data = self._get(step.new_blob) if step.new_blob else b""
        if data is None:
            return replace(step, result=FileResult.GONE)
        open_slot = gate.place if step.new_blob else gate.found
        try:
            with open_slot(step.path) as slot:
                now = judged(step, _seen(slot))
                if now.result is FileResult.PLANNED and slot is not None:
                    if step.new_blob:
                        slot.replace(data, step.new_mode)
                    else:
                        slot.delete()
                    now = carried_out(step)
            return now
        except (ToolFailed, OSError) as failed:
            return replace(step, result=FileResult.FAILED, reason=str(failed))

    def _get(self, blob: str) -> bytes | None:
        try:
            return self._versions.get(blob)
        except KeyError:
            return None


def _seen(slot: Slot | None) -> SeenFile:
    if slot is None or slot.former is None:
        return SeenFile()
    return SeenFile(sha256(slot.former).hexdigest(), slot.former_mode)
