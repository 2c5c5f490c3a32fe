"""Takes the screens of docs/terminal.md: a real terminal in tmux, at several widths.

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

from tests.fakes import model_server as says
from tests.fakes.gateway import unstarted
from tests.fakes.model_server import ModelServer, serve
from tests.fakes.screen import Screen, screen

TARGET = Path(__file__).parent.parent / "docs" / "terminal.md"
WIDTHS = (40, 80, 120, 200)
ROWS = 26
PROJECT = "garden"

HEAD = """# The terminal

`holdfast` alone is a conversation in the directory it is started in. Where a gateway runs in the same home, the terminal is its
client, and leaving it stops nothing; else the engine is in the terminal's own process, and what is at work when one leaves is kept:
`holdfast --continue` goes on with it, `holdfast --resume` lets one choose. `/help` lists keys and commands.

| key | what it does |
|---|---|
| Enter | sends; Alt-Enter or Ctrl-J begins a new line |
| Esc | stops the run on the screen, now, with everything it has started; one that has only just taken its place goes on |
| Ctrl-C | the same, else it drops what is typed; twice within 2 s leaves |
| Ctrl-D, `/quit` | leaves, in no more than 5 s, whatever hangs |
| Shift-Tab | what words do while a run works: interrupt it (unless `cli.busy` says otherwise), wait, or be passed on to it |
| ↑ | edits the words that wait, else goes through what was said before |
| Ctrl-O | all of what the last tool wrote, or of what is asked |

What is typed is never lost. Words that nobody has accepted yet are shown as on their way; those that are refused, and half an answer
to a question that was answered elsewhere, come back into the line. A question that has only just appeared takes no answer.

Colours are the terminal's own sixteen, so they follow its theme, dark or light. With `NO_COLOR=1` there are none, and nothing is
lost: every line says by a word or a sign what it is.

The screens below were taken by `python -m scripts.screens` from a real terminal (tmux); do not edit.
"""

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
    """What is shown, and what to say about it."""

    name: str
    about: str


SCENES = (
    Scene(
        "An answer",
        "What is final goes into the terminal's own scrollback: it can be selected, searched and "
        "scrolled there, and nothing is ever drawn over it.",
    ),
    Scene(
        "A tool at work",
        "One line a call, with the last it wrote; Ctrl-O shows all of it. Afterwards one line stays.",
    ),
    Scene(
        "An approval",
        "The true command and why it asks. Nothing is chosen beforehand: Enter alone does nothing, "
        "and what was being typed waits until it is answered.",
    ),
    Scene(
        "Words that wait",
        "Shift-Tab chooses what words do while a run works: interrupt it, wait (as here), or be "
        "passed on. ↑ brings the last ones back to be edited.",
    ),
    Scene("Completion", "Of commands, paths and @files, as one types; Tab takes one."),
    Scene("Which session", "`holdfast --resume`; typing looks for words in the list."),
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
                taken = [await take(it, model, *how) for take in (_answer, _tool, _approval)]
                taken += [await take(it, model, *how) for take in (_waiting, _completion)]
            return [*taken, await _picker(environment, work, columns, *how)]


async def _shot(it: Screen, *how: str) -> str:
    shown = await it.text(*how)
    await it.key("C-l")
    return shown


async def _answer(it: Screen, model: ModelServer, *how: str) -> str:
    model.then(says.say(ANSWER, 60, prompt=4310))
    await it.say("how should I water the garden?")
    await it.until("almanac")
    return await _shot(it, *how)


async def _tool(it: Screen, model: ModelServer, *how: str) -> str:
    command = "; ".join([*(f"echo bed {n}: dry" for n in (1, 2, 3, 4)), "sleep 300"])
    model.then(says.calls(says.call("terminal", json.dumps({"command": command}))))
    await it.say("measure all beds")
    await it.until("│ bed 4")
    shown = await _shot(it, *how)
    await it.key("Escape")
    await it.until("■ interrupted")
    return shown


async def _approval(it: Screen, model: ModelServer, *how: str) -> str:
    command = "make install PREFIX=/opt/garden && rm -rf build/beds-of-the-last-year"
    model.then(says.calls(says.call("terminal", json.dumps({"command": command}))))
    await it.say("install it")
    await it.until("eny ?")
    shown = await _shot(it, *how)
    await it.key("Escape")
    await it.until(lambda t: bool(t.strip()) and "eny ?" not in t)
    return shown


async def _waiting(it: Screen, model: ModelServer, *how: str) -> str:
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


async def _completion(it: Screen, model: ModelServer, *how: str) -> str:
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
        await it.until("go on with which")
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
