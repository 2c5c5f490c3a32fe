"""Random kills while users write on two platforms, with network faults.

Forty people say one thing after another: words, wishes with an effect that is counted outside,
commands. Most wait for their turn, some interrupt themselves. Answers of the platforms are lost
before and after the effect, late or refused, and now and then what was taken comes again.
Meanwhile the gateway is killed at random moments, also while it starts, and started again over
the same home. Afterwards: what was said was taken once and read once, everything was answered,
in order; a second copy says so, and there is none where the platform can tell; each effect
happened at most once; nothing waits to be sent. `HOLDFAST_TORTURE_KILLS` says how often,
`HOLDFAST_TORTURE_SEED` repeats a course.
"""

import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import groupby
from pathlib import Path
from secrets import randbits
from typing import Any

import anyio
import pytest

from holdfast.engine.chats.book import NEW_SESSION
from tests.crash.chatter import EFFECTS, QUEUE, Chat, Heard, Said, World, world
from tests.crash.evidence import UNKNOWN, count, facts, lines, noted, unfinished
from tests.fakes.gateway import TERMINAL

pytestmark = pytest.mark.anyio

Fact = dict[str, Any]

KILLS = count("HOLDFAST_TORTURE_KILLS", 20, 200)
SETTLE_S = 90.0


async def _kill(everybody: World) -> None:
    """KILLS times, at moments nobody chose: that is what the sleeps are for."""
    chance = everybody.chance
    for number in range(KILLS):
        with noted(f"kill {number}"):
            young = number and chance.random() < 0.25
            if young:
                await anyio.sleep(chance.uniform(0, 0.5))  # sleep: the moment is what is random
            else:
                await everybody.ends.up()
                await anyio.sleep(chance.uniform(0, 0.3))  # sleep: the same
            await everybody.ends.kill()
            if chance.random() < 0.2:
                everybody.say_again()
            await everybody.it.start(wait=False)
    await everybody.ends.up()


def _on_its_way(home: Path) -> list[tuple[str, str, str]]:
    """Messages that are neither sent nor given up."""
    with closing(sqlite3.connect(f"file:{home}/journal.db?mode=ro", uri=True)) as journal:
        rows = journal.execute(
            "SELECT delivery_id, status, reason FROM outbox WHERE status NOT IN ('sent', 'dead')"
        )
        return list(rows.fetchall())


def _left(everybody: World) -> list[object]:
    """What was said and not taken, begun and not ended, made and not sent."""
    untaken = [*everybody.telegram.pending, *[None] * everybody.platform.pending]
    return [*untaken, *unfinished(everybody.it.home), *_on_its_way(everybody.it.home)]


async def _settle(everybody: World) -> None:
    """Return when everything that was said is dealt with."""
    try:
        with anyio.fail_after(SETTLE_S):
            while _left(everybody):  # noqa: ASYNC110  the journal, seen from outside, calls nobody
                await anyio.sleep(0.2)  # sleep: the same
    except TimeoutError:
        raise AssertionError(f"not settled: {_left(everybody)}") from None


def _check_taken(found: list[Fact], everybody: World) -> None:
    """Whatever was said was taken, once."""
    taken = [f["came"] for f in found if f.get("came")]
    once = Counter((c["channel"], c["external_id"]) for c in taken)
    assert set(once.values()) == {1}, [c for c, times in once.items() if times > 1]
    edits = [name for _, name in once if name.startswith("edit:")]
    assert len(edits) == everybody.touched
    assert len(once) - len(edits) == sum(1 for _ in everybody.said()), "lost"
    admitted = Counter(f["came"]["channel"] for f in found if f["kind"] == "input.admitted")
    words = Counter(c.place.split()[0] for c, said in everybody.said() if not said.is_command)
    assert admitted == words


def _check_runs(found: list[Fact]) -> None:
    """What was begun has ended, once; given up is only what was cut again and again."""
    queued = [f["run_id"] for f in found if f["kind"] == "run.queued"]
    inputs = [f["input_id"] for f in found if f["kind"] == "run.queued"]
    assert len(set(queued)) == len(set(inputs)) == len(queued), "two runs for one message"
    endings = Counter(f["run_id"] for f in found if f["kind"] in TERMINAL)
    assert endings == Counter(queued), "ended twice, or never"
    started = Counter(f["run_id"] for f in found if f["kind"] == "run.started")
    assert set(started.values()) <= {1}
    cuts = Counter(f["run_id"] for f in found if f["kind"] == "run.interrupted")
    for fact in found:
        if fact["kind"] == "run.failed":
            assert fact["code"] == "stuck" and cuts[fact["run_id"]] >= 3, fact
        elif fact["kind"] == "run.cancelled":
            assert fact["reason"] == "superseded", fact


def _check_read(found: list[Fact], everybody: World) -> None:
    """What was said was read by the model, and never twice; unless its run was given up."""
    assert not everybody.read_twice, everybody.read_twice[0]
    stuck = {f["run_id"] for f in found if f["kind"] == "run.failed"}
    texts = [f["text"] for f in found if f["kind"] == "input.admitted" and f["run_id"] in stuck]
    for chat, said in everybody.said():
        if not said.is_command and not said.read.is_set():
            assert any(said.word in text for text in texts), (chat.place, said)


