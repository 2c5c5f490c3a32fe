"""The sandbox, by real commands inside it: what they cannot do, what they can, what is said."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.errors import ToolFailed
from holdfast.tools import seccomp
from holdfast.tools.cage import Attempt
from holdfast.tools.sandbox import Confined, Level, Posture, Profile, Sandbox
from holdfast.tools.view import Access, grants, settle, system

pytestmark = [pytest.mark.anyio, pytest.mark.debian("bwrap")]

ROOT = Path(__file__).parents[2]
SECRET = "sesame-4711"
SYSTEM = ["/usr/local/bin", "/usr/bin", "/bin"]


class Place:
    """A machine in small: a user's home, Holdfast's home, workspaces, a sandbox."""

    def __init__(self, root: Path, exec_path: list[str]) -> None:
        self.user, self.home = root / "user", root / "holdfast"
        self.one, self.two = (self.home / "workspaces" / name for name in ("one", "two"))
        for folder in (self.user / ".ssh", self.user / ".cargo" / "bin", self.one, self.two):
            folder.mkdir(parents=True)
        for path in (".ssh/id", ".cargo/credentials.toml", ".bashrc"):
            (self.user / path).write_text(SECRET)
        (self.home / "config.toml").write_text(SECRET)
        (self.two / "notes").write_text(SECRET)
        self.exec_path = exec_path
        self.sandbox = Sandbox(self.home, self.user, allow_none=False, exec_path=exec_path)

    def run(self, *argv: str, profile: Profile | None = None) -> subprocess.CompletedProcess[str]:
        """Run it in workspace one, as the probed rung has it."""
        profile = profile or Profile(str(self.one))
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

    def sh(self, script: str, profile: Profile | None = None) -> subprocess.CompletedProcess[str]:
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
    found = Place(tmp_path, no_bwrap if request.param is Level.L1 else SYSTEM)
    posture = await found.sandbox.probe()
    assert posture.level is request.param, posture.note
    return found


# What the canary says


async def test_here_bubblewrap_holds_everything(tmp_path: Path) -> None:
    posture = await Place(tmp_path, SYSTEM).sandbox.probe()
    assert posture.level is Level.L2
    assert set(posture.blocked) == set(Attempt)
    assert posture.open == ()


async def test_without_bubblewrap_the_posture_is_landlocks_and_says_what_is_open(
    tmp_path: Path, no_bwrap: list[str]
) -> None:
    posture = await Place(tmp_path, no_bwrap).sandbox.probe()
    assert posture.level is Level.L1
    assert "bubblewrap is not installed" in posture.note
    assert posture.open == (Attempt.CHMOD,)
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
from holdfast.tools.sandbox import Profile, Sandbox

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
        confined = sandbox.confine(Profile(str(workspace)), ["sh", "-c", "echo hi > it"], str(workspace))
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


async def test_where_user_namespaces_are_denied_landlock_is_left_and_commands_run(
    tmp_path: Path,
) -> None:
    no_namespaces = {name: seccomp.NAMESPACED[name] for name in ("clone", "clone3", "unshare")}
    posture, made = probe(Place(tmp_path, []), rules=no_namespaces)
    assert posture.level is Level.L1, posture.note
    assert "no L2: " in posture.note
    assert made == "hi\n"


async def test_where_nothing_works_commands_are_refused(tmp_path: Path) -> None:
    posture, made = probe(Place(tmp_path, []), "setarch", "i686")
    assert posture.level is Level.L0
    assert posture.note.startswith("UNSANDBOXED")
    assert "no system call numbers for i686" in posture.note
    assert Attempt.READ_USER in posture.open
    assert made.startswith("ToolFailed: No command can run here")


async def test_where_nothing_works_and_the_operator_allows_it_commands_run_unsandboxed(
    tmp_path: Path,
) -> None:
    posture, made = probe(Place(tmp_path, []), "setarch", "i686", allow_none="yes")
    assert posture.level is Level.L0
    assert posture.note.startswith("UNSANDBOXED")
    assert made == "hi\n"


async def test_before_a_probe_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="nothing has been tried"):
        Place(tmp_path, SYSTEM).run("true")


@pytest.mark.parametrize("namespaces", [True, False])
async def test_an_unprivileged_user_gets_the_same(namespaces: bool) -> None:
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
    assert posture.open == (() if namespaces else (Attempt.CHMOD,))
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


async def test_nobody_outside_hears_a_command(
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
        Profile(str(place.one)),
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


async def test_the_workspace_is_writable_and_really_that(place: Place) -> None:
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
    place.sh("git config user.email a@b && git config user.name n && touch f && git add f")
    assert place.sh("git status && git -p log; git commit -qm one").returncode == 0
    place.sh("git clone 'ext::./evil' there")
    assert not (place.one / "pwned").exists()


async def test_the_home_stays_with_its_workspace_and_is_no_other_ones(place: Place) -> None:
    place.sh("mkdir -p ~/.cache && echo kept > ~/.cache/it")
    assert place.sh("cat ~/.cache/it").stdout == "kept\n"
    two = Profile(str(place.two))
    assert place.sh("cat ~/.cache/it", two).returncode != 0
    home = place.sh("echo $HOME").stdout.strip()
    assert place.sh(f"cat {home}/.cache/it", two).returncode != 0


async def test_temporary_files_work(place: Place) -> None:
    script = (
        "f=$(mktemp) && echo x > $f && cat $f && python3 -c 'import tempfile as t; t.mkdtemp()'"
    )
    done = place.sh(script)
    assert (done.stdout, done.returncode) == ("x\n", 0), done.stderr


async def test_devices_that_everybody_needs_are_there(place: Place) -> None:
    done = place.sh("echo x > /dev/null && head -c 4 /dev/zero | wc -c && echo err > /dev/stderr")
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("4", "err\n", 0)


async def test_a_tool_below_the_real_home_runs_and_cannot_be_changed(place: Place) -> None:
    tool = place.user / ".cargo" / "bin" / "mytool"
    tool.write_text("#!/bin/sh\necho tool\n")
    tool.chmod(0o755)
    path = [str(tool.parent), *place.exec_path]
    again = Sandbox(place.home, place.user, allow_none=False, exec_path=path)
    assert (await again.probe()).level is place.sandbox.posture.level
    place.sandbox = again
    assert place.run("mytool").stdout == "tool\n"
    place.sh(f"echo evil >> {tool}")
    assert "evil" not in tool.read_text()


async def test_a_granted_directory_is_writable_too(place: Place) -> None:
    beside = place.user / "beside"
    beside.mkdir()
    assert place.sh(f"touch {beside}/no").returncode != 0
    assert place.sh(f"touch {beside}/yes", Profile(str(place.one), (str(beside),))).returncode == 0
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
    profile = Profile(str(place.one), unsandboxed=True)
    assert place.run("cat", str(place.user / ".bashrc"), profile=profile).stdout == SECRET


# What is never granted


@pytest.mark.parametrize(
    "where", ["", "user", "holdfast", "user/.ssh", "user/.ssh/x", "holdfast/run"]
)
async def test_a_workspace_that_would_reach_secrets_is_refused(place: Place, where: str) -> None:
    path = (place.home.parent / where).resolve()
    path.mkdir(exist_ok=True)
    with pytest.raises(ToolFailed, match="would reach"):
        place.sh("true", Profile(str(path)))
    with pytest.raises(ToolFailed, match="would reach"):
        place.sh("true", Profile(str(place.one), (str(path),)))


async def test_a_granted_directory_that_became_a_link_is_refused(place: Place) -> None:
    (place.one / "granted").symlink_to("/etc")
    with pytest.raises(ToolFailed, match="not the directory"):
        place.sh("true", Profile(str(place.one), (str(place.one / "granted"),)))


def test_a_profile_can_be_hashed_and_compared() -> None:
    assert {Profile("/w", ("/a",)): 1}[Profile("/w", ("/a",))] == 1
    assert Profile("/w") != Profile("/w", hosts=("example.org",))


# What is seen


def test_homes_are_hidden_wherever_they_lie(tmp_path: Path) -> None:
    home, user = tmp_path / "srv" / "holdfast", tmp_path / "people" / "me"
    for folder in (home, user / ".cargo" / "bin"):
        folder.mkdir(parents=True)
    view = system(str(home), str(user), [])
    assert view[str(home)] is view[str(user)] is Access.HIDE
    assert view[str(user / ".cargo" / "bin")] is Access.READ
    assert view["/"] is Access.READ


def test_where_only_allowing_is_possible_what_is_hidden_is_cut_out(tmp_path: Path) -> None:
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
