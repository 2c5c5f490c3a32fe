"""A workspace with snapshots, and what one command after the other does in it."""

import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.core.run.files import FileChange
from holdfast.core.run.run import Origin
from holdfast.core.types import OPERATOR, CallId, RunId, SessionId, SessionKey
from holdfast.journal.versions import DAY_S, Versions
from holdfast.tools.snapshot.scan import SnapshotLimits
from holdfast.tools.snapshot.snapshots import Snapshots
from holdfast.tools.snapshot.workspace import CommandChanges
from holdfast.tools.tool import Context


async def nobody(host: str) -> bool:
    return False


class Place:
    """A workspace, its home and its snapshots."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.home, self.work = root / "home", root / "work"
        self.home.mkdir(exist_ok=True)
        self.work.mkdir(exist_ok=True)
        self.versions = Versions(self.home, 30 * DAY_S, time.time)
        self.snapshots = Snapshots(self.home, **settings)

    def context(self, call: str = "one", workspace: Path | None = None) -> Context:
        return Context(
            session=SessionKey(OPERATOR, SessionId("s")),
            run_id=RunId("run"),
            turn=1,
            call_id=CallId(call),
            workspace=workspace or self.work,
            blobs=self.versions,
            cwd=str(workspace or self.work),
            origin=Origin(platform="cli"),
            processes={},
            hosts=(),
            execution="",
            trees=(),
            progress=lambda text: None,
            may_reach=nobody,
        )

    async def during(self, act: Callable[[], object], call: str = "one") -> CommandChanges:
        """What a command changed that did this."""
        context = self.context(call)
        gap = await self.snapshots.begin(context)
        if gap:
            return CommandChanges(gap=gap)
        act()
        found = await self.snapshots.finish(context)
        self.snapshots.settled(context)
        return found

    def put(self, path: str, text: str | bytes = "old\n") -> Path:
        """Write a file in the workspace, in the past: no clock tick is shared with what follows."""
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode() if isinstance(text, str) else text)
        return file

    def content(self, change: FileChange) -> tuple[bytes | None, bytes | None]:
        """Both versions, from the version store."""
        before = self.versions.get(change.before) if change.before else None
        return before, self.versions.get(change.after) if change.after else None


@asynccontextmanager
async def place(root: Path, **settings: Any) -> AsyncIterator[Place]:
    it = Place(root, **settings)
    try:
        yield it
    finally:
        await it.snapshots.aclose()


def small(**limits: Any) -> dict[str, SnapshotLimits]:
    return {"limits": SnapshotLimits(**limits)}


def state(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and link below a directory: its mode and its content."""
    return dict(_state(root))


def _state(root: Path) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for folder, folders, files in os.walk(root):
        for name in (*files, *(f for f in folders if os.path.islink(os.path.join(folder, f)))):
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            data = os.fsencode(os.readlink(path)) if os.path.islink(path) else b""
            if not os.path.islink(path):
                with open(path, "rb") as file:
                    data = file.read()
            yield os.path.relpath(path, root), (mode, data)
