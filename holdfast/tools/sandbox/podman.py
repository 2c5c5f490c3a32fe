"""Podman, as level L3 uses it. The options of its containers are in container.py."""

import os
from collections.abc import Mapping, Sequence

import anyio

from holdfast.core.types import Value
from holdfast.errors import ToolFailed
from holdfast.tools.exec import shim
from holdfast.tools.fs.roots import below
from holdfast.tools.sandbox import container, environment, installed, seccomp
from holdfast.tools.sandbox.mounts import Access, View


class Podman(Value):
    """The program, and the image of its containers, which belong to `owner`."""

    program: str  # empty: it is not installed
    image: str
    owner: str
    user_home: str
    path: tuple[str, ...]

    async def clear(self, within_s: float) -> str:
        """Remove the records of killed containers; return why podman cannot be used, or ""."""
        if not self.program:
            return "podman is not installed"
        try:
            with anyio.fail_after(within_s):
                if names := container.dead(await self._listed()):
                    await self._ask(container.removal(self.program, names))
        except TimeoutError:
            return "podman is too slow"
        except (OSError, ToolFailed) as error:
            return str(error)
        return ""

    async def _listed(self) -> str:
        listing = container.listing(self.program, self.owner)
        try:
            return await self._ask(listing)
        except ToolFailed as error:
            if container.LOST not in str(error):
                raise
        await self._ask(container.reset(self.program))
        return await self._ask(listing)

    async def _ask(self, command: Sequence[str]) -> str:
        done = await anyio.run_process(command, check=False, env=self.environment)
        if done.returncode:
            raise ToolFailed(last_line(done.stderr) or f"podman ended with {done.returncode}")
        return done.stdout.decode()

    @property
    def environment(self) -> dict[str, str]:
        """The environment of podman itself, which starts helper programs outside."""
        runtime = f"/run/user/{os.getuid()}"
        where = {"XDG_RUNTIME_DIR": runtime} if os.path.isdir(runtime) else {}
        path = os.pathsep.join(installed.folders(self.path))
        return {"HOME": self.user_home, "PATH": path, **where}

    def confine(
        self, seen: View, env: Mapping[str, str], argv: Sequence[str], cwd: str
    ) -> tuple[str, ...]:
        """Return the command that runs `argv` in a container with this view and environment."""
        writable = [path for path, access in seen.items() if access is Access.WRITE]
        fixed = [
            path
            for path, access in seen.items()
            if access is Access.READ and any(below(path, one) for one in writable)
        ]
        dropped = ("PATH", *environment.TOOLCHAINS)
        try:
            outer = container.confine(
                self.program,
                self.image,
                argv,
                writable=writable,
                fixed=fixed,
                env={name: value for name, value in env.items() if name not in dropped},
                cwd=cwd,
                seccomp=seccomp.program(seccomp.NAMESPACED),
                owner=self.owner,
                handed=(shim.MARK,),
            )
        except ValueError as error:
            raise ToolFailed(f"No command can run here: {error}.") from error
        return tuple(outer)


def last_line(output: bytes) -> str:
    """Return the last line of a program's output."""
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
