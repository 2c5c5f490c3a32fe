"""The process of the canary ends, or is killed with its children."""

import os
import secrets

import anyio
import pytest

from holdfast.tools.sandbox import probe
from tests.behaviour.hands import carrying, gone, until

pytestmark = pytest.mark.anyio

GONE_S = 10.0


def _shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def test_output_and_exit_code_are_returned_and_stdin_is_empty() -> None:
    done = await probe.send(_shell("cat; echo out; echo err >&2; exit 3"), dict(os.environ), ())
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")


async def test_a_cancelled_canary_is_killed_with_its_children() -> None:
    token = f"300.{secrets.randbelow(10**9):09}"
    async with anyio.create_task_group() as waiting:
        script = f"sleep {token} & wait"
        waiting.start_soon(probe.send, _shell(script), dict(os.environ), ())
        await until(lambda: len(carrying(token)) > 1)
        waiting.cancel_scope.cancel()
    await gone(token, GONE_S)


async def test_a_canary_cancelled_at_once_leaves_no_process() -> None:
    token = f"300.{secrets.randbelow(10**9):09}"
    with anyio.CancelScope() as scope:
        scope.cancel()
        await probe.send(_shell(f"sleep {token} & wait"), dict(os.environ), ())
    assert scope.cancelled_caught
    await gone(token, GONE_S)
