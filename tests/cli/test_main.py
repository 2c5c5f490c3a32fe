"""Every error is one line that says what to do, and an exit code."""

import json
from pathlib import Path

import anyio
import pytest

from holdfast.cli import help
from holdfast.cli.arguments import with_message
from holdfast.cli.run.run import NO_MESSAGE
from tests.cli import COMMAND, Place

pytestmark = pytest.mark.anyio


@pytest.mark.fault("F-25")
@pytest.mark.parametrize("command", [("run", "hi"), ("gateway", "run"), ("config",), ("runs",)])
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


async def test_an_unknown_command_is_a_usage_error(place: Place) -> None:
    assert (await place.holdfast("dance")).code == 2
    for said in (("run", "--bogus", "x"), ("gateway", "run", "x"), ("config", "--bogus")):
        result = await place.holdfast(*said)
        assert result.code == 2
        command = " ".join(word for word in said[:2] if word.isalpha() and word != "x")
        assert result.err.startswith(f"usage: holdfast {command} [-h]")


@pytest.mark.promise("TERM-06")
async def test_a_mistyped_command_names_the_nearest_and_how_to_say_it(place: Place) -> None:
    result = await place.holdfast("sesions")
    assert result.code == 2
    assert "sessions?" in result.err and result.err.endswith(f"{help.TO_TALK.format('sesions')}\n")


@pytest.mark.promise("TERM-06")
@pytest.mark.parametrize(
    ("argv", "rest", "message"),
    [
        (["why does it fail?"], [], "why does it fail?"),
        (["--model", "a/b", "fix it", "-c"], ["--model", "a/b", "-c"], "fix it"),
        (["--", "fix"], [], "fix"),
        (["-c", "--", "fix", "it"], ["-c"], "fix it"),
        (["--instructions", "be brief"], ["--instructions", "be brief"], ""),
        (["--resume", "the tax papers"], ["--resume", "the tax papers"], ""),
        (["run", "fix it"], ["run", "fix it"], ""),
        (["run", "--", "fix it"], ["run", "--", "fix it"], ""),
        (["sesions"], ["sesions"], ""),
        ([""], [""], ""),
    ],
)
def test_a_message_is_told_from_a_command(argv: list[str], rest: list[str], message: str) -> None:
    assert with_message(argv) == (rest, message)


@pytest.mark.promise("TERM-06")
async def test_a_message_without_a_terminal_is_one_run(place: Place) -> None:
    (place.work / "here.txt").touch()
    result = await place.holdfast("--model", "offline", "ls .")
    assert (result.code, "here.txt" in result.out) == (0, True)


async def test_a_name_that_is_empty_is_a_usage_error(place: Place) -> None:
    for option in ("--session", "--workspace", "--model"):
        result = await place.holdfast("run", "hi", option, "")
        assert result.code == 2
        assert result.err.endswith(f"holdfast run: error: argument {option}: is empty\n")


async def test_help_and_version_may_be_asked_for_in_words(place: Place) -> None:
    for word, option in (("help", "--help"), ("version", "--version")):
        asked = await place.holdfast(word)
        assert (asked.code, asked.err) == (0, "")
        assert asked == await place.holdfast(option)
    assert "78 configuration" in (await place.holdfast("help")).out


async def test_the_gateway_alone_shows_what_it_can_do(place: Place) -> None:
    result = await place.holdfast("gateway")
    assert (result.code, result.out) == (2, "")
    assert help.GATEWAY.splitlines()[0] in result.err


async def test_an_unencodable_character_does_not_end_a_command(place: Place) -> None:
    place.environ |= {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    place.environ |= {"HOLDFAST_MODEL": "offline"}
    result = await place.holdfast("doctor")
    assert (result.code, result.err) == (0, "")
    (place.work / "notes.txt").write_text("größe", "utf-8")
    result = await place.holdfast("run", "read notes.txt")
    assert result.code == 0, result.err
    assert "gr??e" in result.out


@pytest.mark.parametrize("unbuffered", ["", "1"])
async def test_output_that_cannot_be_written_is_told_in_one_line(
    place: Place, unbuffered: str
) -> None:
    place.environ["PYTHONUNBUFFERED"] = unbuffered
    with open("/dev/full", "w") as full:  # noqa: ASYNC230  a device does not block
        done = await anyio.run_process(
            [*COMMAND, "config"], check=False, stdout=full, cwd=place.work, env=place.environ
        )
    assert done.returncode == 74
    assert done.stderr == b"holdfast: cannot write the output: No space left on device\n"


async def test_nothing_to_do_is_a_usage_error(place: Place) -> None:
    result = await place.holdfast("run")
    assert result.code == 2
    assert result.err == (f"holdfast: {NO_MESSAGE}\n")


async def test_the_home_of_a_user_is_no_workspace_by_accident(place: Place) -> None:
    user = place.work
    place.environ["HOME"] = str(user)
    refusals = [
        await place.holdfast("run", "hi"),
        await place.holdfast("run", "hi", "--yes"),
        await place.holdfast("run", "hi", "--workspace", str(user)),
    ]
    for result in refusals:
        assert (result.code, result.out) == (2, "")
        assert result.err == (
            f"holdfast: {user} is your home directory, more than a run should touch; "
            f"go to a project's directory, or insist with --workspace {user} --yes\n"
        )
    assert (await place.holdfast("run", "hi", "--workspace", str(user), "--yes")).code == 0


async def test_a_workspace_that_contains_our_home_needs_a_confirmation(place: Place) -> None:
    for path, why in (
        (Path("/"), "is the root of the file system"),
        (place.root, "is your home directory"),
        (place.root.parent, f"holds Holdfast's own home {place.home}"),
    ):
        result = await place.holdfast("run", "hi", cwd=path)
        assert (result.code, result.out) == (2, "")
        assert result.err == (
            f"holdfast: {path} {why}, more than a run should touch; go to a project's "
            f"directory, or insist with --workspace {path} --yes\n"
        )
        insisting = ("--workspace", str(path), "--yes")
        assert (await place.holdfast("run", "hi", *insisting, cwd=path)).code == 0


async def test_a_directory_in_our_home_is_no_workspace(place: Place) -> None:
    await place.holdfast("run", "hi")
    path = place.home / "run"
    result = await place.holdfast("run", "hi", "--workspace", str(path), "--yes")
    assert (result.code, result.out) == (2, "")
    assert f"lies in Holdfast's own home {place.home}" in result.err


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
    (place.home / "blobs").touch()  # where a directory has to be
    result = await place.holdfast("run", "hi")
    assert result.code == 70
    assert result.err.count("\n") == 1
    assert f"the trace is in {place.home}/log/cli.jsonl" in result.err
    assert "Traceback" in (place.home / "log" / "cli.jsonl").read_text()

    place.environ["HOLDFAST_DEBUG"] = "1"
    assert "Traceback" in (await place.holdfast("run", "hi")).err


@pytest.mark.parametrize("command", ["runs", "config", "doctor", "audit"])
async def test_the_help_of_a_command_says_what_it_is_for_and_its_exit_codes(
    place: Place, command: str
) -> None:
    text = (await place.holdfast(command, "--help")).out
    assert "\nexit codes: 0 " in text
    assert max(map(len, text.splitlines())) <= 100
