"""The workspace of a run: the current directory, unless that would expose too much.

The user's home, the root, and any other directory that contains the Holdfast home need --workspace
and a confirmation. A directory inside the Holdfast home is refused: the engine would refuse it too,
but here the user learns why before anything starts.
"""

import shlex
import sys
from pathlib import Path

from holdfast.cli.exits import Code, Exit
from holdfast.config.settings import Config
from holdfast.core.workspace import holds, inside

_GO = "go to a project's directory"


def choose(config: Config, given: str | None, *, confirmed: bool) -> Path:
    """Return the directory to work in. Asks for a confirmation on a terminal if needed."""
    try:
        path = Path(given or ".").expanduser().resolve(strict=True)
    except (OSError, RuntimeError):
        what = given or "the current directory"
        raise Exit(Code.USAGE, f"{what} does not exist; name another with --workspace") from None
    if not path.is_dir():
        raise Exit(Code.USAGE, f"{path} is not a directory; name one with --workspace")
    if why := _objection(config, path):
        raise Exit(
            Code.USAGE,
            f"{path} cannot be a workspace: {why}; {_GO}, or name one with --workspace DIR",
        )
    why = _too_much(config, path)
    if not why or (given is not None and (confirmed or _confirm(path))):
        return path
    raise Exit(
        Code.USAGE,
        f"{path} {why}, more than a run should touch; {_GO}, "
        f"or insist with --workspace {shlex.quote(str(path))} --yes",
    )


def _too_much(config: Config, path: Path) -> str:
    """Say why `path` exposes too much; empty if it does not."""
    if path == Path(path.anchor):
        return "is the root of the file system"
    if path == config.user_home.resolve():
        return "is your home directory"
    if holds(str(path), str(config.home.resolve())):
        return f"holds Holdfast's own home {config.home}"
    return ""


def _objection(config: Config, path: Path) -> str:
    """Say why `path` cannot be a workspace; empty if it can."""
    try:
        str(path).encode()
    except UnicodeEncodeError:  # a request has to name it
        return "its name is not UTF-8"
    home = config.home.resolve()
    if not inside(str(path), str(home)):
        return ""
    return f"it {'is' if path == home else 'lies in'} Holdfast's own home {config.home}"


def _confirm(path: Path) -> bool:
    if sys.stdin is None or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    asked = f"Let the agent read and write everything in {path}? [y/N] "
    print(asked, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
