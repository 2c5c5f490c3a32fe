"""`config.toml` is changed in as few bytes as can be, or not at all."""

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.exits import Exit
from holdfast.cli.setup import config_file

VALUES = {"model": "openai/new", "openai.base_url": "http://new/v1"}
PATH = Path("config.toml")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", 'model = "openai/new"\n\n[openai]\nbase_url = "http://new/v1"\n'),
        (
            "# mine\nmodel = \"old\" # why\n\n[openai]\n# where\nbase_url = 'x'\t# here\nstall_s = 5\n",
            '# mine\nmodel = "openai/new" # why\n\n[openai]\n# where\n'
            'base_url = "http://new/v1"\t# here\nstall_s = 5\n',
        ),
        (
            "# only words",
            '# only words\nmodel = "openai/new"\n\n[openai]\nbase_url = "http://new/v1"\n',
        ),
        (
            "[gateway]\nport = 1\n",
            'model = "openai/new"\n\n[gateway]\nport = 1\n\n[openai]\nbase_url = "http://new/v1"\n',
        ),
        (
            "# top\n\n# the door\n[gateway]\nport = 1\n[openai]\n\n[log]\n",
            '# top\n\nmodel = "openai/new"\n\n# the door\n[gateway]\nport = 1\n'
            '[openai]\nbase_url = "http://new/v1"\n\n[log]\n',
        ),
        (
            'plugins = [\n  "model", # model = "x"\n]\nopenai.stall_s = 5\n[log]\nlevel = "info"\n',
            'plugins = [\n  "model", # model = "x"\n]\nopenai.stall_s = 5\n'
            'openai.base_url = "http://new/v1"\nmodel = "openai/new"\n\n[log]\nlevel = "info"\n',
        ),
        (
            'model = """\n[openai]\nbase_url = "no"\n"""\r\n[ "openai" ]\r\nstall_s=5',
            'model = "openai/new"\r\n[ "openai" ]\r\nstall_s=5\r\nbase_url = "http://new/v1"\r\n',
        ),
    ],
)
def test_only_what_is_wanted_changes(before: str, after: str) -> None:
    assert config_file.changed(PATH, before, VALUES) == after


def test_what_it_says_already_is_left_alone() -> None:
    text = 'model="openai/new"\n[openai]\n"base_url"  =  "http://new/v1"\n'
    assert config_file.changed(PATH, text, VALUES) == text


@pytest.mark.parametrize(
    "text",
    [
        'openai = { base_url = "http://old" }\n',
        '[openai]\nbase_url = "a"\n[openai.x]\ny = 1\n[[openai.z]]\n',
    ],
)
def test_it_is_right_or_it_is_refused_with_what_to_write(text: str) -> None:
    try:
        new = config_file.changed(PATH, text, VALUES)
    except Exit as refused:
        assert 'model = "openai/new"' in str(refused)
        return
    wanted = tomllib.loads(text)
    wanted["model"], wanted["openai"]["base_url"] = "openai/new", "http://new/v1"
    assert tomllib.loads(new) == wanted


LINES = st.sampled_from(
    [
        "",
        "# model = 1",
        'model = "a" # b',
        "openai.stall_s = 1",
        '[openai]\nbase_url = "x"',
        "[openai]",
        'api_key = "k"',
        "[gateway]",
        'host = """\n[openai]\nmodel = 3\n"""',
        "plugins = [\n'a',\n]",
        "[channels.telegram]",
        "# ü\u2028model = 2",
    ]
)


@given(st.lists(LINES, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_any_file_says_the_same_afterwards_but_for_that(lines: list[str], end: str) -> None:
    text = "".join(line.replace("\n", end) + end for line in lines)
    try:
        wanted = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    new = config_file.changed(PATH, text, VALUES)
    wanted["model"] = "openai/new"
    wanted.setdefault("openai", {})["base_url"] = "http://new/v1"
    assert tomllib.loads(new) == wanted
    kept = [line for line in text.split("\n") if "=" not in line or "#" in line[:1]]
    assert all(line in new for line in kept)


def test_a_file_is_replaced_whole_and_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    real, link = tmp_path / "dots" / "holdfast.toml", tmp_path / "home" / "config.toml"
    for directory in (real.parent, link.parent):
        directory.mkdir()
    real.write_text("a")
    real.chmod(0o640)
    link.symlink_to(real)
    config_file.write(link, "ü\r\n")
    assert link.is_symlink()
    assert config_file.read(link) == "ü\r\n"
    assert real.stat().st_mode & 0o777 == 0o640
    config_file.write(link, "key", 0o600)
    assert real.stat().st_mode & 0o777 == 0o600
    assert os.listdir(real.parent) == ["holdfast.toml"]


def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "home" / "config.toml"
    assert config_file.read(path) == ""
    config_file.write(path, "x")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
