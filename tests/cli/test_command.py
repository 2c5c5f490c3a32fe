"""Every error is one line that says what to do, and an exit code."""

import json
from pathlib import Path

import pytest

from tests.cli import Place

pytestmark = pytest.mark.anyio


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.fault("F-25")
@pytest.mark.parametrize(
    "command", [("run", "hi"), ("gateway", "run"), ("doctor",), ("config",), ("runs",)]
)
async def test_a_wrong_key_in_the_file_ends_every_command_with_78(
    place: Place, command: tuple[str, ...]
) -> None:
    place.configure("[gateway]\nprot = 1\n")
    result = await place.holdfast(*command)
    assert result.code == 78
    assert result.out == ""
    assert result.err == (
        f"holdfast: {place.home}/config.toml: unknown key gateway.prot: "
        "did you mean port = 8642 under [gateway]?\n"
    )


async def test_a_wrong_flag_is_named_like_any_other_setting(place: Place) -> None:
    result = await place.holdfast("gateway", "run", "--port", "http")
    assert result.code == 78
    assert result.err.startswith('holdfast: --port is "http": it must be a whole number')


async def test_what_is_no_command_is_a_usage_error(place: Place) -> None:
    assert (await place.holdfast("dance")).code == 2
    assert (await place.holdfast("gateway")).code == 2


async def test_nothing_to_do_is_a_usage_error(place: Place) -> None:
    result = await place.holdfast("run")
    assert result.code == 2
    assert result.err == (
        'holdfast: nothing to do: say what, like: holdfast run "list the files here"\n'
    )


async def test_the_home_of_a_user_is_no_workspace_by_accident(place: Place) -> None:
    result = await place.holdfast("run", "hi", cwd=place.root)
    assert result.code == 2
    assert f"insist with --workspace {place.root}" in result.err

    result = await place.holdfast("run", "hi", "--workspace", str(place.root))
    assert result.code == 2
    assert "insist with --workspace and --yes" in result.err


async def test_a_workspace_must_be_there(place: Place) -> None:
    result = await place.holdfast("run", "hi", "--workspace", "missing")
    assert result.code == 2
    assert result.err == "holdfast: missing does not exist; name another with --workspace\n"


async def test_the_settings_are_shown_with_their_origin_and_without_secrets(place: Place) -> None:
    place.environ["OPENAI_API_KEY"] = "sk-canary"
    place.configure("[limits]\nturns = 7\n")
    result = await place.holdfast("config")
    assert result.code == 0
    rows = {line.split()[0]: line for line in result.out.splitlines()}
    assert rows["limits.turns"].split(None, 1)[1].split("#") == [
        "7".ljust(34) + "  ",
        f" {place.home}/config.toml",
    ]
    assert "canary" not in result.out
    assert "environment OPENAI_API_KEY" in rows["openai.api_key"]

    settings = json.loads((await place.holdfast("config", "--json")).out)["settings"]
    assert settings["limits.turns"] == {"value": 7, "origin": f"{place.home}/config.toml"}


async def test_the_files_place_is_told_even_when_it_is_broken(place: Place) -> None:
    place.configure("][")
    result = await place.holdfast("config", "path")
    assert (result.code, result.out) == (0, f"{place.home}/config.toml\n")


async def test_an_unexpected_error_is_one_line_and_its_trace_is_kept(place: Place) -> None:
    place.home.mkdir(mode=0o700)
    (place.home / "run").touch()  # where a directory has to be
    result = await place.holdfast("run", "hi")
    assert result.code == 70
    assert result.err.count("\n") == 1
    assert f"the trace is in {place.home}/log/cli.jsonl" in result.err
    assert "Traceback" in (place.home / "log" / "cli.jsonl").read_text()

    place.environ["HOLDFAST_DEBUG"] = "1"
    assert "Traceback" in (await place.holdfast("run", "hi")).err
