"""The result of a command, as the model reads it."""

import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.core.approval.approval import Level
from holdfast.tools.exec import blocked, plan
from holdfast.tools.exec.missing import hint, missing_program
from holdfast.tools.exec.output import Output
from holdfast.tools.exec.plan import CommandPlan
from holdfast.tools.exec.record import Ended, ExitCause
from holdfast.tools.fs.roots import below
from holdfast.tools.tool import Done

MAX_OUTPUT = 32 * 1024  # bytes sent to the model
_PATHS = 4_096  # bytes read from the shell's report of its last directory
ENDED_WITH_GATEWAY = (
    "The gateway ended while this command ran, and it was killed with it. It may have had "
    "effects. Output so far:\n"
)
WENT_ON = (
    "The gateway and the process that watched over this command were killed while it ran. The "
    "command continued without them until the gateway started again and killed it. It may have "
    "had effects. Output until then:\n"
)
_GONE = (
    "The gateway and the process that watched over this command ended while it ran. The command "
    "has ended too; when and how is not known. It may have had effects. Output so far:\n"
)
MOVED = "The former working directory no longer exists; the command ran in the workspace."
_HIDDEN = (
    "The path of the directory in which it ended contains a secret; the next command starts in "
    "the same directory as this one."
)


def result_of(ended: Ended, output: Output, timeout_s: float) -> dict[str, object]:
    text, cut = output.summary(MAX_OUTPUT)
    result: dict[str, object] = {"exit_code": ended.exit_code, "output": text}
    if ended.signal is not None:
        result["signal"] = ended.signal
    match ended.cause:
        case ExitCause.TIMEOUT:
            result["error"] = f"timed out after {timeout_s:g} s"
        case ExitCause.MEMORY:
            result["error"] = "killed: memory"
        case ExitCause.KILLED:
            result["error"] = "killed"
        case _:
            pass
    if cut or ended.truncated:
        result |= {"truncated": True, "output_bytes": ended.output_bytes}
    if ended.survivors:
        pids = ", ".join(map(str, ended.survivors))
        result["note"] = f"These processes could not be killed: {pids}."
    if name := missing_program(ended.exit_code, text):
        result["missing"] = name
        add_note(result, hint(name))
    return result


def encode(result: Mapping[str, object]) -> str:
    return msgspec.json.encode(result).decode()


def add_note(result: dict[str, object], text: str) -> None:
    result["note"] = f"{result['note']} {text}" if "note" in result else text


def explain(
    result: dict[str, object], level: Level, workspace: str, refused: Sequence[str]
) -> None:
    """Add what the sandbox blocked, if that is known."""
    code, output = result["exit_code"], str(result["output"])
    exit_code = code if isinstance(code, int) else None
    if (found := blocked.find(level, exit_code, output, workspace, refused)) is not None:
        result["blocked"] = found.what
        add_note(result, found.words)


def what_is_known(found: Ended | None) -> str:
    """Describe the end of a command that its gateway did not see."""
    if found is None or found.cause is not ExitCause.LOST:
        return ENDED_WITH_GATEWAY
    if found.survivors:
        pids = ", ".join(map(str, found.survivors))
        return f"These processes of the command could not be killed: {pids}. {WENT_ON}"
    return WENT_ON if found.ended_late else _GONE


def left_in(reading: int) -> str:
    """Return the directory in which the shell ended; empty if it did not report one."""
    try:
        said = os.read(reading, _PATHS)
    except BlockingIOError:  # a process still has the other end open
        return ""
    try:
        return said.rstrip(b"\n").rpartition(b"\n")[2].decode()
    except UnicodeDecodeError:
        return ""


def done_with(
    result: dict[str, object], planned: CommandPlan, left: str, hides: Callable[[str], bool]
) -> Done:
    """Return the result, with the directory in which the next command starts."""
    cwd = planned.cwd if planned.moved else ""
    if planned.moved:
        add_note(result, MOVED)
    if left and left != planned.cwd:
        real = plan.real(left)
        if hides(real):
            add_note(result, _HIDDEN)
        elif below(real, planned.profile.workspace) and os.path.isdir(real):
            cwd = result["cwd"] = real
        else:
            add_note(
                result,
                f"It ended in {left}, which is not in the workspace; the next command starts "
                "where this one did.",
            )
    return Done(encode(result), cwd=cwd, summary=summary_of(result))


def summary_of(result: Mapping[str, object]) -> str:
    """Say how it ended; empty if it succeeded."""
    if error := result.get("error"):
        return str(error)
    if (number := result.get("signal")) is not None:
        return f"killed by signal {number}"
    if name := result.get("missing"):
        return f"{name} is not installed here"
    code = f"exit code {result['exit_code']}" if result["exit_code"] else ""
    if what := result.get("blocked"):
        return f"{code}{', ' * bool(code)}blocked by the sandbox: {what}"
    return code
