"""Random kills under load, with counters on both sides.

Clients post runs, some with an effect that is counted outside, and keep at each one
until it is accepted. Meanwhile the gateway is killed at random moments, also while it
starts, and started again over the same home. Afterwards: what was accepted was finished,
once; each effect happened at most once, and where that is in doubt it says so; there is
no run that nobody asked for; what readers saw over all lives together has no gap and no
repeat. `HOLDFAST_TORTURE_KILLS` says how often, `HOLDFAST_TORTURE_SEED` repeats a course.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbits
from typing import Any

import aiohttp
import anyio
import pytest

from tests.crash.evidence import (
    UNKNOWN,
    ask_for,
    count,
    endings,
    facts,
    lines,
    noted,
    unfinished,
)
from tests.fakes.gateway import (
    KEY,
    TERMINAL,
    Frame,
    GatewayProcess,
    Stream,
    gateway,
    read_events,
)
from tests.fakes.model_server import serve

pytestmark = pytest.mark.anyio

Fact = dict[str, Any]

KILLS = count("HOLDFAST_TORTURE_KILLS", 20, 200)
CLIENTS = 6
SESSIONS = 4


@dataclass(slots=True)
class Sent:
    """One message, as its client knows it."""

    text: str
    session: str
    key: str  # empty: sent once, and not again if nobody answers
    tag: str
    runs: set[str] = field(default_factory=set)  # every id it was accepted under


class Load:
    """What the clients did."""

    def __init__(self, it: GatewayProcess, chance: random.Random, effects: Path) -> None:
        self.it = it
        self.sent: list[Sent] = []
        self.seen: dict[str, list[Frame]] = {}  # by run, what a reader saw that had to come back
        self.over = False
        self.up = anyio.Event()
        self._chance = chance
        self._effects = effects

    async def client(self, number: int) -> None:
        """Post, and sometimes read along, until it is over."""
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(headers=headers) as http:
            while not self.over:
                message = self._message(number)
                self.sent.append(message)
                run_id = await self._send(http, message)
                if run_id and self._chance.random() < 0.5:
                    await self._read(http, run_id)

    def _message(self, number: int) -> Sent:
        name = f"{number}-{len(self.sent)}"
        session = f"s{self._chance.randrange(SESSIONS)}" if self._chance.random() < 0.3 else ""
        key = f"key-{name}" if self._chance.random() < 0.8 else ""
        text, tag = f"say:hello {name}", ""
        if self._chance.random() < 0.5:
            text, tag = ask_for("bump", path=self._effects, tag=name), name
        elif self._chance.random() < 0.3:
            text = f"tokens:{self._chance.randrange(1, 30)}:0.1"
        return Sent(text, session, key, tag)

    async def _send(self, http: aiohttp.ClientSession, message: Sent) -> str:
        """Keep at it until it is accepted, sometimes once more than needed."""
        body = {"input": message.text}
        if message.session:
            body["session_id"] = message.session
        headers = {"Idempotency-Key": message.key} if message.key else {}
        while True:
            try:
                url = self.it.url + "/v1/runs"
                async with http.post(url, json=body, headers=headers) as response:
                    assert response.status == 202, await response.text()
                    run_id = str((await response.json())["run_id"])
                message.runs.add(run_id)
                if not message.key or self._chance.random() < 0.9:
                    return run_id
            except aiohttp.ClientError:
                if not message.key:
                    return ""
                await self.up.wait()

    async def _read(self, http: aiohttp.ClientSession, run_id: str) -> None:
        """Read to the end, coming back as often as it takes."""
        frames: list[Frame] = []
        while not self.over:
            stream = Stream(200)
            after = {"Last-Event-ID": str(frames[-1].id)} if frames else {}
            try:
                url = f"{self.it.url}/v1/runs/{run_id}/events"
                async with http.get(url, headers=after) as response:
                    assert response.status == 200, response.status
                    await read_events(response, stream)
            except aiohttp.ClientError:
                await self.up.wait()
                self.seen[run_id] = frames
            frames += stream.frames
            if endings(stream):
                return


async def _kill(it: GatewayProcess, load: Load, chance: random.Random) -> None:
    """KILLS times, at moments nobody chose: that is what the sleeps are for."""
    for number in range(KILLS):
        with noted(f"kill {number}"):
            await anyio.sleep(chance.uniform(0, 0.3))  # sleep: the moment is what is random
            load.up = anyio.Event()
            await it.kill()
            await it.start(wait=False)
            if chance.random() < 0.2:
                await anyio.sleep(chance.uniform(0, 0.5))  # sleep: the same
                await it.kill()
                await it.start(wait=False)
            await it.ready()
            load.up.set()
    load.over = True


def _check_runs(found: list[Fact], load: Load) -> None:
    """Accepted = finished exactly once; nothing that nobody asked for."""
    queued = [f["run_id"] for f in found if f["kind"] == "run.queued"]
    assert len(set(queued)) == len(queued)
    accepted = {run_id for message in load.sent for run_id in message.runs}
    assert all(len(m.runs) == 1 for m in load.sent if m.key), "one key, one run"
    assert accepted <= set(queued), "lost"
    unheard = sum(not m.runs for m in load.sent)
    assert len(queued) - len(accepted) <= unheard, "runs that nobody asked for"
    endings = Counter(f["run_id"] for f in found if f["kind"] in TERMINAL)
    assert endings == Counter(queued), "ended twice, or never"
    cuts = Counter(f["run_id"] for f in found if f["kind"] == "run.interrupted")
    for fact in found:
        if fact["kind"] in ("run.failed", "run.cancelled"):
            assert fact["code"] == "stuck" and cuts[fact["run_id"]] >= 3, fact
    for once in ("run.started", "input.promoted"):
        assert [f["run_id"] for f in found if f["kind"] == once] == queued, "once each, in order"


def _check_effects(found: list[Fact], load: Load, effects: Path) -> None:
    """Each effect at most once; where it is in doubt, the answer says so."""
    written = Counter(line.split()[0] for line in lines(effects))
    assert set(written.values()) <= {1}, "an effect happened twice"
    begun = Counter(f["call_id"] for f in found if f["kind"] == "call.started")
    assert set(begun.values()) <= {1}, "a call started twice"
    outcome = {f["run_id"]: f["outcome"] for f in found if f["kind"] == "call.settled"}
    output = {f["run_id"]: f["output"] for f in found if f["kind"] == "run.completed"}
    for message in load.sent:
        for run_id in message.runs & output.keys():
            if not message.tag:
                assert run_id not in outcome
            elif outcome[run_id] == "ok":
                assert written[message.tag] == 1 and output[run_id].endswith(message.tag)
            else:
                assert outcome[run_id] == "unknown" and UNKNOWN in output[run_id]


@pytest.mark.fault("F-01")
@pytest.mark.timeout(120 + 5 * KILLS)
async def test_random_kills_under_load_lose_nothing_and_repeat_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(os.environ.get("HOLDFAST_TORTURE_SEED") or randbits(32))
    chance, effects = random.Random(seed), tmp_path / "effects"
    with noted(f"HOLDFAST_TORTURE_SEED={seed} HOLDFAST_TORTURE_KILLS={KILLS}"):
        async with serve(record=False) as model, gateway(tmp_path, model.base_url) as it:
            load = Load(it, chance, effects)
            load.up.set()
            async with anyio.create_task_group() as clients:
                for number in range(CLIENTS):
                    clients.start_soon(load.client, number)
                await _kill(it, load, chance)
            for run_id in unfinished(it.home):
                await it.finished(run_id)
            found = facts(it.home)
            _check_runs(found, load)
            _check_effects(found, load, effects)
            for run_id, frames in load.seen.items():
                whole = (await it.events(run_id)).frames
                assert frames == whole[: len(frames)], "a gap or a repeat in what a reader saw"
            record_property("runs", len(load.sent))
            record_property("readers_that_came_back", len(load.seen))
