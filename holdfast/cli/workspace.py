"""Where a run may work: the current directory, unless that would give away too much.

The user's home, the root and whatever holds the Holdfast home are only a workspace if
they are named with --workspace and confirmed.
"""

import sys
from pathlib import Path

from holdfast.cli.exits import Code, Exit
from holdfast.config import Config


def choose(config: Config, given: str | None, *, confirmed: bool) -> Path:
    """The directory to work in. Asks on a terminal where that is called for."""
    try:
        path = Path(given or ".").expanduser().resolve(strict=True)
    except (OSError, RuntimeError):
        what = given or "the current directory"
        raise Exit(Code.USAGE, f"{what} does not exist; name another with --workspace") from None
    if not path.is_dir():
        raise Exit(Code.USAGE, f"{path} is not a directory; name one with --workspace")
    if not _gives_away_too_much(config, path):
        return path
    if given is None:
        raise Exit(
            Code.USAGE,
            f"{path} holds more than a run should touch; "
            f"go to a project's directory, or insist with --workspace {path}",
        )
    if confirmed or _confirm(path):
        return path
    raise Exit(
        Code.USAGE, f"{path} holds more than a run should touch; insist with --workspace and --yes"
    )


def _gives_away_too_much(config: Config, path: Path) -> bool:
    everything = (config.user_home.resolve(), Path(path.anchor))
    return path in everything or config.home.resolve().is_relative_to(path)


def _confirm(path: Path) -> bool:
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"Let the agent read and write everything in {path}? [y/N] ", end="", file=sys.stderr)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
