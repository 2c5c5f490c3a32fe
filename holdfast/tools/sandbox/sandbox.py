"""The sandbox: a ladder of ways to confine a command, chosen by trying, never silent.

    L3  a podman container of its own       only with an image the operator names; no network
    L2  bubblewrap and seccomp              own process, network, mount and ipc namespaces
    L1  Landlock, seccomp and limits        where user namespaces are denied; no namespaces
    L0  nothing                             only if the operator allows it; UNSANDBOXED

`probe` runs the canary on one rung after the other and stops at the first that holds. The
posture lists what was really blocked; what a rung should block is nowhere written down but
as the least it must, or it does not count. Until somebody has probed, the rung is L0. Where the
canary could not be sent at all (no space, no descriptors) nothing was learned: `Unprobed`, and
nothing is said of any rung.

Seen from inside: the system, read-only; the workspace and what was granted beside it,
writable; a home that belongs to this workspace alone and stays from command to command, at
the same path on every rung, because tools write it down; toolchains of the real home that
hold no secrets. The rest of all homes, ours above all, is not there. The environment is
built here from nothing, and keeps git from running what a repository's settings name.
"""

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio

from holdfast.core.approval import Level as Level
from holdfast.core.approval import Posture as Posture
from holdfast.core.types import Value
from holdfast.errors import ToolFailed
from holdfast.tools import (
    cage,
    container,
    gitconfig,
    landlock,
    proxy,
    seatbelt,
    seccomp,
    shim,
    view,
)
from holdfast.tools.cage import Attempt
from holdfast.tools.view import Access


class Unprobed(ToolFailed):
    """How well commands are confined could not be found out now; another try may."""

    def __init__(self, why: OSError) -> None:
        super().__init__(
            f"How well commands are confined here could not be tried: {why}. No command runs "
            "before that is known; try again once there is room."
        )


class Profile(Value):
    """What one command may do. Holds nothing of a single spawn, so that it can be hashed."""

    workspace: str
    writable: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    unsandboxed: bool = False


class Confined(Value):
    """Ready to be spawned, with exactly this environment. `close` it when that is done."""

    argv: tuple[str, ...]
    pass_fds: tuple[int, ...]
    env: Mapping[str, str]
    cwd: str

    def close(self) -> None:
        """Close our side of what was passed on."""
        for fd in self.pass_fds:
            os.close(fd)


# Of the machine at this moment, not of a rung.
_SCARCE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE),
    *(errno.ENOMEM, errno.EAGAIN, errno.EIO),
)
PROBE_S = 20.0  # a canary that takes longer has not shown anything

