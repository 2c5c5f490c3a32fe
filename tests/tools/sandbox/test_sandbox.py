"""The sandbox, with real commands inside: what they can and cannot do, and what is reported."""

import ctypes
import json
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.core.approval.approval import Level, Posture
from holdfast.errors import ToolFailed
from holdfast.tools.sandbox import bwrap, private, seccomp
from holdfast.tools.sandbox.mounts import REACHES_SECRET, Access, grants, settle, system
from holdfast.tools.sandbox.probe import Attempt
from holdfast.tools.sandbox.sandbox import NOT_TESTED, CommandProfile, Confined, Sandbox
from tests.bwrap import NOWHERE

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

ROOT = Path(__file__).parents[3]
SECRET = "sesame-4711"
SYSTEM = ["/usr/local/bin", "/usr/bin", "/bin"]


class Place:
    """A machine in small: a user's home, Holdfast's home, workspaces, a sandbox."""

    def __init__(self, root: Path, exec_path: list[str], site: str | None = None) -> None:
        self.user, self.home = root / "user", root / "holdfast"
        self.one, self.two = (self.home / "workspaces" / name for name in ("one", "two"))
        for folder in (self.user / ".ssh", self.user / ".cargo" / "bin", self.one, self.two):
            folder.mkdir(parents=True)
        for path in (".ssh/id", ".cargo/credentials.toml", ".bashrc"):
            (self.user / path).write_text(SECRET)
        (self.home / "config.toml").write_text(SECRET)
        (self.two / "notes").write_text(SECRET)
        self.exec_path, self.site = exec_path, site
        self.sandbox = Sandbox(
            self.home, self.user, allow_none=False, exec_path=exec_path, site=site
        )

    def run(
        self, *argv: str, profile: CommandProfile | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run it in workspace one, as the probed rung has it."""
        profile = profile or CommandProfile(str(self.one))
        confined = self.sandbox.confine(profile, argv, profile.workspace)
        try:
            return subprocess.run(
                confined.argv,
                env=dict(confined.env),
                pass_fds=confined.pass_fds,
                cwd=confined.cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=60,
                check=False,
            )
        finally:
            confined.close()

    def sh(
        self, script: str, profile: CommandProfile | None = None
    ) -> subprocess.CompletedProcess[str]:
        return self.run("/bin/sh", "-c", script, profile=profile)

    def python(self, script: str) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-I", "-S", "-c", script)


@pytest.fixture(scope="module")
def no_bwrap(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A PATH with everything of the system's but bubblewrap."""
    folder = tmp_path_factory.mktemp("bin")
    for program in Path("/usr/bin").iterdir():
        if program.name != "bwrap":
            (folder / program.name).symlink_to(program)
    return [str(folder)]


@pytest.fixture(params=[Level.L2, Level.L1], ids=["L2", "L1"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, no_bwrap: list[str]) -> Place:
    weak = request.param is Level.L1
    found = Place(tmp_path, no_bwrap, NOWHERE) if weak else Place(tmp_path, SYSTEM)
    posture = await found.sandbox.probe()
    assert posture.level is request.param, posture.note
    return found


# What the canary says


async def test_bubblewrap_blocks_every_attempt_of_the_canary(tmp_path: Path) -> None:
    posture = await Place(tmp_path, SYSTEM).sandbox.probe()
    assert posture.level is Level.L2
    assert set(posture.blocked) == set(Attempt)
    assert posture.open == ()


async def test_without_bubblewrap_landlock_is_used_and_its_gaps_are_reported(
    tmp_path: Path, no_bwrap: list[str]
) -> None:
    posture = await Place(tmp_path, no_bwrap, NOWHERE).sandbox.probe()
    assert posture.level is Level.L1
    assert bwrap.MISSING in posture.note
    assert posture.open == (Attempt.REPOSITORY, Attempt.CHMOD)
    assert Attempt.CHMOD in posture.note
    assert Attempt.CHMOD not in posture.blocked


async def test_a_probe_leaves_nothing_in_the_homes(tmp_path: Path) -> None:
    place = Place(tmp_path, SYSTEM)
    before = sorted(place.user.rglob("*"))
    await place.sandbox.probe()
    assert sorted(place.user.rglob("*")) == before
    assert not (place.home / "canary").exists()


PROBE = """
import ctypes, json, os, struct, sys
import anyio
from pathlib import Path
from holdfast.tools.sandbox.sandbox import CommandProfile, Sandbox

root, filtered, allow_none = Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), sys.argv[3] == "yes"
if filtered:
    libc = ctypes.CDLL(None, use_errno=True)
    held = ctypes.create_string_buffer(filtered, len(filtered))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    program = struct.pack("@HP", len(filtered) // 8, ctypes.addressof(held))
    assert libc.prctl(22, 2, program, 0, 0) == 0


async def main():
    sandbox = Sandbox(root / "holdfast", root / "user", allow_none=allow_none)
    posture = await sandbox.probe()
    workspace = root / "holdfast" / "workspaces" / "one"
    try:
        confined = sandbox.confine(CommandProfile(str(workspace)), ["sh", "-c", "echo hi > it"], str(workspace))
        await anyio.run_process(
            confined.argv, env=confined.env, cwd=confined.cwd, pass_fds=confined.pass_fds
        )
        made = (workspace / "it").read_text()
    except Exception as error:
        made = f"{type(error).__name__}: {error}"
    print(json.dumps([posture.level, posture.blocked, posture.open, posture.note, made]))


anyio.run(main)
"""


def probe(
    place: Place, *before: str, rules: seccomp.Rules | None = None, allow_none: str = "no"
) -> tuple[Posture, str]:
    """Probe in a process of its own, started by `before`, under a filter of `rules`."""
    filtered = seccomp.program(rules).hex() if rules else ""
    python = () if before and before[-1].startswith("/") else (sys.executable,)
    done = subprocess.run(
        [*before, *python, "-c", PROBE, str(place.home.parent), filtered, allow_none],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    level, blocked, still, note, made = json.loads(done.stdout)
    return Posture(Level(level), tuple(blocked), tuple(still), note), made


async def test_without_user_namespaces_commands_run_with_landlock(
    tmp_path: Path,
) -> None:
    no_namespaces = {name: seccomp.NAMESPACED[name] for name in ("clone", "clone3", "unshare")}
    posture, made = probe(Place(tmp_path, []), rules=no_namespaces)
    assert posture.level is Level.L1, posture.note
    assert "no L2: " in posture.note
    assert made == "hi\n"


async def test_without_any_sandbox_commands_are_refused(tmp_path: Path) -> None:
    posture, made = probe(Place(tmp_path, []), "setarch", "i686")
    assert posture.level is Level.L0
    assert posture.note.startswith("UNSANDBOXED")
    assert "no system call numbers for i686" in posture.note
    assert Attempt.READ_USER in posture.open
    assert made.startswith("ToolFailed: No command can run here")


async def test_without_any_sandbox_commands_run_if_the_operator_allows_it(
    tmp_path: Path,
) -> None:
    posture, made = probe(Place(tmp_path, []), "setarch", "i686", allow_none="yes")
    assert posture.level is Level.L0
    assert posture.note.startswith("UNSANDBOXED")
    assert made == "hi\n"


async def test_before_the_probe_no_command_runs(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match=NOT_TESTED):
        Place(tmp_path, SYSTEM).run("true")


@pytest.mark.parametrize("namespaces", [True, False])
async def test_an_unprivileged_user_gets_the_same_sandbox_level(namespaces: bool) -> None:
    if os.geteuid() != 0:
        pytest.skip("unprivileged already: every other test shows it")
    python = next(p for p in ("/usr/bin/python3", sys.executable) if _works_for_nobody(p))
    kept = ("clone", "clone3", "unshare")
    rules = None if namespaces else {name: seccomp.NAMESPACED[name] for name in kept}
    with TemporaryDirectory(dir="/var/tmp") as folder:  # pytest's own is closed to others
        place = Place(Path(folder), [])
        _give_to_nobody(Path(folder))
        posture, made = probe(place, *NOBODY, python, rules=rules)
    assert posture.level is (Level.L2 if namespaces else Level.L1), posture.note
    assert posture.open == (() if namespaces else (Attempt.REPOSITORY, Attempt.CHMOD))
    assert made == "hi\n"


NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--")


def _give_to_nobody(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534)


def _works_for_nobody(python: str) -> bool:
    same = f"import sys; assert sys.version_info[:2] == {tuple(sys.version_info[:2])}"
    run = subprocess.run([*NOBODY, python, "-c", same], cwd="/", capture_output=True, check=False)
    return run.returncode == 0


# What a command cannot do


@pytest.mark.fault("F-39")
@pytest.mark.parametrize(
    "path",
    [
        "{user}/.ssh/id",
        "{user}/.cargo/credentials.toml",
        "{user}/.bashrc",
        "{home}/config.toml",
        "{home}/workspaces/two/notes",
        "/proc/{gateway}/environ",
        "/proc/{gateway}/root{home}/config.toml",
        "/proc/self/root{user}/.ssh/id",
        "/etc/shadow",
    ],
)
async def test_a_secret_cannot_be_read(place: Place, path: str) -> None:
    named = path.format(user=place.user, home=place.home, gateway=os.getpid())
    done = place.sh(f"cat '{named}'")
    assert done.stdout == ""
    (place.one / "link").symlink_to(named)
    assert place.sh("cat link").stdout == ""


@pytest.mark.fault("F-39")
async def test_nothing_of_the_gateways_environment_is_in_a_commands(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("LD_PRELOAD_", SECRET)
    done = place.run("env")
    assert done.returncode == 0
    assert SECRET not in done.stdout
    assert "LD_" not in done.stdout


@pytest.mark.fault("F-36")
async def test_nothing_outside_can_be_written(place: Place) -> None:
    targets = [
        place.user / ".bashrc",
        place.user / ".ssh" / "id",
        place.home / "config.toml",
        place.two / "notes",
    ]
    fresh = [  # names that are nobody's: a sandbox that leaks must not hurt whoever tests it
        place.user / ".profile",
        place.user / ".config" / "autostart" / "evil.desktop",
        place.home / "plugin.py",
        Path("/etc/holdfast-test"),
        Path("/etc/cron.d/holdfast-test"),
        Path("/var/spool/cron/crontabs/holdfast-test"),
        Path("/usr/local/bin/holdfast-test"),
        Path("/var/tmp/holdfast-test"),
    ]
    for path in (*targets, *fresh):
        place.sh(f"mkdir -p '{path.parent}'; echo evil >> '{path}'; : > '{path}'; rm -f '{path}'")
        place.sh(f"mv '{path}' stolen; ln '{path}' linked; mv . '{path}.d'")
    assert [path.read_text() for path in targets] == [SECRET] * 4
    assert not [path for path in fresh if path.exists()]


@pytest.fixture
def listeners(place: Place) -> Iterator[dict[str, socket.socket]]:
    """Somebody outside who would hear it."""
    found = {
        "tcp": socket.socket(),
        "tcp6": socket.socket(socket.AF_INET6),
        "udp": socket.socket(type=socket.SOCK_DGRAM),
        "unix": socket.socket(socket.AF_UNIX),
        "datagram": socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        "abstract": socket.socket(socket.AF_UNIX),
    }
    fd = os.open(place.one, os.O_RDONLY)
    found["tcp"].bind(("127.0.0.1", 0))
    found["tcp6"].bind(("::1", 0))
    found["udp"].bind(("127.0.0.1", 0))
    found["unix"].bind(f"/proc/self/fd/{fd}/unix")
    found["datagram"].bind(f"/proc/self/fd/{fd}/datagram")
    found["abstract"].bind(f"\0holdfast-test-{os.getpid()}")
    os.close(fd)
    for sock in found.values():
        sock.settimeout(0)
        if sock.type == socket.SOCK_STREAM:
            sock.listen()
    yield found
    for sock in found.values():
        sock.close()


KNOCK = """
import socket
from socket import *
def knock(family, kind, address):
    try:
        with socket(family, kind) as s:
            s.settimeout(2); s.connect(address); s.send(b"x")
    except OSError: pass
knock(AF_INET, SOCK_STREAM, ("127.0.0.1", {tcp}))
knock(AF_INET6, SOCK_STREAM, ("::1", {tcp6}))
knock(AF_INET, SOCK_DGRAM, ("127.0.0.1", {udp}))
knock(AF_UNIX, SOCK_STREAM, "unix")
knock(AF_UNIX, SOCK_DGRAM, "datagram")
knock(AF_UNIX, SOCK_STREAM, "\\0holdfast-test-{gateway}")
try:
    a, b = socketpair(AF_UNIX, SOCK_DGRAM)
    a.sendto(b"x", "datagram")
except OSError: pass
print("knocked")
"""


async def test_a_command_reaches_no_socket_outside(
    place: Place, listeners: dict[str, socket.socket]
) -> None:
    ports = {name: listeners[name].getsockname()[1] for name in ("tcp", "tcp6", "udp")}
    done = place.python(KNOCK.format(**ports, gateway=os.getpid()))
    assert done.stdout == "knocked\n", done.stderr
    for name, sock in listeners.items():
        with pytest.raises(BlockingIOError):
            sock.recv(16) if sock.type == socket.SOCK_DGRAM else sock.accept()
            pytest.fail(f"{name} was reached")


async def test_the_gateway_can_be_neither_signalled_nor_slowed_nor_traced(place: Place) -> None:
    with bystander() as victim:
        before = standing(victim)
        place.sh(f"kill -9 {victim}; kill -TERM -{os.getpgid(victim)}; renice 19 {victim}")
        place.sh(f"prlimit --pid {victim} --cpu=1; prlimit --pid {victim} --nofile=3:3")
        done = place.python(
            f"import ctypes; libc = ctypes.CDLL(None)\nprint(libc.ptrace(16, {victim}, 0, 0))"
        )
        assert done.stdout == "-1\n"
        assert standing(victim) == before


@contextmanager
def bystander() -> Iterator[int]:
    """A process of ours that must be alive at the end."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        try:
            yield process.pid
        finally:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait() == 0


def standing(pid: int) -> tuple[int, str]:
    """What others may have done to it short of killing it."""
    return os.getpriority(os.PRIO_PROCESS, pid), Path(f"/proc/{pid}/limits").read_text()


@pytest.mark.parametrize(
    "script",
    [
        "unshare -U true",
        "unshare -rm true",
        "mount --bind . .",
        "chroot / true",
        "mknod ./sda b 8 0 && cat ./sda",
        "exec 3>> /proc/sys/kernel/core_pattern",  # opened only: if it works, it must not hurt
        "exec 3>> /proc/sysrq-trigger",
        "exec 3>> /sys/kernel/uevent_helper",
        "dmesg",
        "bwrap --ro-bind / / true",
        "strace true",
    ],
)
async def test_privileged_acts_fail(place: Place, script: str) -> None:
    assert place.sh(script).returncode != 0


async def test_a_command_has_no_capabilities_and_gets_none(place: Place) -> None:
    status = dict(
        line.split(":\t", 1) for line in place.sh("cat /proc/self/status").stdout.splitlines()
    )
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


async def test_bubblewraps_children_die_with_it(tmp_path: Path) -> None:
    place = Place(tmp_path, SYSTEM)
    await place.sandbox.probe()
    confined = place.sandbox.confine(
        CommandProfile(str(place.one)),
        ["/bin/sh", "-c", "trap '' TERM; setsid sh -c 'echo up; exec sleep 1000' & wait"],
        str(place.one),
    )
    kill_and_see_the_end(confined)


def kill_and_see_the_end(confined: Confined) -> None:
    with subprocess.Popen(
        confined.argv,
        env=dict(confined.env),
        pass_fds=confined.pass_fds,
        stdout=subprocess.PIPE,
    ) as outer:
        confined.close()
        assert outer.stdout is not None
        assert outer.stdout.readline() == b"up\n"
        outer.send_signal(signal.SIGKILL)
        assert outer.stdout.read() == b""  # ends when the last holder of the pipe is gone


# What a command can do


async def test_writes_to_the_workspace_arrive_in_the_real_directory(place: Place) -> None:
    done = place.sh("mkdir -p a/b && echo hello > a/b/c && mv a/b/c a/c && chmod 700 a/c && pwd")
    assert done.stdout.strip() == str(place.one)
    assert (place.one / "a" / "c").read_text() == "hello\n"


async def test_exit_codes_and_output_come_through(place: Place) -> None:
    done = place.sh("echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)


async def test_python_git_and_a_compiler_work(place: Place) -> None:
    assert place.python("import ssl, sqlite3, asyncio; print(6 * 7)").stdout == "42\n"
    done = place.sh(
        "git init -q . && git config user.email a@b && git config user.name n && echo x > f"
        " && git add f && git commit -qm one && git log --oneline | wc -l"
    )
    assert done.stdout.strip() == "1", done.stderr
    (place.one / "m.c").write_text("int main(void) { return 42; }")
    done = place.sh("gcc m.c -o m && ./m")
    assert done.returncode == 42, done.stderr


async def test_loops_threads_and_subprocesses_work(place: Place) -> None:
    done = place.python(
        "import asyncio, sys, threading\n"
        "async def main():\n"
        "    child = await asyncio.create_subprocess_exec('/bin/echo', 'child')\n"
        "    await child.wait()\n"
        "    await asyncio.to_thread(threading.active_count)\n"
        "asyncio.run(main())"
    )
    assert (done.stdout, done.returncode) == ("child\n", 0), done.stderr


async def test_a_repositorys_settings_start_no_programs(place: Place) -> None:
    evil = place.one / "evil"
    evil.write_text("#!/bin/sh\ntouch pwned\n")
    evil.chmod(0o755)
    place.sh("git init -q . && git config core.fsmonitor ./evil && git config core.pager ./evil")
    (place.one / ".git" / "hooks" / "pre-commit").symlink_to(evil)
    place.sh("git config --global user.email a@b && git config --global user.name n")
    place.sh("touch f && git add f")
    assert place.sh("git status && git -p log; git commit -qm one").returncode == 0
    place.sh("git clone 'ext::./evil' there")
    assert not (place.one / "pwned").exists()


async def test_the_home_persists_and_belongs_to_one_workspace(place: Place) -> None:
    place.sh("mkdir -p ~/.cache && echo kept > ~/.cache/it")
    assert place.sh("cat ~/.cache/it").stdout == "kept\n"
    two = CommandProfile(str(place.two))
    assert place.sh("cat ~/.cache/it", two).returncode != 0
    home = place.sh("echo $HOME").stdout.strip()
    assert place.sh(f"cat {home}/.cache/it", two).returncode != 0


async def test_temporary_files_work(place: Place) -> None:
    script = (
        "f=$(mktemp) && echo x > $f && cat $f && python3 -c 'import tempfile as t; t.mkdtemp()'"
    )
    done = place.sh(script)
    assert (done.stdout, done.returncode) == ("x\n", 0), done.stderr


async def test_the_usual_devices_exist(place: Place) -> None:
    done = place.sh("echo x > /dev/null && head -c 4 /dev/zero | wc -c && echo err > /dev/stderr")
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("4", "err\n", 0)


async def test_a_tool_below_the_real_home_runs_and_cannot_be_changed(place: Place) -> None:
    tool = place.user / ".cargo" / "bin" / "mytool"
    tool.write_text("#!/bin/sh\necho tool\n")
    tool.chmod(0o755)
    path = [str(tool.parent), *place.exec_path]
    again = Sandbox(place.home, place.user, allow_none=False, exec_path=path, site=place.site)
    assert (await again.probe()).level is place.sandbox.posture.level
    place.sandbox = again
    assert place.run("mytool").stdout == "tool\n"
    place.sh(f"echo evil >> {tool}")
    assert "evil" not in tool.read_text()


async def test_a_workspace_that_holds_an_environment_on_path_can_be_listed_and_worked_in(
    place: Place,
) -> None:
    programs = place.one / ".venv" / "bin"
    programs.mkdir(parents=True)
    (place.one / ".venv" / "pyvenv.cfg").touch()
    (place.one / "src").mkdir()
    (place.one / "notes").write_text("old\n")
    path = [str(programs), *place.exec_path]
    again = Sandbox(place.home, place.user, allow_none=False, exec_path=path, site=place.site)
    assert (await again.probe()).level is place.sandbox.posture.level
    place.sandbox = again
    listed = place.run("ls", "-A")
    assert listed.stdout.split() == [".venv", "notes", "src"], listed.stderr
    assert place.sh("echo new >> notes && touch src/made && cat notes").stdout == "old\nnew\n"
    assert place.sh("touch .venv/bin/planted || touch .venv/planted").returncode != 0


async def test_a_granted_directory_is_writable_too(place: Place) -> None:
    beside = place.user / "beside"
    beside.mkdir()
    assert place.sh(f"touch {beside}/no").returncode != 0
    assert (
        place.sh(f"touch {beside}/yes", CommandProfile(str(place.one), (str(beside),))).returncode
        == 0
    )
    assert os.listdir(beside) == ["yes"]


async def test_loopback_works_within_one_bubblewrapped_command(tmp_path: Path) -> None:
    place = Place(tmp_path, SYSTEM)
    await place.sandbox.probe()
    done = place.python(
        "import socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as server:\n"
        "    with socket.create_connection(server.getsockname()) as client:\n"
        "        server.accept()[0].sendall(b'hello')\n"
        "        print(client.recv(5).decode())"
    )
    assert done.stdout == "hello\n", done.stderr


async def test_an_unsandboxed_profile_runs_as_it_is(place: Place) -> None:
    profile = CommandProfile(str(place.one), unsandboxed=True)
    assert place.run("cat", str(place.user / ".bashrc"), profile=profile).stdout == SECRET


# What is never granted


@pytest.mark.parametrize(
    "where", ["", "user", "holdfast", "user/.ssh", "user/.ssh/x", "holdfast/run"]
)
async def test_a_workspace_that_would_reach_secrets_is_refused(place: Place, where: str) -> None:
    path = (place.home.parent / where).resolve()
    path.mkdir(exist_ok=True)
    with pytest.raises(ToolFailed, match=REACHES_SECRET):
        place.sh("true", CommandProfile(str(path)))
    with pytest.raises(ToolFailed, match=REACHES_SECRET):
        place.sh("true", CommandProfile(str(place.one), (str(path),)))


async def test_a_granted_directory_that_became_a_link_is_refused(place: Place) -> None:
    (place.one / "granted").symlink_to("/etc")
    with pytest.raises(ToolFailed, match="not the directory"):
        place.sh("true", CommandProfile(str(place.one), (str(place.one / "granted"),)))


def test_a_profile_can_be_hashed_and_compared() -> None:
    assert {CommandProfile("/w", ("/a",)): 1}[CommandProfile("/w", ("/a",))] == 1
    assert CommandProfile("/w") != CommandProfile("/w", hosts=("example.org",))


# What is seen


def test_homes_are_hidden_wherever_they_lie(tmp_path: Path) -> None:
    home, user = tmp_path / "srv" / "holdfast", tmp_path / "people" / "me"
    for folder in (home, user / ".cargo" / "bin"):
        folder.mkdir(parents=True)
    view = system(str(home), str(user), [])
    assert view[str(home)] is view[str(user)] is Access.HIDE
    assert view[str(user / ".cargo" / "bin")] is Access.READ
    assert view["/"] is Access.READ


def test_hidden_paths_are_left_out_of_an_allow_list(tmp_path: Path) -> None:
    for folder in ("a/secret", "a/open", "b"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "c").symlink_to(tmp_path / "a")
    root = str(tmp_path)
    found = dict(
        grants({root: Access.READ, f"{root}/a/secret": Access.HIDE, f"{root}/b": Access.WRITE})
    )
    assert found == {f"{root}/a/open": Access.READ, f"{root}/b": Access.WRITE}


def test_entries_that_change_nothing_are_left_out_and_parents_come_first() -> None:
    hide, read, write = Access.HIDE, Access.READ, Access.WRITE
    settled = settle(
        {"/h/u/t": read, "/h/u": hide, "/": read, "/h": hide, "/usr": read, "/h/w": write}
    )
    assert list(settled.items()) == [("/", read), ("/h", hide), ("/h/w", write), ("/h/u/t", read)]


# What all processes of a user share

SHARED = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
segment, queue, semaphore = map(int, sys.argv[1:])
libc.shmat.restype = ctypes.c_void_p
libc.setpriority(2, 0, 19)
tried = {
    "shmat": libc.shmat(segment, None, 0) not in (None, ctypes.c_void_p(-1).value),
    "shmctl": libc.shmctl(segment, 0, None) == 0,
    "msgrcv": libc.msgrcv(queue, ctypes.create_string_buffer(100), 8, 0, 0o4000) >= 0,
    "msgctl": libc.msgctl(queue, 0, None) == 0,
    "semctl": libc.semctl(semaphore, 0, 16, 7) == 0,
}
print([name for name, worked in tried.items() if worked])
"""


async def test_nothing_that_processes_of_a_user_share_is_reached(place: Place) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    ids = (libc.shmget(0, 4096, 0o1600), libc.msgget(0, 0o1600), libc.semget(0, 1, 0o1600))
    with subprocess.Popen(["sleep", "1000"]) as beside:  # noqa: ASYNC220 — it only is there
        try:
            assert libc.msgsnd(ids[1], struct.pack("l8s", 1, b"message"), 8, 0) == 0
            done = place.run(sys.executable, "-I", "-S", "-c", SHARED, *map(str, ids))
            assert done.stdout == "[]\n", done.stderr
            assert os.getpriority(os.PRIO_PROCESS, beside.pid) < 19
        finally:
            beside.kill()
            libc.shmctl(ids[0], 0, None)
            libc.msgctl(ids[1], 0, None)
            libc.semctl(ids[2], 0, 0)


async def test_a_command_can_lower_its_own_priority(place: Place) -> None:
    ours, its = map(int, place.sh("nice; nice -n 5 nice").stdout.split())
    assert its == min(ours + 5, 19)


@pytest.mark.fault("F-39")
async def test_a_command_of_root_sees_only_files_that_every_user_can_read(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has files that it should not show")
    with TemporaryDirectory(dir="/var/lib") as folder:
        _fill(Path(folder))
        hidden = private.Private((folder,)).paths()
        assert {f"{folder}/private", f"{folder}/inside"} == {p for p in hidden if folder in p}
    for path in ("/etc/shadow", "/root/.profile", "/root/.bashrc", "/etc/gshadow"):
        assert place.sh(f"cat {path}").stdout == ""
    assert place.sh("cat /etc/passwd").stdout
    (place.one / "mine").mkdir(mode=0o700)
    assert place.sh("touch mine/x && ls mine").stdout == "x\n"


def _fill(folder: Path) -> None:
    folder.chmod(0o755)
    for name, mode in (("private", 0o640), ("public", 0o644)):
        (folder / name).write_text(SECRET)
        (folder / name).chmod(mode)
    (folder / "inside").mkdir(mode=0o700)
    (folder / "inside" / "public").write_text(SECRET)


def test_a_private_path_that_was_deleted_since_the_scan_is_not_hidden(tmp_path: Path) -> None:
    """Bubblewrap fails on it: all of the sandbox would fall to L1."""
    if os.geteuid() != 0:
        pytest.skip("nothing is hidden but from root")
    (tmp_path / "stays").touch(mode=0o600)
    (tmp_path / "goes").touch(mode=0o600)
    found = private.Private((str(tmp_path),), lambda: 0.0)
    assert {str(tmp_path / "stays"), str(tmp_path / "goes")} <= set(found.paths())
    (tmp_path / "goes").unlink()
    assert str(tmp_path / "goes") not in found.paths()
    assert str(tmp_path / "stays") in found.paths()


def test_a_directory_of_private_files_is_hidden_and_the_scan_is_cached(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        pytest.skip("nothing is hidden but from root")
    now = 0.0
    (tmp_path / "many").mkdir()
    for number in range(private.MANY + 1):
        (tmp_path / "many" / str(number)).touch(mode=0o600)
    (tmp_path / "one").touch(mode=0o600)
    found = private.Private((str(tmp_path),), lambda: now)
    mine = {path for path in found.paths() if path.startswith(str(tmp_path))}
    assert mine == {str(tmp_path / "many"), str(tmp_path / "one")}
    (tmp_path / "two").touch(mode=0o600)
    assert str(tmp_path / "two") not in found.paths()
    now = private.AGAIN_S
    assert str(tmp_path / "two") in found.paths()


# What lies in a workspace and is not the command's


@pytest.fixture
async def on_path(tmp_path: Path) -> Place:
    """A workspace with a folder on PATH and an environment, neither of them at its root."""
    place = Place(tmp_path, SYSTEM)
    folders = [place.one / "tools" / "bin", place.one / "deep" / "er" / "env" / "bin"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "git").write_text("theirs")
    (folders[1].parent / "pyvenv.cfg").touch()
    path = [*SYSTEM, *map(str, folders)]
    place.sandbox = Sandbox(place.home, place.user, allow_none=False, exec_path=path)
    assert (await place.sandbox.probe()).level is Level.L2
    return place


async def test_directories_above_a_folder_on_path_cannot_be_renamed(on_path: Place) -> None:
    for top in ("tools", "deep", "deep/er"):
        assert on_path.sh(f"touch {top}/mine").returncode == 0
        assert on_path.python(f"import os; os.rename('{top}', 'away')").returncode != 0
        assert (on_path.one / top / "mine").exists()
    for folder in ("tools/bin", "deep/er/env/bin"):
        assert on_path.sh(f"echo evil > {folder}/git").returncode != 0
        assert (on_path.one / folder / "git").read_text() == "theirs"


@pytest.mark.parametrize("level", [Level.L2, Level.L1], ids=["L2", "L1"])
async def test_a_link_at_a_folder_of_path_opens_nothing_that_is_hidden(
    tmp_path: Path, level: Level, no_bwrap: list[str]
) -> None:
    weak = level is Level.L1
    base, site = (no_bwrap, NOWHERE) if weak else (SYSTEM, None)
    place = Place(tmp_path, base, site)
    (place.user / "letters").mkdir()
    (place.user / "letters" / "one").write_text(SECRET)
    path = [*base, str(place.one / "bin")]
    place.sandbox = Sandbox(place.home, place.user, allow_none=False, exec_path=path, site=site)
    assert (await place.sandbox.probe()).level is level
    assert place.sh(f"ln -s {place.user}/letters bin").returncode == 0
    assert SECRET not in place.sh(f"cat {place.user}/letters/one bin/one").stdout


async def test_our_own_code_is_read_only_where_a_clone_is_the_workspace(place: Place) -> None:
    profile = CommandProfile(str(ROOT))
    for path in ("holdfast/tools/exec/shim.py", "holdfast/__init__.py"):
        done = place.sh(f": >> {path}", profile)  # opened, and nothing written
        assert done.returncode != 0, path
    assert place.sh(": >> README.md", profile).returncode == 0
    code = CommandProfile(str(ROOT / "holdfast" / "tools"))
    with pytest.raises(ToolFailed, match=REACHES_SECRET):
        place.sh("true", code)


async def test_a_command_plants_no_program_that_gives_its_user_to_others(place: Place) -> None:
    shutil.copy("/bin/true", place.one / "x")
    script = (
        "import os\n"
        "for attempt in (\n"
        "    lambda: os.chmod('x', 0o4755),\n"
        "    lambda: os.chmod(os.open('x', os.O_RDONLY), 0o4755),\n"
        "    lambda: os.close(os.open('y', os.O_CREAT | os.O_WRONLY, 0o4755)),\n"
        "    lambda: os.close(os.open('.', os.O_TMPFILE | os.O_WRONLY, 0o4755)),\n"
        "    lambda: os.mknod('z', 0o104755),\n"
        "    lambda: os.chmod('x', 0o755),\n"
        "):\n"
        "    try: attempt(); print('done')\n"
        "    except PermissionError: print('denied')\n"
    )
    assert place.python(script).stdout.split() == ["denied"] * 5 + ["done"]
    assert not any(path.stat().st_mode & stat.S_ISUID for path in place.one.iterdir())
