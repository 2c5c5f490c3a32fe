"""Show a long text with the user's pager."""

import shlex
import shutil
import subprocess
import sys
from contextlib import suppress

from holdfast.config import process


def show(text: str) -> None:
    """Print a text; on a terminal, and if it is longer than that, with $PAGER or less."""
    if sys.stdout.isatty() and text.count("\n") >= shutil.get_terminal_size().lines:
        with suppress(OSError, ValueError):  # there is no such program
            return page(text)
    sys.stdout.write(text)


def page(text: str) -> None:
    """Show a text with the pager, to its end. `OSError` or `ValueError`: there is no such program."""
    command, environment = process.pager()
    pager = subprocess.Popen(shlex.split(command), stdin=subprocess.PIPE, env=environment)
    data: bytes | None = text.encode(errors="replace")
    while True:
        try:
            pager.communicate(data)
        except KeyboardInterrupt:  # it is for the pager
            data = None
            continue
        return
