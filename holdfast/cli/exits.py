"""Exit codes, and the exception that carries one."""

from enum import IntEnum


class Code(IntEnum):
    """Exit codes; those from 70 on follow sysexits.h, those from 128 on the signals."""

    OK = 0
    FAILED = 1  # the run failed, or there is a problem to fix
    USAGE = 2
    REJECTED = 4  # the model's server refused for good
    INTERNAL = 70  # a bug in Holdfast
    OUTPUT = 74  # the output cannot be written, for example on a full disk
    TRY_AGAIN = 75  # no server reachable, or the run is on hold
    CONFIG = 78
    INTERRUPTED = 130
    UNREAD = 141  # the reader of our output has gone


class Exit(Exception):
    """End of the command: one line for the user that says what to do, and the exit code."""

    def __init__(self, code: Code, line: str) -> None:
        super().__init__(line)
        self.code = code


def sole(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
