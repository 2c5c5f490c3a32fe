"""Slash commands at the terminal: those of the chats, and a few of its own.

A command about the session (`/status`, `/undo`, `/model` …) is sent to the server. A command about
the terminal itself is executed here.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

import anyio.to_thread

from holdfast.cli import saving
from holdfast.cli.client.client import Client
from holdfast.cli.exits import Code, Exit
from holdfast.cli.sessions import export
from holdfast.cli.tui.actions import SendMessage, Unfold
from holdfast.cli.tui.input.completion import InputCompleter
from holdfast.cli.tui.style import cut
from holdfast.cli.tui.ui import Ui
from holdfast.commands import parse
from holdfast.core.inbox import Mode


class TakesActions(Protocol):
    """The conversation, as far as commands need it."""

    client: Client
    ui: Ui
    session_id: str
    known: bool
    workspace: str

    async def enter(self, session_id: str, owner: str = "", *, again: bool = True) -> None: ...
    def begun(self) -> None: ...
    async def look_at_session(self) -> None: ...


_KEYS = """\
  Enter           send the message; Alt-Enter or Ctrl-J starts a new line
  y s a n         answer an approval: once, for the session, always, no; no Enter needed;
                  Tab: no, with a reason for the model
  Esc             stop the run
  Ctrl-C          stop the run, or clear the input line; twice within 2 s: leave
  Ctrl-D          leave, if the input line is empty
  Shift-Tab       what a message does during a run: interrupt, queue or steer
  ↑               edit the waiting message, or go back in the history
  Tab             complete /commands, @files and paths; during a run: send the message
                  so that it waits until the run has ended
  !command        run a command of your own in the workspace; the agent reads it with your
                  next message
  Ctrl-R          search the history
  Ctrl-O          choose a call and show all of it, or all of the question
  Ctrl-G          write the message in your editor ($VISUAL, $EDITOR)
  Ctrl-L          clear the screen
  Ctrl-Z          suspend; the shell's fg comes back"""

Order = Callable[[TakesActions, str], Awaitable[None]]


async def learn(client: Client, ui: Ui) -> None:
    """Let the input line complete every command."""
    completer = ui.buffer.completer
    if isinstance(completer, InputCompleter):
        completer.commands = [(name, *about) for name, about in (await _all(client)).items()]


async def _all(client: Client) -> dict[str, tuple[str, str]]:
    """Return every command by name, with its arguments and its help."""
    found = {one.name: (one.arguments, one.help) for one in await client.commands()}
    found |= {name: (arguments, about) for name, (arguments, about, _) in OWN.items()}
    return dict(sorted(found.items()))


def move(ui: Ui, workspace: Path) -> None:
    """Let the input line complete files of another directory."""
    if isinstance(ui.buffer.completer, InputCompleter):
        ui.buffer.completer.workspace = workspace


async def obey(talk: TakesActions, said: SendMessage) -> bool:
    """Execute a command; False if the text is a message for the agent."""
    text = said.text
    call = parse.read(text.strip())
    if call is None:
        return False
    if call.name in OWN:
        await OWN[call.name][2](talk, call.rest)
        return True
    ui = talk.ui
    words = ui.pastes.expand(text).strip()
    done = await talk.client.command(talk.session_id, words, ui.mode, talk.workspace, said.key)
    ui.print([*ui.view.words(text), *ui.view.answer(done.output)])
    if done.refused:
        ui.give_back(text)
    if done.busy:
        ui.mode = Mode(done.busy)
    if call.name == "clear" and not done.refused:
        ui.app.renderer.clear()
    if call.name == "model":
        await talk.look_at_session()
    if done.undone:
        ui.give_back(done.undone)
    if done.session_id != talk.session_id:
        await talk.enter(done.session_id, done.session_owner)
    elif done.run_id:
        talk.begun()
    return True


async def _leave(talk: TakesActions, rest: str) -> None:
    talk.ui.depart()


async def _unfold(talk: TakesActions, rest: str) -> None:
    talk.ui.do(Unfold())


async def _help(talk: TakesActions, rest: str) -> None:
    ui = talk.ui
    told = await _all(talk.client)
    named = rest.removeprefix("/").lower()
    if named and named not in told:
        return ui.print([parse.unknown(named, list(told))])
    ui.print(
        [
            "",
            *(
                []
                if named
                else ["Text that is not a command goes to the agent.", *_KEYS.split("\n")]
            ),
        ]
    )
    wide = max(len(f"/{name} {arguments}") for name, (arguments, _) in told.items())
    for name in [named] if named else told:
        arguments, about = told[name]
        line = f"  {f'/{name} {arguments}'.ljust(wide)}  {ui.style.dim(about)}"
        ui.print([cut(line, ui.size.columns)])
    return ui.print([""])


async def _rename(talk: TakesActions, rest: str) -> None:
    _check(talk)
    if not rest:
        raise Exit(Code.USAGE, "/rename needs a title: /rename the tax papers")
    await talk.client.rename(talk.session_id, rest)
    talk.ui.name = rest
    talk.ui.print([talk.ui.style.dim(f"… The title of this session is now: {rest}")])


async def _fork(talk: TakesActions, rest: str) -> None:
    _check(talk)
    made = await talk.client.fork(talk.session_id, rest)
    before = talk.session_id
    await talk.enter(made.session_id, made.owner, again=False)
    talk.ui.print(
        [talk.ui.style.dim(f"… You are in a copy now. Back to the original: /resume, or {before}")]
    )


async def _export(talk: TakesActions, rest: str) -> None:
    _check(talk)
    path = Path(rest or f"{talk.session_id}.md")
    if path.suffix not in (".md", ".json"):
        raise Exit(Code.USAGE, "/export writes .md or .json: /export talk.md")
    found = export.exported(
        await talk.client.session(talk.session_id),
        await talk.client.transcript(talk.session_id),
    )
    text = export.encode(found) if path.suffix == ".json" else export.markdown(found)
    await anyio.to_thread.run_sync(saving.save, path, text)
    talk.ui.print([talk.ui.style.dim(f"… Written to {path}")])


def _check(talk: TakesActions) -> None:
    if not talk.known:
        raise Exit(Code.USAGE, "this session has no messages yet: send one first")


# The terminal's own commands: arguments, help, and the function that executes it.
OWN: dict[str, tuple[str, str, Order]] = {
    "help": ("[command]", "List keys and commands, or explain one.", _help),
    "quit": ("", "Leave, like Ctrl-D.", _leave),
    "exit": ("", "Leave.", _leave),
    "details": ("", "Choose a call and show all of it, like Ctrl-O.", _unfold),
    "rename": ("title", "Give this session a title.", _rename),
    "fork": ("[title]", "Continue in a copy of this session.", _fork),
    "export": ("[file]", "Write this session to a file (.md or .json).", _export),
}
