"""The canary on its way: it comes back, or nothing of it is left."""

import os
import secrets

import anyio
import pytest

from holdfast.tools import cage
from tests.behaviour.hands import carrying, gone, until

pytestmark = pytest.mark.anyio

GONE_S = 10.0


def _shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def test_what_it_says_and_how_it_ends_is_known_and_it_is_told_nothing() -> None:
    done = await cage.send(_shell("cat; echo out; echo err >&2; exit 3"), dict(os.environ), ())
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


async def test_if_nobody_waits_for_it_any_more_its_children_end_with_it() -> None:
    token = f"300.{secrets.randbelow(10**9):09}"
    async with anyio.create_task_group() as waiting:
        script = f"sleep {token} & wait"
        waiting.start_soon(cage.send, _shell(script), dict(os.environ), ())
        await until(lambda: len(carrying(token)) > 1)
        waiting.cancel_scope.cancel()
    await gone(token, GONE_S)


async def test_one_that_is_cut_at_once_leaves_nothing_either() -> None:
    token = f"300.{secrets.randbelow(10**9):09}"
    with anyio.CancelScope() as scope:
        scope.cancel()
        await cage.send(_shell(f"sleep {token} & wait"), dict(os.environ), ())
    assert scope.cancelled_caught
    await gone(token, GONE_S)