_UNPROBED = Posture(Level.L0, (), (), "UNSANDBOXED: nothing has been tried yet")
_ALL = frozenset(Attempt)
_LEAST = {
    Level.L3: _ALL,
    Level.L2: _ALL,
    Level.L1: _ALL - {Attempt.CHMOD, Attempt.SIGNAL, Attempt.ABSTRACT},
    Level.L0: frozenset(),
}
_MEANS = {
    Level.L3: "a podman container and seccomp, no network for anybody",
    Level.L2: "bubblewrap and seccomp",
    Level.L1: "Landlock and seccomp",
}
if sys.platform == "darwin":
    _MEANS = {Level.L2: "seatbelt"}

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_BWRAP = (
    *("--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
)
# Kernel settings belong to root by its number alone, which a root without privileges keeps.
_SETTINGS = tuple(f"/proc/{name}" for name in ("sys", "irq", "bus", "fs", "acpi", "scsi"))
_TRIGGERS = tuple(f"/proc/{name}" for name in ("sysrq-trigger", "mtrr", "kcore"))
_GIT = {  # a repository's own settings can name programs
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "protocol.ext.allow": "never",
}
_DOOR = Path(__file__).with_name("door.py").read_text("utf-8")
_PROXY = f"http://127.0.0.1:{proxy.PORT}"
_PROXIED = {
    **{name: _PROXY for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")},
    **dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1"),
}
_ROOTS = {  # where a toolchain looks for itself below a home that is now another one
    "PYENV_ROOT": ".pyenv",
    "RBENV_ROOT": ".rbenv",
    "NODENV_ROOT": ".nodenv",
    "GOENV_ROOT": ".goenv",
    "RUSTUP_HOME": ".rustup",
    "ASDF_DATA_DIR": ".asdf",
    "SDKMAN_DIR": ".sdkman",
    "MISE_DATA_DIR": ".local/share/mise",
}


class Sandbox:
    """Confines commands as well as this machine can, and says how well that is."""

    def __init__(
        self,
        home: Path,
        user_home: Path,
        *,
        allow_none: bool,
        exec_path: Sequence[str] | None = None,
        container: str = "",
    ) -> None:
        path = os.get_exec_path() if exec_path is None else exec_path
        self._path = tuple(folder for folder in path if os.path.isabs(folder))
        self._home = os.path.realpath(home)
        self._user_home = os.path.realpath(user_home)
        self._allow_none = allow_none
        self._bwrap = shutil.which("bwrap", path=os.pathsep.join(self._path)) or ""
        self._podman = shutil.which("podman", path=os.pathsep.join(self._path)) or ""
        self._image = container
        self._posture = _UNPROBED

    @property
    def posture(self) -> Posture:
        """What `probe` found last."""
        return self._posture

    async def probe(self) -> Posture:
        """Let the canary try the rungs from the top; take the first one that holds.

        Raises `Unprobed`, and claims nothing, where it could not be asked on one of them.
        """
        failed: list[str] = []
        rungs = [level for level in _MEANS if level is not Level.L3 or self._image]
        for level in (*sorted(rungs, reverse=True), Level.L0):
            try:
                found = await self._try(level)
            except OSError as error:
                raise Unprobed(error) from error
            if isinstance(found, str):
                failed.append(f"no {level.name}: {found}")
            else:
                self._posture = self._judged(level, found, failed)
                return self._posture
        self._posture = Posture(Level.L0, (), tuple(_ALL), f"UNSANDBOXED: {'; '.join(failed)}")
        return self._posture

    @property
    def filters_hosts(self) -> bool:
        """Whether single hosts can be opened here; where not, there is no network at all."""
        return self._posture.level is Level.L2 and sys.platform != "darwin"

    def confine(
        self, profile: Profile, argv: Sequence[str], cwd: str, *, door: int | None = None
    ) -> Confined:
        """`argv` as it has to be spawned so that it can do what `profile` says and no more.

        `door` is what `proxy.serve` yields; without it the command has no network.
        """
        level = Level.L0 if profile.unsandboxed else self._posture.level
        if level is Level.L0 and not (profile.unsandboxed or self._allow_none):
            raise ToolFailed(f"No command can run here. {self._posture.note}.")
        if profile.hosts and level is not Level.L0 and not self.filters_hosts:
            raise ToolFailed("Here commands have no network: single hosts cannot be opened.")
        if door is None or level is Level.L0 or not self.filters_hosts:
            return self._confined(level, profile, argv, cwd)
        fd = os.dup(door)
        through = (view.interpreter(), "-I", "-S", "-c", _DOOR, str(fd), str(proxy.PORT), *argv)
        try:
            confined = self._confined(level, profile, through, cwd)
        except (ToolFailed, OSError):
            os.close(fd)
            raise
        return Confined(
            confined.argv, (*confined.pass_fds, fd), {**confined.env, **_PROXIED}, confined.cwd
        )

    async def _try(self, level: Level) -> dict[Attempt, bool] | str:
        """What the canary reached on this rung, or what keeps it from being one.

        Raises `OSError` if it could not be asked.
        """
        if level is Level.L2 and sys.platform != "darwin" and not self._bwrap:
            return "bubblewrap is not installed"
        if level is Level.L3 and (why := await self._clear()):
            return why
        home, user_home = Path(self._home), Path(self._user_home)
        async with cage.open_cage(home, user_home) as (targets, victim):
            targets.check()
            profile = Profile(str(targets.workspace))
            argv = targets.argv(victim.pid)
            if level is Level.L3:
                argv = ("python3", *argv[1:])  # the image's own
            try:
                confined = self._confined(level, profile, argv, profile.workspace)
            except (ValueError, ToolFailed) as unknown:  # a machine without system call numbers
                return str(unknown)
            try:
                with anyio.fail_after(PROBE_S):
                    done = await cage.send(confined.argv, confined.env, confined.pass_fds)
            except OSError as error:
                if error.errno in _SCARCE:
                    raise
                return str(error) or "too slow"
            finally:
                confined.close()
            targets.check()  # also afterwards: what failed meanwhile, failed for want of room
            if not targets.ran() or done.returncode != 0:
                return _last(done.stderr) or f"ended with {done.returncode}"
            reached = targets.reached(done.stdout.decode(errors="replace"))
            reached[Attempt.SIGNAL] = not await cage.alive(victim)
        missing = [a for a in _LEAST[level] if reached.get(a)]
        return "does not hold" if missing else reached

    async def _clear(self) -> str:
        """Remove what killed containers have left; why there can be none here."""
        if not self._podman:
            return "podman is not installed"
        try:
            with anyio.fail_after(PROBE_S):
                if names := container.dead(await self._listed()):
                    await self._ask(container.removal(self._podman, names))
        except TimeoutError:
            return "podman is too slow"
        except (OSError, ToolFailed) as error:
            return str(error)
        return ""

    async def _listed(self) -> str:
        listing = container.listing(self._podman, _hash(self._home))
        try:
            return await self._ask(listing)
        except ToolFailed as error:
            if container.LOST not in str(error):
                raise
        await self._ask(container.reset(self._podman))
        return await self._ask(listing)

    async def _ask(self, command: Sequence[str]) -> str:
        done = await anyio.run_process(command, check=False, env=self._engines())
        if done.returncode:
            raise ToolFailed(_last(done.stderr) or f"podman ended with {done.returncode}")
        return done.stdout.decode()

    def _engines(self) -> dict[str, str]:
        """The environment of podman itself."""
        runtime = f"/run/user/{os.getuid()}"
        where = {"XDG_RUNTIME_DIR": runtime} if os.path.isdir(runtime) else {}
        return {"HOME": self._user_home, "PATH": os.pathsep.join(self._path), **where}

    def _contained(self, seen: view.View, cache: str, argv: Sequence[str], cwd: str) -> Confined:
        env = self._environment(cache, "/tmp")
        try:
            outer = container.confine(
                self._podman,
                self._image,
                argv,
                writable=[path for path, access in seen.items() if access is Access.WRITE],
                env={name: env[name] for name in env if name not in ("PATH", *_ROOTS)},
                cwd=cwd,
                seccomp=seccomp.program(seccomp.NAMESPACED),
                owner=_hash(self._home),
                handed=(shim.MARK,),
            )
        except ValueError as error:
            raise ToolFailed(f"No command can run here: {error}.") from error
        return Confined(tuple(outer), (), self._engines(), cwd)

    def _judged(self, level: Level, reached: dict[Attempt, bool], failed: list[str]) -> Posture:
        blocked = tuple(str(a) for a in Attempt if reached.get(a) is False)
        still = tuple(str(a) for a in Attempt if reached.get(a))
        why = f" ({'; '.join(failed)})" if failed else ""
        if level is Level.L0:
            said = "" if self._allow_none else "; commands are refused"
            note = f"UNSANDBOXED: nothing confines commands{why}{said}"
        else:
            rest = f"; a command can still {', '.join(still)}" if still else ""
            note = f"{level.name}: {_MEANS[level]}{why}{rest}"
        return Posture(level, blocked, still, note)

    def _confined(self, level: Level, profile: Profile, argv: Sequence[str], cwd: str) -> Confined:
        workspace, cwd = os.path.realpath(profile.workspace), os.path.realpath(cwd)
        if level is Level.L0:
            path = os.pathsep.join(self._path)
            program = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=path)
            env = self._environment(self._user_home, "")
            return Confined((program or argv[0], *argv[1:]), (), env, cwd)
        cache = self._cache(workspace)
        seen = self._view(profile, workspace, cache)
        if sys.platform == "darwin":
            env = self._environment(cache, f"{cache}/tmp")
            return Confined(tuple(seatbelt.confine(seen, argv)), (), env, cwd)
        if level is Level.L1:
            env = self._environment(cache, f"{cache}/tmp")
            return Confined((*_landlocked(seen), "--", *argv), (), env, cwd)
        if level is Level.L3:
            return self._contained(seen, cache, argv, cwd)
        filter_fd = _in_memory(seccomp.program(seccomp.NAMESPACED))
        outer = (self._bwrap, *_BWRAP, *_mounts(seen), "--seccomp", str(filter_fd))
        env = self._environment(cache, "/tmp")
        return Confined((*outer, "--chdir", cwd, "--", *argv), (filter_fd,), env, cwd)

    def _view(self, profile: Profile, workspace: str, cache: str) -> dict[str, Access]:
        seen = view.system(self._home, self._user_home, self._path)
        for path in profile.writable:
            if os.path.realpath(path) != path:
                raise ToolFailed(f"{path} is not the directory that was granted.")
        for path in (workspace, *profile.writable):
            view.check(path, self._home, self._user_home)
            seen[path] = Access.WRITE
        return view.settle({**seen, cache: Access.WRITE})

    def _cache(self, workspace: str) -> str:
        cache = Path(self._home, "caches", _hash(workspace))
        (cache / "tmp").mkdir(mode=0o700, parents=True, exist_ok=True)
        gitconfig.introduce(self._user_home, str(cache))
        return str(cache)

    def _environment(self, home: str, temp: str) -> dict[str, str]:
        roots = {name: os.path.join(self._user_home, at) for name, at in _ROOTS.items()}
        git = {
            name: value
            for i, (key, wanted) in enumerate(_GIT.items())
            for name, value in ((f"GIT_CONFIG_KEY_{i}", key), (f"GIT_CONFIG_VALUE_{i}", wanted))
        }
        return {
            "HOME": home,
            "PATH": os.pathsep.join((*self._path, f"{home}/.local/bin")),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PAGER": "cat",
            **({"TMPDIR": temp} if temp else {}),
            **{name: at for name, at in roots.items() if os.path.isdir(at)},
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_CONFIG_COUNT": str(len(_GIT)),
            **git,
        }


def _last(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _hash(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _mounts(seen: view.View) -> list[str]:
    options = [
        *(word for path in _SETTINGS if os.path.exists(path) for word in ("--ro-bind", path, path)),
        *(
            word
            for path in _TRIGGERS
            if os.path.exists(path)
            for word in ("--ro-bind", os.devnull, path)
        ),
    ]
    for path, access in list(seen.items())[1:]:  # the first is the root, mounted already
        if access is not Access.HIDE:
            options += ["--bind" if access is Access.WRITE else "--ro-bind", path, path]
        elif os.path.isdir(path):
            options += ["--tmpfs", path]
        else:
            options += ["--ro-bind", os.devnull, path]
    return options


def _landlocked(seen: view.View) -> list[str]:
    rules = dict(seccomp.BARE)
    if landlock.abi() < 3:
        rules["truncate"] = seccomp.Rule()
    options = [sys.executable, "-I", "-S", str(landlock.__file__)]
    for path, access in view.grants({**seen, "/dev": Access.HIDE}):
        options += ["--write" if access is Access.WRITE else "--read", path]
    for name in _DEVICES:
        options += ["--device", f"/dev/{name}"]
    return [*options, "--seccomp", seccomp.program(rules).hex()]


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("holdfast")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
