"""The operator's socket: runs of all users, and a restart that is refused."""

import json
import secrets
from pathlib import Path

import aiohttp
import pytest

from holdfast.host.lock import SOCKET
from holdfast.journal import audit
from tests.behaviour.chats import GUEST, OWNER, bot
from tests.behaviour.hands import command
from tests.cli import Place
from tests.fakes.gateway import ROOT, GatewayProcess
from tests.fakes.model_server import ModelServer


def at(directory: Path) -> Place:
    place = Place(directory)
    place.environ |= {"PYTHONPATH": str(ROOT)}
    return place


async def ask_to_restart(it: GatewayProcess) -> tuple[int, str]:
    """At the operator's door: the answer's status and its words."""
    connector = aiohttp.UnixConnector(str(it.home / SOCKET))
    async with (
        aiohttp.ClientSession("http://localhost", connector=connector) as http,
        http.post("/v1/gateway/restart") as response,
    ):
        return response.status, (await response.json())["error"]["message"]


@pytest.mark.promise("STOP-08")
async def test_a_restart_is_refused_if_the_gateway_would_not_come_back(
    tmp_path: Path, model: ModelServer
) -> None:
    async with bot(tmp_path, model.base_url) as both:
        chat, file = both.telegram.private(OWNER), both.gateway.home / "config.toml"
        file.write_text(file.read_text() + "\n[gateway]\nprot = 1\n")
        both.telegram.say(chat, "/restart")
        refused = await both.hears(chat, "Not restarted")
        assert "did you mean port" in refused["text"]
        status, words = await ask_to_restart(both.gateway)
        assert status == 409
        assert "unknown key gateway.prot" in words
        both.telegram.say(chat, "say:still here")
        await both.hears(chat, "still here")
        assert not any("estarting" in text for text in both.said(chat))
        assert await both.gateway.stop() == 0


@pytest.mark.fault("F-34")
async def test_only_the_operator_sees_and_answers_approvals_of_all_owners(
    tmp_path: Path, model: ModelServer
) -> None:
    place, token = at(tmp_path), secrets.token_hex(6)
    async with bot(tmp_path, model.base_url) as both:
        chat, other = both.telegram.private(GUEST), both.telegram.private(OWNER)
        both.telegram.say(chat, command(f"echo {token} > made; cat made"))
        await both.hears(chat, "May this run?")
        listed = await place.holdfast("approvals", "--json")
        asked = json.loads(listed.out)
        assert asked["owner"] == f"telegram:{GUEST}"
        run_id, request_id = asked["run_id"], asked["request_id"]

        assert (await both.gateway.get("/v1/approvals"))[1]["data"] == []
        assert (await both.gateway.get("/v1/runs"))[1]["data"] == []
        assert (await both.gateway.get(f"/v1/runs/{run_id}"))[0] == 404
        assert (await both.gateway.get(f"/v1/runs/{run_id}/events"))[0] == 404
        for path in (f"/v1/runs/{run_id}/approval", f"/v1/approvals/{request_id}"):
            status, _ = await both.gateway.post(path, {"choice": "once"})
            assert status in (404, 409)
        assert (await both.gateway.post(f"/v1/runs/{run_id}/stop", {}))[0] == 404
        both.telegram.say(other, f"/approve {request_id}")
        await both.until(lambda: both.telegram.sent(other))

        shown = await place.holdfast("approvals")
        assert f"{run_id}  of telegram:{GUEST}\n" in shown.out, "still nobody has answered"
        runs = await place.holdfast("runs")
        assert runs.out.startswith(run_id)
        assert runs.out.endswith(f"  of telegram:{GUEST}\n")
        done = await place.holdfast("approvals", "approve", request_id)
        assert done.code == 0, done
        await both.hears(chat, token, 2)
        assert (await place.holdfast("runs", run_id)).code == 0
        [answer] = [
            line
            for line in audit.read(place.home / audit.FILE, "")
            if line.kind == "approval.answer"
        ]
        assert (answer.who, answer.rule) == (f"telegram:{GUEST}", "operator (cli)")
