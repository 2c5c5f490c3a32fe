"""Directories: test whether a path is inside one, and find the directories of our own code."""

import os
import sys

import holdfast


def own_code() -> tuple[str, ...]:
    """Return the directories of the code that this process runs: the package and its environment.

    This code runs outside of every sandbox, and some of it is loaded only later. It may be inside
    a workspace: a clone of this repository can be one, with a virtual environment in it.
    """
    package = os.path.dirname(os.path.realpath(holdfast.__file__))
    return package, os.path.realpath(sys.prefix)


def below(path: str, parent: str) -> bool:
    """Return whether `path` is `parent` or inside it."""
    return path == parent or path.startswith(parent.rstrip("/") + "/")
