"""A day's work at the terminal: 25 steps in a real git repository, with what the screen shows.

`python -m scripts.day` writes docs/day.md from a real terminal (tmux). The model is scripted
(tests/fakes); files, git, commands, the sandbox and the kill are real. Each step checks what it
claims, on the screen or on the disk, so a step that no longer works stops the script.
`tests/behaviour/test_day.py` walks the same day.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import anyio

from tests.fakes import model_server as says
from tests.fakes.gateway import unstarted
from tests.fakes.model_server import ModelServer, serve
from tests.fakes.screen import Screen
from tests.fakes.tmux import screen as tmux

TARGET = Path(__file__).parent.parent / "docs" / "day.md"
COLUMNS, ROWS = 96, 30
PORT = 8731  # in the network of the session, not of this machine
PROGRAMS = "/usr/local/bin:/usr/bin:/bin"

HEAD = """# A day at the terminal

Twenty-five steps of ordinary work in a git repository: read, edit, run tests, see the changes, take them back, serve, interrupt, crash,
continue. Each screen is what a real terminal (tmux) shows after the step. The model is scripted, so that the day is the same each time;
files, git, commands and the sandbox are real. `python -m scripts.day` takes the screens; do not edit.
"""

CALC = """\
def add(a, b):
    return a - b


def mean(values):
    return sum(values) / len(values)
"""
TEST = """\
import unittest

from calc import add, mean


class Calc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(add(2, 3), 5)

    def test_mean(self):
        self.assertEqual(mean([1, 2, 3]), 2)


if __name__ == "__main__":
    unittest.main()
"""
INSTRUCTIONS = "Run the tests with `python3 -m unittest -q`. Keep functions short.\n"
RUN_TESTS = "python3 -m unittest -q"


def git(work: Path, *words: str) -> str:
    """Run git there as its owner."""
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    done = subprocess.run(["git", *who, *words], cwd=work, check=True, capture_output=True)
    return done.stdout.decode()


def project(work: Path) -> None:
    """Make a small repository with a bug, a test that shows it, and instructions."""
    (work / "calc.py").write_text(CALC)
    (work / "test_calc.py").write_text(TEST)
    (work / "AGENTS.md").write_text(INSTRUCTIONS)
    git(work, "init", "-q", "-b", "main")
    git(work, "add", ".")
    git(work, "commit", "-q", "-m", "A calculator")


@dataclass(slots=True)
class Day:
    """The day so far: the terminal, the model, the work, and the screens."""

    model: ModelServer
    work: Path
    environment: Mapping[str, str]
    screens: list[tuple[str, str]] = field(default_factory=list)

    def plan(self, *calls: tuple[str, object], then: str) -> None:
        """Let the model make these calls one after the other, and then answer."""
        for tool, arguments in calls:
            name = f"call_{len(self.screens)}_{tool}"
            self.model.then(says.calls(says.call(tool, json.dumps(arguments), call_id=name)))
        self.model.then(says.say(then, 8, prompt=2400))

    async def keep(self, it: Screen, title: str) -> None:
        """Keep the screen as it is now."""
        self.screens.append((title, await it.text()))
        await it.key("C-l")

    def read(self, name: str) -> str:
        """Return the content of a file of the project."""
        return (self.work / name).read_text()


Step = Callable[[Day, Screen], Awaitable[None]]


class OpenScreen(Protocol):
    """Opens a terminal with `holdfast WORDS` in it."""

    def __call__(
        self,
        environment: Mapping[str, str],
        directory: Path,
        *words: str,
        columns: int = 100,
        rows: int = 30,
    ) -> AbstractAsyncContextManager[Screen]: ...


async def start(day: Day, it: Screen) -> None:
    """Start in the repository"""
    await it.until("/help")
    await day.keep(it, "holdfast")


async def look_around(day: Day, it: Screen) -> None:
    """Ask what is there; the project's instructions are named, reading asks nothing"""
    day.plan(
        ("list_files", {"path": "."}),
        ("read_file", {"path": "calc.py"}),
        then="A calculator: `add` and `mean`, with a test for each.",
    )
    await it.say("what is in here?")
    await it.until("with a test for each")
    await day.keep(it, "what is in here?")


async def ask_first(day: Day, it: Screen) -> None:
    """Run the tests: a command that runs code of the project asks"""
    day.plan(("terminal", {"command": RUN_TESTS}), then="One fails: `add` subtracts.")
    await it.say("run the tests")
    await it.until("[s]")
    await day.keep(it, "run the tests")


async def answer(day: Day, it: Screen) -> None:
    """One key answers: s allows it for this session"""
    await press(it, "s")
    await it.until("add subtracts")
    await day.keep(it, "s")


async def fix(day: Day, it: Screen) -> None:
    """Fix it: the change is shown below the call"""
    day.plan(("patch", {"path": "calc.py", "old": "a - b", "new": "a + b"}), then="Fixed.")
    await it.say("fix it")
    await it.until("Fixed.")
    assert "a + b" in day.read("calc.py")
    await day.keep(it, "fix it")


