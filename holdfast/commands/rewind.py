"""/undo, /rewind and /redo: take back messages and what was done to files, and bring it back."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.commands.command import Command
from holdfast.commands.phrases import ago, code, count
from holdfast.core.approval.approval import Role
from holdfast.core.session.rewind import Point, RewindChoice, RewindDone
from holdfast.core.session.rewound import FileResult, FileStep, RewindScope
from holdfast.gateway import CommandTarget

NO_POINTS = "There is no message here to go back to."
UNDO_TAKES = "/undo takes files, conversation, force or nothing."
REWIND_TAKES = "/rewind takes the number of a point, then files, conversation, force or nothing."
REDO_TAKES = "/redo takes force or nothing."
HOW_TO = "/rewind NUMBER goes back to before that message; add files or conversation for only one."
_FORCE = "force"
_SHOWN = 10  # points in a list
_FILES = 20  # files in a reply
_DIGITS = 9  # no point has a longer number
_RESULTS = {
    FileResult.RESTORED: "restored",
    FileResult.DELETED: "deleted",
    FileResult.UNCHANGED: "as it was already",
    FileResult.CHANGED: "left as it is: changed by another hand",
    FileResult.GONE: "left as it is: its former version is no longer kept",
    FileResult.FAILED: "left as it is",
}


async def _undo(chat: CommandTarget, rest: str) -> str:
    asked = _choice(rest.split())
    return UNDO_TAKES if asked is None else _told(await chat.rewind(asked))


async def _rewind(chat: CommandTarget, rest: str) -> str:
    number, *words = rest.split() or [""]
    if not number:
        return _listed(await chat.points(), (await chat.status()).now)
    number = number.removeprefix("#")
    asked = _choice(words)
    if asked is None or not (number.isdecimal() and len(number) <= _DIGITS):
        return REWIND_TAKES
    return _told(await chat.rewind(replace(asked, point=int(number))))


async def _redo(chat: CommandTarget, rest: str) -> str:
    if rest.lower() not in ("", _FORCE):
        return REDO_TAKES
    return _told(await chat.rewind(RewindChoice(force=bool(rest), redo=True)))


def _choice(words: list[str]) -> RewindChoice | None:
    """Return what the words of a command ask for; None if it takes no such word."""
    asked = RewindChoice()
    for word in map(str.lower, words):
        if word == _FORCE:
            asked = replace(asked, force=True)
        elif word in set(RewindScope):
            asked = replace(asked, what=RewindScope(word))
        else:
            return None
    return asked


def _told(done: RewindDone) -> str:
    """Return what was done: the message, then each file."""
    fact = done.fact
    verb = "Redone" if fact.redo else "Undone"
    text = code(done.text) if fact.runs else ""
    number = f" ({count(len(fact.runs), 'message')})" if len(fact.runs) > 1 else ""
    lines = [f"{verb}{number}: {text}" if text else f"{verb}{number}."]
    lines += [f"- {_file(step)}" for step in fact.files[:_FILES]]
    if len(fact.files) > _FILES:
        lines.append(f"- and {len(fact.files) - _FILES:,} more files")
    return "\n".join(lines)


def _file(step: FileStep) -> str:
    why = f": {code(step.reason)}" if step.reason else ""
    return f"{code(step.path)} {_RESULTS.get(step.result, step.result)}{why}"


def _listed(points: Sequence[Point], now: float) -> str:
    if not points:
        return NO_POINTS
    shown = points[-_SHOWN:][::-1]
    lines = [
        f"{p.number}. {code(p.text) or '(no text)'}, {ago(p.at, now)}{_note(p)}" for p in shown
    ]
    if len(points) > len(shown):
        lines.append(f"And {len(points) - len(shown):,} older.")
    return "\n".join([*lines, HOW_TO])


def _note(point: Point) -> str:
    """Return what changing of files belongs to a point, and whether its message was undone."""
    files = point.files
    added, removed = sum(f.added for f in files), sum(f.removed for f in files)
    named = code(files[0].path) if len(files) == 1 else count(len(files), "file")
    changed = f", +{added:,} −{removed:,} {named}" if files else ""
    return changed + ("" if point.counts else ", undone except for files")


_UNDO_HELP = (
    "Take back your last message, its answer and its changes to files, or only one of both."
)
_REWIND_HELP = "Go back to before an earlier message; alone: list them."
_REDO_HELP = "Bring back what the last undo or rewind took away."
COMMANDS = (
    Command("undo", "[files|conversation] [force]", _UNDO_HELP, Role.RUN, _undo),
    Command("rewind", "[number] [files|conversation] [force]", _REWIND_HELP, Role.RUN, _rewind),
    Command("redo", "[force]", _REDO_HELP, Role.RUN, _redo),
)
