"""Planted secrets: whatever way they take into a real gateway, they are nowhere afterwards.

Looked for is not the secret alone but every piece of it, and every form a program might
print it in: in the log, in each file of the home, in the events, live and read again, and in
whatever else the API tells, before and after a restart.
"""

import base64
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.behaviour.hands import command, does, process, told_late
from tests.fakes.gateway import KEY, GatewayProcess, Stream, files, gateway, read_events
from tests.fakes.model_server import (
    DONE,
    Abort,
    ModelServer,
    Reply,
    call,
    calls,
    delta,
    finish,
    refuse,
    split,
    stream,
    token,
    usage,
)

pytestmark = [pytest.mark.anyio, pytest.mark.fault("F-39")]

CANARY = 'sk-proj-C4n/ry+"One"\\_for=the%Model?' + "7Xq" * 12  # every character that is escaped
CONFIGURED = "sk-proj-C4n_ry-Two-from-the-file-" + "9Zb" * 12
PIECE = 10  # characters of a secret: so much of it is no accident


def forms(secret: str) -> Iterator[str]:
    """Every form, whole; of base64, what does not depend on what stands before and behind."""
    raw = secret.encode()
    yield from (secret, json.dumps(secret)[1:-1], json.dumps(json.dumps(secret))[3:-3])
    yield from (raw.hex(), raw.hex().upper(), raw.hex(" "), raw.hex(":").upper())
    yield from (quote(secret, safe=""), quote(secret), "".join(f"%{b:02X}" for b in raw))
    for before in (b"", b"a", b"ab"):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(before + raw)[4:-4].decode()


def pieces(secret: str) -> set[bytes]:
    return {
        form[at : at + PIECE].encode()
        for form in forms(secret)
        for at in range(len(form) - PIECE + 1)
    }


def printed(secret: str) -> str:
    """How a careless tool shows it."""
    raw = secret.encode()
    words = [secret, raw.hex(), raw.hex().upper(), quote(secret), quote(secret, safe="")]
    words += [base64.b64encode(b + raw).decode() for b in (b"", b"x", b"user:", b"Bearer ")]
    words += [base64.urlsafe_b64encode(raw).decode(), json.dumps({"key": secret})]
    words += [raw.hex(" "), raw.hex(":").upper(), ", ".join(f"0x{b:02x}" for b in raw)]
    words += ["".join(f"%{b:02{'xX'[n % 2]}}" for n, b in enumerate(raw))]
    words += [base64.encodebytes(b"x" * before + raw).decode() for before in range(45, 57)]
    words += [json.dumps(base64.encodebytes(b"x" * 55 + raw).decode())]
    return "found " + "; ".join(words) + " there"


@dataclass(frozen=True, slots=True)
class Stage:
    """A gateway with secrets in it, and everything it has told."""

    it: GatewayProcess
    model: ModelServer
    secrets: tuple[str, ...]
    told: dict[str, bytes]

    async def run(self, text: str, **fields: object) -> dict[str, object]:
        """A run to its end, its events kept as they came and as they are read again."""
        run_id = await self.it.run(text, session_id="s", **fields)
        for reading in ("live", "again"):
            self.told[f"{reading} {run_id}"] = (await self.it.events(run_id)).raw
        status = await self.it.status(run_id)
        self.told[f"status {run_id}"] = json.dumps(status).encode()
        return status

    async def look(self) -> None:
        """Fail if any piece of a secret is anywhere."""
        for path in ("/v1/runs", "/api/sessions/s/messages", "/v1/approvals"):
            async with self.it.http.get(self.it.url + path) as response:
                self.told[path] = await response.read()
        self.told["log"] = "\n".join(self.it.lines).encode()
        self._search(self.told.items())
        self._search(self._files())

    def _files(self) -> Iterator[tuple[str, bytes]]:
        mine = {"config.toml", "api_key"}  # where secrets are kept on purpose
        for path, data in files(self.it.home):
            spool = path.name == "output" and path.parent.parent.name == "calls"
            if path.name not in mine and not spool:
                yield path.name, data.strip(b"\0")  # the ballast is empty

    def _search(self, places: Iterable[tuple[str, bytes]]) -> None:
        found = {
            f"{name}: {piece!r}"
            for name, data in places
            for secret in self.secrets
            for piece in pieces(secret)
            if piece in data
        }
        assert not found


