"""`holdfast setup`: finds what is there, tries it, and only then writes it down."""

import json
import signal
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from holdfast.cli.setup import discover
from holdfast.config.load import load
from holdfast.config.vendors import BY_NAME
from holdfast.host import local_models
from tests.cli import Place, read_until
from tests.fakes import ollama
from tests.fakes.model_server import ModelServer, Wait, refuse, serve, stream

pytestmark = pytest.mark.anyio

NOWHERE = ("--ports", "9")  # nobody serves models there
PATIENT_S = 60.0  # no test depends on how fast a server answers


def saved(place: Place) -> dict[str, Any]:
    return tomllib.loads((place.home / "config.toml").read_text())


def port(server: ModelServer) -> int:
    return int(server.base_url.rpartition(":")[2].removesuffix("/v1"))


@asynccontextmanager
async def local(answers: dict[str, Any]) -> AsyncIterator[int]:
    """A server on this machine that answers each path so; its port."""
    app = web.Application()
    for path, answer in answers.items():

        async def handle(_: web.Request, answer: Any = answer) -> web.Response:
            return web.json_response(answer)

        app.router.add_get(path, handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def listed(*ids: str, owner: str = "x") -> dict[str, Any]:
    return {"object": "list", "data": [{"id": one, "owned_by": owner} for one in ids]}


async def test_servers_on_this_machine_are_found_with_their_models() -> None:
    tags = {"models": [{"name": "qwen3:8b"}]}
    async with (
        serve() as server,
        local({"/v1/models": listed("qwen3:8b"), "/api/tags": tags}) as ollama,
        local({"/v1/models": listed("m", "an-embed", owner="llamacpp"), "/api/tags": tags}) as cpp,
        local({"/v1/models": listed("n", owner="vllm")}) as vllm,
        local({"/v1/models": {"hello": 1}}) as other,
    ):
        ports = [9, vllm, port(server), ollama, cpp, other]
        found = await local_models.look(ports, PATIENT_S)
    assert [(one.vendor.label, one.models) for one in found] == [
        ("vLLM", ("n",)),
        ("a server", ("fake-small", "fake-large")),
        ("Ollama", ("qwen3:8b",)),
        ("llama.cpp", ("m",)),  # it knows Ollama's list as well
    ]
    assert found[0].base_url == f"http://127.0.0.1:{vllm}/v1"


async def test_an_ollama_without_models_is_found_all_the_same() -> None:
    empty = {"/v1/models": {"object": "list", "data": None}, "/api/tags": {"models": []}}
    async with local(empty) as ollama:
        (found,) = await local_models.look([ollama], PATIENT_S)
    assert (found.vendor.label, found.models) == ("Ollama", ())


async def test_whoever_does_not_answer_holds_nobody_up() -> None:
    async with serve() as server:
        server.refuse_models = stream(Wait())
        assert await local_models.look([port(server)]) == []


async def test_nobody_on_this_machine_is_shown_a_key(place: Place) -> None:
    seen: list[str | None] = []
    app = web.Application()

    async def models(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response(listed("m"))

    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    place.environ |= {"OPENAI_API_KEY": "sk-canary", "GROQ_API_KEY": "gsk-canary"}  # two: it asks
    while not seen:  # it does not wait long for an answer
        await place.holdfast("setup", "--json", "--ports", str(runner.addresses[0][1]))
    await runner.cleanup()
    assert set(seen) == {None}


def test_what_the_settings_name_is_found_once_and_by_its_name(tmp_path: Path) -> None:
    environ = {"HOLDFAST_HOME": str(tmp_path), "OPENAI_API_KEY": "k"}
    groq = BY_NAME["groq"]
    (openai,) = discover.configured(load(environ, {}), [])
    assert (openai.name, openai.model) == ("OpenAI", "gpt-5-mini")
    environ["OPENAI_BASE_URL"] = groq.base_url + "/"
    environ["HOLDFAST_MODEL"] = "openai/some"
    (found,) = discover.configured(load(environ, {}), [groq])
    assert (found.name, found.model) == ("Groq", "some")


async def test_the_model_is_called_once_and_then_saved(place: Place) -> None:
    async with serve() as server:
        result = await place.holdfast(
            "setup", "--base-url", server.base_url, "--model", "fake-large", "--yes"
        )
    assert result.code == 0, result
    assert saved(place) == {"model": "openai/fake-large", "openai": {"base_url": server.base_url}}
    assert (place.home / "config.toml").stat().st_mode & 0o777 == 0o600
    (request,) = server.requests
    assert request.body["model"] == "fake-large"
    assert request.body["stream"]
    assert len(request.body["tools"]) == 1
    assert result.out.startswith(f"Saved in {place.home}/config.toml: model openai/fake-large.")
    assert "holdfast doctor" in result.out
    assert "\x1b" not in result.out + result.err


async def test_what_was_saved_is_what_the_next_run_uses(place: Place) -> None:
    async with serve() as server:
        await place.holdfast("setup", "--base-url", server.base_url, "--model", "openai/fake-small")
        result = await place.holdfast("run", "say:well")
    assert (result.code, result.out) == (0, "well\n")
    assert [seen.body["model"] for seen in server.requests] == ["fake-small"] * 2


async def test_the_rest_of_the_file_stays_byte_for_byte(place: Place) -> None:
    place.configure('# mine\nmodel = "offline"  # for now\n\n[gateway]\nport = 1234 # my port\n')
    (place.home / "config.toml").chmod(0o640)
    async with serve() as server:
        result = await place.holdfast("setup", "--base-url", server.base_url, "--model", "m")
    assert result.code == 0
    assert (place.home / "config.toml").read_text() == (
        '# mine\nmodel = "openai/m"  # for now\n\n[gateway]\nport = 1234 # my port\n\n'
        f'[openai]\nbase_url = "{server.base_url}"\n'
    )
    assert (place.home / "config.toml").stat().st_mode & 0o777 == 0o640


async def test_a_model_is_chosen_by_its_number_also_through_a_pipe(place: Place) -> None:
    async with serve() as server:
        place.environ["OPENAI_BASE_URL"] = server.base_url
        result = await place.holdfast("setup", *NOWHERE, stdin=b"7\n2\n")
    assert result.code == 0, result
    assert saved(place)["model"] == "openai/fake-large"
    assert "   1  fake-small\n   2  fake-large\n" in result.err


async def test_where_nobody_answers_it_says_which_flag_does(place: Place) -> None:
    async with serve() as server:
        place.environ["OPENAI_BASE_URL"] = server.base_url
        silent = await place.holdfast("setup", *NOWHERE)
        unasked = await place.holdfast("setup", "--yes", *NOWHERE)
    assert (silent.code, unasked.code) == (2, 2)
    assert silent.err.endswith("say it with --model NAME; nothing was saved\n")
    assert unasked.err.endswith("--model NAME: it has fake-small, fake-large; nothing was saved\n")
    assert server.requests == []
    assert not place.home.exists()


async def test_of_several_none_is_chosen_beforehand(place: Place) -> None:
    async with serve() as server:
        server.models = ["only"]
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "GROQ_API_KEY": "gsk-canary"}
        unasked = await place.holdfast("setup", "--yes", *NOWHERE)
        program = await place.holdfast("setup", "--json", *NOWHERE)
        asked = await place.holdfast("setup", *NOWHERE, stdin=b"\n1\n")
    assert (unasked.code, program.code, asked.code) == (2, 2, 0)
    report = json.loads(program.out)
    assert [one["name"] for one in report["found"]][1:] == ["Groq"]
    assert report["saved"] is None
    assert "several were found" in report["error"]
    assert saved(place)["model"] == "openai/only"
    assert "canary" not in asked.out + asked.err + program.out


async def test_for_programs_it_is_one_object(place: Place) -> None:
    async with serve() as server:
        result = await place.holdfast(
            "setup", "--json", "--base-url", server.base_url, "--model", "m"
        )
    report = json.loads(result.out)
    assert report["error"] is None
    assert report["saved"]["model"] == "openai/m"
    assert report["saved"]["config"] == str(place.home / "config.toml")


async def test_without_anything_it_says_that_offline_works_and_what_to_do(place: Place) -> None:
    result = await place.holdfast("setup", *NOWHERE)
    assert (result.code, result.err) == (0, "")
    assert "`offline` obeys plain commands" in result.out
    for step in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "Ollama", "--base-url URL"):
        assert step in result.out
    assert not place.home.exists()
    nothing = json.loads((await place.holdfast("setup", "--json", *NOWHERE)).out)
    assert nothing == {"found": [], "saved": None, "error": None}


