"""The lower edge of the terminal: live output, waiting messages, the input line, the status line.

Above it is the terminal's own scrollback: lines are printed there once and never redrawn. Nothing
is decided here. A key becomes an action (tui/actions.py), or edits the input line. Nothing waits
for the server: the user can type before the engine is loaded, and messages are sent when it is.
"""

import re
from collections.abc import Callable, Sequence

import anyio
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition, FilterOrBool, is_searching
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import Layout
from prompt_toolkit.output import ColorDepth, Output

from holdfast.api.schema.events import Event
from holdfast.cli.tui.actions import Action, Halt, Quit, SendMessage, ShowCall, TakeBack, Unfold
from holdfast.cli.tui.asked import AskedPanel
from holdfast.cli.tui.attention import LONG_S, Attention
from holdfast.cli.tui.drawing import Drawing, terminal
from holdfast.cli.tui.input.answers import AnswerKeys
from holdfast.cli.tui.input.paste import Pastes
from holdfast.cli.tui.style import Style, wall_clock
from holdfast.cli.tui.unfold.chooser import Chooser
from holdfast.cli.tui.view import View
from holdfast.core.inbox import Mode

TICK_S = 0.1
AGAIN_S = 2.0  # for the second Ctrl-C
UNSEEN_S = 0.6  # a run that took the place of another just now has not been noticed


