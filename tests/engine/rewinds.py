"""A session whose model writes files, to be rewound; and a restorer that dies where it is told.

A message is a list of words for the model: `a=1` writes 1 to the file a with the file tool, `-a`
deletes it and `a:=1` writes it with a tool that changes several files at once, as a command does.
"""

import json
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from anyio import to_thread

from holdfast.core.messages import User
from holdfast.core.run.call import OnCrash
from holdfast.core.run.files import ChangeKind, FileChange
from holdfast.core.session.rewind import Rewind, RewindDone, SeenFile
from holdfast.core.session.rewound import FileResult, FileStep
from holdfast.core.text.diff import Version
from holdfast.core.types import Fact, RunId, SessionId, SessionKey, Value
from holdfast.core.workspace import own
from holdfast.engine.service import Service
from holdfast.journal.blobs import Blobs
from holdfast.models.model import Answer, Piece, Request
from holdfast.tools import files
from holdfast.tools.fs.change import stored
from holdfast.tools.fs.restore import FileRestorer
from holdfast.tools.tool import Context, Done, Effect, Tool, free
from tests.engine.workshop import ME, Played, call, follow, serving, submit

HERE = SessionId("here")


class Killed(BaseException):
    """The process ends here."""


class Words(msgspec.Struct):
    """The files to write, and those to delete."""

    write: dict[str, str]
    delete: tuple[str, ...]


async def _command(context: Context, asked: Words) -> Done:
    def work() -> Done:
        wanted: dict[str, str | None] = {**asked.write, **dict.fromkeys(asked.delete)}
        return Done("ran", tuple(filter(None, (_change(context, *one) for one in wanted.items()))))

    return await to_thread.run_sync(work)


def _change(context: Context, name: str, content: str | None) -> FileChange | None:
    path = context.workspace / name
    before, after = _version(path), None if content is None else content.encode()
    if before.content == after:
        return None
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)
    kind = ChangeKind.DELETED if after is None else ChangeKind.REPLACED
    kind = ChangeKind.CREATED if before.content is None else kind
    return stored(context.blobs, name, kind, before, _version(path))


def _version(path: Path) -> Version:
    if not path.exists():
        return Version(None, 0)
    return Version(path.read_bytes(), path.stat().st_mode)


COMMAND = Tool(
    "command", "Run.", Words, Effect.ACT, OnCrash.UNKNOWN, 60, _command, lambda _: "", free
)
TOOLS = (*files.tools(), COMMAND)


def play(request: Request) -> Iterator[Piece]:
    """Do what the last message says, then say that it is done."""
    last = request.messages[-1]
    words = last.text.split() if isinstance(last, User) else []
    command = Words(
        dict(w.split(":=") for w in words if ":=" in w), tuple(w[1:] for w in words if w[0] == "-")
    )
    calls = [
        call("write_file", json.dumps({"path": path, "content": content}), f"c{at}")
        for at, (path, content) in enumerate(
            w.split("=") for w in words if "=" in w and ":" not in w
        )
    ]
    if command.write or command.delete:
        calls.append(call("command", msgspec.json.encode(command).decode(), "c-command"))
    yield Answer("" if calls else "done", calls=tuple(calls))


def _nothing() -> None:
    """Do nothing."""


class Mortal:
    """Restores files, and dies at the point with that number; 0: at none.

    1: before a look. 2: after it. 3: before the first file. Then: after each file.
    """

    def __init__(self, directory: Path) -> None:
        self._real = FileRestorer(Blobs(directory))
        self.dies_at = 0
        self.before_restore: Callable[[], None] = _nothing
        self._points = 0

    def doom(self, at: int) -> None:
        """Die at that point from now."""
        self.dies_at, self._points = at, 0

    def _pass(self) -> None:
        self._points += 1
        if self._points == self.dies_at:
            raise Killed

    def look(self, workspace: Path, paths: Sequence[str]) -> Mapping[str, SeenFile]:
        self._pass()
        seen = self._real.look(workspace, paths)
        self._pass()
        return seen

    def kept(self, blobs: Collection[str]) -> frozenset[str]:
        return self._real.kept(blobs)

    def restore(self, workspace: Path, steps: Sequence[FileStep]) -> tuple[FileStep, ...]:
        self.before_restore()
        done: list[FileStep] = []
        for step in steps:
            self._pass()
            done += self._real.restore(workspace, (step,))
        self._pass()
        return tuple(done)


class Bench(Value):
    """A service, and what is seen of its session from outside."""

    service: Service
    workspace: Path
    restorer: Mortal

    async def say(self, text: str, session: SessionId = HERE) -> RunId:
        """Have a message worked on to its end."""
        run_id = await submit(self.service, text, session)
        await follow(self.service, run_id)
        return run_id

    async def ended(self, run_id: RunId) -> None:
        """Wait for the end of a run."""
        await follow(self.service, run_id)

    async def changed(self, session: SessionId) -> set[str]:
        """The files that the last message is known to have changed."""
        points = await self.service.library.points(ME, session)
        return {file.path for file in points[-1].files}

    async def go(self, session: SessionId = HERE, **how: Any) -> RewindDone:
        """Rewind, or redo."""
        return await self.service.library.rewind(session, Rewind(ME, **how))

    async def said(self, session: SessionId = HERE) -> list[str]:
        """The messages of the user that count."""
        found = await self.service.messages(ME, session)
        return [m.text for m in found if isinstance(m, User)]

    async def facts(self, *kinds: type[Fact]) -> list[Fact]:
        """The facts of the session that are of these kinds."""
        async with self.service.follow_session(ME, HERE, 0) as batches:
            async for batch in batches:
                return [r.fact for r in batch if isinstance(r.fact, kinds)]
        return []

    def files(self) -> dict[str, str]:
        """Every file of the workspace."""
        if not self.workspace.exists():
            return {}
        return {p.name: p.read_text() for p in sorted(self.workspace.iterdir())}

    def edit(self, **contents: str) -> None:
        """Change files by another hand."""
        for name, content in contents.items():
            (self.workspace / name).write_text(content)


def results(done: RewindDone) -> dict[str, FileResult]:
    """What became of each file."""
    return {step.path: step.result for step in done.fact.files}


@asynccontextmanager
async def bench(directory: Path) -> AsyncIterator[Bench]:
    """A service over `directory`; cut off at the end, as by a crash."""
    restorer = Mortal(directory)
    async with serving(directory, Played(play), tools=TOOLS, files=restorer) as service:
        workspace = Path(own(str(directory), SessionKey(ME.owner, HERE)))
        yield Bench(service, workspace, restorer)
