"""Idempotency-Key: one accepted request makes one run, however often it is sent."""

import os
from pathlib import Path

import anyio
import msgspec
import pytest

from tests.behaviour import ledger
from tests.behaviour.wire import head
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio

DAY_S = 24 * 3600.0
SLOW_DISK = (
    *("strace", "-D", "-f", "-qq", "-o", os.devnull, "-e", "trace=fdatasync"),
    *("-e", "inject=fdatasync:delay_enter=50000"),  # microseconds
)


async def _post(it: GatewayProcess, key: str, body: object) -> tuple[int, str, bool]:
    """Status, run id or error code, and whether it said that it was a replay."""
    headers = {"Idempotency-Key": key}
    async with it.http.post(it.url + "/v1/runs", json=body, headers=headers) as response:
        answer = await response.json()
        replayed = response.headers.get("Idempotency-Replayed") == "true"
        if response.status == 409:
            assert response.headers["x-should-retry"] == "false"
        return response.status, answer.get("run_id") or answer["error"]["code"], replayed


def _runs(it: GatewayProcess) -> int:
    return ledger.holdings(it.home)["runs"]


@pytest.mark.promise("RUN-21")
async def test_the_same_request_again_gets_the_same_run_and_does_nothing_twice(
    it: GatewayProcess, model: ModelServer, tmp_path: Path
) -> None:
    counter = tmp_path / "counter"
    body = {"input": f'tool:bump {{"path": "{counter}", "tag": "x"}}'}
    status, run_id, replayed = await _post(it, "k", body)
    assert (status, replayed) == (202, False)
    assert await _post(it, "k", body) == (202, run_id, True)
    await it.finished(run_id)
    assert await _post(it, "k", body) == (202, run_id, True)
    await it.kill()
    await it.start()
    assert await _post(it, "k", body) == (202, run_id, True)
    await it.stop()
    await it.start()
    assert await _post(it, "k", body) == (202, run_id, True)
    assert _runs(it) == 1
    assert len(counter.read_text().splitlines()) == 1
    assert len(model.requests) == 2


@pytest.mark.promise("RUN-21")
@pytest.mark.fault("F-04")
async def test_a_key_used_for_another_request_is_a_conflict_and_makes_no_run(
    it: GatewayProcess,
) -> None:
    _, run_id, _ = await _post(it, "k", {"input": "one"})
    before = ledger.holdings(it.home)
    for other in ({"input": "two"}, {"input": "one", "session_id": "s"}):
        status, code, _ = await _post(it, "k", other)
        assert (status, code) == (409, "idempotency_key_conflict")
    await it.finished(run_id)
    after = ledger.holdings(it.home)
    assert (before["sessions"], before["runs"]) == (after["sessions"], after["runs"])
    assert await _post(it, "k", {"input": "one"}) == (202, run_id, True)
    assert (await _post(it, "other", {"input": "one"}))[1] != run_id, "keys are what counts"
    assert await it.run("one") != run_id, "equal requests without a key are two requests"


@pytest.mark.promise("RUN-21")
async def test_a_refused_request_does_not_use_up_its_key(it: GatewayProcess) -> None:
    assert (await _post(it, "k", {"input": ""}))[0] == 400
    status, _, replayed = await _post(it, "k", {"input": "now right"})
    assert (status, replayed) == (202, False)


@pytest.mark.promise("RUN-21")
async def test_an_invalid_key_is_refused(it: GatewayProcess) -> None:
    before = ledger.holdings(it.home)
    for key in ("", " ", "a b", "a" * 256, "é"):
        assert (await _post(it, key, {"input": "x"}))[0] == 400, key
    assert (await _post(it, "a" * 255, {"input": "x"}))[0] == 202
    assert ledger.holdings(it.home)["runs"] == before["runs"] + 1


