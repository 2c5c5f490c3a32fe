"""The fake webhook peer: accepts signed requests once, and repeats its own until accepted."""

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web

from tests.fakes.webhook import Fault, Hold, Platform, Reset, Say, Taken, serve, sign

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
AT = 1_700_000_000


@pytest.fixture
async def platform() -> AsyncIterator[Platform]:
    async with serve(SECRET, lambda: AT) as server:
        yield server


async def post(
    platform: Platform, name: str, at: int = AT, secret: str = SECRET, **more: object
) -> tuple[int, Any]:
    """One message as a channel sends it; status and answer."""
    said = {"chat": "room", "thread": "", "text": name, "edit": "", "reply_to": "", "buttons": []}
    body = json.dumps(said | more).encode()
    headers = {
        "webhook-id": name,
        "webhook-timestamp": str(at),
        "webhook-signature": sign(secret, name, at, body),
    }
    async with (
        aiohttp.ClientSession() as client,
        client.post(platform.url, data=body, headers=headers) as response,
    ):
        text = await response.text()
        return response.status, json.loads(text) if text else None


async def test_each_delivery_is_taken_once(platform: Platform) -> None:
    first = await post(platform, "a")
    await post(platform, "b")
    assert await post(platform, "a") == first
    assert [taken.delivery_id for taken in platform.accepted] == ["a", "b"]
    assert platform.copies == ["a"]
    number = first[1]["message_id"]
    await post(platform, "c", edit=number, text="changed")
    assert [shown.text for shown in platform.shown("room")] == ["changed", "b"]
    assert (await post(platform, "d", edit="gone"))[0] == 404
    platform.closed.add("room")
    assert (await post(platform, "e"))[0] == 410


async def test_an_unsigned_or_stale_request_is_not_taken(platform: Platform) -> None:
    other = "whsec_" + base64.b64encode(bytes(32)).decode()
    assert (await post(platform, "a", secret=other))[0] == 401
    assert (await post(platform, "b", at=AT - 301))[0] == 401
    assert (platform.forged, platform.accepted) == (2, [])


async def test_faults_happen_before_or_after_it_is_taken(platform: Platform) -> None:
    platform.then(Say(429, retry_after=3), Say(500, after=True), Reset(), Reset(after=True))
    assert (await post(platform, "a"))[0] == 429
    assert (await post(platform, "b"))[0] == 500
    for name in ("c", "d"):
        with pytest.raises(aiohttp.ClientError):
            await post(platform, name)
    await post(platform, "e")
    assert [taken.delivery_id for taken in platform.accepted] == ["b", "d", "e"]


async def test_each_request_draws_its_own_faults(platform: Platform) -> None:
    def weather(taken: Taken) -> Fault | None:
        return Say(503) if taken.delivery_id == "a" else None

    platform.weather = weather
    platform.delay_s = 0.01
    assert [(await post(platform, name))[0] for name in ("a", "b", "a")] == [503, 200, 503]


async def test_a_held_answer_waits_for_the_test(platform: Platform) -> None:
    hold = Hold()
    platform.then(hold)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post, platform, "a")
        await platform.until(lambda: platform.accepted)
        hold.gate.set()


async def test_it_sends_until_it_is_taken_in_order_within_a_chat(platform: Platform) -> None:
    got: list[tuple[str, str]] = []
    answers = iter([500, 200, 200, 200])

    async def hook(request: web.Request) -> web.Response:
        body = await request.read()
        name, at = request.headers["webhook-id"], int(request.headers["webhook-timestamp"])
        assert request.headers["webhook-signature"] == sign(SECRET, name, at, body)
        got.append((name, json.loads(body)["text"]))
        return web.Response(status=next(answers))

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        platform.say("room", "ada", "one")
        platform.say("room", "ada", "two")
        platform.hook_url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        platform.send_again(1)
        await platform.until(lambda: not platform.pending)
    finally:
        await runner.cleanup()
    assert [text for _, text in got] == ["one", "one", "two", "two"]
    assert got[0] == got[1] and got[2] == got[3]
    assert platform.pushes == [500, 200, 200, 200]
