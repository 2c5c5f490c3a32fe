"""The container's entrypoint, as a process; the image itself needs an engine to be built."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from holdfast.cli.doctor.serving import is_movable
from tests.cli import Place, read_all, read_until
from tests.crash.evidence import facts
from tests.fakes.gateway import ROOT

pytestmark = pytest.mark.anyio

ENTRYPOINT = ROOT / "deploy" / "entrypoint"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A home, and `holdfast` as a command."""
    place = Place(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "holdfast").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m holdfast "$@"\n')
    (programs / "holdfast").chmod(0o755)
    place.environ |= {"PATH": f"{programs}:{place.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    place.configure("[gateway]\nport = 0\n")
    return place


@asynccontextmanager
async def container(place: Place, *args: str) -> AsyncIterator[Process]:
    """The first process of one; with it goes everything in it."""
    process = await anyio.open_process(
        [str(ENTRYPOINT), *args],
        stdin=subprocess.DEVNULL,
        cwd=place.work,
        env=place.environ,
        start_new_session=True,
    )
    try:
        with anyio.fail_after(25):
            yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        with anyio.CancelScope(shield=True):
            await process.aclose()


@pytest.mark.promise("STOP-11")
async def test_a_recreated_container_serves_again(place: Place) -> None:
    for _ in range(2):
        async with container(place, "--host", "127.0.0.1") as first:
            await read_until(first.stderr, "ready on")
            first.send_signal(signal.SIGTERM)
            assert "Stopped." in await read_all(first.stderr)
            assert await first.wait() == 0
    states = [f["state"] for f in facts(place.home, "gateway.state")]
    assert states == ["draining", "running"] * 2 and not facts(place.home, "gateway.wanted")


@pytest.mark.promise("STOP-11")
async def test_a_stopped_gateway_stays_stopped_in_the_next_container(
    place: Place,
) -> None:
    async with container(place) as first:
        await read_until(first.stderr, "ready on")
        assert (await place.holdfast("gateway", "stop")).code == 0
        await read_until(first.stderr, "the container stays")
        first.send_signal(signal.SIGTERM)
        assert await first.wait() == 0
    async with container(place) as second:
        said = await read_until(second.stderr, "the container stays")
        assert "Left down" in said and "ready on" not in said
        second.send_signal(signal.SIGTERM)
        assert await second.wait() == 0


@pytest.mark.fault("F-25")
async def test_a_mistake_in_the_settings_ends_the_container_with_78(place: Place) -> None:
    place.configure("[gateway]\ndrain = 5\n")
    async with container(place) as first:
        assert "did you mean drain_s" in await read_all(first.stderr)
        assert await first.wait() == 78


def test_the_image_is_made_of_what_there_is() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY")]
    names = [name for names in copied for name in names if not name.startswith("--")]
    assert "deploy/entrypoint" in names and "requirements.lock" in names
    assert all((ROOT / name).exists() for name in names)
    assert os.access(ENTRYPOINT, os.X_OK)


def test_the_base_image_can_be_pinned_by_its_digest(tmp_path: Path) -> None:
    digest = f"sha256:{'0' * 64}"
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    docker = tmp_path / "docker"
    docker.write_text(f"#!/bin/sh\necho {digest}\n")
    docker.chmod(0o755)
    (tmp_path / "deploy" / ".env").write_text("OTHER=1\nHOLDFAST_BASE=old\n")
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["sh", tmp_path / "deploy" / "pin.sh"], env=environ, check=True)
    other, base = (tmp_path / "deploy" / ".env").read_text().splitlines()
    assert other == "OTHER=1"
    assert base.startswith("HOLDFAST_BASE=python:") and base.endswith(f"@{digest}")


@pytest.mark.parametrize(
    ("image", "movable"),
    [
        ("docker.io/library/python:3.13", True),
        ("docker.io/library/python@sha256:0123", False),
        ("localhost/mine", False),
        ("/srv/root", False),
    ],
)
def test_an_image_without_a_digest_can_change(image: str, movable: bool) -> None:
    assert is_movable(image) is movable
