"""How a command ends: the codes the shell sees, and the exception that carries one."""

from enum import IntEnum


class Code(IntEnum):
    """Exit codes; those from 70 on follow sysexits.h, those from 128 on the signals."""

    OK = 0
    FAILED = 1  # the run failed, or something needs mending
    USAGE = 2
    REJECTED = 4  # the model's server refused for good
    INTERNAL = 70  # our fault
    OUTPUT = 74  # what is to be written cannot be: the disk is full, say
    TRY_AGAIN = 75  # nobody could be reached, or what was accepted is held
    CONFIG = 78
    INTERRUPTED = 130
    UNREAD = 141  # whoever read our output has left


class Exit(Exception):
    """The command is over: one line for the user that says what to do, one code for the shell."""

    def __init__(self, code: Code, line: str) -> None:
        super().__init__(line)
        self.code = code


def sole(error: BaseException) -> BaseException:
    """What went wrong, out of the groups that tasks wrap it in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
