"""Every invalid request is refused with a reason, never a 500, and leaves no trace."""

import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest

from tests.behaviour import fuzzer, ledger
from tests.behaviour.figures import note
from tests.behaviour.wire import Answer, exchange, head
from tests.fakes.gateway import KEY, GatewayProcess, gateway
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

MB = 1 << 20
REQUESTS = int(os.environ.get("HOLDFAST_FUZZ_REQUESTS", "10000"))
EXAMPLES = os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "7")  # of schemathesis, for each route
SEED = int(os.environ.get("HOLDFAST_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1 << 32)


async def _send(it: GatewayProcess, data: bytes, path: str = "/v1/runs") -> Answer:
    headers = {"Content-Type": "application/json"}
    async with it.http.post(it.url + path, data=data, headers=headers) as response:
        fields = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, fields, await response.read())


class Untouched:
    """Refusals between its start and its end have left nothing, however late it would come.

    An ordinary run before and another after tell what one leaves; commits keep their
    order, so whatever a refusal left is there when the second run has ended.
    """

    def __init__(self, it: GatewayProcess) -> None:
        self._it = it
        self._one: dict[str, int] = {}
        self._before: dict[str, int] = {}

    async def __aenter__(self) -> None:
        empty = ledger.holdings(self._it.home)
        self._before = await self._after_a_run()
        self._one = {k: v - empty[k] for k, v in self._before.items()}

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            now = await self._after_a_run()
            assert now == {k: v + self._one[k] for k, v in self._before.items()}

    async def _after_a_run(self) -> dict[str, int]:
        await self._it.finished(await self._it.run("hello"))
        return ledger.holdings(self._it.home)


@pytest.mark.promise("RUN-03", "RUN-05")
async def test_a_body_that_is_no_json_object_is_refused(it: GatewayProcess) -> None:
    bodies = [
        b"",
        b" ",
        b"hello",
        b"{",
        b"{'input': 'x'}",
        b'{"input": "x"',
        b'{"input": "x"}}',
        b'{"input": "x"} {"input": "y"}',
        b'{"input": "x",}',
        b'{"input": NaN}',
        b'{"input": "x", "metadata": NaN}',
        b'{"input": "x", "other": Infinity}',
        b'{"input": "x", "other": -Infinity}',
        b'{"input": "\xff\xfe"}',
        b'{"input": "\xed\xa0\x80"}',
        b'\xff\xfe{\x00"\x00',
        b'\xef\xbb\xbf{"input": "x"}',
        b'{"input": "x\ny"}',
        b'{"input": "a\\ud800b"}',
        b'{"input": "\\udc00"}',
        b'{"input": "\\ud800\\ud800"}',
        b"[]",
        b'["input"]',
        b'"input"',
        b"17",
        b"null",
        b"true",
        b"[" * 100_000,
        b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"other": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b', "input": "x"}',
    ]
    async with Untouched(it):
        for body in bodies:
            for path in ("/v1/runs", f"/v1/runs/run_{'0' * 32}/steer"):
                answer = await _send(it, body, path)
                assert answer.status == 400, (body[:60], answer)
                assert answer.error["message"], body[:60]


@pytest.mark.promise("RUN-04", "RUN-05")
async def test_a_run_without_words_is_refused_and_told_about_input(it: GatewayProcess) -> None:
    bodies: list[object] = [
        {},
        {"inputs": "hello"},
        {"Input": "hello"},
        {"input": ""},
        {"input": " \n\t "},
        {"input": None},
        {"input": 1},
        {"input": True},
        {"input": {}},
        {"input": []},
        {"input": [""]},
        {"input": [{}]},
        {"input": [{"role": "user"}]},
        {"input": [{"role": "user", "content": ""}]},
        {"input": [{"role": "user", "content": []}]},
        {"input": [{"role": "user", "content": [{"type": "text"}]}]},
        {"input": [{"role": "user", "content": 1}]},
        {"input": [{"role": "assistant", "content": "hello"}]},
        {"input": [{"role": "tool", "content": "hello"}, {"role": "user", "content": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "image_url", "text": "x"}]}]},
    ]
    async with Untouched(it):
        for body in bodies:
            answer = await _send(it, msgspec.json.encode(body))
            assert answer.status == 400, body
            assert "input" in answer.error["message"] or answer.error["param"] == "input", body
        missing = await _send(it, b"{}")
        assert "input" in missing.error["message"]


