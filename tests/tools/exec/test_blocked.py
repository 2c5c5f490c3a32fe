"""What the sandbox blocked is said in words, and only then."""

from pathlib import Path

import pytest

from holdfast.core.approval.approval import Level
from holdfast.tools.exec.blocked import BlockedBy, find
from tests.tools.exec.test_commands import desk

pytestmark = pytest.mark.anyio

HOME = "/home/me/project"


def what(level: Level, output: str, exit_code: int = 1, *refused: str) -> BlockedBy | None:
    found = find(level, exit_code, output, HOME, refused)
    return found.what if found else None


@pytest.mark.parametrize(
    "said",
    [
        "curl: (6) Could not resolve host: example.com",
        "OSError: [Errno 101] Network is unreachable",
        "ssh: Could not resolve hostname github.com: Temporary failure in name resolution",
        "npm error request failed, reason: getaddrinfo EAI_AGAIN registry.example",
    ],
)
def test_a_program_without_a_network_is_told_of_the_proxy(said: str) -> None:
    assert what(Level.L2, said) is BlockedBy.NETWORK
    assert what(Level.L1, said) is BlockedBy.NETWORK
    assert what(Level.L0, said) is None
    assert what(Level.L2, said, 0) is None
    assert what(Level.L2, said + "\nmore" * 30) is None


def test_a_refused_host_is_named_whatever_the_exit_code() -> None:
    found = find(Level.L2, 0, "", HOME, ["a.example", "a.example"])
    assert found is not None and found.what is BlockedBy.NETWORK
    assert found.words.count("a.example") == 1


def test_a_blocked_write_has_a_path_and_the_error_of_its_level(tmp_path: Path) -> None:
    writable = f"touch: cannot touch '{tmp_path}/x': Read-only file system"
    assert what(Level.L2, writable) is BlockedBy.WRITE
    assert what(Level.L2, f"cat: {tmp_path}/x: Permission denied") is None
    assert what(Level.L1, f"bash: line 1: {tmp_path}/x: Permission denied") is BlockedBy.WRITE
    assert what(Level.L1, "Read-only file system") is None


def test_a_protected_file_of_the_workspace_has_words_of_its_own(tmp_path: Path) -> None:
    said = f"/bin/bash: line 1: {tmp_path}/.git/config: Read-only file system"
    inside, outside = (find(Level.L2, 1, said, str(place), ()) for place in (tmp_path, "/nowhere"))
    assert inside is not None and outside is not None
    assert inside.words != outside.words


@pytest.mark.debian("bwrap")
@pytest.mark.promise("NET-05")
async def test_the_result_of_a_command_says_what_was_blocked(tmp_path: Path) -> None:
    async with desk(tmp_path, "L2") as it:
        connect = 'import socket; socket.create_connection(("192.0.2.1", 80), 3)'
        told = await it.result(f"python3 -c '{connect}'", "net")
        assert told["blocked"] == BlockedBy.NETWORK
        (it.workspace / ".envrc").write_text("export A=1")
        told = await it.result("echo evil >> .envrc", "seal")
        assert told["blocked"] == BlockedBy.WRITE
        told = await it.result("echo fine > here; false", "no")
        assert "blocked" not in told
