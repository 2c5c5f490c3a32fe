"""Pictures in requests: from the API to the model, through every fault in between."""

import sqlite3
from base64 import b64encode
from pathlib import Path
from typing import Any

import anyio
import pytest

from holdfast.core.images import NOT_AN_IMAGE, NOT_FETCHED
from holdfast.models.offline import UNSEEN
from tests.behaviour.terminals import command
from tests.behaviour.wire import check_error
from tests.fakes import model_server as says
from tests.fakes.gateway import GatewayProcess, Stream, files, gateway, read_events
from tests.fakes.model_server import ModelServer, Seen

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
GIF = b"GIF89a" + bytes(range(256))
LARGE = PNG + bytes(n % 251 for n in range(200_000))
MB = 1 << 20


def _url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{b64encode(data).decode()}"


def _part(data: bytes, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": _url(data, kind)}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _said(*parts: dict[str, Any], role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(parts)}]


async def _run(it: GatewayProcess, *parts: dict[str, Any], **fields: object) -> str:
    status, body = await it.post("/v1/runs", {"input": _said(*parts), **fields})
    assert status == 202, body
    return str(body["run_id"])


def _words(seen: Seen) -> list[object]:
    """What users said, as a request to the model has it."""
    return [m["content"] for m in seen.body["messages"] if m["role"] == "user"]


async def _at_work(it: GatewayProcess, model: ModelServer, gate: anyio.Event) -> str:
    """A run of the session `s` that has said a word and then waits."""
    model.then(says.stream(says.token("a"), says.Wait(gate), says.finish(), says.DONE))
    run_id = await it.run("first", session_id="s")
    await it.events(run_id, until="message.delta")
    return run_id


async def test_a_picture_reaches_the_model_with_the_words(
    it: GatewayProcess, model: ModelServer
) -> None:
    run_id = await _run(it, _text("what is "), _part(PNG), _text("this?"), session_id="s")
    assert (await it.finished(run_id))["output"] == "echo: what is this?"
    assert _words(model.requests[0]) == [[_text("what is this?"), _part(PNG)]]
    await it.finished(await it.run("and in one word?", session_id="s"))
    assert _words(model.requests[1]) == [
        [_text("what is this?"), _part(PNG)],
        "and in one word?",
    ]


async def test_both_ways_to_write_a_picture_are_taken_in_order_and_words_are_not_needed(
    it: GatewayProcess, model: ModelServer
) -> None:
    other = {"type": "input_image", "image_url": _url(GIF, "image/gif")}
    await it.finished(await _run(it, other, _part(PNG)))
    assert _words(model.requests[0]) == [[_part(GIF, "image/gif"), _part(PNG)]]


async def test_a_history_may_have_pictures_too(it: GatewayProcess, model: ModelServer) -> None:
    before = [*_said(_text("this"), _part(GIF, "image/gif")), {"role": "assistant", "content": "a"}]
    await it.finished(await it.run("and?", conversation_history=before))
    assert _words(model.requests[0]) == [[_text("this"), _part(GIF, "image/gif")], "and?"]


async def test_the_messages_of_a_session_give_its_pictures_back(
    it: GatewayProcess, model: ModelServer
) -> None:
    said = _said(_text("what is this?"), _part(PNG))
    status, body = await it.post("/v1/runs", {"input": said, "session_id": "s"})
    assert status == 202
    await it.finished(body["run_id"])
    _, messages = await it.get("/api/sessions/s/messages")
    assert messages["data"][:1] == said


@pytest.mark.promise("RUN-01", "HALT-07")
async def test_a_picture_that_was_accepted_outlives_the_process(
    it: GatewayProcess, model: ModelServer
) -> None:
    await _at_work(it, model, anyio.Event())
    waiting = await _run(it, _text("and this?"), _part(LARGE), session_id="s")
    await it.kill()
    await it.start()
    await it.finished(waiting)
    assert _words(model.requests[-1])[-1] == [_text("and this?"), _part(LARGE)]


async def test_a_large_picture_is_one_file_and_in_no_row(
    it: GatewayProcess, model: ModelServer
) -> None:
    await it.finished(await _run(it, _text("look"), _part(LARGE), session_id="s"))
    await it.stop()
    needle = b64encode(LARGE)[1000:2000]
    holding = [path.relative_to(it.home) for path, data in files(it.home) if needle in data]
    assert [path.parts[0] for path in holding] == ["blobs"]
    with sqlite3.connect(it.home / "journal.db") as journal:
        (longest,) = journal.execute("SELECT max(length(data)) FROM events").fetchone()
    assert longest < 10_000


@pytest.mark.promise("HALT-07")
async def test_pictures_that_interrupt_and_steer_are_all_read_in_order(
    it: GatewayProcess, model: ModelServer
) -> None:
    first = await _at_work(it, model, anyio.Event())
    await _run(it, _text("one"), _part(PNG), session_id="s", mode="steer")
    steered = (await it.events(first, until="run.steered")).frames[-1]
    assert (steered.data["input"], steered.data["images"]) == ("one", 1)
    assert len(steered.raw) < 300
    last = await _run(it, _text("two"), _part(GIF, "image/gif"), session_id="s", mode="interrupt")
    await it.finished(last)
    assert _words(model.requests[-1])[-1] == [
        _text("one\n\ntwo"),
        _part(PNG),
        _part(GIF, "image/gif"),
    ]


async def test_a_session_s_stream_tells_how_many_pictures_wait_and_does_not_carry_them(
    it: GatewayProcess, model: ModelServer
) -> None:
    await it.finished(await _run(it, _text("look"), _part(LARGE), _part(PNG), session_id="s"))
    stream = Stream(200)
    async with it.http.get(f"{it.url}/api/sessions/s/events") as response:
        await read_events(response, stream, until="run.completed")
    queued = stream.frames[0]
    assert (queued.event, queued.data["input"], queued.data["images"]) == ("run.queued", "look", 2)
    assert len(stream.raw) < 5000


async def test_words_that_are_said_again_have_their_pictures(
    it: GatewayProcess, model: ModelServer
) -> None:
    for parts in ((_text("what is this?"), _part(PNG)), (_part(GIF, "image/gif"),)):
        await it.finished(await _run(it, *parts, session_id="s"))
        again = await command(it, "s", "/retry")
        await it.finished(again["run_id"])
        first, second = model.requests[-2:]
        assert _words(second) == _words(first)
        assert _words(second)[-1] == list(parts)


async def test_without_a_model_the_answer_says_that_the_picture_was_not_seen(
    tmp_path: Path,
) -> None:
    async with gateway(tmp_path) as it:
        ended = await it.finished(await _run(it, _text("what is this?"), _part(PNG)))
        assert UNSEEN.strip() in ended["output"]
        ended = await it.finished(await _run(it, _text("ls"), _part(PNG)))
        assert UNSEEN.strip() in ended["output"]


@pytest.mark.promise("RUN-05")
async def test_a_file_that_is_no_picture_is_refused_with_a_reason(
    it: GatewayProcess, model: ModelServer
) -> None:
    wrong: list[tuple[list[dict[str, Any]], str, str]] = [
        (_said(_part(b"<svg/>", "image/svg+xml")), "invalid_image", NOT_AN_IMAGE),
        (_said(_part(PNG, "image/gif")), "invalid_image", "is image/png"),
        (_said({"type": "image_url"}), "invalid_image", "data:image/png"),
        (_said({"type": "image_url", "image_url": None}), "invalid_image", "data:image/png"),
        (_said({"type": "image_url", "image_url": 1}), "invalid_request", "image_url"),
        (_said({"type": "image_url", "image_url": {}}), "invalid_request", "url"),
        (
            _said({"type": "input_image", "image_url": "https://example.org/a.png"}),
            "not_supported_yet",
            NOT_FETCHED,
        ),
        (_said({"type": "input_file", "text": "x"}), "not_supported_yet", "input_file"),
        (_said(*[_part(PNG)] * 9), "too_many_images", "8 images"),
        (_said(_part(PNG + bytes(5 * MB))), "image_too_large", "5 MiB"),
        (_said(_part(PNG), role="assistant"), "invalid_request", "the user's"),
        (_said(_part(PNG), role="system") + _said(_text("x")), "invalid_request", "the user's"),
    ]
    for given, code, why in wrong:
        async with it.http.post(f"{it.url}/v1/runs", json={"input": given}) as response:
            error = check_error(response.status, response.headers, await response.read())
            assert (response.status, error["code"]) == (400, code), (why, error)
            assert why in error["message"] and error["param"].startswith("input"), error
    assert model.requests == []


async def test_a_picture_of_five_mebibytes_fits_and_eight_small_ones(
    it: GatewayProcess, model: ModelServer
) -> None:
    full = PNG + bytes(5 * MB - len(PNG))
    await it.finished(await _run(it, _text("look"), _part(full)))
    await it.finished(await _run(it, *[_part(PNG)] * 8))
    assert _words(model.requests[0]) == [[_text("look"), _part(full)]]
    assert _words(model.requests[1]) == [[_part(PNG)] * 8]


async def test_the_same_request_again_is_the_same_run(
    it: GatewayProcess, model: ModelServer
) -> None:
    headers = {"Idempotency-Key": "k"}
    body = {"input": _said(_text("look"), _part(LARGE))}
    first, again = [await it.post("/v1/runs", body, headers) for _ in range(2)]
    assert first == again
    body = {"input": _said(_text("look"), _part(LARGE + b"."))}
    assert (await it.post("/v1/runs", body, headers))[0] == 409


async def test_the_document_says_how_a_picture_is_sent(it: GatewayProcess) -> None:
    _, document = await it.get("/openapi.json")
    part = document["components"]["schemas"]["ContentPart"]["properties"]["image_url"]
    assert "data: URL" in str(part)
