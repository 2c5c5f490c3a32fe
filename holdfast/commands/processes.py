"""/ps: list the background processes of this session, show their output, kill them."""

from collections.abc import Sequence

from holdfast.commands.command import Command
from holdfast.commands.phrases import ago, code, lasting
from holdfast.core.approval.approval import Role
from holdfast.core.run.process import describe_end
from holdfast.errors import Refused
from holdfast.gateway import CommandTarget, ProcessView

NO_PROCESSES = "Nothing runs in the background of this session."
NO_OUTPUT = "It wrote nothing."
USAGE = "/ps lists the background processes; /ps output ID, /ps kill ID."
SHOWN_ENDED = 5  # of those that have ended, the latest


async def _ps(chat: CommandTarget, rest: str) -> str:
    match rest.split():
        case []:
            now = (await chat.status()).now
            return "\n".join(_listed(await chat.processes(), now)) or NO_PROCESSES
        case ["output", process_id]:
            return _fenced(await chat.process_output(process_id)) or NO_OUTPUT
        case ["kill", process_id]:
            if Role.RUN not in chat.roles:
                raise Refused("not_allowed", "You may not end processes here.")
            return _line(await chat.kill_process(process_id), 0.0)
        case _:
            return USAGE


def _listed(found: Sequence[ProcessView], now: float) -> list[str]:
    running = [view for view in found if view.process.ended is None]
    ended = [view for view in found if view.process.ended is not None]
    return [f"- {_line(view, now)}" for view in (*running, *ended[-SHOWN_ENDED:])]


def _line(view: ProcessView, now: float) -> str:
    process = view.process
    head = f"{code(process.id)} {code(process.started.command)}"
    if process.ended is None:
        said = f", last line: {code(view.last_line)}" if view.last_line else ""
        return f"{head}: runs, started {ago(process.started_at, now)}{said}"
    return f"{head}: {describe_end(process.ended)}, after {lasting(process.ended.duration_s)}"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text.rstrip()}\n{fence}" if text.strip() else ""


_HELP = "List background processes, show the end of their output, or kill one."
COMMANDS = (Command("ps", "[output ID | kill ID]", _HELP, Role.READ, _ps),)
