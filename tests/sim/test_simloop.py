"""The event loop of simulations: its time, its order, and what it refuses."""

import asyncio
import time
from random import random
from secrets import token_hex

import anyio
import anyio.to_thread
import pytest

from tests.fakes.simloop import EPOCH, SimClock, SimLoop, simulate


def test_a_simulated_year_takes_under_30_seconds() -> None:
    async def main(loop: SimLoop) -> float:
        with pytest.raises(TimeoutError), anyio.fail_after(365 * 86_400.0):
            await anyio.sleep_forever()
        return loop.time()

    began = time.monotonic()
    assert simulate(1, main) == 365 * 86_400.0
    assert time.monotonic() - began < 30


async def _order(loop: SimLoop) -> tuple[list[int], str, float]:
    order: list[int] = []

    async def one(number: int) -> None:
        await asyncio.sleep(0)
        order.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(10):
            tasks.start_soon(one, number)
    return order, token_hex(8), random()


def test_order_tokens_and_jitter_come_from_the_seed() -> None:
    first, again, other = simulate(1, _order), simulate(1, _order), simulate(2, _order)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))
    assert sorted(first[0]) == list(range(10))


def test_timers_go_off_in_their_order_and_patient_ones_with_whatever_comes_next() -> None:
    async def main(loop: SimLoop) -> list[tuple[str, float]]:
        loop.late_s = 100.0
        clock, woken = SimClock(loop), list[tuple[str, float]]()

        async def patient() -> None:
            await clock.sleep(1.0)
            woken.append(("patient", clock.now() - EPOCH))
            await clock.sleep(1.0)
            woken.append(("alone", clock.now() - EPOCH))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(patient)
            for after in (0.5, 7.0):
                await asyncio.sleep(after)  # sleep: in virtual time
                woken.append(("timer", loop.time()))
        return woken

    assert sorted(simulate(1, main)) == [
        ("alone", 108.5), ("patient", 7.5), ("timer", 0.5), ("timer", 7.5),
    ]  # fmt: skip


def test_waiting_for_ever_or_for_a_thread_is_an_error() -> None:
    async def waits(loop: SimLoop) -> None:
        await asyncio.Event().wait()

    async def executes(loop: SimLoop) -> None:
        await loop.run_in_executor(None, time.monotonic)

    async def starts(loop: SimLoop) -> None:
        await anyio.to_thread.run_sync(time.monotonic)

    with pytest.raises(RuntimeError, match="everybody waits"):
        simulate(1, waits)
    for main in (executes, starts):
        with pytest.raises(RuntimeError, match="no threads"):
            simulate(1, main)


def test_an_error_in_a_callback_fails_the_simulation() -> None:
    async def main(loop: SimLoop) -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        simulate(1, main)