async def test_offline_can_be_chosen_too(place: Place) -> None:
    result = await place.holdfast("setup", "--model", "offline", *NOWHERE)
    assert result.code == 0, result
    assert saved(place) == {"model": "offline"}


@pytest.mark.parametrize(
    ("status", "code", "said", "hint"),
    [
        (401, 4, "Incorrect API key", "check the key in OPENAI_API_KEY"),
        (404, 4, "no such model", "check --model and --base-url"),
        (503, 75, "overloaded", "see whether it runs, or try again later"),
    ],
)
async def test_a_refusal_is_one_line_and_nothing_is_saved(
    place: Place, status: int, code: int, said: str, hint: str
) -> None:
    place.configure('model = "offline"\n')
    place.environ["OPENAI_API_KEY"] = "sk-canary"
    async with serve() as server:
        server.then(refuse(status, said))
        result = await place.holdfast("setup", "--base-url", server.base_url, "--model", "m")
    assert (result.code, result.out) == (code, "")
    line = result.err.splitlines()[-1]
    assert line.startswith("holdfast: openai at 127.0.0.1")
    assert said in line
    assert line.endswith(f"; {hint}; nothing was saved")
    assert "canary" not in result.err
    assert (place.home / "config.toml").read_text() == 'model = "offline"\n'