async def test_again(day: Day, it: Screen) -> None:
    """Run the tests again: no question this time"""
    day.plan(("terminal", {"command": RUN_TESTS}), then="All tests pass now.")
    await it.say("and the tests?")
    shown = await it.until("All tests pass now")
    assert "[s]" not in shown
    await day.keep(it, "and the tests?")


async def see_diff(day: Day, it: Screen) -> None:
    """See everything that this session changed"""
    await it.say("/diff")
    await it.until("return a + b")
    await day.keep(it, "/diff")


async def new_file(day: Day, it: Screen) -> None:
    """Write a new file"""
    text = "# Calc\n\n`add` and `mean`.\n"
    day.plan(("write_file", {"path": "README.md", "content": text}), then="Written.")
    await it.say("write a short README")
    await it.until("Written.")
    await day.keep(it, "write a short README")


async def change_by_command(day: Day, it: Screen) -> None:
    """Let a command change files: what it changed is shown too"""
    command = "sed -i s/mean/average/g calc.py test_calc.py"
    day.plan(("terminal", {"command": command}), then="Renamed in both files.")
    await it.say("rename mean to average")
    await it.until("[y]")
    await press(it, "y")
    await it.until("Renamed in both files")
    assert "average" in day.read("test_calc.py")
    await day.keep(it, "rename mean to average")


async def undo(day: Day, it: Screen) -> None:
    """Take it back: conversation and files; the message returns to the input line"""
    await it.say("/undo")
    await it.until(lambda shown: "› rename mean to average" in last_lines(shown))
    assert "average" not in day.read("calc.py") + day.read("test_calc.py")
    await day.keep(it, "/undo")
    await it.key("C-u")


async def redo(day: Day, it: Screen) -> None:
    """Bring it back, and take it back once more"""
    await it.say("/redo")
    await until_file(day, "calc.py", "average")
    await it.key("C-u")
    await it.say("/undo")
    await until_file(day, "calc.py", "mean")
    await it.until(lambda shown: "› rename mean to average" in last_lines(shown))
    await it.key("C-u")
    await day.keep(it, "/redo, /undo")


async def another_hand(day: Day, it: Screen) -> None:
    """What another program changed is never overwritten: undo refuses, and names the file"""
    with (day.work / "README.md").open("a") as file:
        file.write("\nA line that Ada wrote in her editor.\n")
    await it.say("/undo")
    await it.until(lambda shown: "README.md" in last_lines(shown, 12) and "force" in shown)
    assert "Ada" in day.read("README.md")
    await day.keep(it, "/undo after an edit elsewhere")


async def points(day: Day, it: Screen) -> None:
    """List the points to go back to"""
    await it.say("/rewind")
    await it.until("what is in here?")
    await day.keep(it, "/rewind")


async def own_command(day: Day, it: Screen) -> None:
    """Run a command of one's own; the model sees it with the next message"""
    await it.say("!git status --short")
    await it.until(lambda shown: "✓ terminal  git status" in shown and "?? README.md" in shown)
    await day.keep(it, "!git status --short")


async def serve_files(day: Day, it: Screen) -> None:
    """Start a server in the background"""
    command = f"python3 -m http.server {PORT} --bind 127.0.0.1"
    day.plan(("terminal", {"command": command, "background": True}), then="It serves.")
    await it.say("start a server for this directory")
    await it.until("[y]")
    await press(it, "y")
    await it.until("It serves.")
    await it.until("1 in background")
    await day.keep(it, "start a server for this directory")


async def fetch(day: Day, it: Screen) -> None:
    """The next command reaches it: the commands of a session share a network of their own"""
    get = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{PORT}/calc.py').read())"
    day.plan(("terminal", {"command": f'python3 -c "{get}"'}), then="It answers with the file.")
    await it.say("fetch calc.py from it")
    await it.until("answers with the file")
    await day.keep(it, "fetch calc.py from it")


async def processes(day: Day, it: Screen) -> None:
    """See what runs in the background"""
    await it.say("/ps")
    await it.until("http.server")
    await day.keep(it, "/ps")


async def build(day: Day, it: Screen) -> None:
    """Build in the background; the agent hears when it is done"""
    command = "sleep 2; echo built > build.log"
    arguments = {"command": command, "background": True, "notify_on_complete": True}
    day.plan(("terminal", arguments), then="The build runs.")
    day.model.then(says.say("The build is done.", 4))
    await it.say("build it in the background")
    await it.until("[y]")
    await press(it, "y")
    await it.until("The build is done")
    await day.keep(it, "build it in the background")


