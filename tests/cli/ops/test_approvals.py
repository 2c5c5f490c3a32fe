"""`holdfast approvals`: what waits, and the answers to it, from any terminal."""

import json
from pathlib import Path

import pytest

from holdfast.cli import help
from holdfast.cli.ops import approvals
from holdfast.cli.run.approval import WANTS
from tests.cli import Place
from tests.fakes.gateway import ROOT, GatewayProcess
from tests.fakes.model_server import ModelServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(tmp_path: Path, model: ModelServer) -> Place:
    place = Place(tmp_path)
    place.environ |= {"PYTHONPATH": str(ROOT), "OPENAI_BASE_URL": model.base_url}
    place.environ |= {"HOLDFAST_MODEL": "openai/fake", "OPENAI_API_KEY": "sk-test"}
    return place


@pytest.fixture
def effects(tmp_path: Path) -> Path:
    return tmp_path / "effects"


def _lines(effects: Path) -> list[str]:
    return effects.read_text().splitlines() if effects.exists() else []


async def _wait(it: GatewayProcess, effects: Path, tag: str = "x") -> tuple[str, str]:
    """A run that waits for an approval: its id, and the request's."""
    run_id = await it.run(f'tool:risky {{"path": "{effects}", "tag": "{tag}"}}')
    events = await it.events(run_id, until="approval.request")
    return run_id, events.frames[-1].data["request_id"]


@pytest.mark.usefixtures("it")
async def test_that_nothing_waits_is_said(place: Place) -> None:
    for args in ((), ("list",)):
        result = await place.holdfast("approvals", *args)
        assert (result.code, result.out, result.err) == (0, f"{approvals.NOTHING_WAITS}\n", "")
    assert (await place.holdfast("approvals", "--json")).out == ""


async def test_a_request_is_shown_completely_and_approved_by_a_prefix_of_its_id(
    place: Place, it: GatewayProcess, effects: Path
) -> None:
    run_id, name = await _wait(it, effects)
    listed = await place.holdfast("approvals")
    assert listed.code == 0
    assert listed.out == (
        f"{name}  expires in 10 min  {run_id}\n"
        "  appends a line\n"
        f"  {WANTS}\n"
        "    bump x\n"
        "  choices: once, session, deny\n"
    )
    (line,) = (await place.holdfast("approvals", "list", "--json")).out.splitlines()
    found = json.loads(line)
    assert (found["request_id"], found["run_id"], found["command"]) == (name, run_id, "bump x")

    approved = await place.holdfast("approvals", "approve", name[:10])
    assert (approved.code, approved.out, approved.err) == (0, f"{name} approved (once)\n", "")
    assert (await it.finished(run_id))["output"] == "the tool said: bumped x"

    again = await place.holdfast("approvals", "approve", name)
    assert (again.code, again.out) == (1, "")
    assert again.err == (
        f"holdfast: no request {name} waits: it was answered, has expired or never existed; "
        "list them: holdfast approvals\n"
    )


async def test_nothing_is_approved_that_was_not_named(
    place: Place, it: GatewayProcess, effects: Path
) -> None:
    _, name = await _wait(it, effects)
    for args in (("approve",), ("approve", "apr_"), ("approve", "--session"), ("approve", "")):
        result = await place.holdfast("approvals", *args)
        assert (result.code, result.out) == (2, "")
    assert (await place.holdfast("approvals", "approve", "apr_zzz")).code == 1
    assert name in (await place.holdfast("approvals")).out
    assert _lines(effects) == []


async def test_the_only_one_that_waits_may_be_denied_without_its_id(
    place: Place, it: GatewayProcess, effects: Path
) -> None:
    run_id, name = await _wait(it, effects)
    _, other = await _wait(it, effects, "y")
    unclear = await place.holdfast("approvals", "deny")
    assert unclear.code == 2
    assert unclear.err == f"holdfast: 2 requests match: {name}, {other}\n"
    assert (await place.holdfast("approvals", "deny", other)).out == f"{other} denied\n"
    assert (await place.holdfast("approvals", "deny")).out == f"{name} denied\n"
    assert "not approved" in (await it.finished(run_id))["output"]
    nothing = await place.holdfast("approvals", "deny")
    assert (nothing.code, nothing.err) == (1, "holdfast: no request waits\n")
    assert _lines(effects) == []


async def test_a_wider_answer_has_to_be_said(
    place: Place, it: GatewayProcess, effects: Path
) -> None:
    _, name = await _wait(it, effects)
    assert (await place.holdfast("approvals", "approve", name, "--session", "--always")).code == 2
    result = await place.holdfast("approvals", "approve", "--session", name)
    assert (result.code, result.out) == (0, f"{name} approved (session)\n")


