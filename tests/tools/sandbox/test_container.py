"""L3: a command in its own podman container, and what remains when it is killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest

from holdfast.core.approval.approval import Level
from holdfast.errors import ToolFailed
from holdfast.tools.exec import shim
from holdfast.tools.exec.record import Ended, ExitCause
from holdfast.tools.exec.spawn import Execution, Spawner
from holdfast.tools.sandbox import container
from holdfast.tools.sandbox.probe import Attempt
from holdfast.tools.sandbox.sandbox import CommandProfile, Confined, Sandbox
from tests.tools.exec.test_spawn import fifo, gone, heard, keeper, tail

pytestmark = pytest.mark.anyio

SYSTEM = ["/usr/local/bin", "/usr/bin", "/bin"]
PROGRAMS = ("sh", "bash", "sleep", "env", "python3")
HYBRID = Path("/sys/fs/cgroup/unified")
# crun refuses a machine whose cgroups are of both versions; then podman is not shown the second.
PODMAN = f"""#!/bin/sh
test -e {HYBRID}/cgroup.controllers || exec /usr/bin/podman "$@"
exec unshare -m /bin/sh -c 'umount {HYBRID}; exec /usr/bin/podman "$@"' sh "$@"
"""
TELL = f"""#!{sys.executable} -IS
import json, os, sys
fds = [int(fd) for fd in os.listdir("/proc/self/fd")]
fds = [fd for fd in fds if os.path.exists(f"/proc/self/fd/{{fd}}")]
print(json.dumps([sys.argv[1:], sorted(fds), os.isatty(0)]))
"""
# Does what it is told, and confines nothing.
OPEN = """#!/bin/sh
case "$*" in *" ps "*) exit 0;; esac
while test "$1" != sh; do shift; done
shift
exec "$@"
"""


class Place:
    """A user's home, Holdfast's home, a workspace, a sandbox."""

    def __init__(self, folder: Path, image: str, podman: str | None) -> None:
        self.user, self.home = folder / "user", folder / "holdfast"
        self.workspace = self.home / "workspaces" / "one"
        for path in (self.user, self.workspace):
            path.mkdir(parents=True)
        self.sandbox = Sandbox(
            self.home,
            self.user,
            allow_none=False,
            exec_path=SYSTEM,
            container=image,
            podman=podman,
        )
        self.spawner = Spawner(self.home / "calls", os.getpid(), time.time)

    def confine(self, *argv: str) -> Confined:
        return self.sandbox.confine(CommandProfile(str(self.workspace)), argv, str(self.workspace))

    def execution(self, *argv: str, pty: bool = False, fds: tuple[int, ...] = ()) -> Execution:
        it = self.confine(*argv)
        return Execution(it.argv, it.cwd, it.env, 60, pty=pty, pass_fds=fds)

    async def run(
        self, *argv: str, pty: bool = False, fds: tuple[int, ...] = ()
    ) -> tuple[Ended, str]:
        started = await self.spawner.start("call", self.execution(*argv, pty=pty, fds=fds))
        with anyio.fail_after(30):
            return await started.wait(), tail(started.spool, 2**16).decode()


def program(folder: Path, text: str) -> str:
    """The path of a `podman` that is this."""
    folder.mkdir()
    (folder / "podman").write_text(text)
    (folder / "podman").chmod(0o755)
    return str(folder / "podman")


# What podman is told


def told(image: str = "image", path: str = "/w", argv: Sequence[str] = ("run", "me")) -> list[str]:
    return container.confine(
        "/bin/podman",
        image,
        argv,
        writable=[path, "/c"],
        env={"A": "1"},
        cwd="/w/sub",
        seccomp=b"\1\2",
        owner="us",
        handed=["MARK"],
    )


def values(argv: list[str], option: str) -> list[str]:
    return [after for word, after in zip(argv, argv[1:], strict=False) if word == option]


def test_only_writable_paths_are_mounted() -> None:
    argv = told()
    for flag in ("--rm", "--read-only", "--no-healthcheck", "--http-proxy=false"):
        assert flag in argv
    assert values(argv, "--network") == ["none"]
    assert values(argv, "--cap-drop") == ["all"]
    assert values(argv, "--pull") == ["never"]
    assert values(argv, "--image-volume") == ["ignore"]
    assert values(argv, "--tmpfs") == ["/tmp"]
    assert "no-new-privileges" in values(argv, "--security-opt")
    assert values(argv, "--mount") == ["type=bind,src=/w,dst=/w", "type=bind,src=/c,dst=/c"]
    assert values(argv, "--annotation") == ["run.oci.seccomp_bpf_data=AQI="]
    assert "-v" not in argv
    assert "--privileged" not in argv


def test_the_command_and_its_environment_are_words_of_their_own() -> None:
    argv = told()
    assert values(argv, "--env") == ["MARK", "A=1"]
    assert values(argv, "-w") == ["/w/sub"]
    assert argv[argv.index("--entrypoint") + 2] == "image"
    assert argv[-3:] == ["sh", "run", "me"]


def test_variables_of_the_image_that_make_a_reading_command_run_code_are_dropped(
    tmp_path: Path,
) -> None:
    (tmp_path / "start").write_text("echo started >&2\n")
    names = ("BASH_ENV", "CDPATH", "ENV", "GREP_OPTIONS", "POSIXLY_CORRECT", "RIPGREP_CONFIG_PATH")
    image = {**dict.fromkeys(names, str(tmp_path / "start")), "KEPT": "1", "PATH": os.defpath}
    argv = told(argv=["bash", "-c", "env"])
    first = ["/bin/sh", *argv[argv.index("image") + 1 :]]
    done = subprocess.run(first, env=image, capture_output=True, text=True, check=True)
    assert "KEPT=1" in done.stdout
    assert [name for name in names if f"\n{name}=" in f"\n{done.stdout}"] == []
    assert done.stderr == ""


def test_an_absolute_path_is_a_root_directory_and_is_not_changed() -> None:
    assert values(told("/srv/root"), "--rootfs") == ["/srv/root:O"]
    assert "--rootfs" not in told()


@pytest.mark.parametrize("path", ["/w,src=/", "/w\nx"])
def test_a_path_that_podman_would_read_as_options_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="podman cannot mount"):
        told(path=path)


def test_containers_without_a_process_are_dead() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert container.dead(f"one {os.getpid()}\ntwo {ended.pid}\nthree 0\n") == ["two", "three"]


@pytest.mark.parametrize("terminal", [False, True])
def test_the_launcher_passes_its_descriptors_to_podman(tmp_path: Path, terminal: bool) -> None:
    podman = program(tmp_path / "bin", TELL)
    argv = [sys.executable, "-I", "-S", container.__file__, podman, "word"]
    reading, writing = os.pipe()
    ours, theirs = os.openpty()
    os.dup2(writing, 40)
    try:
        stdin = theirs if terminal else subprocess.DEVNULL
        done = subprocess.run(argv, stdin=stdin, stdout=-1, pass_fds=(40,), check=True)
    finally:
        for fd in (reading, writing, ours, theirs, 40):
            os.close(fd)
    words, fds, is_terminal = json.loads(done.stdout)
    assert words[2:] == ["run", "--preserve-fds=38", *(["-t"] if terminal else []), "word"]
    assert fds == list(range(41))
    assert is_terminal is terminal


# The ladder


async def test_without_podman_the_next_level_is_used_and_the_reason_reported(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, "image", "")
    posture = await place.sandbox.probe()
    assert posture.level < Level.L3
    assert "no L3: podman is not installed" in posture.note


async def test_a_podman_of_a_repository_is_not_run(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    program(workspace / "bin", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    home, path = tmp_path / "home", [str(workspace / "bin"), *SYSTEM]
    sandbox = Sandbox(home, tmp_path / "user", allow_none=False, exec_path=path, container="image")
    await sandbox.probe()
    assert not (tmp_path / "ran").exists()


async def test_without_an_image_podman_is_not_used(tmp_path: Path) -> None:
    place = Place(tmp_path, "", program(tmp_path / "bin", OPEN))
    posture = await place.sandbox.probe()
    assert posture.level < Level.L3
    assert "L3" not in posture.note


async def test_a_podman_that_confines_nothing_is_not_used(tmp_path: Path) -> None:
    place = Place(tmp_path, "image", program(tmp_path / "bin", OPEN))
    posture = await place.sandbox.probe()
    assert posture.level < Level.L3
    assert "no L3: does not hold" in posture.note


@pytest.mark.parametrize("verb", ["ps", "run"])
async def test_a_podman_that_fails_is_quoted(tmp_path: Path, verb: str) -> None:
    fails = f'#!/bin/sh\ncase "$*" in *" {verb} "*) echo no such luck >&2; exit 125;; esac\n'
    posture = await Place(tmp_path, "image", program(tmp_path / "bin", fails)).sandbox.probe()
    assert posture.level < Level.L3
    assert "no L3: no such luck" in posture.note


async def test_a_podman_that_has_lost_its_containers_is_reset(tmp_path: Path) -> None:
    lost = """#!/bin/sh
        case "$*" in
            *"system migrate") touch "$HOME/reset";;
            *" ps "*) test -e "$HOME/reset" || { echo try podman system migrate >&2; exit 1; };;
            *) echo and so on >&2; exit 125;;
        esac"""
    posture = await Place(tmp_path, "image", program(tmp_path / "bin", lost)).sandbox.probe()
    assert "no L3: and so on" in posture.note


# With podman


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small system, of this one's files."""
    folder = tmp_path_factory.mktemp("root")
    for name in ("usr/bin", "usr/lib", "usr/lib64", "etc", "proc", "dev", "sys", "tmp", "run"):
        (folder / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (folder / name).symlink_to(f"usr/{name}")
    for name in PROGRAMS:
        _copy(Path("/usr/bin", name), folder)
        listed = subprocess.run(["ldd", f"/usr/bin/{name}"], stdout=-1, text=True, check=False)
        for word in listed.stdout.split():
            if word.startswith("/"):
                _copy(Path(word), folder)
    ask = "import sysconfig; print(sysconfig.get_path('stdlib'))"
    found = subprocess.run(["/usr/bin/python3", "-Ic", ask], stdout=-1, text=True, check=True)
    library = found.stdout.strip()
    unwanted = shutil.ignore_patterns("test", "*-packages", "__pycache__", "config-*", "*.a")
    shutil.copytree(library, f"{folder}{library}", ignore=unwanted, ignore_dangling_symlinks=True)
    return folder


def _copy(path: Path, root: Path) -> None:
    place = root / path.parent.resolve().relative_to("/") / path.name
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, place)


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> str:
    return program(tmp_path_factory.mktemp("podman") / "bin", PODMAN)


