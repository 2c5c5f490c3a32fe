"""A real terminal with real keys: a command in tmux, on a server of its own.

`async with screen(environment, directory) as it` starts `holdfast` there; `type`, `key` and `paste`
are the keyboard, `until` waits for what the screen shows. The pane outlives the command, so that
its last words can be read. tmux tells nobody when a screen changes: it is looked at, often.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio

COMMAND = (sys.executable, "-m", "holdfast")
PANE = "it"
LOOK_S = 0.02
Seen = Callable[[str], bool]
# tmux does not always learn how a command ended: a shell around it writes that down, and its pid.
_SHELL = """sh -c 'echo $$ >"$0/pid"; exec "$@"' "$0" "$@"; echo $? >"$0/code\""""


class Screen:
    """One terminal. `pid` is of the command in it."""

    def __init__(self, place: Path, environment: Mapping[str, str]) -> None:
        self.pid = 0
        self._place = place
        self._environment = dict(environment)

    async def start(
        self, directory: Path, columns: int, rows: int, command: tuple[str, ...]
    ) -> None:
        """Open the terminal with the command in it."""
        size = ["-x", str(columns), "-y", str(rows)]
        await self.tmux(
            *("start-server", ";", "set", "-g", "remain-on-exit", "on"),
            *(";", "set", "-g", "history-limit", "20000", ";", "set", "-g", "status", "off"),
            *(";", "new-session", "-d", "-s", PANE, *size, "-c", str(directory)),
            *("sh", "-c", _SHELL, str(self._place), *command),
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

    async def type(self, text: str) -> None:
        """Letter by letter, as a fast typist; a line end is not Enter."""
        await self.tmux("send-keys", "-t", PANE, "-l", "--", text)

    async def key(self, *names: str) -> None:
        """Keys by tmux's names: Enter, Escape, C-c, BTab, Up …"""
        await self.tmux("send-keys", "-t", PANE, *names)

    async def say(self, text: str) -> None:
        """Words and Enter."""
        await self.type(text)
        await self.key("Enter")

    async def paste(self, text: str) -> None:
        """The clipboard, bracketed if the command asked for that."""
        await self.tmux("load-buffer", "-b", "clip", "-", given=text)
        await self.tmux("paste-buffer", "-p", "-d", "-b", "clip", "-t", PANE)

    async def resize(self, columns: int, rows: int) -> None:
        """Another size."""
        await self.tmux("resize-window", "-t", PANE, "-x", str(columns), "-y", str(rows))

    async def text(self, *how: str) -> str:
        """What the screen shows; with `-S -` what has scrolled away too, with `-e` its colours."""
        return await self.tmux("capture-pane", "-p", "-t", PANE, *how)

    async def said(self) -> str:
        """All of it, from the beginning, no line cut by the width."""
        return await self.text("-J", "-S", "-")

    async def until(self, wanted: str | Seen, within_s: float = 20.0) -> str:
        """The screen once it shows that, or is such that `wanted` holds of it."""
        shown = ""
        with anyio.move_on_after(within_s):
            while True:
                shown = await self.text()
                if wanted in shown if isinstance(wanted, str) else wanted(shown):
                    return shown
                await anyio.sleep(LOOK_S)  # sleep: tmux tells nobody
        raise AssertionError(f"the screen never showed {wanted!r}; it shows:\n{shown}")

    async def takes(self, key: str, wanted: str | Seen) -> float:
        """Seconds from a key to the screen that shows that."""
        began = time.monotonic()
        await self.key(key)
        await self.until(wanted)
        return time.monotonic() - began

    @property
    def is_over(self) -> bool:
        """Whether the command has ended."""
        return self._written("code") != ""

    async def ended(self, within_s: float = 20.0) -> int:
        """The command's exit code, as a shell has it, when it has ended."""
        with anyio.fail_after(within_s):
            while not self.is_over:  # noqa: ASYNC110  the shell tells nobody
                await anyio.sleep(LOOK_S)  # sleep: the same
        return int(self._written("code"))

    def _written(self, name: str) -> str:
        """A line that the shell has written about the command; empty: not yet."""
        path = self._place / name
        text = path.read_text() if path.exists() else ""
        return text.strip() if text.endswith("\n") else ""

    async def kill(self) -> None:
        """kill -9 of the command, and wait until it is gone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        await self.ended()

    async def close(self) -> None:
        """Whatever it shows: nothing of it is left afterwards."""
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
) -> AsyncIterator[Screen]:
    """A terminal with `holdfast WORDS` in it; both are gone after the block."""
    place = Path(tempfile.mkdtemp())
    it = Screen(place, environment)
    try:
        await it.start(directory, columns, rows, (*COMMAND, *words))
        try:
            yield it
        finally:
            with anyio.CancelScope(shield=True):
                await it.close()
    finally:
        shutil.rmtree(place)
