"""The sandbox: four levels of confinement for commands. A test chooses the level and reports it.

    L3  a podman container per command      only with an image that the operator names; no network
    L2  bubblewrap and seccomp              own process, network, mount and IPC namespaces
    L1  Landlock, seccomp and limits        if user namespaces are denied; no namespaces
    L0  nothing                             only if the operator allows it; UNSANDBOXED

`probe` runs the canary (canary.py) at one level after the other and stops at the first level that
holds. The posture lists what was really blocked. For each level the code states only the minimum
that it must block; if it blocks less, the level is not used. Before the first probe the level is
L0. If the canary could not be run at all (no disk space, no descriptors), nothing is known about
any level, and `Unprobed` is raised.

A command sees the system, read-only; the workspace and granted directories, writable; a home that
belongs to this workspace alone and persists between commands, at the same path at every level,
because tools store that path; and the toolchains of the real home that contain no secrets. The
rest of all homes is hidden, Holdfast's above all. The environment is built from scratch, and keeps
git from running programs that a repository's settings name.
"""

import errno
import hashlib
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import anyio
import msgspec
from anyio import to_thread

from holdfast.core.approval.approval import Level, Posture
from holdfast.core.types import Value
from holdfast.errors import ToolFailed
from holdfast.tools.fs.openat import descriptor
from holdfast.tools.sandbox import (
    autorun,
    bwrap,
    environment,
    installed,
    landlock,
    private,
    seatbelt,
    seccomp,
)
from holdfast.tools.sandbox import mounts as view
from holdfast.tools.sandbox import probe as cage
from holdfast.tools.sandbox.autorun_paths import AutorunPaths, look
from holdfast.tools.sandbox.mounts import Access
from holdfast.tools.sandbox.networks import Network, open_network
from holdfast.tools.sandbox.podman import Podman, last_line
from holdfast.tools.sandbox.probe import Attempt


class Unprobed(ToolFailed):
    """The sandbox could not be tested now; a later attempt may succeed."""

    def __init__(self, why: OSError) -> None:
        super().__init__(
            f"The sandbox could not be tested: {why}. No command runs before the test; free "
            "resources on this machine, then try again."
        )


class CommandProfile(Value):
    """The permissions of one command. Contains nothing of a single start, so it can be hashed."""

    workspace: str
    writable: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    unsandboxed: bool = False


class Confined(Value):
    """A command ready to start, with exactly this environment. `close` it after the start."""

    argv: tuple[str, ...]
    pass_fds: tuple[int, ...]
    env: Mapping[str, str]
    cwd: str
    # Files that make the user's programs run code; None: not checked (L0).
    before: AutorunPaths | None = None
    sealed: frozenset[str] = frozenset()  # those of them that the command cannot change
    namespaces: tuple[int, ...] = ()  # fds of those to join before the start, in this order

    def close(self) -> None:
        """Close our copies of the inherited descriptors."""
        for fd in (*self.pass_fds, *self.namespaces):
            os.close(fd)


# Errors that say something about the machine at this moment, not about a level.
_SCARCE = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE),
    *(errno.ENOMEM, errno.EAGAIN, errno.EIO),
)
PROBE_S = 20.0  # time limit for the canary

NOT_TESTED = "UNSANDBOXED: the sandbox has not been tested yet"
_UNPROBED = Posture(Level.L0, (), (), NOT_TESTED)
_ALL = frozenset(Attempt)
_LEAST = {
    Level.L3: _ALL - {Attempt.REPOSITORY},
    Level.L2: _ALL,
    Level.L1: _ALL - {Attempt.REPOSITORY, Attempt.CHMOD, Attempt.SIGNAL, Attempt.ABSTRACT},
    Level.L0: frozenset(),
}
_MEANS = {
    Level.L3: "a podman container and seccomp, no network for any command",
    Level.L2: "bubblewrap and seccomp",
    Level.L1: "Landlock and seccomp",
}
if sys.platform == "darwin":
    _MEANS = {Level.L2: "seatbelt"}

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_LISTENER = Path(__file__).with_name("listener.py").read_text("utf-8")
_UNPROXIED = dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1")


