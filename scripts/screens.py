"""Take the screens of docs/terminal.md: a real terminal in tmux, at several widths.

`python -m scripts.screens` writes the file. `--show COLUMNS` only prints the screens of that
width, as the terminal has them, colours included. The model is scripted (tests/fakes), all else
is real. Times on the screens are those of this machine.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from holdfast.cli.tui.picker import QUESTION
from holdfast.cli.tui.unfold.chooser import HELP
from tests.fakes import model_server as says
from tests.fakes.gateway import unstarted
from tests.fakes.model_server import ModelServer, serve
from tests.fakes.tmux import Tmux, screen

TARGET = Path(__file__).parent.parent / "docs" / "terminal.md"
WIDTHS = (40, 80, 120, 200)
ROWS = 26
PROJECT = "garden"

HEAD = """# The terminal

`holdfast` without a command is a conversation in the current directory. If a gateway runs in the same home, the terminal is its client,
and leaving the terminal stops nothing. Otherwise the engine runs in the terminal's own process, and unfinished work is kept when you
leave: `holdfast --continue` continues it, `holdfast --resume` lets you choose a session. `/help` lists keys and commands.

| key | what it does |
|---|---|
| Enter | sends the message; Alt-Enter or Ctrl-J starts a new line. During a run the status line says what it does to the run |
| Tab | completes commands, paths and @files; during a run: sends the message so that it waits until the run has ended |
| y, s, a, n | answer an approval: once, for the session, always, no. One key, without Enter, and only if nothing else is typed. Tab: no, with a reason that the model reads |
| `!command` | runs a command of your own in the workspace, unasked; the agent reads it with your next message |
| Esc | stops the run on the screen at once, with everything it has started; not a run that has only just taken its place |
| Ctrl-C | the same; without a run, clears the input; twice within 2 s leaves |
| Ctrl-D, `/quit` | leaves, within 5 s even if something hangs |
| Shift-Tab | chooses what a message does during a run: interrupt it (the default, see `cli.busy`), wait, or be passed on to it |
| ↑ | edits the last waiting message; if none waits, goes through the history |
| Ctrl-O | lists the calls of the session; the chosen one opens in a pager, with its whole output and the diffs of its files. At a question: the whole question |
| Ctrl-G | opens the message in `$VISUAL` or `$EDITOR` |

What you type is never lost. A message that is not accepted yet is shown as on its way. A refused message comes back into the input line,
and so does half an answer to a question that was answered elsewhere. A key pressed before a question could be read does not answer it,
nor does a sentence that begins with the letter of an answer; while a question is open, Enter does not interrupt the run.

When a question opens, or a run of more than 10 s ends, the terminal rings and shows a notification (`notify = false` under `[cli]`
turns it off). The title of the window has the session and its state.

Colours are the terminal's own sixteen, so they follow its theme, dark or light. With `NO_COLOR=1` there are none, and nothing is lost:
every line shows by a word or a sign what it is.

The screens below were taken by `python -m scripts.screens` from a real terminal (tmux); do not edit.
"""

BEDS = "wall = { litres = 12, every_days = 2 }\ngate = { litres = 20, every_days = 7 }\n"
ANSWER = """\
## Two ways to water

The beds by the wall dry out **first**; `beds.toml` says *every second day*, which is too little in \
July. The long ones, further down, hold water for almost a week.

1. Water the wall beds daily, in the morning.
2. Leave the others:
   - tomatoes want it dry between,
   - the 薔薇 by the gate do not mind either way.

| bed | litres | when |
|---|---:|---|
| wall | 12 | daily |
| gate | 20 | Sundays |

```python
def litres(bed: Bed) -> float:
    return bed.area_m2 * DRYNESS[bed.place]  # a comment that is longer than forty columns are wide
```

> Rain counts. See https://example.org/almanac.
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """One screen and the text about it."""

    name: str
    about: str


SCENES = (
    Scene(
        "An answer",
        "Final output goes into the terminal's own scrollback: you can select, search and scroll it "
        "there, and nothing is ever drawn over it.",
    ),
    Scene(
        "A tool at work",
        "One line per call, with the end of its output; Ctrl-O shows all of it. Afterwards one line "
        "remains.",
    ),
    Scene(
        "A changed file",
        "Every file that a call changed, with the first lines of the diff. Ctrl-O lists the calls; "
        "the chosen one opens in `$PAGER`, less, or a pager of our own.",
    ),
    Scene(
        "An approval",
        "The exact command and why it asks. One key answers. Nothing is preselected: Enter alone "
        "does nothing, and the text that you were typing waits until you have answered. Of a long "
        "command the beginning and the end are shown; Ctrl-O shows all of it.",
    ),
    Scene(
        "Messages that wait",
        "The status line says what Enter does to the run. Tab lets the message wait instead; "
        "Shift-Tab chooses for all messages: interrupt the run, wait (as here), or be passed on. "
        "↑ brings the last one back to edit it.",
    ),
    Scene("Completion", "Of commands, paths and @files, as you type; Tab accepts one."),
    Scene("Which session", "`holdfast --resume`; type to search the list."),
)


