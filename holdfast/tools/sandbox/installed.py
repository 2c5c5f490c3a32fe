"""Find system programs that Holdfast itself runs, outside of every sandbox.

A folder on PATH may be inside a workspace. Then a repository could contain its own `podman`, and a
command could choose the program that confines the next command. So a program is accepted only from
the directories of the system's package manager, whatever PATH contains.
"""

import os
import shutil
from collections.abc import Sequence

_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")
_STORES = ("/nix/store/", "/gnu/store/")
_HELPERS = (*_FOLDERS, "/usr/sbin", "/sbin", "/usr/local/sbin")


def find(name: str, exec_path: Sequence[str]) -> str:
    """Return the resolved path of the first accepted program; empty if there is none."""
    for folder in exec_path:
        found = shutil.which(name, path=folder)
        real = os.path.realpath(found) if found else ""
        where, last = os.path.split(real)
        if last == name and (where in _FOLDERS or real.startswith(_STORES)):
            return real
    return ""


def folders(exec_path: Sequence[str]) -> tuple[str, ...]:
    """Return the PATH for such a program: the system's folders, and the stores on our PATH."""
    real = map(os.path.realpath, exec_path)
    return (*_HELPERS, *(folder for folder in real if folder.startswith(_STORES)))
