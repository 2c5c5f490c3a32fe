"""Notes about a run that the line mode and the full terminal share."""

from holdfast.config import program

WOKEN = "woken"  # the reason of a resume that follows no interruption
CONNECTION_LOST = "… Connection lost midway; asking again."
RESUMED = "… The run continues after an interruption."
PROCESSES_END = "● These background processes end now; detached ones continue:"
WEAK_SANDBOX = "the sandbox for commands is weak here"
DENIED_HERE = "… Approvals are denied here because stdin is not a terminal."
SMALL_MODEL = "small built-in model: it makes mistakes, so check what it says it did"
NOT_ANSWERED = "… No answer in time; it was not run."


def no_model() -> str:
    """Say that only plain commands work, and what to do."""
    it = program.typed()
    return f"no model is configured: only plain commands work; see: {it} setup"


def other_model(expected: str, served: str) -> str:
    """Say that the server uses a model other than the configured one."""
    return f"not {expected}: the server of this home uses {served}"