async def test_a_server_that_is_not_there_is_one_line_too(place: Place) -> None:
    result = await place.holdfast("setup", "--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    assert result.code == 75
    assert result.err.splitlines()[-1] == (
        "holdfast: openai at 127.0.0.1:9 (model m) cannot be reached; "
        "see whether it runs, or try again later; nothing was saved"
    )
    assert not (place.home / "config.toml").exists()


async def test_an_address_that_is_none_is_named_by_its_flag(place: Place) -> None:
    result = await place.holdfast("setup", "--base-url", "example.org", "--model", "m")
    assert result.code == 78
    assert result.err.splitlines()[-1].startswith('holdfast: --base-url is "example.org": ')


async def test_a_key_stays_in_the_environment_unless_it_is_asked_for(place: Place) -> None:
    place.environ["OPENAI_API_KEY"] = "sk-canary"
    async with serve() as server:
        said = ("setup", "--base-url", server.base_url, "--model", "m")
        result = await place.holdfast(*said)
        assert "canary" not in (place.home / "config.toml").read_text()
        assert "OPENAI_API_KEY must be set wherever holdfast runs" in result.out
        (place.home / "config.toml").chmod(0o644)
        result = await place.holdfast(*said, "--save-key")
    assert result.code == 0
    assert saved(place)["openai"]["api_key"] == "sk-canary"
    assert (place.home / "config.toml").stat().st_mode & 0o777 == 0o600
    assert "canary" not in result.out + result.err
    assert server.requests[0].headers["Authorization"] == "Bearer sk-canary"


async def test_without_a_key_there_is_none_to_save(place: Place) -> None:
    async with serve() as server:
        result = await place.holdfast(
            "setup", "--base-url", server.base_url, "--model", "m", "--save-key"
        )
    assert result.code == 2
    assert not place.home.exists()


async def test_what_the_environment_wins_over_is_said(place: Place) -> None:
    place.environ["HOLDFAST_MODEL"] = "offline"
    async with serve() as server:
        result = await place.holdfast("setup", "--base-url", server.base_url, "--model", "m")
    assert result.code == 0
    assert "HOLDFAST_MODEL is set to offline and wins over the file" in result.out


async def test_ollama_is_spoken_to_by_its_own_protocol(place: Place) -> None:
    async with serve(lambda _: ollama.say("well"), wire=ollama.WIRE) as server:
        server.models = ["qwen3:8b"]
        out = ""
        while "Saved" not in out:  # it does not wait long for an answer
            asked = ("setup", "--ports", server.base_url.rpartition(":")[2])
            out = (await place.holdfast(*asked)).out
        result = await place.holdfast("run", "say:well")
    assert saved(place) == {
        "model": "ollama/qwen3:8b",
        "models": {"ollama": {"base_url": server.base_url}},
    }
    assert (result.code, result.out) == (0, "well\n")


async def test_a_key_that_a_server_here_does_not_need_is_told_of(place: Place) -> None:
    async with serve() as server:
        server.models = ["only"]
        place.environ |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-canary"}
        out = ""
        while "is sent along" not in out:  # it does not wait long for an answer
            result = await place.holdfast("setup", "--ports", str(port(server)))
            assert result.code == 0, result
            out = result.out
    assert "The key in OPENAI_API_KEY is sent along" in out


async def test_ctrl_c_in_the_middle_leaves_everything_as_it_was(place: Place) -> None:
    place.configure('model = "offline"\n')
    async with serve() as server:
        server.then(stream(Wait()))
        async with place.started("setup", "--base-url", server.base_url, "--model", "m") as process:
            await server.asked(1)
            process.send_signal(signal.SIGINT)
            said = await read_until(process.stderr, "interrupted\n")
            assert await process.wait() == 130
    assert "it takes its time" in said or said.startswith("Found:")
    assert (place.home / "config.toml").read_text() == 'model = "offline"\n'
    assert [path.name for path in place.home.iterdir()] == ["config.toml"]
