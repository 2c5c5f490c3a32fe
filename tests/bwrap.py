"""Bubblewrap in tests: which one there is, whether it confines here, and how to have none.

In a process of ours there is none with a PATH that lacks it and `hide_package` as PYTHONPATH;
in a test's own process with `exec_path` and `site=NOWHERE` for the sandbox.
"""

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

import anyio

from holdfast.core.approval.approval import Level
from holdfast.tools.sandbox import bwrap
from holdfast.tools.sandbox.sandbox import Sandbox

ROOT = Path(__file__).parent.parent
NOWHERE = "/nowhere"


def program() -> str:
    """Bubblewrap itself, for tests that call it without a sandbox around it."""
    return shutil.which("bwrap") or str(Path(bwrap.site() or NOWHERE, bwrap.PACKAGE, "_bin/bwrap"))


def hide_package(folder: Path) -> str:
    """A PYTHONPATH by which the package is found, and has no program in it."""
    shadow = folder / "no-bubblewrap" / bwrap.PACKAGE
    shadow.mkdir(parents=True, exist_ok=True)
    (shadow / "__init__.py").touch()
    return os.pathsep.join([str(shadow.parent), str(ROOT)])


@cache
def missing() -> str:
    """Why commands cannot be confined by bubblewrap on this machine; empty if they can."""
    with tempfile.TemporaryDirectory(prefix="holdfast-probe-") as folder:
        home, user = Path(folder, "home"), Path(folder, "user")
        user.mkdir()
        posture = anyio.run(Sandbox(home, user, allow_none=False).probe)
    return "" if posture.level >= Level.L2 else posture.note