async def interrupt(day: Day, it: Screen) -> None:
    """Interrupt a long command by typing; the line below says that Enter does this"""
    day.plan(("terminal", {"command": "sleep 300"}), then="Stopped. What next?")
    await it.say("wait for the nightly data")
    await it.until("terminal  sleep 300")
    await it.until("Enter interrupts")
    await it.type("no, leave it for tomorrow")
    await it.until("for tomorrow")
    await day.keep(it, "no, leave it for tomorrow")
    await it.key("Enter")
    await it.until("Stopped. What next?")


async def queue(day: Day, it: Screen) -> None:
    """Or queue a message with Tab"""
    gate = says.Wait()
    first, rest = says.token("A mean is the sum "), says.token("by the number.")
    day.model.then(says.stream(first, gate, rest, says.finish(), says.usage(2400, 9), says.DONE))
    day.model.then(says.say("For an odd number of values, the middle one.", 4))
    await it.say("what is a mean?")
    await it.until("sum")
    await it.type("and a median?")
    await it.key("Tab")
    await it.until("waits: and a median?")
    await day.keep(it, "and a median? (Tab)")
    gate.gate.set()
    await it.until("the middle one")


async def refuse(day: Day, it: Screen) -> None:
    """Say no, and why: the reason goes to the model"""
    day.plan(("terminal", {"command": "rm -rf .git"}), then="I leave the history alone.")
    await it.say("tidy up")
    await it.until("[n]")
    await press(it, "n")
    await it.until("leave the history alone")
    assert (day.work / ".git" / "HEAD").exists()
    await day.keep(it, "n")


async def cost(day: Day, it: Screen) -> None:
    """See what it has used"""
    await it.say("/usage")
    await it.until("Tokens in this session")
    await day.keep(it, "/usage")


async def crash(day: Day, it: Screen) -> None:
    """kill -9 in the middle of a command"""
    command = "echo one >> ledger.txt; sleep 300"
    day.plan(("terminal", {"command": command}), then="Interrupted; the ledger has its line.")
    await it.say("append a line to the ledger")
    await it.until("[y]")
    await press(it, "y")
    await until_file(day, "ledger.txt", "one")
    await day.keep(it, "kill -9")
    await it.kill()


async def go_on(day: Day, it: Screen) -> None:
    """holdfast --continue: the run goes on; the command is not run again, the model is told"""
    await it.until("the ledger has its line")
    assert day.read("ledger.txt") == "one\n"
    await day.keep(it, "holdfast --continue")


async def leave(day: Day, it: Screen) -> None:
    """Leave"""
    await it.say("/diff")
    await it.until("calc.py")
    await day.keep(it, "/diff")
    await it.key("C-d")
    assert await it.ended() == 0


MORNING: tuple[Step, ...] = (
    *(start, look_around, ask_first, answer, fix, test_again, see_diff, new_file),
    *(change_by_command, undo, redo, another_hand, points, own_command, serve_files, fetch),
    *(processes, build, interrupt, queue, refuse, cost, crash),
)
AFTERNOON: tuple[Step, ...] = (go_on, leave)


def last_lines(shown: str, count: int = 4) -> str:
    """Return the last lines of a screen that are not empty."""
    return "\n".join([line for line in shown.splitlines() if line.strip()][-count:])


async def press(it: Screen, key: str) -> None:
    """Answer as a person does: a key that comes with the question would not count."""
    await anyio.sleep(0.8)  # sleep: the time that a question must have been on the screen
    await it.type(key)


async def until_file(day: Day, name: str, text: str) -> None:
    """Wait until a file contains the text."""
    with anyio.fail_after(20):
        while not (day.work / name).exists() or text not in day.read(name):  # noqa: ASYNC110
            await anyio.sleep(0.05)  # sleep: a file tells no one that it changed


async def walk(place: Path, screen: OpenScreen) -> Day:
    """Walk the day in a new repository below `place`, and return its screens."""
    work = place / "calc"
    work.mkdir()
    project(work)
    async with serve() as model, unstarted(place, model.base_url, PATH=PROGRAMS) as home:
        day = Day(model, work, home.environment)
        async with screen(day.environment, work, columns=COLUMNS, rows=ROWS) as it:
            for step in MORNING:
                await step(day, it)
        async with screen(day.environment, work, "--continue", columns=COLUMNS, rows=ROWS) as it:
            for step in AFTERNOON:
                await step(day, it)
    return day


def document(day: Day) -> str:
    """Return the page: each step with its screen."""
    parts = [HEAD]
    for number, (step, shot) in enumerate(zip((*MORNING, *AFTERNOON), day.screens, strict=True), 1):
        typed, shown = shot
        lines = [line.rstrip() for line in shown.rstrip().splitlines()]
        head = f"## {number}. {step.__doc__}\n\n`{typed}`\n"
        parts.append("\n".join([head, "```text", *lines, "```", ""]))
    return "\n".join(parts)


def main() -> int:
    """Walk the day and write the page."""
    with tempfile.TemporaryDirectory() as place:
        TARGET.write_text(document(anyio.run(walk, Path(place), tmux)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
