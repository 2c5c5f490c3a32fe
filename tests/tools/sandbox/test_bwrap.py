"""Bubblewrap is available without a system package, and no command can replace it."""

import os
import shutil
from pathlib import Path

import pytest

from holdfast.core.approval.approval import Level
from holdfast.tools.sandbox import bwrap
from holdfast.tools.sandbox.sandbox import CommandProfile, Sandbox

pytestmark = pytest.mark.anyio

SYSTEM = ["/usr/local/bin", "/usr/bin", "/bin"]


class Machine:
    """Two homes and a workspace; programs are looked for on `exec_path`."""

    def __init__(self, root: Path, exec_path: list[str], site: str | None = None) -> None:
        self.home, self.user, self.workspace = root / "home", root / "user", root / "work"
        for folder in (self.home, self.user, self.workspace):
            folder.mkdir(exist_ok=True)
        self.sandbox = Sandbox(
            self.home, self.user, allow_none=False, exec_path=exec_path, site=site
        )

    def program(self) -> Path:
        """What would confine a command now."""
        profile = CommandProfile(str(self.workspace))
        confined = self.sandbox.confine(profile, ["true"], str(self.workspace))
        confined.close()
        return Path(confined.argv[0])


@pytest.fixture
def bare(tmp_path: Path) -> list[str]:
    """A PATH with a shell and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "true"):
        (folder / name).symlink_to(shutil.which(name) or name)
    return [str(folder)]


def planted(folder: Path, told: Path) -> Path:
    """A bwrap that tells that it was run."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "bwrap"
    program.unlink(missing_ok=True)
    program.write_text(f"#!/bin/sh\necho run > {told}\nexit 1\n")
    program.chmod(0o755)
    return program


def installed(folder: Path) -> str:
    """The package as it is installed, in a folder of the test's own."""
    for name in (bwrap.PACKAGE, f"{bwrap.PACKAGE}.libs"):
        shutil.copytree(Path(bwrap.site(), name), folder / name)
    return str(folder)


@pytest.mark.debian("bwrap")
@pytest.mark.promise("BARE-01")
async def test_a_system_without_bubblewrap_confines_commands_with_the_one_we_depend_on(
    tmp_path: Path, bare: list[str]
) -> None:
    it = Machine(tmp_path, bare)
    assert (await it.sandbox.probe()).level is Level.L2
    assert it.program().is_relative_to(it.home)


@pytest.mark.debian("bwrap")
@pytest.mark.promise("BARE-02")
async def test_the_program_is_out_of_reach_of_commands_though_it_was_installed_in_the_workspace(
    tmp_path: Path, bare: list[str]
) -> None:
    site = installed(tmp_path / "work" / "venv")
    it = Machine(tmp_path, bare, site)
    assert (await it.sandbox.probe()).level is Level.L2
    assert not it.program().is_relative_to(it.workspace)
    planted(Path(site, bwrap.PACKAGE, "_bin"), tmp_path / "told")  # as a command may
    assert (await it.sandbox.probe()).level is Level.L2
    assert not (tmp_path / "told").exists()


@pytest.mark.promise("BARE-02")
async def test_a_program_that_is_not_the_one_we_know_is_not_run(
    tmp_path: Path, bare: list[str]
) -> None:
    planted(tmp_path / "site" / bwrap.PACKAGE / "_bin", tmp_path / "told")
    posture = await Machine(tmp_path, bare, str(tmp_path / "site")).sandbox.probe()
    assert posture.level < Level.L2
    assert bwrap.ALTERED in posture.note
    assert not (tmp_path / "told").exists()


@pytest.mark.debian("bwrap")
@pytest.mark.promise("BARE-02")
async def test_a_copy_that_was_changed_is_replaced_before_it_is_run(
    tmp_path: Path, bare: list[str]
) -> None:
    it = Machine(tmp_path, bare)
    await it.sandbox.probe()
    copy = it.program()
    planted(copy.parent, tmp_path / "told")
    assert (await it.sandbox.probe()).level is Level.L2
    assert it.program() == copy
    assert not (tmp_path / "told").exists()
    assert [path.name for path in copy.parent.iterdir()] == ["bwrap"]


@pytest.mark.parametrize("link", [False, True], ids=["file", "link"])
@pytest.mark.promise("BARE-02")
async def test_a_bwrap_on_path_that_is_not_the_systems_is_not_run(
    tmp_path: Path, bare: list[str], link: bool
) -> None:
    told = tmp_path / "told"
    folder = tmp_path / "work" / "bin"
    program = planted(tmp_path / "work" / "hidden" if link else folder, told)
    if link:
        folder.mkdir()
        (folder / "bwrap").symlink_to(program)
    it = Machine(tmp_path, [str(folder), *bare], site="")
    assert bwrap.MISSING in (await it.sandbox.probe()).note
    assert not told.exists()


@pytest.mark.debian("bubblewrap")
async def test_the_systems_own_is_found_behind_a_planted_one(
    tmp_path: Path,
) -> None:
    planted(tmp_path / "work", tmp_path / "told")
    path = [str(tmp_path / "work"), *SYSTEM]
    found = await bwrap.find(str(tmp_path / "home"), path, bwrap.site())
    system = shutil.which("bwrap", path=os.pathsep.join(SYSTEM))
    assert system in found.programs
    alone = await bwrap.find(str(tmp_path / "home"), SYSTEM, "")
    assert alone.programs == (system,)
    assert not (tmp_path / "told").exists()


async def test_without_any_bubblewrap_the_reason_is_reported(
    tmp_path: Path, bare: list[str]
) -> None:
    assert await bwrap.find(str(tmp_path / "home"), bare, "") == bwrap.BwrapPrograms(
        (), bwrap.MISSING
    )
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("says", "mode", "first"),
    [
        ("echo bubblewrap 0.11.0", 0o755, "system"),
        ("echo bubblewrap 0.11.1", 0o755, "system"),
        ("echo bubblewrap 1.0", 0o755, "system"),
        ("echo bubblewrap 0.10.9", 0o755, "ours"),
        ("echo bubblewrap 0.8.0", 0o755, "ours"),
        ("echo bubblewrap 0.8.0", 0o4755, "system"),
        ("exit 1", 0o755, "ours"),
        ("exit 1", 0o4755, "system"),
    ],
)
@pytest.mark.promise("BARE-01")
async def test_the_systems_own_goes_first_where_it_is_setuid_or_as_new_as_ours(
    tmp_path: Path, says: str, mode: int, first: str
) -> None:
    system = tmp_path / "bwrap"
    system.write_text(f"#!/bin/sh\n{says}\n")
    system.chmod(mode)
    ours = str(tmp_path / "ours")
    both = (str(system), ours)
    assert await bwrap.order(ours, str(system)) == (both if first == "system" else both[::-1])