@pytest.fixture
async def place(tmp_path: Path, root: Path, podman: str) -> AsyncIterator[Place]:
    """On L3; afterwards podman knows of no container of ours."""
    made = Place(tmp_path, str(root), podman)
    posture = await made.sandbox.probe()
    assert posture.level is Level.L3, posture.note
    yield made
    await made.spawner.kill_all()
    await made.spawner.aclose()
    left = containers(made)
    await made.sandbox.probe()
    assert containers(made) == []
    for name in left:
        await anyio.run_process(["crun", "delete", "--force", name], check=False)


def containers(place: Place, *, alive: bool = False) -> list[str]:
    """Those that podman knows of; or of them only those with a process."""
    it = place.confine("true")
    owner = values(list(it.argv), "--label")[0].removeprefix("holdfast=")
    argv = container.listing(it.argv[4], owner)
    listed = subprocess.run(argv, stdout=-1, text=True, check=True, env=it.env).stdout
    dead = container.dead(listed) if alive else []
    return [line.split()[0] for line in listed.splitlines() if line.split()[0] not in dead]


@pytest.mark.debian("podman", "crun")
async def test_a_container_blocks_every_attempt_and_has_no_network(place: Place) -> None:
    posture = place.sandbox.posture
    assert set(posture.blocked) == set(Attempt)
    assert posture.open == ()
    assert "no network" in posture.note
    assert not place.sandbox.filters_hosts
    profile = CommandProfile(str(place.workspace), hosts=("example.org",))
    with pytest.raises(ToolFailed, match="no network"):
        place.sandbox.confine(profile, ["true"], str(place.workspace))