class Sandbox:
    """Confines commands as well as this machine can, and reports how well that is."""

    def __init__(
        self,
        home: Path,
        user_home: Path,
        *,
        allow_none: bool,
        exec_path: Sequence[str] | None = None,
        site: str | None = None,
        container: str = "",
        podman: str | None = None,
        memory_mb: int = 0,
    ) -> None:
        path = os.get_exec_path() if exec_path is None else exec_path
        self._path = tuple(folder for folder in path if os.path.isabs(folder))
        self._home = os.path.realpath(home)
        self._user_home = os.path.realpath(user_home)
        self._allow_none = allow_none
        self._site = bwrap.site() if site is None else site
        self._bwrap = ""
        found = installed.find("podman", self._path) if podman is None else podman
        owner = _hash(self._home)
        self._podman = Podman(found, container, owner, self._user_home, self._path)
        self._posture = _UNPROBED
        self._memory_mb = memory_mb
        self._own_networks = ""  # why commands cannot share one; empty: they can

    @property
    def posture(self) -> Posture:
        """The result of the last `probe`."""
        return self._posture

    async def probe(self) -> Posture:
        """Test the levels from the highest down and use the first that holds.

        Raises `Unprobed`, and changes nothing, if the canary could not be run at one of them.
        """
        failed: list[str] = []
        await to_thread.run_sync(private.HERE.paths)  # a slow scan
        rungs = [level for level in _MEANS if level is not Level.L3 or self._podman.image]
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
        """Return whether single hosts can be allowed. If not, commands have no network at all."""
        return self._posture.level is Level.L2 and sys.platform != "darwin"

    @property
    def shares_networks(self) -> bool:
        """Return whether the commands of a session can have one network, and meet there."""
        return self.filters_hosts and not self._own_networks

    @property
    def own(self) -> str:
        """The gateway's own home."""
        return self._home

    def home_of(self, workspace: str) -> str:
        """Return the home that confined commands of this workspace share; empty at L0."""
        confined = self._posture.level is not Level.L0
        return self._cache(os.path.realpath(workspace)) if confined else ""

    def confine(
        self,
        profile: CommandProfile,
        argv: Sequence[str],
        cwd: str,
        *,
        door: int | None = None,
        network: Network | None = None,
    ) -> Confined:
        """Return how to start `argv` so that it can do what `profile` allows and no more.

        `door` is the fd that `proxy.serve` yields; without it the command has no network.
        `network` is the one to join; without it the command has its own.
        """
        level = self._level(profile)
        if door is None or level is Level.L0 or not self.filters_hosts:
            return self._confined(level, profile, argv, cwd)
        fd = os.dup(door)
        inode = network.inode if network else 0
        through = (view.interpreter(), "-I", "-S", "-c", _LISTENER, str(fd), str(inode), *argv)
        try:
            confined = self._confined(level, profile, through, cwd, network=network)
        except (ToolFailed, OSError):
            os.close(fd)
            raise
        return msgspec.structs.replace(
            confined, pass_fds=(*confined.pass_fds, fd), env={**confined.env, **_UNPROXIED}
        )

    def search_path(self, profile: CommandProfile) -> str:
        """Return the PATH of a command; `ToolFailed` if no command can run with this profile."""
        if self._level(profile) is Level.L0:
            return self._environment(self._user_home, "")["PATH"]
        workspace = os.path.realpath(profile.workspace)
        cache = self._cache(workspace)
        self._view(profile, workspace, cache)
        return self._environment(cache, "")["PATH"]

    def _level(self, profile: CommandProfile) -> Level:
        level = Level.L0 if profile.unsandboxed else self._posture.level
        if level is Level.L0 and not (profile.unsandboxed or self._allow_none):
            raise ToolFailed(f"No command can run here. {self._posture.note}.")
        if profile.hosts and level is not Level.L0 and not self.filters_hosts:
            raise ToolFailed(
                "Commands have no network here: this sandbox cannot allow single hosts."
            )
        return level

    async def _try(self, level: Level) -> dict[Attempt, bool] | str:
        """Return what the canary reached at this level, or why the level cannot be used.

        Raises `OSError` if the canary could not be run.
        """
        if level is not Level.L2 or sys.platform == "darwin":
            return await self._send(level)
        found = await bwrap.find(self._home, self._path, self._site)
        result: dict[Attempt, bool] | str = found.why
        for program in found.programs:
            result = await self._meet(program)
            self._own_networks = result if isinstance(result, str) else ""
            if self._own_networks:
                result = await self._send(level, program)
            if not isinstance(result, str):
                self._bwrap = program
                break
        return result

    async def _meet(self, program: str) -> dict[Attempt, bool] | str:
        """Run the canary at L2 in a network as a session has it; return as `_try` does."""
        async with AsyncExitStack() as stack:
            try:
                network = await stack.enter_async_context(open_network())
            except OSError as error:
                if error.errno in _SCARCE:
                    raise
                return str(error) or "too slow"
            return await self._send(Level.L2, program, network)

    async def _send(
        self, level: Level, program: str = "", network: Network | None = None
    ) -> dict[Attempt, bool] | str:
        """Run the canary at this level and return as `_try` does; `program` is the bubblewrap."""
        if level is Level.L3 and (why := await self._podman.clear(PROBE_S)):
            return why
        home, user_home = Path(self._home), Path(self._user_home)
        async with cage.open_cage(home, user_home) as (targets, victim):
            targets.check()
            profile = CommandProfile(str(targets.workspace))
            argv = targets.argv(victim.pid)
            if level is Level.L3:
                argv = ("python3", *argv[1:])  # the image's own
            try:
                where = profile.workspace
                confined = self._confined(level, profile, argv, where, program, network)
            except (ValueError, ToolFailed) as unknown:  # e.g. an unsupported architecture
                return str(unknown)
            try:
                with anyio.fail_after(PROBE_S):
                    done = await cage.send(
                        confined.argv, confined.env, confined.pass_fds, confined.namespaces
                    )
            except OSError as error:
                if error.errno in _SCARCE:
                    raise
                return str(error) or "too slow"
            finally:
                confined.close()
            targets.check()  # again afterwards: a full disk may have caused failures meanwhile
            if not targets.ran() or done.returncode != 0:
                return last_line(done.stderr) or f"ended with {done.returncode}"
            reached = targets.reached(done.stdout.decode(errors="replace"))
            reached[Attempt.SIGNAL] = not await cage.alive(victim)
        missing = [a for a in _LEAST[level] if reached.get(a)]
        return "does not hold" if missing else reached

    def _judged(self, level: Level, reached: dict[Attempt, bool], failed: list[str]) -> Posture:
        blocked = tuple(str(a) for a in Attempt if reached.get(a) is False)
        still = tuple(str(a) for a in Attempt if reached.get(a))
        why = f" ({'; '.join(failed)})" if failed else ""
        if level is Level.L0:
            refused = "" if self._allow_none else "; commands are refused"
            note = f"UNSANDBOXED: nothing confines commands{why}{refused}"
        else:
            rest = f"; a command can still {', '.join(still)}" if still else ""
            if level is Level.L2 and self._own_networks:
                rest += f"; no network between commands ({self._own_networks})"
            note = f"{level.name}: {_MEANS[level]}{why}{rest}"
        return Posture(level, blocked, still, note)

    def _confined(
        self,
        level: Level,
        profile: CommandProfile,
        argv: Sequence[str],
        cwd: str,
        program: str = "",
        network: Network | None = None,
    ) -> Confined:
        workspace, cwd = os.path.realpath(profile.workspace), os.path.realpath(cwd)
        if level is Level.L0:
            path = os.pathsep.join(self._path)
            found = argv[0] if "/" in argv[0] else shutil.which(argv[0], path=path)
            env = self._environment(self._user_home, "")
            return Confined((found or argv[0], *argv[1:]), (), env, cwd)
        cache = self._cache(workspace)
        seen = self._view(profile, workspace, cache)
        before = look(workspace)
        if sys.platform == "darwin":
            sealed = {f"{workspace}/{path}": Access.READ for path in before.found}
            env = self._environment(cache, f"{cache}/tmp")
            argv = seatbelt.confine({**seen, **sealed}, argv)
            return Confined(tuple(argv), (), env, cwd, before, frozenset(before.found))
        if level is Level.L1:
            env = self._environment(cache, f"{cache}/tmp")
            return Confined((*_landlocked(seen), "--", *argv), (), env, cwd, before)
        if level is Level.L3:
            env = self._environment(cache, "/tmp")
            outer = self._podman.confine(view.pinned(seen), env, argv, cwd)
            return Confined(outer, (), self._podman.environment, cwd, before)
        program = program or self._bwrap
        wrapped = self._wrapped(program, seen, cache, workspace, argv, cwd, before)
        return wrapped if network is None else _joined(wrapped, network)

    def _wrapped(
        self,
        program: str,
        seen: view.View,
        cache: str,
        workspace: str,
        argv: Sequence[str],
        cwd: str,
        before: AutorunPaths,
    ) -> Confined:
        seen = view.pinned(seen)
        opened = view.opened(seen)
        filter_fd = _in_memory(seccomp.program(seccomp.NAMESPACED))
        seals = autorun.seals(workspace, before)
        mounts = bwrap.options(seen, opened, self._memory_mb)
        outer = (program, *mounts, *bwrap.sealing(workspace, seals))
        return Confined(
            (*outer, "--seccomp", str(filter_fd), "--chdir", cwd, "--", *argv),
            (filter_fd, *opened.values(), *(seal.fd for seal in seals)),
            self._environment(cache, "/tmp"),
            cwd,
            before,
            frozenset(seal.path for seal in seals if not seal.writable),
        )

    def _view(self, profile: CommandProfile, workspace: str, cache: str) -> dict[str, Access]:
        hidden = private.HERE.paths()
        seen = view.system(self._home, self._user_home, self._path, hidden)
        for path in (profile.workspace, *profile.writable):
            if os.path.realpath(path) != path:  # a command of an outer workspace can do that
                raise ToolFailed(
                    f"{path} is not the directory that was granted: a part of its path is a link "
                    "now. Tell the user."
                )
        for path in (workspace, *profile.writable):
            view.check(path, self._home, self._user_home)
            view.grant(seen, path, Access.WRITE, hidden)
        return view.settle({**seen, cache: Access.WRITE})

    def _cache(self, workspace: str) -> str:
        """Create the home of the commands. They can write to it, so we follow no link in it."""
        cache = Path(self._home, "caches", _hash(workspace))
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with descriptor(os.open(cache, flags)) as fd:
            with suppress(FileExistsError):
                os.mkdir("tmp", 0o700, dir_fd=fd)
            environment.introduce(self._user_home, fd)
        return str(cache)

    def _environment(self, home: str, temp: str) -> dict[str, str]:
        return environment.build(self._user_home, self._path, home, temp)


def _hash(path: str) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _landlocked(seen: view.View) -> list[str]:
    rules = dict(seccomp.BARE)
    if landlock.abi() < 3:
        rules["truncate"] = seccomp.SyscallRule()
    options = [sys.executable, "-I", "-S", str(landlock.__file__)]
    for path, access in view.grants({**seen, "/dev": Access.HIDE}):
        options += ["--write" if access is Access.WRITE else "--read", path]
    for name in _DEVICES:
        options += ["--device", f"/dev/{name}"]
    return [*options, "--seccomp", seccomp.program(rules).hex()]


def _joined(wrapped: Confined, network: Network) -> Confined:
    """Have the command join a network instead of creating one."""
    program, *options = wrapped.argv
    argv = (program, *bwrap.sharing(options))
    namespaces = tuple(map(os.dup, network.namespaces))
    return msgspec.structs.replace(wrapped, argv=argv, namespaces=namespaces)


def _in_memory(data: bytes) -> int:
    fd = os.memfd_create("holdfast")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