@pytest.mark.promise("RUN-05")
async def test_a_history_that_is_no_list_of_messages_is_refused(it: GatewayProcess) -> None:
    wrong: list[object] = [
        "hello",
        1,
        True,
        {},
        {"role": "user", "content": "x"},
        ["x"],
        [1],
        [None],
        [[]],
        [{}],
        [{"role": "user"}],
        [{"content": "x"}],
        [{"role": 1, "content": "x"}],
        [{"role": "user", "content": {}}],
        [{"role": "user", "content": None}],
        [{"role": "", "content": "x"}],
        [{"role": "robot", "content": "x"}],
        [{"role": "user", "content": "fine"}, "not fine"],
    ]
    async with Untouched(it):
        for number, history in enumerate(wrong):
            body = {
                "input": "x",
                "conversation_history": history,
                "session_id": f"s{number}",
                "metadata": {"a": "b"},
            }
            answer = await _send(it, msgspec.json.encode(body))
            assert answer.status == 400, history
            error = answer.error
            assert "conversation_history" in f"{error['message']} {error['param']}", history
    status, _ = await it.get("/api/sessions/s0/messages")
    assert status == 404, "a refused request opened its session"


WRONG: dict[str, list[object]] = {
    "session_id": [1, True, [], {}, "", " ", "a b", "a/b", "../x", "a\0b", "é", "x" * 256],
    "instructions": [1, True, [], {}],
    "previous_response_id": [1, [], "resp_1"],
    "model": [1, True, [], {}],
    "workspace": [1, True, [], {}, "/etc", "a\0b", "x" * 5000],
    "metadata": [
        1,
        "x",
        [],
        {"a": 1},
        {"a": None},
        {"a": {}},
        {"k" * 65: "v"},
        {"k": "v" * 513},
        {f"k{n}": "v" for n in range(17)},
    ],
    "webhook": ["https://example.org", {}, 1],
    "late": ["webhook", "", True, 1],
    "answerable": ["yes", 1, {}],
}


@pytest.mark.promise("RUN-05", "RUN-24")
async def test_every_field_of_the_wrong_kind_is_refused_by_name(it: GatewayProcess) -> None:
    async with Untouched(it):
        for name, values in WRONG.items():
            for value in values:
                answer = await _send(it, msgspec.json.encode({"input": "x", name: value}))
                assert answer.status == 400, (name, value)
                error = answer.error
                assert name in f"{error['param']} {error['message']}", (name, value, error)
        for name in ("session_id", "metadata", "webhook", "instructions", "model"):
            for number in (b"1e999", b"-1e999", b"9" * 5000, b"0." + b"1" * 5000, b"1e-999999"):
                answer = await _send(it, b'{"input": "x", "%b": %b}' % (name.encode(), number))
                assert answer.status == 400 and answer.error, (name, number[:20])


@pytest.mark.promise("RUN-24", "RUN-05")
async def test_a_session_id_of_a_megabyte_is_refused_wherever_it_stands(it: GatewayProcess) -> None:
    async with Untouched(it):
        long = "s" * MB
        answer = await _send(it, msgspec.json.encode({"input": "x", "session_id": long}))
        assert (answer.status, answer.error["param"]) == (400, "session_id")
        assert len(answer.body) < 1000, "it was sent back"
        for path in (f"/api/sessions/{long}/messages", f"/v1/runs?session_id={long}"):
            assert 400 <= (await exchange(it.url, head("GET", path))).status < 500


@pytest.mark.promise("RUN-24", "RUN-05")
async def test_a_body_over_the_limit_is_refused_before_it_is_read_whole(it: GatewayProcess) -> None:
    json = "Content-Type: application/json"
    async with Untouched(it):
        announced = head("POST", "/v1/runs", json, f"Content-Length: {11 * MB}")
        answer = await exchange(it.url, announced)  # not a byte of the body is sent
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")

        async def endless(size: int) -> AsyncIterator[bytes]:
            for _ in range(size):
                yield b" " * MB

        for path in ("/v1/runs", f"/v1/runs/run_{'0' * 32}/steer"):
            async with it.http.post(
                it.url + path, data=endless(11), headers={"Content-Type": "application/json"}
            ) as response:
                assert response.status == 413
                assert (await response.json())["error"]["code"] == "body_too_large"
        assert (await _send(it, b'{"input": "%b"}' % (b"x" * 11 * MB))).status == 413