@pytest.mark.debian("podman", "crun")
async def test_a_command_runs_in_the_image_and_writes_only_what_is_its_own(
    place: Place, root: Path
) -> None:
    script = (
        "pwd; echo one > it; echo two > $HOME/it; echo three > /tmp/it; "
        "for at in / /etc /usr/bin /proc/sys/kernel; do (echo x > $at/it) 2>/dev/null && echo $at; "
        "done; exit 7"
    )
    ended, text = await place.run("bash", "-c", script)
    assert (ended.exit_code, ended.cause, text) == (7, ExitCause.EXITED, f"{place.workspace}\n")
    assert (place.workspace / "it").read_text() == "one\n"
    assert [path.read_text() for path in place.home.glob("caches/*/it")] == ["two\n"]
    assert not [at for at in ("", "etc", "tmp", "usr/bin") if (root / at / "it").exists()]
    assert containers(place) == []


@pytest.mark.debian("podman", "crun")
async def test_nothing_of_our_environment_is_in_the_containers(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sesame")
    monkeypatch.setenv("http_proxy", "http://sesame@proxy")
    _, text = await place.run("env")
    assert "sesame" not in text
    names = {line.partition("=")[0] for line in text.splitlines()}
    assert {name for name in names if not name.startswith("GIT_")} == {
        *("HOME", "PATH", "LANG", "TERM", "PAGER", "TMPDIR", "PWD"),
        *("HOSTNAME", "container", shim.MARK),
    } - ({"container"} - names)


@pytest.mark.debian("podman", "crun")
async def test_a_descriptor_is_handed_into_the_container(place: Place) -> None:
    reading, writing = os.pipe()
    try:
        await place.run("bash", "-c", f"echo hello >&{writing}", fds=(writing,))
    finally:
        os.close(writing)
    assert os.read(reading, 100) == b"hello\n"
    assert os.read(reading, 100) == b""
    os.close(reading)


@pytest.mark.debian("podman", "crun")
@pytest.mark.parametrize("pty", [False, True])
async def test_a_command_has_a_terminal_if_it_was_given_one(place: Place, pty: bool) -> None:
    _, text = await place.run("bash", "-c", "test -t 0 && test -t 1 && echo yes", pty=pty)
    assert text.split() == (["yes"] if pty else [])


@pytest.mark.debian("podman", "crun")
async def test_an_images_own_entry_point_user_and_volumes_do_not_matter(
    tmp_path: Path, root: Path, podman: str
) -> None:
    with image(tmp_path, root, podman) as name:
        place = Place(tmp_path, name, podman)
        posture = await place.sandbox.probe()
        assert posture.level is Level.L3, posture.note
        script = "echo $UID $FROM_IMAGE; echo x > /etc/it; echo x > it"
        _, text = await place.run("bash", "-c", script)
        await place.spawner.aclose()
    assert text.splitlines()[0] == "0 yes"
    assert "/etc/it: Read-only file system" in text
    assert (place.workspace / "it").read_text() == "x\n"


@contextmanager
def image(folder: Path, root: Path, podman: str) -> Iterator[str]:
    """An image made of `root`, with everything that could be in our way."""
    name = f"localhost/holdfast-test-{os.getpid()}"
    with tarfile.open(folder / "root.tar", "w") as tar:
        tar.add(root, arcname=".")
    orders = ("ENTRYPOINT /bin/false", "USER 4711", "VOLUME /etc", "ENV FROM_IMAGE=yes")
    changes = [word for order in orders for word in ("--change", order)]
    argv = [podman, "import", "--quiet", *changes, str(folder / "root.tar"), name]
    subprocess.run(argv, stdout=-3, check=True)
    try:
        yield name
    finally:
        subprocess.run([podman, "rmi", "--force", name], stdout=-3, check=True)


# Killing


@asynccontextmanager
async def up(place: Place) -> AsyncIterator[Callable[[int], Awaitable[set[int]]]]:
    """Waits until the command says so; who is there then: its shim, and all below."""

    async def wait(pid: int) -> set[int]:
        await heard(fd)
        above = shim.identity(shim.processes()[pid][0])
        assert above
        found = shim.find([above])
        assert {"conmon", "podman"} <= {name(one) for one in found}
        assert len(found) >= 5  # with the first process, and the command
        return found

    with fifo(place.workspace / "up") as fd:
        yield wait


def name(pid: int) -> str:
    """What it is called; nothing, if it has ended since it was found: podman's helpers come and go."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def all_gone(pids: set[int], within_s: float) -> None:
    with anyio.fail_after(within_s):
        for pid in pids:
            await gone(pid)


FOREVER = "echo > up; while :; do sleep 1000; done"
LISTENS = ("bash", "-c", f"trap 'echo > heard; exit' TERM; {FOREVER}")
DEAF = ("bash", "-c", f"trap '' TERM; {FOREVER}")


@pytest.mark.debian("podman", "crun")
@pytest.mark.parametrize(
    ("argv", "hears"), [(LISTENS, True), (DEAF, False)], ids=["it listens", "it is deaf"]
)
async def test_nothing_of_a_container_that_was_killed_lives(
    place: Place, argv: tuple[str, ...], hears: bool
) -> None:
    async with up(place) as wait:
        process = await place.spawner.start("call", place.execution(*argv))
        pids = await wait(process.pid)
    ended = await process.kill()
    assert (ended.cause, ended.survivors) == (ExitCause.KILLED, ())
    assert (place.workspace / "heard").exists() is hears
    await all_gone(pids, 1)
    assert containers(place, alive=True) == []


@pytest.mark.debian("podman", "crun")
async def test_a_container_killed_while_it_starts_does_not_run(place: Place) -> None:
    for number in range(10):
        process = await place.spawner.start(f"call {number}", place.execution(*LISTENS))
        await anyio.sleep(number * 0.015)  # sleep: each gets a bit further, nobody waits
        ended = await process.kill()
        assert ended.survivors == ()
        assert containers(place, alive=True) == []


@pytest.mark.debian("podman", "crun")
async def test_when_the_gateway_is_killed_nothing_of_a_container_lives(place: Place) -> None:
    async with up(place) as wait, keeper(place.home) as gateway:
        pids = await wait(int(await gateway.start("call", place.execution(*DEAF))))
        await gateway.kill()
        await all_gone(pids, 2)
    assert containers(place, alive=True) == []


@pytest.mark.debian("podman", "crun")
async def test_settling_a_killed_shim_ends_its_container(place: Place) -> None:
    async with up(place) as wait:
        process = await place.spawner.start("call", place.execution(*DEAF))
        pids = await wait(process.pid)
    os.kill(shim.processes()[process.pid][0], signal.SIGKILL)
    ended = await process.wait()
    assert (ended.cause, ended.survivors) == (ExitCause.LOST, ())
    await all_gone(pids, 2)
    assert containers(place, alive=True) == []
