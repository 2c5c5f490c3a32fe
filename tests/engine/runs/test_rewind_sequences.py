"""Random sequences of messages, commands, undo, redo, forks, kills and changes by another hand.

After each step the files and the messages of every session are where a simple model says: the
model only looks at the disk before and after each message. No content that another hand wrote is
lost: it is on the disk, or kept as a version, or that hand itself has replaced it.

HOLDFAST_UNDO_SEEDS=300 tries that many sequences, HOLDFAST_UNDO_SEED=47 only that one.
"""

import hashlib
import os
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.core.session.rewound import RewindScope
from holdfast.core.types import SessionId
from holdfast.errors import Refused
from holdfast.journal.blobs import Blobs
from tests.engine.rewinds import HERE, Bench, Killed, bench
from tests.engine.workshop import ME, submit

pytestmark = pytest.mark.anyio

DEFAULT = 40
CHUNK = 10
STEPS = 14
PATHS = ("a", "b", "c")
BOTH, FILES, TALK = RewindScope.BOTH, RewindScope.FILES, RewindScope.CONVERSATION

Contents = dict[str, str]
Step = tuple[str | None, str | None]  # before and after; None: no file


@dataclass
class Exchange:
    """A message, and what it did to files as far as that is in effect."""

    text: str
    counts: bool = True
    steps: dict[str, Step] = field(default_factory=dict)


@dataclass
class Taken:
    """What a rewind took away."""

    exchanges: list[Exchange]  # that counted
    steps: list[tuple[Exchange, str, Step]]
    files: dict[str, Step]  # before the rewind, and after it


@dataclass
class Talk:
    """The model of one session."""

    exchanges: list[Exchange] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)

    def said(self) -> list[str]:
        return [e.text for e in self.exchanges if e.counts]

    def points(self) -> list[Exchange]:
        return [e for e in self.exchanges if e.counts or e.steps]

    def chains(self, point: Exchange) -> dict[str, list[Step]]:
        """What was done to each file since the point."""
        found: dict[str, list[Step]] = {}
        for exchange in self.exchanges[self.exchanges.index(point) :]:
            for path, step in exchange.steps.items():
                found.setdefault(path, []).append(step)
        return found


class Refusal(Exception):
    """The model expects a refusal."""


def target(chain: list[Step], now: str | None, *, force: bool) -> str | None:
    """The content that a file gets, or a refusal."""
    wanted = chain[0][0]
    torn = any(a[1] != b[0] for a, b in zip(chain, chain[1:], strict=False))
    if now != wanted and (now != chain[-1][1] or torn) and not force:
        raise Refusal
    return wanted


