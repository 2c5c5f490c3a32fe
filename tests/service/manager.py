"""A private systemd user manager for a test, like the one of a logged-in user.

It has a /run of its own, without which it believes that the machine runs no systemd, and it
sees no cgroups but one that was made for it: at its start it moves whatever is in its group,
and whatever is not the test's must stay where it is. Both need root. Its directory, and so
its sockets, are the test's; `systemctl` reaches it from outside.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from secrets import token_hex

import anyio
import anyio.abc
import pytest

from tests.fakes.supervisor import ear

WAIT_S = 30.0
ANSWER_S, ASKED_AGAIN = 15.0, 3
_NAMESPACES = ("unshare", "--mount", "--cgroup", "--propagation", "private")
_ENTER = 'echo $$ > "$1/cgroup.procs" && shift && exec "$@"'
_BEGIN = """
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
[ ! -d /etc/systemd/user ] || mount -t tmpfs tmpfs /etc/systemd/user
mount -t cgroup2 cgroup2 /sys/fs/cgroup
exec setpriv --pdeathsig TERM systemd --user --log-target=console
"""


class Systemd:
    """A user manager that runs, and what its services say on stderr."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.lines: list[str] = []
        self._next = 0
        self._line = anyio.Event()

    async def ctl(self, *words: str) -> str:
        """`systemctl --user`, which must do it; what it says."""
        done = await anyio.run_process(
            ("systemctl", "--user", *words), env=self.environ, check=False
        )
        assert done.returncode == 0, (words, done.stderr.decode(), self.lines[-20:])
        return done.stdout.decode().strip()

    async def show(self, unit: str, *names: str) -> dict[str, str]:
        """What it knows of a unit."""
        for _ in range(ASKED_AGAIN):  # under load one such question was never answered
            with anyio.move_on_after(ANSWER_S):
                said = await self.ctl("show", f"--property={','.join(names)}", unit)
                return dict(line.split("=", 1) for line in said.splitlines())
        raise AssertionError(f"systemd does not say how {unit} is; said was: {self.lines[-30:]}")

    async def hears(self, text: str) -> str:
        """The next line that contains `text`, after the one this returned last."""
        with anyio.move_on_after(WAIT_S):
            while True:
                for at in range(self._next, len(self.lines)):
                    if text in self.lines[at]:
                        self._next = at + 1
                        return self.lines[at]
                await self._line.wait()
        raise AssertionError(f"nobody said {text!r}; said was:\n" + "\n".join(self.lines[-30:]))

    async def listen(self, descriptor: int) -> None:
        """Take in what the services say."""
        rest = ""
        while True:
            await anyio.wait_readable(descriptor)
            text = rest + os.read(descriptor, 65536).decode(errors="replace")
            *lines, rest = text.split("\n")
            self.lines += lines
            self._line.set()
            self._line = anyio.Event()


@asynccontextmanager
async def user_manager(directory: Path, environ: Mapping[str, str]) -> AsyncIterator[Systemd]:
    """One for the home that `environ` names, up and, afterwards, gone with all its services.

    What it starts has this environment. A service that writes to `directory`/said is heard.
    """
    runtime = directory / "x"  # short: a socket's address has little room
    runtime.mkdir(mode=0o700, exist_ok=True)
    variables = {**environ, "XDG_RUNTIME_DIR": str(runtime)}
    with _group() as group, _ear(directory / "said") as said, ear() as heard:
        process = await anyio.open_process(
            ("sh", "-c", _ENTER, "sh", str(group), *_NAMESPACES, "sh", "-ec", _BEGIN),
            env={**variables, "NOTIFY_SOCKET": heard.address},
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=None,
        )
        systemd = Systemd(variables)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(systemd.listen, said)
            try:
                await heard.hears("READY=1")
                yield systemd
            finally:
                with anyio.CancelScope(shield=True):
                    await _end(process)
            tasks.cancel_scope.cancel()


async def _end(process: anyio.abc.Process) -> None:
    """It ends what it runs, then itself."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    with anyio.move_on_after(WAIT_S):
        await process.wait()
    with suppress(ProcessLookupError):
        process.kill()
    await process.aclose()


@contextmanager
def _ear(path: Path) -> Iterator[int]:
    """A pipe with a name, open for whoever writes to it."""
    if not path.exists():
        os.mkfifo(path, 0o600)
    descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # RDWR: it never ends
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _group() -> Iterator[Path]:
    """A cgroup of our own; whoever is still in it at the end is killed, and that is a failure."""
    group = _hierarchy() / f"holdfast-test-{token_hex(4)}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs cgroups that can be written to: {error}")
    try:
        yield group
    finally:
        left = [int(p) for file in group.rglob("cgroup.procs") for p in file.read_text().split()]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for inner, _, _ in os.walk(group, topdown=False):
            with suppress(OSError) if left else nullcontext():  # the killed may take a moment
                os.rmdir(inner)
        assert not left, f"processes that outlived their manager: {left}"


def _hierarchy() -> Path:
    """Where the one hierarchy of cgroups is mounted."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        if kind.startswith("cgroup2 "):
            return Path(fields.split()[4])
    pytest.skip("needs cgroups (cgroup2)")


def skip_without() -> None:
    """Skip the test where no such manager can be had, and say what is missing."""
    if os.geteuid() != 0:
        pytest.skip("needs root: a /run and cgroups of one's own")
    for program in ("unshare", "setpriv"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} (util-linux)")
    tried = subprocess.run((*_NAMESPACES, "true"), capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"needs namespaces of one's own: {tried.stderr.strip()}")
    if not _comes_up():
        pytest.skip("needs a user manager that comes up: systemd does not here")


@cache
def _comes_up() -> bool:
    """Whether one says that it is ready, tried once. In a group nothing can be skipped any more."""
    with (
        tempfile.TemporaryDirectory() as name,
        _group() as group,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard,
    ):
        heard.bind(f"{name}/n")
        heard.settimeout(1.0)
        paths = {"HOME": name, "XDG_RUNTIME_DIR": name, "NOTIFY_SOCKET": f"{name}/n"}
        process = subprocess.Popen(
            ("sh", "-c", _ENTER, "sh", str(group), *_NAMESPACES, "sh", "-ec", _BEGIN),
            env={"PATH": os.environ["PATH"], **paths},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            for _ in range(int(WAIT_S)):
                with suppress(TimeoutError):
                    if b"READY=1" in heard.recv(65536):
                        return True
                if process.poll() is not None:
                    break
        finally:
            process.terminate()
            process.wait(WAIT_S)
    return False