@pytest.mark.promise("RUN-21")
async def test_a_key_is_remembered_for_a_day(it: GatewayProcess) -> None:
    _, old, _ = await _post(it, "old", {"input": "x"})
    _, young, _ = await _post(it, "young", {"input": "x"})
    for run_id in (old, young):
        await it.finished(run_id)
    await it.stop()
    for key, seconds in (("old", DAY_S + 60), ("young", DAY_S - 600)):
        ledger.change(
            it.home,
            lambda journal, by=seconds, of=key: journal.execute(  # type: ignore[misc]
                "UPDATE request_keys SET at = at - ? WHERE key = ?", (by, of)
            ),
        )
    await it.start()
    assert await _post(it, "young", {"input": "x"}) == (202, young, True)
    while ledger.ask(it.home, "SELECT 1 FROM request_keys WHERE key = 'old'"):
        await it.get("/health")
    status, run_id, replayed = await _post(it, "old", {"input": "x"})
    assert (status, replayed) == (202, False) and run_id != old


@pytest.mark.promise("RUN-21")
@pytest.mark.fault("F-04")
@pytest.mark.parametrize("session", [None, "fresh", "cold", "warm"])
async def test_concurrent_identical_requests_make_one_run(
    it: GatewayProcess, session: str | None
) -> None:
    if session in ("cold", "warm"):
        await it.finished(await it.run("before", session_id=session))
    if session == "cold":
        await it.kill()
        await it.start()
    before = _runs(it)
    body = {"input": "twin", "session_id": session}
    answers: list[tuple[int, str, bool]] = []

    async def post() -> None:
        answers.append(await _post(it, "k", body))

    async with anyio.create_task_group() as twins:
        for _ in range(16):
            twins.start_soon(post)
    assert {status for status, _, _ in answers} == {202}
    assert len({run_id for _, run_id, _ in answers}) == 1
    assert [replayed for _, _, replayed in answers].count(False) == 1
    await it.finished(answers[0][1])
    assert _runs(it) == before + 1


@pytest.mark.promise("RUN-21")
@pytest.mark.fault("F-04")
@pytest.mark.parametrize("session", [None, "fresh"])
async def test_of_different_requests_under_one_key_at_once_one_is_taken(
    it: GatewayProcess, session: str | None
) -> None:
    answers: list[tuple[int, str, bool]] = []

    async def post(number: int) -> None:
        answers.append(await _post(it, "k", {"input": f"{number}", "session_id": session}))

    async with anyio.create_task_group() as twins:
        for number in range(12):
            twins.start_soon(post, number)
    taken = [run_id for status, run_id, _ in answers if status == 202]
    refused = {code for status, code, _ in answers if status == 409}
    assert len(taken) == 1 and len(answers) == 12
    assert refused == {"idempotency_key_conflict"}
    await it.finished(taken[0])
    assert _runs(it) == 1


@pytest.mark.promise("RUN-21")
@pytest.mark.fault("F-04")
@pytest.mark.debian("strace")
async def test_a_client_that_hung_up_before_its_answer_and_comes_back_finds_its_run(
    tmp_path: Path,
) -> None:
    """On a disk so slow that the answer is still out when the client has given up."""
    async with unstarted(tmp_path) as it:
        await it.start(*SLOW_DISK)
        host, _, port = it.url.removeprefix("http://").partition(":")
        for number in range(6):
            body = msgspec.json.encode({"input": "x", "session_id": ["s", None][number % 2]})
            headers = {"Idempotency-Key": f"k{number}", "Content-Type": "application/json"}
            fields = (*(f"{k}: {v}" for k, v in headers.items()), f"Content-Length: {len(body)}")
            async with await anyio.connect_tcp(host, int(port)) as impatient:
                await impatient.send(head("POST", "/v1/runs", *fields) + body)
                for _ in range(3):  # it is being decided meanwhile
                    await it.get("/health")
            answers = []
            for _ in range(2):
                async with it.http.post(
                    it.url + "/v1/runs", data=body, headers=headers
                ) as response:
                    answers.append((response.status, (await response.json())["run_id"]))
            assert answers[0] == answers[1] and answers[0][0] == 202
            await it.finished(answers[0][1])
            assert _runs(it) == number + 1, f"two runs for one key (round {number})"