class Ui(AskedPanel):
    """The application. `do` takes the actions of the keyboard."""

    def __init__(
        self,
        style: Style,
        do: Callable[[Action], None],
        completer: Completer,
        history: History,
        pastes: Pastes,
        *,
        mode: Mode,
        notify: bool = True,
        typed: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self.style = style
        self.mode = mode
        self.pastes = pastes
        self.sending = []
        self.status = lambda: "starting …"
        self.holding: Callable[[], str] = lambda: ""  # says what would end with this process
        self.do = do  # has an action carried out
        self.asked = None
        self.keys = AnswerKeys(anyio.current_time)
        self._draft, self._unfolded, self._answered, self.because = "", False, False, False
        self.hinted = ""
        self._halted_at = -AGAIN_S
        self._unprinted: list[str] = []
        self._gone = anyio.Event()
        self._at_gap = True  # the last line above is empty, or there is none
        self.tick = 0
        self.chooser = None
        self.away = False  # another program has the terminal
        self._before = ""  # the input line before the key
        self._tabbed = ""  # the input line that was completed last
        self._unsure: SendMessage | None = None  # a returned message that may have been accepted
        self.buffer = Buffer(
            multiline=True,
            completer=completer,
            complete_while_typing=True,
            history=history,
            enable_history_search=False,
            tempfile_suffix=".md",
        )
        self.buffer.on_text_changed += self._typed
        self.app = self._application(typed, output)
        self._drawing = Drawing(self.app)
        self.attention = Attention(self.app.output, calls=notify)
        self.name = "holdfast"  # of the session
        self.view = View(style, lambda: self.size.columns, wall_clock)

    def _application(self, typed: Input | None, output: Output | None) -> Application[None]:
        app: Application[None] = Application(
            layout=Layout(self._build(), focused_element=self.buffer),
            key_bindings=self._keys(),
            color_depth=ColorDepth.DEPTH_4_BIT if self.style.colour else ColorDepth.DEPTH_1_BIT,
            include_default_pygments_style=False,
            erase_when_done=True,
            input=typed,
            output=output or terminal(),
        )
        app.before_render += lambda _: self._print_now()
        app.before_render += lambda _: self._show_title()
        app.key_processor.before_key_press += self._before_key
        app.key_processor.after_key_press += self._after_key
        app.ttimeoutlen = 0.03
        app.timeoutlen = 0.02  # a terminal sends Alt and its key together, so Esc alone is Esc
        return app

    def _keys(self) -> KeyBindings:
        """Bind the keys, beside those of any line editor. `/help` lists them (tui/commands.py)."""
        found, buffer = KeyBindings(), self.buffer

        def bind(
            do: Callable[[KeyPressEvent], None], *keys: str, when: FilterOrBool = True
        ) -> None:
            found.add(*keys, filter=when)(do)

        bind(lambda _: self._enter(), "enter", when=~is_searching)
        bind(lambda _: buffer.insert_text("\n"), "escape", "enter")
        bind(lambda _: buffer.insert_text("\n"), "c-j")
        bind(lambda _: self._escape(), "escape", when=~is_searching)
        bind(lambda _: self.interrupt(), "c-c", when=~is_searching)
        bind(lambda _: self.interrupt(), "<sigint>")
        bind(lambda _: self.depart(), "c-d", when=Condition(lambda: not buffer.text))
        no_menu = Condition(lambda: buffer.complete_state is None)
        bind(lambda _: self.switch_mode(), "s-tab", when=no_menu)
        waits = Condition(lambda: not (buffer.text or self.asked) and bool(self.view.waiting))
        bind(lambda _: self.do(TakeBack()), "up", when=waits)
        bind(lambda _: self._complete(), "tab", when=~is_searching)
        bind(lambda _: self.do(Unfold()), "c-o")
        bind(lambda _: self.app.renderer.clear(), "c-l")
        bind(lambda _: self.app.suspend_to_background(), "c-z")
        bind(lambda _: self._edit(), "c-g", when=Condition(lambda: self.asked is None))
        bind(self._paste, Keys.BracketedPaste)
        bind(lambda _: self.explain(), "tab", when=Condition(lambda: self.asked is not None))
        bind(self.press, Keys.Any, when=Condition(lambda: self.asked is not None))
        choosing = Condition(lambda: self.chooser is not None)
        bind(lambda _: self._move(-1), "up", when=choosing)
        bind(lambda _: self._move(1), "down", when=choosing)
        bind(lambda _: self._open(), "enter", when=choosing)
        bind(lambda _: self.choose(None), "escape", when=choosing)
        bind(lambda _: self.choose(None), "c-c", when=choosing)
        bind(lambda _: self.choose(None), "c-o", when=choosing)
        return found

    def choose(self, chooser: Chooser | None) -> None:
        """Offer a list above the input line, or remove it (None)."""
        self.chooser = chooser if self.asked is None else None
        self.app.invalidate()

    def _move(self, by: int) -> None:
        if self.chooser is not None:
            self.chooser.move(by)

    def _open(self) -> None:
        if self.chooser is not None:
            self.do(ShowCall(self.chooser.chosen))

    def _enter(self) -> None:
        state, self.buffer.complete_state = self.buffer.complete_state, None
        if state is not None and self._takes_only(state.completions):
            return
        if state is None or state.current_completion is None or len(state.completions) == 1:
            self.accept()  # else the chosen completion stays in the input line

    def _takes_only(self, found: Sequence[Completion]) -> bool:
        """Complete the only command that matches; True if it still needs an argument."""
        text = self.buffer.text
        if len(found) != 1 or not _NAME.fullmatch(text) or found[0].text.strip() == text:
            return False
        self.buffer.apply_completion(found[0])
        return found[0].text.endswith(" ") and " [" not in found[0].display_text

    def _escape(self) -> None:
        if self.keys.drop():
            self.hinted = ""
        elif self.because:
            self.explain_not()
        elif self.buffer.complete_state is not None:
            self.buffer.cancel_completion()
        else:
            self.halt()

    def _complete(self) -> None:
        state = self.buffer.complete_state
        if state is not None and (state.completions or not self._may_queue(self.buffer.text)):
            self.buffer.complete_next()
        elif self._may_queue(self.buffer.text):
            self.accept(Mode.QUEUE)
        else:
            self._tabbed = self.buffer.text
            self.buffer.start_completion(insert_common_part=True)

    def _may_queue(self, text: str) -> bool:
        """Tell whether Tab sends the message. A word like a path is completed first."""
        if not (self.may_interrupt and text.strip()) or self.mode is Mode.QUEUE:
            return False
        return text == self._tabbed or not _PATH.search(text)

    def _edit(self) -> None:
        """Ctrl-G: write the message in $VISUAL or $EDITOR."""
        self.away = True
        self.buffer.open_in_editor().add_done_callback(self._edited)

    def _edited(self, _: object) -> None:
        self.away = False

    def _paste(self, event: KeyPressEvent) -> None:
        pasted = self.keys.drop() + self.pastes.paste(event.data, self.buffer.text)
        self.buffer.insert_text(pasted, fire_event=False)

    def clear_view(self) -> None:
        """Forget the session that was shown: another one follows."""
        self.view = View(self.style, lambda: self.size.columns, wall_clock)

    # Actions

    def accept(self, mode: Mode | None = None) -> None:
        """Enter: send the message, or answer the question. `mode`: another than the chosen one."""
        # Bytes that are not UTF-8 come as lone surrogates, which a fact must not contain.
        text = self.buffer.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if self.asked is not None:
            return self.accept_answer(text)
        if not text.strip():
            return None
        said, before, self._unsure = SendMessage(text, mode or self.mode), self._unsure, None
        if before is not None and (before.text, before.mode) == (text, said.mode):
            said.key = before.key
        self.buffer.reset(append_to_history=True)
        self.hinted = ""
        return self.say(said)

    def say(self, said: SendMessage) -> None:
        """Send a message."""
        self._halted_at = -AGAIN_S  # a message is no second Ctrl-C
        self.view.ended_at = 0.0
        self.sending.append(said)
        self.do(said)

    def halt(self) -> None:
        """Esc: stop the run on the screen, not one that has replaced it just now."""
        view = self.view
        if (view.busy or self.sending) and wall_clock() - view.ended_at < UNSEEN_S:
            self.hint("that run has ended; Esc again stops the next one")  # HALT-02
        elif view.run_id:
            view.stopping = view.run_id
            self.do(Halt(view.run_id))
        elif view.waiting:
            self.do(Halt(next(iter(view.waiting))))
        elif self.sending:
            self.do(Halt("", self.sending[0]))

    def depart(self) -> None:
        """Ctrl-D: leave; the second time only, if something would end with this process."""
        if self._again() or not (what := self.holding()):
            self.do(Quit())
        else:
            self.hint(f"{what}; again within {AGAIN_S:g} s leaves anyway")

    def _again(self) -> bool:
        now = anyio.current_time()
        before, self._halted_at = self._halted_at, now
        return now - before <= AGAIN_S

    def interrupt(self) -> None:
        """Ctrl-C: stop the run, or clear the input line; a second one leaves."""
        if self.away:
            return  # it was for that program
        if self._again():
            self.do(Quit())
        elif self.view.busy or self.sending:
            self.halt()
            self.hint("Ctrl-C again leaves")
        elif self.buffer.text:
            self.buffer.reset()
            self.hint("Ctrl-C again leaves")
        else:
            what = self.holding()
            self.hint(f"{what}; Ctrl-C again leaves" if what else "Ctrl-C again leaves")

    @property
    def may_interrupt(self) -> bool:
        """Tell whether the text in the input line would reach a run at work."""
        text = self.buffer.text.lstrip()
        return self.view.busy and self.asked is None and not _COMMAND.match(text)

    def switch_mode(self) -> None:
        """Choose the next mode: what a message does to an active run."""
        modes = list(Mode)
        self.mode = modes[(modes.index(self.mode) + 1) % len(modes)]
        self.hint(MEANS[self.mode])

    def give_back(self, text: str, unsure: SendMessage | None = None) -> None:
        """Return a message to the input line, before the text there.

        `unsure`: it may have been accepted. Until it is edited, it keeps its key.
        """
        text, self._unsure = self.pastes.fold(text), unsure
        if self.asked is not None:  # in the input line it would answer the question
            self._draft = f"{text}\n{self._draft}" if self._draft.strip() else text
            return
        before = self.buffer.text
        self.buffer.text = f"{text}\n{before}" if before.strip() else text
        self.buffer.cursor_position = len(self.buffer.text)

    def _before_key(self, _: object) -> None:
        self._before = self.buffer.text
        self.keys.note()

    def _after_key(self, _: object) -> None:
        """Extend the effect of a key on a part of a label to the whole label."""
        now = self.buffer.document
        text, cursor = self.pastes.mended(self._before, now.text, now.cursor_position)
        if text != now.text:
            self.buffer.document = Document(text, cursor)

    # Output

    def show(self, event: Event) -> None:
        """Show an event of the session; call the user if a long run has ended with it."""
        view, how = self.view, _ENDED.get(event.event)
        if how and event.run_id == view.run_id and event.timestamp - view.begun_at >= LONG_S:
            self.attention.call(f"{self.name}: {how}")
        self.print(view.hear(event))

    def _typed(self, _: object) -> None:
        self.hinted = ""  # it has been read
        if self._unsure is not None and self._unsure.text != self.buffer.text:
            self._unsure = None
        if self.buffer.text:
            self._halted_at = -AGAIN_S  # typing cancels the first Ctrl-C

    async def run(self) -> None:
        """Show the application until `leave`."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ticker)
            try:
                await self.app.run_async(handle_sigint=False, set_exception_handler=False)
            except EOFError:  # the terminal is gone
                self.do(Quit())
            finally:
                self.attention.restore()
                self._gone.set()
            tasks.cancel_scope.cancel()

    async def leave(self) -> None:
        """End the application and restore the terminal."""
        if self.app.is_running:
            self._print_now()
            self.app.exit()
            await self._gone.wait()

    def _print_now(self) -> None:
        """Print final lines with every frame, before they disappear below."""
        if not (self._unprinted and self.app.is_running):
            return
        lines, self._unprinted = self._without_gaps(self._unprinted), []
        self._drawing.print_above(lines)

    def _show_title(self) -> None:
        state = "needs you" if self.asked else "at work" if self.view.busy else "ready"
        if self.app.is_running:
            self.attention.show_title(f"{self.name} · {state}")

    def _without_gaps(self, lines: Sequence[str]) -> list[str]:
        """Reduce several empty lines to one."""
        kept: list[str] = []
        for line in lines:
            if line or not self._at_gap:
                kept.append(line)
            self._at_gap = not line
        return kept

    async def _ticker(self) -> None:
        while True:
            await anyio.sleep(TICK_S)
            self.answer_alone()
            if self.view.busy or self.sending:
                self.tick += 1
                self.app.invalidate()


_NAME = re.compile(r"/[A-Za-z_]+")
_PATH = re.compile(r"(?:^|\s)[@~./]\S*$|/\S*$")  # the last word, if it may be completed

_COMMAND = re.compile(
    r"/[A-Za-z_]{1,32}(?!\S)|!"
)  # as commands/parse.py, which takes long to import

_ENDED = {"run.completed": "done", "run.failed": "the run failed"}

MEANS = {
    Mode.INTERRUPT: "a message during a run interrupts it",
    Mode.QUEUE: "a message during a run waits until the run has ended",
    Mode.STEER: "a message during a run is passed on to it",
}
