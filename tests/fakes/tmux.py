"""The terminal of `tests.fakes.screen` in tmux, on a server of its own.

tmux tells nobody when a screen changes: it is looked at, often.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
from typing_extensions import override

from tests.fakes import forks
from tests.fakes.screen import LOOK_S, Screen, opened

PANE = "it"
# tmux does not always learn how a command ended: a shell around it writes that down, and its pid.
_SHELL = """sh -c 'echo $$ >"$0/pid"; exec "$@"' "$0" "$@"; echo $? >"$0/code\""""


class Tmux(Screen):
    """A command in tmux; `Screen` says what its methods do."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self._place = place
        self._environment = dict(environment)

    @override
    async def start(self, directory: Path, size: tuple[int, int], words: tuple[str, ...]) -> None:
        columns, rows = map(str, size)
        await self.tmux(
            *("start-server", ";", "set", "-g", "remain-on-exit", "on"),
            *(";", "set", "-g", "history-limit", "20000", ";", "set", "-g", "status", "off"),
            *(";", "new-session", "-d", "-s", PANE, "-x", columns, "-y", rows),
            *("-c", str(directory), "sh", "-c", _SHELL, str(self._place), *forks.COMMAND, *words),
        )
        with anyio.fail_after(20):
            while not (pid := self._written("pid")):  # noqa: ASYNC110  the shell tells nobody
                await anyio.sleep(LOOK_S)  # sleep: the same
        self.pid = int(pid)

    async def tmux(self, *words: str, given: str = "") -> str:
        """What tmux says to that."""
        command = ["tmux", "-S", str(self._place / "s"), "-f", "/dev/null", *words]
        done = await anyio.run_process(command, input=given.encode(), env=self._environment)
        return done.stdout.decode()

    @override
    async def type(self, text: str) -> None:
        await self.tmux("send-keys", "-t", PANE, "-l", "--", text)

    @override
    async def key(self, *names: str) -> None:
        await self.tmux("send-keys", "-t", PANE, *names)

    @override
    async def paste(self, text: str) -> None:
        await self.tmux("load-buffer", "-b", "clip", "-", given=text)
        await self.tmux("paste-buffer", "-p", "-d", "-b", "clip", "-t", PANE)

    async def resize(self, columns: int, rows: int) -> None:
        """Another size."""
        await self.tmux("resize-window", "-t", PANE, "-x", str(columns), "-y", str(rows))

    @override
    async def text(self, *how: str) -> str:
        """What the screen shows; with `-S -` what has scrolled away too, with `-e` its colours."""
        return await self.tmux("capture-pane", "-p", "-t", PANE, *how)

    @override
    async def said(self) -> str:
        """All of it, from the beginning, no line cut by the width."""
        return await self.text("-J", "-S", "-")

    @override
    async def changed(self) -> None:
        await anyio.sleep(LOOK_S)  # sleep: tmux tells nobody

    @property
    @override
    def is_over(self) -> bool:
        return self._written("code") != ""

    @override
    async def ended(self, within_s: float = 20.0) -> int:
        with anyio.fail_after(within_s):
            while not self.is_over:  # noqa: ASYNC110  the shell tells nobody
                await anyio.sleep(LOOK_S)  # sleep: the same
        return int(self._written("code"))

    def _written(self, name: str) -> str:
        """A line that the shell has written about the command; empty: not yet."""
        path = self._place / name
        text = path.read_text() if path.exists() else ""
        return text.strip() if text.endswith("\n") else ""

    @override
    async def close(self) -> None:
        server = int(await self.tmux("display", "-p", "#{pid}"))
        try:
            if not self.is_over:
                await self.kill()
        finally:
            await self.tmux("kill-server")
        with anyio.fail_after(5), suppress(ProcessLookupError):
            while True:
                os.kill(server, 0)
                await anyio.sleep(LOOK_S)  # sleep: it is nobody's child


@asynccontextmanager
async def screen(
    environment: Mapping[str, str],
    directory: Path,
    *words: str,
    columns: int = 100,
    rows: int = 30,
) -> AsyncIterator[Tmux]:
    """A terminal in tmux with `holdfast WORDS` in it; both are gone after the block."""
    place = Path(tempfile.mkdtemp())
    try:
        async with opened(Tmux(place, environment), directory, (columns, rows), words) as it:
            yield it
    finally:
        shutil.rmtree(place)