async def shots(columns: int, *how: str, no_colour: bool = False) -> list[str]:
    """The screens of one width, in the order of the scenes."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        work = place / PROJECT
        work.mkdir()
        async with serve() as model, unstarted(place, model.base_url) as home:
            environment = {**home.environment, **({"NO_COLOR": "1"} if no_colour else {})}
            async with screen(environment, work, columns=columns, rows=ROWS) as it:
                await it.until("/help")
                await it.key("C-l")
                taken = [await take(it, model, *how) for take in (_answer, _tool, _edit, _approval)]
                taken += [await take(it, model, *how) for take in (_waiting, _completion)]
            return [*taken, await _picker(environment, work, columns, *how)]


async def _shot(it: Tmux, *how: str) -> str:
    shown = await it.text(*how)
    await it.key("C-l")
    return shown


async def _answer(it: Tmux, model: ModelServer, *how: str) -> str:
    model.then(says.say(ANSWER, 60, prompt=4310))
    await it.say("how should I water the garden?")
    await it.until("almanac")
    return await _shot(it, *how)


async def _tool(it: Tmux, model: ModelServer, *how: str) -> str:
    command = "; ".join([*(f"echo bed {n}: dry" for n in (1, 2, 3, 4)), "sleep 300"])
    model.then(says.calls(says.call("terminal", json.dumps({"command": command}))))
    await it.say("measure all beds")
    await it.until("│ bed 4")
    shown = await _shot(it, *how)
    await it.key("Escape")
    await it.until("■ interrupted")
    return shown


async def _edit(it: Tmux, model: ModelServer, *how: str) -> str:
    for content in (BEDS, BEDS.replace("every_days = 2", "every_days = 1")):
        arguments = json.dumps({"path": "beds.toml", "content": content})
        model.then(says.calls(says.call("write_file", arguments)))
    model.then(says.say("The wall beds are watered daily now."))
    await it.say("water the wall beds daily")
    await it.until("daily now")
    await it.key("C-o")
    await it.until(HELP[:20])
    shown = await _shot(it, *how)
    await it.key("Escape")
    await it.until(lambda t: HELP[:20] not in t)
    return shown


async def _approval(it: Tmux, model: ModelServer, *how: str) -> str:
    command = "make install PREFIX=/opt/garden && rm -rf build/beds-of-the-last-year"
    model.then(says.calls(says.call("terminal", json.dumps({"command": command}))))
    await it.say("install it")
    await it.until("[n] no")
    shown = await _shot(it, *how)
    await it.key("Escape")
    await it.until(lambda t: bool(t.strip()) and "[n] no" not in t)
    return shown


async def _waiting(it: Tmux, model: ModelServer, *how: str) -> str:
    half = says.token("The wall beds come first. Then ")
    model.then(says.stream(half, says.Wait()))
    await it.key("BTab")
    await it.say("and in August?")
    await it.until("come first")
    await it.say("then write it to plan.md")
    await it.say("and tell me what changed against last year, bed by bed, in a table")
    await it.until("⋯ waits: and tell")
    await it.type("now as it is")
    await it.until("now as it is")
    shown = await _shot(it, *how)
    await it.key("C-u", "Escape")
    await it.until(lambda t: "echo: and tell" in t)
    await it.key("C-l")
    return shown


async def _completion(it: Tmux, model: ModelServer, *how: str) -> str:
    await it.type("/re")
    await it.until("/restart")
    return await _shot(it, *how)


async def _picker(environment: Mapping[str, str], work: Path, columns: int, *how: str) -> str:
    for words in ("the tax papers of last year", "why does the build fail on arm64?"):
        async with screen(environment, work, columns=columns, rows=ROWS) as it:
            await it.until("/help")
            await it.say(words)
            await it.until("\necho: ")
            await it.key("C-d")
            await it.ended()
    async with screen(environment, work, "--resume", columns=columns, rows=ROWS) as it:
        await it.until(QUESTION)
        return await it.text(*how)


def _fenced(columns: int, shown: str) -> str:
    lines = [line.rstrip() for line in shown.rstrip().splitlines()]
    return "\n".join([f"{columns} columns:", "", "```text", *lines, "```", ""])


async def write() -> None:
    """The whole document."""
    taken = {columns: await shots(columns) for columns in WIDTHS}
    parts = [HEAD]
    for number, scene in enumerate(SCENES):
        parts.append(f"## {scene.name}\n\n{scene.about}\n")
        parts += [_fenced(columns, taken[columns][number]) for columns in WIDTHS]
    await anyio.Path(TARGET).write_text("\n".join(parts))


async def show(columns: int, no_colour: bool) -> None:
    """The screens of one width on this terminal."""
    for scene, shown in zip(SCENES, await shots(columns, "-e", no_colour=no_colour), strict=True):
        print(f"\x1b[0m--- {scene.name}\n{shown.rstrip()}\x1b[0m")


def main() -> int:
    """Write the document, or show."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--show", type=int, metavar="COLUMNS")
    options.add_argument("--no-colour", action="store_true")
    given = options.parse_args()
    if given.show:
        anyio.run(show, given.show, given.no_colour)
    else:
        anyio.run(write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
