"""The keys, and what each does. `HELP` lists them; a test holds both together."""

from typing import Protocol

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.filters import Condition, is_searching
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys

from holdfast.cli.live import fold
from holdfast.cli.tui.actions import Action, TakeBack, Unfold
from holdfast.cli.tui.pasting import Pastes
from holdfast.cli.tui.view import View

HELP = """\
  Enter           send; Alt-Enter or Ctrl-J begins a new line
  Esc             stops the run, now
  Ctrl-C          stops the run, else drops what is typed; twice within 2 s leaves
  Ctrl-D          leaves, where nothing is typed
  Shift-Tab       what words do while it works: interrupt, wait, or be passed on
  ↑               edits the words that wait, else goes through what you said before
  Tab             completes /commands, @files and paths
  Ctrl-R          looks through what you said before
  Ctrl-O          all of what the last tool said, or of what is asked
  Ctrl-L          clears the screen
  Ctrl-Z          back to the shell; fg comes back"""


class Keyboard(Protocol):
    """What keys can do."""

    app: Application[None]
    buffer: Buffer
    pastes: Pastes
    view: View

    @property
    def asked(self) -> object: ...
    def accept(self) -> None: ...
    def halt(self) -> None: ...
    def interrupt(self) -> None: ...
    def depart(self) -> None: ...
    def do(self, action: Action) -> None: ...
    def switch_mode(self) -> None: ...


def bindings(ui: Keyboard) -> KeyBindings:
    """The keys of `ui`, beside those of any line editor."""
    found = KeyBindings()

    @found.add("enter", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        state = ui.buffer.complete_state
        if (
            state is not None
            and state.current_completion is not None
            and len(state.completions) > 1
        ):
            ui.buffer.complete_state = None  # what was chosen stands
        else:
            ui.buffer.complete_state = None
            ui.accept()

    @found.add("escape", "enter")
    @found.add("c-j")
    def _(event: KeyPressEvent) -> None:
        ui.buffer.insert_text("\n")

    @found.add("escape", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        if ui.buffer.complete_state is not None:
            ui.buffer.cancel_completion()
        else:
            ui.halt()

    @found.add("c-c", filter=~is_searching)
    @found.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        ui.interrupt()

    @found.add("c-d", filter=Condition(lambda: not ui.buffer.text))
    def _(event: KeyPressEvent) -> None:
        ui.depart()

    @found.add("s-tab", filter=Condition(lambda: ui.buffer.complete_state is None))
    def _(event: KeyPressEvent) -> None:
        ui.switch_mode()

    _add_rest(found, ui)
    return found


def _add_rest(found: KeyBindings, ui: Keyboard) -> None:
    waits = Condition(lambda: not ui.buffer.text and bool(ui.view.waiting) and ui.asked is None)

    @found.add("up", filter=waits)
    def _(event: KeyPressEvent) -> None:
        ui.do(TakeBack())

    @found.add("tab", filter=~is_searching)
    def _(event: KeyPressEvent) -> None:
        if ui.buffer.complete_state is not None:
            ui.buffer.complete_next()
        else:
            ui.buffer.start_completion(insert_common_part=True)

    @found.add("c-o")
    def _(event: KeyPressEvent) -> None:
        ui.do(Unfold())

    @found.add("c-l")
    def _(event: KeyPressEvent) -> None:
        ui.app.renderer.clear()

    @found.add("c-z")
    def _(event: KeyPressEvent) -> None:
        ui.app.suspend_to_background()

    @found.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        ui.buffer.insert_text(ui.pastes.paste(event.data, ui.buffer.text), fire_event=False)


def rows(line: str, width: int) -> list[str]:
    """The rows that a line of a question takes; those after the first are indented too."""
    first, *more = fold(line, width, 0)[0]
    return (
        [first, *(f"    {row}" for row in fold("".join(more), width - 4, 0)[0])]
        if more
        else [first]
    )