@pytest.mark.promise("RUN-24")
async def test_an_endless_body_is_refused_long_before_its_end(it: GatewayProcess) -> None:
    host, _, port = it.url.removeprefix("http://").partition(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        chunked = ("Transfer-Encoding: chunked", "Content-Type: application/json")
        await stream.send(head("POST", "/v1/runs", *chunked))
        chunk = b"%x\r\n%b\r\n" % (MB, b" " * MB)
        got: list[bytes] = []
        sent = 0

        async def listen() -> None:
            got.append(await stream.receive())
            sending.cancel_scope.cancel()

        async def flood() -> None:
            nonlocal sent
            while True:
                await stream.send(chunk)
                sent += 1

        with anyio.fail_after(20):
            async with anyio.create_task_group() as sending:
                sending.start_soon(listen)
                sending.start_soon(flood)
    assert got[0].startswith(b"HTTP/1.1 413")
    assert sent < 100


@pytest.mark.promise("RUN-24")
async def test_a_body_just_below_the_limit_is_taken_and_comes_back_whole(
    it: GatewayProcess,
) -> None:
    text = "say:" + "lång" * (2 * MB - 100)  # ten megabytes less a little
    answer = await _send(it, msgspec.json.encode({"input": text}))
    assert answer.status == 202
    done = await it.finished(msgspec.json.decode(answer.body)["run_id"])
    assert done["output"] == text.removeprefix("say:")
    await it.kill()
    await it.start()
    assert (await it.status(done["run_id"]))["output"] == done["output"]


@pytest.mark.promise("RUN-24")
async def test_strange_but_honest_text_comes_back_as_it_was(
    it: GatewayProcess, model: ModelServer
) -> None:
    texts = [
        "a\0b",
        "\0",
        "\x01\x1b[31m\x7f\x80\x9f",
        "\u2028\u2029\ufeff\ufffe\uffff",
        "a\r\n\r\n: comment\n\nid: 7\ndata: {}\n\nb",
        "data: [DONE]",
        "👩‍👩‍👧‍👦 \U0010ffff é e\u0301 \u202e",
        "'; DROP TABLE runs; --",
        "{{7*7}} ${jndi:ldap://x} %s %n {0}",
        "</script><script>alert(1)</script>",
        "\\u0000 \\ud800",
    ]
    for number, text in enumerate(texts):
        run_id = await it.run("say:" + text, session_id=f"s{number}", instructions=text)
        stream = await it.events(run_id)
        assert stream.names[-1] == "run.completed"
        assert stream.frames[-1].data["output"] == stream.text == text
        _, transcript = await it.get(f"/api/sessions/s{number}/messages")
        assert transcript["data"][-1]["content"] == text
    await it.kill()
    await it.start()
    for number, text in enumerate(texts):
        _, transcript = await it.get(f"/api/sessions/s{number}/messages")
        assert transcript["data"][-1]["content"] == text


@pytest.mark.promise("RUN-24")
async def test_of_a_key_given_twice_one_counts_and_unknown_ones_are_ignored(
    it: GatewayProcess,
) -> None:
    answer = await _send(it, b'{"input": "one", "input": "two", "other": {"input": [1e308]}}')
    assert answer.status == 202
    run = await it.finished(msgspec.json.decode(answer.body)["run_id"])
    assert run["output"] in ("echo: one", "echo: two")


@pytest.mark.promise("RUN-24")
async def test_compressed_bodies_and_unknown_expect_headers_are_refused_with_a_message(
    it: GatewayProcess,
) -> None:
    body = b'{"input": "x"}'
    length = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    async with Untouched(it):
        for field in (
            "Content-Encoding: gzip",
            "Content-Encoding: deflate",
            "Content-Encoding: br",
            "Content-Encoding: zstd",
            "Content-Encoding: nonsense",
            "Expect: miracles",
        ):
            answer = await exchange(it.url, head("POST", "/v1/runs", *length, field) + body)
            assert 400 <= answer.status < 500, (field, answer)
            assert answer.error["message"], field
    answer = await exchange(
        it.url, head("POST", "/v1/runs", *length, "Content-Encoding: identity") + body
    )
    assert answer.status == 202


@pytest.mark.promise("RUN-24")
async def test_a_client_that_disconnects_midway_leaves_nothing(it: GatewayProcess) -> None:
    host, _, port = it.url.removeprefix("http://").partition(":")
    json = "Content-Type: application/json"
    whole = head("POST", "/v1/runs", json, "Content-Length: 14") + b'{"input": "x"}'
    async with Untouched(it):
        for size in range(1, len(whole), 7):
            stream = await anyio.connect_tcp(host, int(port))
            await stream.send(whole[:size])
            await stream.aclose()
        chunked = ("Transfer-Encoding: chunked", json, "Expect: 100-continue")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(head("POST", "/v1/runs", *chunked))
            assert (await stream.receive()).startswith(b"HTTP/1.1 100")
            await stream.send(KEY.encode() + b" is no size\r\n")
    assert not [line for line in it.lines if KEY in line]


@pytest.mark.promise("RUN-24", "RUN-05")
@pytest.mark.timeout(300)
async def test_whatever_a_fuzzer_sends_nothing_breaks_freezes_or_is_left_behind(
    model: ModelServer, tmp_path: Path
) -> None:
    async with gateway(tmp_path, model.base_url) as it:
        _, document = await it.get("/openapi.json")
        tally = await fuzzer.attack(it, document, random.Random(SEED), REQUESTS, f"seed {SEED}")
        note(f"seed {SEED}: {dict(sorted(tally.statuses.items()))}, {tally.slowest_s:.3f} s")
        assert tally.slowest_s < 1, f"health took {tally.slowest_s:.2f} s (seed {SEED})"
        for run_id in tally.runs:
            await it.finished(run_id)
        recorded = {row[0] for row in ledger.ask(it.home, "SELECT run_id FROM runs")}
        assert recorded == tally.runs, f"a refusal left a run, or an answer had none (seed {SEED})"
        sessions = ledger.ask(
            it.home,
            "SELECT count(*) FROM sessions WHERE session_id NOT LIKE '/%' "
            "AND stream NOT IN (SELECT stream FROM runs) "
            "AND stream NOT IN (SELECT stream FROM events WHERE kind = 'session.seeded')",
        )
        assert sessions == [(0,)], f"a refusal left a session (seed {SEED})"
        forks = ledger.ask(it.home, "SELECT count(*) FROM events WHERE kind = 'session.seeded'")
        assert forks == [(tally.statuses[201],)], f"a refusal left a fork (seed {SEED})"
        assert (await it.get("/health"))[1]["status"] == "ok"
        assert not [line for line in it.lines if KEY in line or '"level": "error"' in line]


# The events of a session have no end.
_SETTINGS = """
[[operations]]
include-path-regex = "/events$"
request-timeout = 1
"""


@pytest.mark.promise("RUN-24")
async def test_schemathesis_finds_no_contradiction_to_the_openapi_document(tmp_path: Path) -> None:
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(_SETTINGS)
    async with gateway(tmp_path) as it:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings)),
            *("run", it.url + "/openapi.json"),
            *("--header", f"Authorization: Bearer {KEY}", "--max-examples", EXAMPLES),
            *("--phases", "examples,coverage,fuzzing", "--seed", str(SEED), "--no-color"),
            *("--request-timeout", "5", "--generation-database", "none", "--warnings", "off"),
            *("--checks", _CHECKS),
        ]
        began = time.monotonic()
        result = await anyio.run_process(command, check=False, cwd=tmp_path)
        note(f"schemathesis took {time.monotonic() - began:.1f} s (seed {SEED})")
        assert result.returncode == 0, result.stdout.decode()[-8000:]


_CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "unsupported_method",
        "allow_header_conformance",
    )
)


@pytest.mark.promise("RUN-24")
async def test_a_body_that_does_not_come_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    async with gateway(tmp_path, config="[limits]\nbody_s = 0.2\n") as it:
        fields = ("Content-Type: application/json", "Content-Length: 100")
        answer = await exchange(it.url, head("POST", "/v1/runs", *fields) + b'{"input"')
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