@pytest.fixture(params=["environment", "configuration"])
async def stage(
    request: pytest.FixtureRequest, tmp_path: Path, model: ModelServer
) -> AsyncIterator[Stage]:
    given = CANARY if request.param == "environment" else CONFIGURED
    config = f'[openai]\napi_key = "{given}"\n' if given is CONFIGURED else ""
    environ = {"OPENAI_API_KEY": "" if config else given}
    config += f'[gateway]\nworkspace_roots = ["{tmp_path}"]\n'
    async with gateway(tmp_path, model.base_url, config, **environ) as it:
        yield Stage(it, model, (given, KEY), {})


def in_tokens(text: str, thoughts: str = "", size: int = 3) -> Reply:
    """An answer in which every secret is split over many chunks."""
    thought = (delta(reasoning_content=t) for t in split(thoughts, len(thoughts) // size + 1))
    words = (token(t) for t in split(text, len(text) // size + 1))
    return stream(*thought, *words, finish(), usage(7, 7), DONE)


@pytest.mark.parametrize("size", [1, 3, 40])
async def test_a_model_that_says_a_secret_in_chunks_has_not_said_it(
    stage: Stage, size: int
) -> None:
    text = " and ".join(map(printed, stage.secrets))
    stage.model.then(in_tokens(text, text, size))
    status = await stage.run("hello")
    assert status["status"] == "completed"
    assert "found [redacted]; [redacted]; " in str(status["output"])
    told = next(raw for name, raw in stage.told.items() if name.startswith("live"))
    assert told.count(b"[redacted]") >= 2 * len(stage.secrets)
    await stage.look()


async def test_a_model_that_is_cut_within_a_secret_leaves_no_part_of_it(stage: Stage) -> None:
    half = [token(t) for t in split("it is " + stage.secrets[0][:-4], 9)]
    stage.model.then(stream(*half, Abort()), in_tokens("sorry"))
    status = await stage.run("hello")
    assert status["output"] == "sorry"
    await stage.look()


async def test_a_secret_in_a_call_reaches_neither_the_tool_nor_the_journal(
    stage: Stage, tmp_path: Path
) -> None:
    arguments = json.dumps({"path": str(tmp_path / "bumped"), "tag": stage.secrets[0]})
    stage.model.then(calls(call("bump", arguments, parts=20)), in_tokens("done"))
    assert (await stage.run("hello"))["status"] == "completed"
    assert (tmp_path / "bumped").read_text().startswith("[redacted] ")
    await stage.look()


@pytest.mark.parametrize("how", ["say", "fail", "raise"])
async def test_a_tool_that_tells_a_secret_has_not_told_it(
    stage: Stage, tmp_path: Path, how: str
) -> None:
    leak = tmp_path / "leak"
    leak.write_text(" ".join(map(printed, stage.secrets)))
    asked = json.dumps({"path": str(leak), "how": how})
    stage.model.then(calls(call("blurt", asked)), in_tokens("done"))
    assert (await stage.run("hello"))["status"] == "completed"
    result = next(m for m in stage.model.requests[-1].body["messages"] if m["role"] == "tool")
    assert "found [redacted]; [redacted]; " in result["content"]
    await stage.look()


async def test_a_result_that_is_cut_within_a_secret_ends_before_it(
    stage: Stage, tmp_path: Path
) -> None:
    leak = tmp_path / "leak"
    for over in (1, 20, 60):
        leak.write_text("-" * (64 * 1024 - over) + stage.secrets[0] + "-" * 1000)
        stage.model.then(calls(call("blurt", json.dumps({"path": str(leak)}))), in_tokens("done"))
        assert (await stage.run("hello"))["status"] == "completed"
    await stage.look()


@pytest.mark.parametrize("status", [400, 401, 500])
async def test_a_server_that_quotes_the_key_in_its_refusal_is_not_quoted(
    stage: Stage, status: int
) -> None:
    stage.model.then(refuse(status, f"bad key: {printed(stage.secrets[0])}"), in_tokens("done"))
    ended = await stage.run("hello")
    assert ended["status"] == ("completed" if status == 500 else "failed")
    await stage.look()


async def test_a_person_who_pastes_a_secret_has_it_kept_nowhere(stage: Stage) -> None:
    secret = printed(stage.secrets[0])
    body = {
        "input": secret,
        "instructions": secret,
        "session_id": "s",
        "conversation_history": [{"role": "user", "content": secret}],
        "metadata": {"note": stage.secrets[0]},
    }
    named = {"Idempotency-Key": f"key-{quote(stage.secrets[0], safe='')}"}
    first = await stage.it.post("/v1/runs", body, named)
    again = await stage.it.post("/v1/runs", body, named)
    assert first[0] == 202 and again[1]["run_id"] == first[1]["run_id"]
    await stage.it.finished(first[1]["run_id"])
    asked = json.dumps(stage.model.requests[-1].body)
    assert "[redacted]" in asked and stage.secrets[0] not in asked
    await stage.look()


async def test_a_process_in_the_background_that_tells_a_secret_has_not_told_it(
    stage: Stage, tmp_path: Path
) -> None:
    """What it wrote stays as it is in one place only: its spool, for the owner's eyes."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "leak").write_text("\n".join(map(printed, stage.secrets)) + "\nready\n")
    text = command("cat leak; sleep 60", background=True, watch_patterns=["ready", "found"])
    begun = await does(stage.it, text, session_id="s", workspace=str(work), late="events")
    name = begun["process_id"]
    told = [await told_late(stage.it, "s", "wrote lines")]
    for action in ("poll", "log"):
        told.append(
            json.dumps(await does(stage.it, process(action, process_id=name), session_id="s"))
        )
    told.append(json.dumps(await does(stage.it, process("kill", process_id=name), session_id="s")))
    assert all("[redacted]" in text for text in told[:3])
    stage.told["process"] = "\n".join(told).encode()
    url = f"{stage.it.url}/api/sessions/s/events"
    async with stage.it.http.get(url) as response:
        stream = Stream(200)
        await read_events(response, stream, until="process.ended")
    stage.told["session's events"] = stream.raw
    for spool in stage.it.home.glob("calls/*/output"):
        assert spool.stat().st_mode & 0o077 == 0
    await stage.look()
    await stage.it.kill()
    await stage.it.start()
    await stage.look()


async def test_a_directory_that_is_named_like_a_key_is_recorded_nowhere(
    stage: Stage, tmp_path: Path
) -> None:
    secret = CONFIGURED if stage.secrets[0] == CONFIGURED else KEY  # one that may be a name
    work = tmp_path / "work"
    (work / secret).mkdir(parents=True)
    (work / "link").symlink_to(secret)
    body = {"input": "hi", "session_id": "s", "workspace": str(work / "link")}
    status, refused = await stage.it.post("/v1/runs", body)
    assert (status, refused["error"]["code"]) == (400, "workspace_not_allowed")
    told = await does(stage.it, command("cd link; pwd"), session_id="s", workspace=str(work))
    assert "cwd" not in told
    again = await does(stage.it, command("pwd"), session_id="s")
    assert again["output"].strip() == str(work)
    stage.told["cd"] = json.dumps([told, again]).encode()
    await stage.look()


async def test_a_restart_reveals_no_secret(stage: Stage, tmp_path: Path) -> None:
    leak = tmp_path / "leak"
    leak.write_text(" ".join(map(printed, stage.secrets)))
    asked = json.dumps({"path": str(leak), "how": "raise"})
    stage.model.then(calls(call("blurt", asked)), in_tokens(printed(KEY)), in_tokens(printed(KEY)))
    await stage.run(printed(KEY))
    await stage.it.kill()
    await stage.it.start()
    await stage.run("and now?")
    await stage.look()
    assert await stage.it.stop() == 0
    await stage.it.start()
    await stage.look()


async def test_no_child_inherits_a_secret_or_reads_the_gateways_memory(stage: Stage) -> None:
    stage.model.then(calls(call("exposed", "{}")), in_tokens("done"))
    await stage.run("hello")
    result = next(m for m in stage.model.requests[-1].body["messages"] if m["role"] == "tool")
    names = result["content"].partition(";")[0].split()
    assert "PATH" in names
    assert not {"OPENAI_API_KEY", "HOLDFAST_API_KEY"} & set(names)
    assert result["content"].endswith("dumpable: 0; core: 0 of 0")


async def test_a_word_that_only_begins_like_a_secret_is_told_whole(stage: Stage) -> None:
    text = f"it starts with {stage.secrets[0][:7]} and {KEY[:9]} ends"
    stage.model.then(in_tokens(text, size=1))
    run_id = await stage.it.run("hello")
    assert (await stage.it.events(run_id)).text == text
