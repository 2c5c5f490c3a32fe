"""The first start without a model: what is fetched, what is asked, and that it always starts."""

import os
import signal
from collections.abc import AsyncIterator

import anyio
import pytest

from holdfast.cli.models import pull
from tests.cli import Place, terminal

pytestmark = [pytest.mark.anyio, pytest.mark.promise("LOCAL-05")]

GOES_ON = "Going on without a model"
NOBODY = "http://127.0.0.1:9/simple/"


@pytest.fixture
async def silent_index(place: Place) -> AsyncIterator[anyio.Event]:
    """An index that accepts connections and says nothing; the event: one came."""
    came = anyio.Event()

    async def hear(stream: anyio.abc.SocketStream) -> None:
        came.set()
        async with stream:
            with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):
                while True:
                    await stream.receive()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        place.environ |= {"PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple/"}
        tasks.start_soon(listener.serve, hear)
        yield came
        tasks.cancel_scope.cancel()


async def test_where_it_is_told_to_it_fetches_and_goes_on_if_that_fails(place: Place) -> None:
    place.environ |= {"HOLDFAST_PULL": "1", "PIP_INDEX_URL": NOBODY, "PIP_RETRIES": "0"}
    result = await place.holdfast(stdin=b"list the files here")
    assert result.code == 0, result
    assert pull.describe() in result.err
    assert pull.AGAIN in result.err
    assert GOES_ON in result.err


async def test_an_interrupt_leaves_it_and_the_conversation_starts(
    place: Place, silent_index: anyio.Event
) -> None:
    del place.environ["HOLDFAST_PULL"]
    async with terminal(place) as it:
        await it.read_until("[Y/n]")
        await it.type("y\n")
        await silent_index.wait()
        it.process.send_signal(signal.SIGINT)
        await it.read_until(GOES_ON)
        await it.read_until("Holdfast")
        assert it.process.returncode is None
    assert not os.listdir(place.home / "models" / "parts")


async def test_at_a_terminal_it_asks_and_takes_no(place: Place) -> None:
    del place.environ["HOLDFAST_PULL"]
    async with terminal(place) as it:
        question = await it.read_until("[Y/n]")
        assert "GB" in question
        await it.type("n\n")
        await it.read_until(GOES_ON)
        await it.read_until("Holdfast")
    assert not (place.home / "models").exists()


async def test_without_a_terminal_nothing_is_fetched(place: Place) -> None:
    del place.environ["HOLDFAST_PULL"]
    result = await place.holdfast(stdin=b"list the files here")
    assert result.code == 0, result
    assert GOES_ON not in result.err
    assert not (place.home / "models").exists()


async def test_where_a_model_is_configured_nothing_is_asked_or_fetched(place: Place) -> None:
    place.environ |= {"HOLDFAST_MODEL": "offline", "HOLDFAST_PULL": "1"}
    result = await place.holdfast(stdin=b"list the files here")
    assert result.code == 0, result
    assert GOES_ON not in result.err
