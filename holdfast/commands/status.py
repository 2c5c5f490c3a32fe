"""/status: show the state of this conversation. /stop: stop the active run."""

from collections.abc import Iterator

from holdfast.commands.command import Command
from holdfast.commands.phrases import ago, code, count, lasting
from holdfast.core.approval.approval import ApprovalRequested, Role
from holdfast.core.run.run import RunPhase
from holdfast.core.session.instructions import InstructionFile
from holdfast.gateway import ChatStatus, CommandTarget, Health, RunView

NO_ACTIVE_RUN = "**No active run.**"
NO_MODEL_YET = "The model did not answer {times}"
BUSY_MODE = "A new message during a run: {mode}"
NEEDS_APPROVAL = "It waits for your approval (/approve or /deny; add the id if there are several):"
NEXT_IS_NEW = "Your next message starts a new session; /resume returns to this one."
NOT_ACTIVE = "No run was active."
_HEADS = {
    RunPhase.QUEUED: "Queued",
    RunPhase.RUNNING: "Running",
    RunPhase.WAITING: "Waiting",
    RunPhase.INTERRUPTED: "Interrupted, will continue",
}


async def _status(chat: CommandTarget, rest: str) -> str:
    now = await chat.status()
    return "\n".join([*_work(now), *_waits(now), *_setup(now), *_trouble(now.health)])


def _work(now: ChatStatus) -> Iterator[str]:
    if now.run is None:
        yield NO_ACTIVE_RUN
    else:
        begun = f"sent {ago(now.run.created_at, now.now)}"
        steps = count(now.steps, "step") if now.steps else "no step yet"
        yield f"**{_head(now.run)}:** {code(now.run.run_id)}, {begun}, {steps}."
    if now.attempts:
        left = max(0.0, now.retry_at - now.now)
        when = f"in {left:.0f} s" if left else "now"
        yield f"{NO_MODEL_YET.format(times=count(now.attempts, 'time'))}; next try {when}."
    if now.waiting:
        yield f"Waiting behind it: {count(now.waiting, 'run')}."
    if now.suspended:
        yield NEXT_IS_NEW


def _head(run: RunView) -> str:
    return "Stopping" if run.stopping else _HEADS.get(run.status, "Just ended")


def _waits(now: ChatStatus) -> Iterator[str]:
    if now.question:
        yield f"It asks: {code(now.question)} Your next message is the answer."
    if now.approvals:
        yield NEEDS_APPROVAL
        yield from (f"- {_asked(asked, now.now)}" for asked in now.approvals)


def _asked(asked: ApprovalRequested, now: float) -> str:
    left = lasting(max(0.0, asked.expires_at - now))
    return f"{code(asked.command)} ({code(asked.request_id)}, {left} left)"


def _setup(now: ChatStatus) -> Iterator[str]:
    yield f"Model: {code(now.model)}"
    if now.files:
        yield f"Instructions: {', '.join(map(_file, now.files))}"
    yield f"{BUSY_MODE.format(mode=now.busy_mode)} (/busy)"
    if now.health.sandbox_note != now.health.paused:
        yield f"Sandbox: {now.health.sandbox_note or now.health.sandbox or 'not tested yet'}"


def _file(file: InstructionFile) -> str:
    return code(file.path) + (f" (not read: {file.problem})" if file.problem else "")


def _trouble(health: Health) -> Iterator[str]:
    if health.paused:
        yield f"**Paused:** no work is done: {health.paused}"
    if health.status != "ready":
        yield f"**The gateway is {health.status}.**"
    if health.journal != "ok":
        yield f"**The journal is {health.journal}:** new requests are refused."


async def _stop(chat: CommandTarget, rest: str) -> str:
    """Stop, whatever text follows the command."""
    stopped = await chat.stop()
    said = f"Stopped: {count(stopped, 'run')}." if stopped else NOT_ACTIVE
    return said + (f" {NEXT_IS_NEW}" if (await chat.status()).suspended else "")


_STATUS_HELP = "Show the active run, what it waits for, and the model."
_STOP_HELP = "Stop the active run and those that wait behind it, and leave the session."
COMMANDS = (
    Command("status", "", _STATUS_HELP, Role.READ, _status),
    Command("stop", "", _STOP_HELP, Role.RUN, _stop),
)