class Story:
    """One sequence."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.directory = directory
        self.talks = {HERE: Talk()}
        self.number = 0
        self.log: list[str] = []
        self.foreign: set[str] = set()  # contents of another hand
        self.stack = AsyncExitStack()
        self.bench: Bench

    async def open(self) -> None:
        self.bench = await self.stack.enter_async_context(bench(self.directory))

    async def kill(self) -> None:
        """End the process without a word, and start it again."""
        await self.stack.aclose()
        await self.open()

    def content(self) -> str:
        self.number += 1
        return str(self.number)

    def some_session(self) -> SessionId:
        return self.random.choice(list(self.talks))

    async def play(self) -> None:
        await self.open()
        try:
            await self.message()
            for _ in range(STEPS):
                step = self.random.choices(
                    (self.message, self.undo, self.redo, self.edit, self.fork, self.restart),
                    (30, 30, 15, 12, 6, 7),
                )[0]
                await step()
                await self.check()
        finally:
            await self.stack.aclose()

    async def message(self) -> None:
        name = self.some_session()
        words = []
        for path in self.random.sample(PATHS, self.random.randint(0, 2)):
            how = self.random.choice(("=", ":=", ":=", "-"))
            words.append(f"-{path}" if how == "-" else f"{path}{how}{self.content()}")
        words = [w for w in words if w[0] != "-" or w[1:] in self.bench.files()]
        text = " ".join([*words, f"number {self.content()}"])
        self.log.append(f"{name}: {text}")
        before = self.bench.files()
        if self.random.random() < 0.15:
            run_id = await submit(self.bench.service, text, name)
            await self.kill()
            await self.bench.ended(run_id)
        else:
            await self.bench.say(text, name)
        after = self.bench.files()
        steps = {p: (before.get(p), after.get(p)) for p in {*before, *after}}
        recorded = await self.bench.changed(name)
        made = Exchange(text, steps={p: s for p, s in steps.items() if s[0] != s[1]})
        for path in set(made.steps) - recorded:  # the call was cut: nobody knows what did it
            del made.steps[path]
        self.talks[name].exchanges.append(made)
        self.talks[name].taken = []

    async def edit(self) -> None:
        """Change a file by another hand."""
        path, content = self.random.choice(PATHS), f"foreign {self.content()}"
        if not self.bench.workspace.exists():
            return
        self.log.append(f"edit {path}={content}")
        self.foreign.discard(self.bench.files().get(path, ""))
        self.foreign.add(content)
        self.bench.edit(**{path: content})

    async def fork(self) -> None:
        name, made = self.some_session(), SessionId(f"fork{self.content()}")
        self.log.append(f"fork {name} as {made}")
        await self.bench.service.library.fork(ME, name, "", made)
        counted = [e for e in self.talks[name].exchanges if e.counts]
        copies = [Exchange(e.text, steps=dict(e.steps)) for e in counted]
        for exchange in self.talks[name].exchanges:  # without a point of its own: of the one before
            if not exchange.counts and exchange.steps:
                return  # its changes are ordered by the journal only
        self.talks[made] = Talk(copies)

    async def restart(self) -> None:
        self.log.append("kill")
        await self.kill()

    async def undo(self) -> None:
        name = self.some_session()
        talk = self.talks[name]
        what = self.random.choices((BOTH, FILES, TALK), (6, 2, 2))[0]
        points = talk.points()
        number = self.random.randrange(len(points)) if points else 0
        force = self.random.random() < 0.3
        self.log.append(f"{name}: rewind {number + 1} {what} force={force}")
        before = self.bench.files()
        try:
            if not points:
                raise Refusal
            taken = self.rewound(talk, points[number], what, before, force=force)
        except Refusal:
            taken = None
        done = await self.carry_out(name, point=number, what=what, force=force)
        assert done is None or done == (taken is not None), f"refused: {not done}"
        if taken is None or done is None:
            if done is None:
                self.log.append("killed before it was planned")
            assert self.bench.files() == before
            return
        self.apply(before, {p: s[1] for p, s in taken.files.items()})
        for exchange in taken.exchanges:
            exchange.counts = False
        for exchange, path, _ in taken.steps:
            del exchange.steps[path]
        talk.taken.append(taken)

    def rewound(
        self, talk: Talk, point: Exchange, what: RewindScope, now: Contents, *, force: bool
    ) -> Taken:
        behind = talk.exchanges[talk.exchanges.index(point) :]
        chains = talk.chains(point) if what is not TALK else {}
        files = {
            path: (now.get(path), target(chain, now.get(path), force=force))
            for path, chain in chains.items()
        }
        counted = [e for e in behind if e.counts] if what is not FILES else []
        if not counted and not files:
            raise Refusal
        steps = [(e, p, s) for e in behind for p, s in e.steps.items() if p in files]
        return Taken(counted, steps, files)

    async def redo(self) -> None:
        name = self.some_session()
        talk = self.talks[name]
        force = self.random.random() < 0.3
        self.log.append(f"{name}: redo force={force}")
        before = self.bench.files()
        wanted: dict[str, str | None] | None = None
        if talk.taken:
            steps = talk.taken[-1].files.items()
            try:
                wanted = {
                    p: target([(was, now)], before.get(p), force=force) for p, (was, now) in steps
                }
            except Refusal:
                wanted = None
        done = await self.carry_out(name, redo=True, force=force)
        assert done is None or done == (wanted is not None), f"refused: {not done}"
        if wanted is None or done is None:
            assert self.bench.files() == before
            return
        self.apply(before, wanted)
        taken = talk.taken.pop()
        for exchange in taken.exchanges:
            exchange.counts = True
        for exchange, path, step in taken.steps:
            exchange.steps[path] = step

    def apply(self, before: Contents, wanted: dict[str, str | None]) -> None:
        expected = {**before, **wanted}
        assert self.bench.files() == {p: c for p, c in expected.items() if c is not None}

    async def carry_out(
        self, name: SessionId, point: int | None = None, **how: object
    ) -> bool | None:
        """Return whether it was done; None: the process was killed before it was planned."""
        dies_at = self.random.randint(1, 7) if self.random.random() < 0.3 else 0
        self.bench.restorer.doom(dies_at)
        try:
            found = await self.bench.service.library.points(ME, name)
            if point is not None and found:
                how["point"] = found[point].run_id
            await self.bench.go(name, **how)
        except Refused:
            return False
        except Killed:
            self.log.append(f"killed at {dies_at}")
            await self.kill()
            return None if dies_at <= 2 else True
        finally:
            self.bench.restorer.doom(0)
        return True

    async def check(self) -> None:
        for name, talk in self.talks.items():
            said = await self.bench.said(name)
            assert said == talk.said(), name
            points = await self.bench.service.library.points(ME, name)
            assert [p.text for p in points] == [e.text for e in talk.points()], name
            assert [{f.path for f in p.files} for p in points] == [
                set(e.steps) for e in talk.points()
            ], name
        kept = set(self.bench.files().values())
        versions = Blobs(self.directory)
        for content in self.foreign - kept:
            assert versions.get(hashlib.sha256(content.encode()).hexdigest()), content


def chunks() -> list[range]:
    """The seeds, in tests of some."""
    if one := os.environ.get("HOLDFAST_UNDO_SEED"):
        return [range(int(one), int(one) + 1)]
    count = int(os.environ.get("HOLDFAST_UNDO_SEEDS", DEFAULT))
    return [range(n, min(n + CHUNK, count)) for n in range(0, count, CHUNK)]


@pytest.mark.promise("UNDO-04")
@pytest.mark.parametrize("seeds", chunks(), ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}")
async def test_files_and_messages_are_always_at_the_chosen_point(
    tmp_path: Path, seeds: range
) -> None:
    for seed in seeds:
        story = Story(tmp_path / str(seed), seed)
        story.directory.mkdir()
        try:
            await story.play()
        except Exception as error:
            lines = "\n".join(story.log)
            raise AssertionError(f"HOLDFAST_UNDO_SEED={seed}\n{lines}\n{error}") from error
