"""A faulty model that never comes to an end, and a gateway that is killed: the budget holds.

The server bills as the worst one would: a request that was cut costs as much as its answer could
have.
"""

from pathlib import Path

import anyio
import pytest

from tests.crash.evidence import count, noted
from tests.fakes.gateway import gateway
from tests.fakes.model_server import DONE, Ask, Reply, Wait, call, finish, serve, stream, usage

pytestmark = pytest.mark.anyio

RUNS = count("HOLDFAST_BUDGET_RUNS", 4, 25)
KILLS = 2  # of each run: one that is cut three times in a row is given up
BUDGET, PER_INPUT, PER_OUTPUT = 1.0, 2e-5, 1.5e-5  # dollars; dollars for a token
CONFIG = f"""\
[limits]
run_usd = {BUDGET}
turns = 10000
[openai]
usd_per_m_input = {PER_INPUT * 1e6}
usd_per_m_output = {PER_OUTPUT * 1e6}
"""


class Looping:
    """Calls a tool for ever. While it is to be killed, every other answer hangs halfway."""

    def __init__(self) -> None:
        self.billed = 0.0
        self.hangs = False
        self.asked = 0
        self.waits = anyio.Event()

    def __call__(self, ask: Ask) -> Reply:
        self.asked += 1
        reads = sum(len(m.text) for m in ask.messages) // 4 + 1_000  # with its tools
        chunks = call("list_files", "{}", call_id=f"call_{self.asked}")
        assert ask.max_tokens > len(chunks), "a request without a limit has no worst case"
        if self.hangs and self.asked % 2 == 0:
            self.billed += reads * PER_INPUT + ask.max_tokens * PER_OUTPUT
            self.waits.set()
            return stream(chunks[0], Wait())
        self.billed += reads * PER_INPUT + len(chunks) * PER_OUTPUT
        return Reply((*chunks, finish("tool_calls"), usage(reads, len(chunks)), DONE))


@pytest.mark.fault("F-40")
@pytest.mark.promise("MODEL-07")
@pytest.mark.timeout(300)
async def test_a_run_spends_no_more_than_its_budget_however_often_it_is_killed(
    tmp_path: Path,
) -> None:
    model = Looping()
    async with serve(model) as server, gateway(tmp_path, server.base_url, CONFIG) as it:
        for number in range(RUNS):
            with noted(f"run {number}"), anyio.fail_after(60):
                model.billed, model.hangs = 0.0, True
                run_id = await it.run("go")
                for _ in range(KILLS):
                    await model.waits.wait()
                    await it.kill()
                    model.waits = anyio.Event()
                    await it.start()
                model.hangs = False
                ended = await it.finished(run_id)
                assert (ended["status"], ended["last_event"]) == ("failed", "run.failed")
                assert ended["error_code"] == "budget_exhausted", ended
                assert 0.5 * BUDGET < model.billed <= BUDGET
                assert model.billed <= ended["usage"]["cost_usd"] + 1e-6 <= BUDGET + 1e-6


@pytest.mark.fault("F-40")
async def test_a_budget_without_a_price_sends_nothing(tmp_path: Path) -> None:
    model = Looping()
    config = "[limits]\nrun_usd = 1.0\n"
    async with serve(model) as server, gateway(tmp_path, server.base_url, config) as it:
        ended = await it.finished(await it.run("go"))
    assert ended["error_code"] == "price_not_known", ended
    assert model.asked == 0