async def test_without_an_owner_the_run_goes_on_in_the_terminal_that_answers(
    place: Place, it: GatewayProcess, effects: Path
) -> None:
    run_id, name = await _wait(it, effects)
    await it.kill()
    assert name in (await place.holdfast("approvals")).out
    result = await place.holdfast("approvals", "approve", name)
    assert result.code == 0
    assert result.out == f"{name} approved (once)\nthe tool said: bumped x\n"
    assert approvals.CONTINUES_HERE.format(run_id=run_id) in result.err
    assert len(_lines(effects)) == 1
    assert (await place.holdfast("approvals")).out == f"{approvals.NOTHING_WAITS}\n"


async def test_the_help_says_what_can_be_answered_and_how(place: Place) -> None:
    assert "approvals" in (await place.holdfast("--help")).out
    text = (await place.holdfast("approvals", "--help")).out
    assert help.APPROVALS in text
    assert help.RUN in (await place.holdfast("run", "--help")).out


async def _permit(place: Place, it: GatewayProcess, command: str) -> None:
    """Have a command approved for good, at the operator's door."""
    async with it.http.post(
        f"{it.url}/v1/runs", json={"input": f'tool:terminal {{"command": "{command}"}}'}
    ) as response:
        run_id = (await response.json())["run_id"]
    events = await it.events(run_id, until="approval.request")
    name = events.frames[-1].data["request_id"]
    assert (await place.holdfast("approvals", "approve", name, "--always")).code == 0
    await it.finished(run_id)


@pytest.mark.debian("bwrap")
async def test_standing_permissions_are_listed_and_revoked(
    place: Place, it: GatewayProcess
) -> None:
    nothing = await place.holdfast("approvals", "rules")
    assert (nothing.code, nothing.out) == (0, f"{approvals.NO_PERMISSIONS}\n")
    assert (await place.holdfast("approvals", "rules", "--json")).out == ""
    await _permit(place, it, "truncate -s 0 one")
    await _permit(place, it, "truncate -s 0 two")
    listed = (await place.holdfast("approvals", "rules")).out.splitlines()
    for line, command in zip(listed, ("truncate -s 0 one", "truncate -s 0 two"), strict=True):
        assert line.partition("  ")[2].startswith(f"exactly {command} in ")
    first, second = (line.split()[0] for line in listed)
    (rule, _) = (await place.holdfast("approvals", "rules", "--json")).out.splitlines()
    assert json.loads(rule)["name"] == first

    revoked = await place.holdfast("approvals", "revoke", first[:8])
    assert (revoked.code, revoked.out) == (0, f"revoked: {listed[0]}\n")
    assert (await place.holdfast("approvals", "rules")).out == listed[1] + "\n"
    again = await place.holdfast("approvals", "revoke", first)
    assert (again.code, again.out) == (1, "")
    assert again.err == (
        f"holdfast: there is no permission {first}; list them: holdfast approvals rules\n"
    )
    assert (await place.holdfast("approvals", "revoke")).code == 2
    await it.stop()
    assert (await place.holdfast("approvals", "revoke", second)).code == 0
    assert approvals.NO_PERMISSIONS in (await place.holdfast("approvals", "rules")).out


@pytest.mark.debian("bwrap")
@pytest.mark.promise("ASK-08")
async def test_commands_that_match_a_pattern_run_unasked_until_it_is_revoked(
    place: Place, it: GatewayProcess
) -> None:
    line = json.dumps({"command": "truncate -s 0 x | cat"})
    allowed = await place.holdfast("approvals", "allow", "truncate -s *")
    assert allowed.code == 0
    (listed,) = (await place.holdfast("approvals", "allow", "--list")).out.splitlines()
    assert allowed.out == f"permitted: {listed}\n"
    assert (await it.finished(await it.run(f"tool:terminal {line}")))["status"] == "completed"
    assert "rule.allowed" in (it.home / "audit.jsonl").read_text()
    assert (await place.holdfast("approvals", "revoke", listed.split()[0])).code == 0
    events = await it.events(await it.run(f"tool:terminal {line}"), until="approval.request")
    assert "approval.request" in events.names
    for wrong in ("sh *", "make | sh", "*"):
        assert (await place.holdfast("approvals", "allow", wrong)).code == 1
    assert (await place.holdfast("approvals", "allow")).code == 2


@pytest.mark.promise("ASK-07")
async def test_a_denial_may_have_a_reason(place: Place, it: GatewayProcess, effects: Path) -> None:
    run_id, name = await _wait(it, effects)
    denied = await place.holdfast("approvals", "deny", name, "--because", "not on a Friday")
    assert denied.code == 0
    assert "not on a Friday" in (await it.finished(run_id))["output"]
