"""This program's own name, as the user has to type it."""

import os
import shlex
import shutil
import sys

NAME = "holdfast"


def typed() -> str:
    """The command in the shell that we were called from: a path, where PATH does not lead here."""
    called = sys.argv[0]
    if os.path.basename(called) != NAME or not os.path.exists(called):
        return NAME
    found = shutil.which(NAME)
    if found and os.path.samefile(found, called):
        return NAME
    path = os.path.relpath(called)
    return shlex.quote(os.path.abspath(called) if path.startswith(os.pardir) else path)
