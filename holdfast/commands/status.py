"""/status: how things stand in this conversation."""

from collections.abc import Iterator

from holdfast.commands.command import Command
from holdfast.commands.phrases import ago, code, count, lasting
from holdfast.core.approval import ApprovalRequested, Role
from holdfast.core.run import Status
from holdfast.gateway import Chat, ChatStatus, Health, RunView

_HEADS = {
    Status.QUEUED: "Next in line",
    Status.RUNNING: "At work",
    Status.WAITING: "Waiting",
    Status.INTERRUPTED: "Cut short, to be continued",
}


async def _run(chat: Chat, rest: str) -> str:
    now = await chat.status()
    return "\n".join([*_work(now), *_waits(now), *_setup(now), *_trouble(now.health)])


def _work(now: ChatStatus) -> Iterator[str]:
    if now.run is None:
        yield "**Nothing is at work.**"
    else:
        begun = f"asked for {ago(now.run.created_at, now.now)}"
        steps = count(now.steps, "step") if now.steps else "no step yet"
        yield f"**{_head(now.run)}:** {code(now.run.run_id)}, {begun}, {steps}."
    if now.waiting:
        yield f"Behind it: {count(now.waiting, 'run')}."
    if now.suspended:
        yield "Your next words begin a fresh session; /resume goes back to this one."


def _head(run: RunView) -> str:
    return "Being stopped" if run.stopping else _HEADS.get(run.status, "Just ended")


def _waits(now: ChatStatus) -> Iterator[str]:
    if now.question:
        yield f"It asks you: {code(now.question)} Your next words are the answer."
    if now.approvals:
        yield "It needs your approval (/approve or /deny, the first one first):"
        yield from (f"- {_asked(asked, now.now)}" for asked in now.approvals)


def _asked(asked: ApprovalRequested, now: float) -> str:
    left = lasting(max(0.0, asked.expires_at - now))
    return f"{code(asked.command)} ({code(asked.request_id)}, {left} left)"


def _setup(now: ChatStatus) -> Iterator[str]:
    yield f"Model: {code(now.model)}"
    yield f"New words while it works: {now.busy_mode} (/busy)"
    if now.health.sandbox_note != now.health.paused:
        yield f"Sandbox: {now.health.sandbox_note or now.health.sandbox or 'not known yet'}"


def _trouble(health: Health) -> Iterator[str]:
    if health.paused:
        yield f"**Paused:** no work is done: {health.paused}"
    if health.status != "ready":
        yield f"**The gateway is {health.status}.**"
    if health.journal != "ok":
        yield f"**The journal is {health.journal}:** nothing new is taken on."


COMMAND = Command(
    name="status",
    arguments="",
    help="What it works on, what it waits for, and with which model.",
    needs=Role.READ,
    run=_run,
)
