"""One schedule of the race: who types what when, and what must be true afterwards.

A seed decides the messages and their modes, what is attached, where Esc or ↑ is pressed, and at
which moment of the run that is. Moments are tied to what happens, never to the clock; the race
is in what a loop does in the few turns between two of them. After each schedule everything that
was typed was read once and in order, whatever came back into the input line included, since that
is sent again at the end.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

from anyio.lowlevel import checkpoint

from holdfast.api.schema.events import TERMINAL, Event
from holdfast.cli.client.client import Client
from holdfast.cli.tui.actions import Halt, SendMessage
from holdfast.cli.tui.view import INTERRUPTED_BY_NEXT
from holdfast.core.inbox import Mode
from holdfast.core.types import Value
from tests.cli.tui.desk import END, ENTER, SWITCH, UP, Desk, paste
from tests.cli.tui.stage import Stage
from tests.fakes.model_server import Seen

PNG = b"\x89PNG\r\n\x1a\n"
YIELDS = (0, 0, 1, 2, 3, 5, 8, 13, 21, 34)
PATIENCE_S = 30.0  # far more than any schedule takes: then something waits that will not come


class Moment(Enum):
    NOW = "at once"
    ASKED = "before the first token"
    TOKEN = "in the middle"
    TOOL = "while the tool works"
    ENDING = "right at the end"
    ENDED = "right after"


class Words(Value):
    """A message: its own mark, and what is attached to it."""

    mark: str
    mode: Mode
    pasted: str = ""
    picture: bytes = b""


class Escape(Value):
    """The key that stops; `calm`: whoever presses it has seen for long what is on the screen."""

    calm: bool


class Up(Value):
    """The key that takes back what waits."""


class Move(Value):
    """Something is done, so many turns of the loop after a moment."""

    moment: Moment
    yields: int
    what: Words | Escape | Up


def plan(seed: int) -> list[Move]:
    """What is done under that seed."""
    chance = Random(seed)
    moves = [Move(Moment.NOW, 0, _words(chance, 0))]
    for number in range(1, chance.randint(2, 6)):
        moves.append(_move(chance, _words(chance, number)))
        if chance.random() < 0.25:
            moves.append(
                _move(chance, Up() if chance.random() < 0.25 else Escape(chance.random() < 0.7))
            )
    return moves


def _move(chance: Random, what: Words | Escape | Up) -> Move:
    moments = list(Moment)
    if isinstance(what, Escape):
        moments += [Moment.ENDING] * 3  # where it may come too late
    return Move(chance.choice(moments), chance.choice(YIELDS), what)


def _words(chance: Random, number: int) -> Words:
    mode = chance.choices(list(Mode), [1, 1, 3])[0]  # queue, steer, interrupt
    mark, what = f"word{number}.", chance.random()
    pasted = "\n".join(f"line {n} of {mark[:-1]}" for n in range(40)) if what < 0.3 else ""
    picture = PNG + chance.randbytes(200) if 0.2 < what < 0.5 else b""
    return Words(mark, mode, pasted, picture)


class Play:
    """A schedule at a desk, in front of a stage."""

    def __init__(self, moves: Sequence[Move], desk: Desk, stage: Stage, where: Path) -> None:
        self.said = [move.what for move in moves if isinstance(move.what, Words)]
        self.escapes: list[tuple[str, int]] = []  # what was at work, and words typed before
        self._moves = moves
        self._desk = desk
        self._stage = stage
        self._where = where
        self._typed = 0
        self._mode = desk.ui.mode  # once all keys so far have been heard
        self._past = 0  # turns that make way for what was typed

    async def run(self) -> None:
        for move in self._moves:
            await self._reach(move.moment)
            for _ in range(move.yields):
                await checkpoint()
            match move.what:
                case Words() as words:
                    self._type(words)
                case Escape(calm=calm):
                    await self._escape(calm)
                case Up():
                    self._desk.press(UP)
        self._stage.release()
        await self._desk.news.until(lambda: self._desk.idle)

    async def finish(self, requests: Sequence[Seen]) -> None:
        """Send what came back, until everything has been read."""
        for number in range(9):
            if any(isinstance(move.what, Escape | Up) for move in self._moves):
                self._type(Words(f"last{number}.", Mode.QUEUE))
            await self._desk.news.until(lambda: self._desk.idle)
            await self._desk.news.until(lambda: not self.missing(requests))
            if not self._desk.ui.buffer.text:
                return
        raise AssertionError("words keep coming back")

    def missing(self, requests: Sequence[Seen]) -> list[str]:
        """What is neither read nor back in the input line."""
        read = text(requests[-1]) + self._desk.ui.buffer.text
        return [words.mark for words in self.said if words.mark not in read]

    def _type(self, words: Words) -> None:
        """All at once, as fingers on keys that repeat would."""
        modes = list(Mode)
        keys = SWITCH * ((modes.index(words.mode) - modes.index(self._mode)) % len(modes))
        keys, self._mode = keys + END, words.mode
        if words.picture:
            path = self._where / f"picture{self._typed}.png"
            path.write_bytes(words.picture)
            keys += paste(str(path)) + " "
        keys += words.mark
        if words.pasted:
            keys += " " + paste(words.pasted)
        self._desk.press(keys + ENTER)
        self._typed += 1
        if words.mode is Mode.INTERRUPT:
            self._past = len(self._stage.turns)

    async def _escape(self, calm: bool) -> None:
        view, before = self._desk.ui.view, len(self._desk.acts)
        if calm:
            view.ended_at = 0.0
        typed = self._typed
        named = await self._desk.escape()
        self.escapes.append((named, typed))
        if any(isinstance(act, Halt) and act.run_id == named for act in self._desk.acts[before:]):
            await self._desk.news.until(lambda: view.run_id != named or self._desk.idle)

    async def _reach(self, moment: Moment) -> None:
        if moment is Moment.NOW:
            return
        stage, desk = self._stage, self._desk
        await desk.news.until(lambda: len(stage.turns) > self._past or desk.idle)
        if not stage.turns:
            return
        turn, run_id = stage.turns[-1], desk.ui.view.run_id

        def moved_on() -> bool:
            return stage.turns[-1] is not turn or desk.ui.view.run_id != run_id or desk.idle

        if moment is Moment.ASKED:
            return
        turn.first.set()
        if turn.calls and moment in (Moment.TOKEN, Moment.TOOL):
            return await desk.news.until(lambda: turn.tool_started or moved_on())
        if moment in (Moment.TOKEN, Moment.TOOL):
            return await desk.news.until(lambda: desk.shows(turn.token) or moved_on())
        turn.open()
        if moment is Moment.ENDED:
            await desk.news.until(moved_on)


def text(request: Seen) -> str:
    """All that people have said in a request."""
    return "\n".join(part["text"] for part in _parts(request) if part["type"] == "text")


def pictures(request: Seen) -> list[str]:
    """The pictures in a request, in their order."""
    return [part["image_url"]["url"] for part in _parts(request) if part["type"] == "image_url"]


def _parts(request: Seen) -> Iterator[dict[str, Any]]:
    for message in request.body["messages"]:
        if message["role"] == "user":
            said = message["content"]
            yield from [{"type": "text", "text": said}] if isinstance(said, str) else said


async def told(owner: Client, session_id: str) -> list[Event]:
    """All events of a session whose runs have ended."""
    unfinished = {run.run_id for run in await owner.runs(session_id, limit=100)}
    events: list[Event] = []
    async for frame in owner.listen(session_id, 0):
        events.append(frame.event)
        if frame.event.event in TERMINAL:
            unfinished.discard(frame.event.run_id)
            if not unfinished:
                break
    return events


def judge(play: Play, desk: Desk, requests: Sequence[Seen], events: Sequence[Event]) -> list[str]:
    """What is wrong after a schedule."""
    return [
        *_unread(play, desk, requests),
        *_out_of_order(play, desk, requests[-1]),
        *_stopped_by_mistake(play, events),
        *_not_shown(desk, events),
    ]


def _unread(play: Play, desk: Desk, requests: Sequence[Seen]) -> Iterator[str]:
    last = requests[-1]
    read, seen = text(last), pictures(last)
    for words in play.said:
        if (times := read.count(words.mark)) != 1:
            yield f"{words.mark} was read {times} times"
        if words.pasted and read.count(words.pasted) != 1:
            yield f"what was pasted with {words.mark} was read {read.count(words.pasted)} times"
        url = f"data:image/png;base64,{b64encode(words.picture).decode()}"
        if words.picture and seen.count(url) != 1:
            yield f"the picture with {words.mark} was seen {seen.count(url)} times"
    if len(seen) != sum(bool(words.picture) for words in play.said):
        yield f"{len(seen)} pictures were seen"
    if desk.ui.buffer.text or desk.ui.view.waiting or desk.ui.sending:
        yield "something is left"


def _out_of_order(play: Play, desk: Desk, last: Seen) -> Iterator[str]:
    """Only what is passed on to a run at work may overtake, and only what waits."""
    typed = [act.text for act in desk.acts if isinstance(act, SendMessage)]
    came_back = {w.mark for w in play.said if sum(w.mark in line for line in typed) > 1}
    read = text(last)
    in_order = [w for w in play.said if w.mark not in came_back]
    for at, later in enumerate(in_order):
        before, after = {w.mode for w in in_order[:at]}, {w.mode for w in in_order[at + 1 :]}
        for earlier in in_order[:at]:
            overtakes = later.mode is Mode.STEER and Mode.QUEUE in before
            # What a run that makes way has not read comes with the words that end it.
            comes_along = earlier.mode is Mode.STEER and Mode.INTERRUPT in after
            fair = overtakes or (comes_along and later.mode is Mode.QUEUE)
            if read.find(later.mark) < read.find(earlier.mark) and not fair:
                yield f"{later.mark} was read before {earlier.mark}"
    urls = [f"data:image/png;base64,{b64encode(w.picture).decode()}" for w in in_order if w.picture]
    steered = any(w.mode is Mode.STEER for w in in_order)
    if not steered and [url for url in pictures(last) if url in urls] != urls:
        yield "the pictures were seen out of order"


def _stopped_by_mistake(play: Play, events: Sequence[Event]) -> Iterator[str]:
    """Esc stops what was on the screen, or takes back what was typed before it."""
    begun = {e.run_id for e in events if e.event == "run.started"}
    first = {e.run_id: e.input for e in reversed(events) if e.event == "run.queued"}
    named = {at_work for at_work, _ in play.escapes}
    for event in events:
        if event.event == "run.failed":
            yield f"{event.run_id} failed: {event.why}"
        if event.event != "run.cancelled" or event.reason == "superseded":
            continue
        if event.run_id in named or event.run_id not in begun:
            continue
        mark = re.search(r"word(\d+)\.", first[event.run_id])
        number = int(mark[1]) if mark else len(play.said)
        if not any(not at_work and number < typed for at_work, typed in play.escapes):
            yield f"{event.run_id} was stopped by nobody: {first[event.run_id][:80]!r}"
    superseded = sum(e.event == "run.cancelled" and e.reason == "superseded" for e in events)
    if superseded > sum(w.mode is Mode.INTERRUPT for w in play.said):
        yield f"{superseded} runs made way"


def _not_shown(desk: Desk, events: Sequence[Event]) -> Iterator[str]:
    """Of much that was said at once only the beginning is shown."""
    begun = {e.run_id for e in events if e.event == "run.started"}
    unfolded = desk.paper.printed.replace("\r\n  ", "")
    for event in events:
        first = re.search(r"word\d+\.", event.input) if event.run_id in begun else None
        if first is not None and first[0] not in unfolded:
            yield f"{first[0]} is not on the screen"
    ended = [e for e in events if e.event == "run.cancelled" and e.run_id in begun]
    for how, wanted in (
        (INTERRUPTED_BY_NEXT, sum(e.reason == "superseded" for e in ended)),
        ("■ interrupted", len(ended)),
    ):
        if (times := desk.paper.printed.count(how)) != wanted:
            yield f"{how!r} stands there {times} times for {wanted}"
    done = [e for e in events if e.event == "run.completed"]
    if done and done[-1].output not in desk.paper.printed:
        yield f"the last answer is not on the screen: {done[-1].output!r}"