def _check_order(chat: Chat) -> None:
    """Each message once, or again with the mark and before all others; in the order of words."""
    groups = [list(group) for _, group in groupby(chat.heard, lambda h: (h.answers, h.text))]
    names = [(group[0].answers, group[0].text) for group in groups]
    assert len(set(names)) == len(names), f"out of order: {_twice(names)} of {chat.heard}"
    for group in groups:
        assert all(copy.marked for copy in group[1:]), f"a second copy is not marked: {group}"
    answers = [(chat.said[a], text) for a, text in names if a and not text.startswith(NEW_SESSION)]
    for kind in (True, False):  # commands do not wait for runs
        numbers = [said.number for said, _ in answers if said.is_command is kind]
        assert numbers == sorted(set(numbers)), f"twice or out of order: {numbers}"


def _twice(names: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [name for name, times in Counter(names).items() if times > 1]


def _check_answers(chat: Chat) -> None:
    """Everything is answered that has an answer of its own."""
    answered = {
        h.answers: h for h in chat.heard if h.answers and not h.text.startswith(NEW_SESSION)
    }
    for name, said in chat.said.items():
        if chat.mode == QUEUE or said.is_command:
            assert name in answered, f"no answer to {said.text}"
            assert _fits(said, answered[name]), (said, answered[name])


def _fits(said: Said, heard: Heard) -> bool:
    if said.is_command:
        return not heard.text.startswith("That did not work")
    return said.word in heard.text or "given up" in heard.text or UNKNOWN in heard.text


def _check_copies(found: list[Fact], everybody: World) -> int:
    """Copies are where they must be and nowhere else, and known; how many there are."""
    assert not any(taken.body["repeated"] for taken in everybody.platform.accepted)
    queued = {f["delivery_id"]: f for f in found if f["kind"] == "delivery.queued"}
    there = [taken.delivery_id for taken in everybody.platform.accepted if not taken.edit]
    assert set(there) <= queued.keys() and len(set(there)) == len(there)
    here = {
        name
        for name, f in queued.items()
        if f["address"]["platform"] == "telegram" and not f.get("edits")
    }
    sent = [f["delivery_id"] for f in found if f["kind"] == "delivery.sent"]
    assert len(set(sent)) == len(sent)
    doubted = {f["delivery_id"] for f in found if f["kind"] == "delivery.ambiguous"} & here
    heard = [h for chat in everybody.chats if chat.place.startswith("telegram") for h in chat.heard]
    marked = sum(h.marked for h in heard)
    copies = len(heard) - len(here & set(sent))
    assert 0 <= copies <= marked, (copies, marked)
    assert len(doubted) <= marked, "each that was in doubt came with the mark in the end"
    assert len({(h.answers, h.text) for h in heard if h.marked}) == len(doubted)
    return copies


def _check_effects(found: list[Fact], everybody: World) -> None:
    """Each at most once; where it is in doubt, that is what was said."""
    written = Counter(line.split()[0] for line in lines(everybody.it.home / EFFECTS))
    assert set(written.values()) == {1}, "an effect happened twice"
    begun = Counter(f["call_id"] for f in found if f["kind"] == "call.started")
    assert set(begun.values()) == {1}, "a call started twice"
    for chat, said in everybody.said():
        if said.effect and chat.mode == QUEUE:
            answers = [h.text for h in chat.heard if chat.said.get(h.answers) is said]
            if any(f"bumped {said.word}" in text for text in answers):
                assert written[said.word] == 1, said


async def _check_outbox(everybody: World) -> None:
    """Nobody has anything left to do."""
    shown = await everybody.it.holdfast("outbox")
    assert shown.stdout.decode().strip() == "Nothing waits to be sent.", shown


@pytest.mark.fault("F-07", "F-08")
@pytest.mark.promise("LATE-09")
@pytest.mark.timeout(180 + 5 * KILLS)
async def test_random_kills_lose_no_message_and_repeat_none_without_saying_so(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("HOLDFAST_TORTURE_SEED") or randbits(32))
    with noted(f"HOLDFAST_TORTURE_SEED={seed} HOLDFAST_TORTURE_KILLS={KILLS}"):
        async with world(tmp_path, random.Random(seed)) as everybody:
            await everybody.it.start(wait=False)
            async with anyio.create_task_group() as listening:
                listening.start_soon(everybody.listen)
                async with anyio.create_task_group() as talking:
                    for chat in everybody.chats:
                        talking.start_soon(everybody.talk, chat)
                    await _kill(everybody)
                    everybody.over = everybody.weather.calm = True
                    talking.cancel_scope.deadline = anyio.current_time() + SETTLE_S
                await _settle(everybody)
                listening.cancel_scope.cancel()
            found = facts(everybody.it.home)
            _check_taken(found, everybody)
            _check_runs(found)
            _check_read(found, everybody)
            for chat in everybody.chats:
                with noted(chat.place):
                    _check_order(chat)
                    _check_answers(chat)
            copies = _check_copies(found, everybody)
            _check_effects(found, everybody)
            await _check_outbox(everybody)
            record_property("messages", sum(1 for _ in everybody.said()))
            record_property("copies_marked", copies)
            record_property("copies_dropped", len(everybody.platform.copies))
