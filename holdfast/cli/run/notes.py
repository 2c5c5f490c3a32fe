"""Notes about a run that the line mode and the full terminal share."""

from collections.abc import Sequence

from holdfast.api.schema.events import Event, InstructionFileObject
from holdfast.config import program
from holdfast.core.text.escape import reveal

WOKEN = "woken"  # the reason of a resume that follows no interruption
CONNECTION_LOST = "… Connection lost midway: the last lines do not count."
RESUMED = "… The run continues after an interruption."
PROCESSES_END = "● These background processes end now; detached ones continue:"
WEAK_SANDBOX = "the sandbox for commands is weak here"
DENIED_HERE = "… Approvals are denied here because stdin is not a terminal."
COMPACTED = "… The conversation became long: the model now reads notes in place of {} messages."
SMALL_MODEL = "small built-in model: it makes mistakes, so check what it says it did"
INCOMPLETE = {
    "cut": "… The answer was cut at the model's limit of tokens. Ask it to go on.",
    "empty": "… The model's answer is empty. Ask again, or choose another model: /model",
}
NOT_ANSWERED = "… No answer in time; it was not run."


def about_model(event: Event) -> str:
    """Say what an event tells about the model and what it reads; empty: nothing."""
    match event.event:
        case "model.retry":
            return retrying(event)
        case "instructions.read":
            return instructions(event)
        case "context.compacted":
            return compacted(event)
        case _:
            return ""


def retrying(event: Event) -> str:
    """Say that a model failed, why, and what happens next."""
    wait = f" in {event.wait_s:.0f} s" if event.wait_s >= 1 else ""
    other = f"{reveal(event.next_model)}, " if event.next_model != event.model else "it again, "
    return f"… {reveal(event.reason)}; asking {other}{attempt(event)}{wait}"


def attempt(event: Event) -> str:
    """Say which attempt at the answer comes next."""
    return f"attempt {event.attempt + 1}" + (f" of {event.attempts}" if event.attempts else "")


def incomplete(event: Event) -> str:
    """Say what is wrong with an answer; empty: nothing."""
    return INCOMPLETE.get(event.incomplete, "")


def instructions(event: Event) -> str:
    """Name the files with instructions that the model reads from now on."""
    return f"… Instructions: {named(event.files)}"


def named(files: Sequence[InstructionFileObject]) -> str:
    """Name the files on one line; those that were not read with the reason."""
    said = (
        reveal(f.path) + (f" (not read: {reveal(f.problem)})" if f.problem else "") for f in files
    )
    return ", ".join(said) or "none any more"


def compacted(event: Event) -> str:
    """Say that the model no longer reads the whole conversation; empty if it still does."""
    return COMPACTED.format(event.messages) if event.messages else ""


def no_model() -> str:
    """Say that only plain commands work, and what to do."""
    it = program.typed()
    return f"no model is configured: only plain commands work; see: {it} setup"


def other_model(expected: str, served: str) -> str:
    """Say that the server uses a model other than the configured one."""
    return f"not {expected}: the server of this home uses {served}"
