"""The lower edge of the terminal: what still changes, what waits, the input, and how things stand.

All above it is the terminal's own scrollback: lines are printed there once and never touched
again. Nothing here decides anything. A key becomes an action (tui/actions.py), or edits the
words. Nothing waits for the other end of the line: one can type before the engine is loaded, and
what is typed goes on its way when it is.
"""

from collections.abc import Callable, Sequence

import anyio
from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Layout,
    Window,
)
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.widgets import SearchToolbar

from holdfast.cli import question
from holdfast.cli.tui import keys
from holdfast.cli.tui.actions import Action, Halt, Leave, Reply, Say
from holdfast.cli.tui.drawing import Drawing
from holdfast.cli.tui.pasting import Pastes
from holdfast.cli.tui.style import Style, cut, cut_before, harmless, wall_clock
from holdfast.cli.tui.view import View
from holdfast.cli.wire import Approval, Question
from holdfast.core.inbox import Mode

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
TICK_S = 0.1
AGAIN_S = 2.0  # for the second Ctrl-C
UNSEEN_S = 0.6  # a question that has only just appeared was not read by whoever types
INPUT_ROWS = 12
MENU_ROWS = 8


class Ui:
    """The application. `actions` gets what is done at the keyboard."""

    def __init__(
        self,
        style: Style,
        do: Callable[[Action], None],
        completer: Completer,
        history: History,
        pastes: Pastes,
        *,
        mode: Mode,
        typed: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self.style = style
        self.mode = mode
        self.pastes = pastes
        self.sending: list[Say] = []  # words that nobody has accepted yet
        self.status: Callable[[], str] = lambda: "starting …"
        self.holding: Callable[[], str] = lambda: ""  # what would end with us, in words
        self._do = do
        self._asked: Approval | Question | None = None
        self._asked_at = 0.0
        self._draft = ""  # what was being typed when a question came
        self._hint = ""
        self._halted_at = -AGAIN_S
        self._unprinted: list[str] = []
        self._gone = anyio.Event()
        self._at_gap = True  # the last line above is empty, or there is none
        self._tick = 0
        self._before = ""  # what stood in the input line before the key
        self._unsure: Say | None = None  # words that came back and may have been accepted
        self.buffer = Buffer(
            multiline=True,
            completer=completer,
            complete_while_typing=True,
            history=history,
            enable_history_search=False,
        )
        self.buffer.on_text_changed += self._typed
        self.app = self._application(typed, output)
        self._drawing = Drawing(self.app)
        self.view = View(style, lambda: self.size.columns, wall_clock)

    def _application(self, typed: Input | None, output: Output | None) -> Application[None]:
        app: Application[None] = Application(
            layout=Layout(self._layout(), focused_element=self.buffer),
            key_bindings=keys.bindings(self),
            color_depth=ColorDepth.DEPTH_4_BIT if self.style.colour else ColorDepth.DEPTH_1_BIT,
            include_default_pygments_style=False,
            erase_when_done=True,
            input=typed,
            output=output,
        )
        app.before_render += lambda _: self._print_now()
        app.key_processor.before_key_press += self._before_key
        app.key_processor.after_key_press += self._after_key
        app.ttimeoutlen = 0.03
        app.timeoutlen = 0.02  # Esc is Esc, and not Alt: what a terminal sends for that is one
        return app

    def begin_afresh(self) -> None:
        """Another session."""
        self.view = View(self.style, lambda: self.size.columns, wall_clock)

    @property
    def size(self) -> Size:
        return self.app.output.get_size()

    # What is done

    def accept(self) -> None:
        """Enter: the words go, or answer what is asked."""
        # Bytes that are no text come as lone surrogates, which no fact may hold.
        text = self.buffer.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if self._asked is not None:
            if anyio.current_time() - self._asked_at < UNSEEN_S:
                return self.hint("read it first: what you type now would answer it")
            self.buffer.reset()
            return self._do(Reply(self._asked, text))
        if not text.strip():
            return None
        said, before, self._unsure = Say(text, self.mode), self._unsure, None
        if before is not None and (before.text, before.mode) == (text, self.mode):
            said.key = before.key
        self.buffer.reset(append_to_history=True)
        self._hint = ""
        return self.say(said)

    def say(self, said: Say) -> None:
        """Send words on their way."""
        self._halted_at = -AGAIN_S  # whoever goes on talking does not leave
        self.view.ended_at = 0.0
        self.sending.append(said)
        self._do(said)

    def halt(self) -> None:
        """Esc: stop now what is on the screen, and not what has only just taken its place."""
        view = self.view
        if (view.busy or self.sending) and wall_clock() - view.ended_at < UNSEEN_S:
            self.hint("that run was over; Esc again stops the next one")  # HALT-02
        elif view.run_id:
            view.stopping = view.run_id
            self._do(Halt(view.run_id))
        elif view.waiting:
            self._do(Halt(next(iter(view.waiting))))
        elif self.sending:
            self._do(Halt("", self.sending[0]))

    def depart(self) -> None:
        """Ctrl-D: leave. Where something would end with us, only at the second time."""
        if self._again() or not (what := self.holding()):
            self._do(Leave())
        else:
            self.hint(f"{what}; again within {AGAIN_S:g} s leaves all the same")

    def _again(self) -> bool:
        now = anyio.current_time()
        before, self._halted_at = self._halted_at, now
        return now - before <= AGAIN_S

    def interrupt(self) -> None:
        """Ctrl-C: stop, else drop the words, else leave; a second one leaves in any case."""
        if self._again():
            self._do(Leave())
        elif self.view.busy or self.sending:
            self.halt()
            self.hint("Ctrl-C again leaves")
        elif self.buffer.text:
            self.buffer.reset()
            self.hint("Ctrl-C again leaves")
        else:
            what = self.holding()
            self.hint(f"{what}; Ctrl-C again leaves" if what else "Ctrl-C again leaves")

    def do(self, action: Action) -> None:
        """Have something done."""
        self._do(action)

    def switch_mode(self) -> None:
        """What words do to a run at work: the next way."""
        modes = list(Mode)
        self.mode = modes[(modes.index(self.mode) + 1) % len(modes)]
        self.hint(f"words typed while it works: {_MEANS[self.mode]}")

    def give_back(self, text: str, unsure: Say | None = None) -> None:
        """Words that come back into the input line, before what is typed there.

        `unsure`: they may have been accepted. As long as nobody edits them, they are the same.
        """
        text, self._unsure = self.pastes.fold(text), unsure
        if self._asked is not None:  # there it would be an answer
            self._draft = f"{text}\n{self._draft}" if self._draft.strip() else text
            return
        before = self.buffer.text
        self.buffer.text = f"{text}\n{before}" if before.strip() else text
        self.buffer.cursor_position = len(self.buffer.text)

    def _before_key(self, _: object) -> None:
        self._before = self.buffer.text

    def _after_key(self, _: object) -> None:
        """Whatever a key does to half a label, it does to all of it or to none."""
        now = self.buffer.document
        text, cursor = self.pastes.mended(self._before, now.text, now.cursor_position)
        if text != now.text:
            self.buffer.document = Document(text, cursor)

    # What is shown

    def print(self, lines: Sequence[str]) -> None:
        """Lines for good, above."""
        if lines:
            self._unprinted += map(harmless, lines)
            self.app.invalidate()

    def hint(self, text: str) -> None:
        """A word in the status line, until the next key."""
        self._hint = text
        self.app.invalidate()

    def _typed(self, _: object) -> None:
        self._hint = ""  # it has been read
        if self._unsure is not None and self._unsure.text != self.buffer.text:
            self._unsure = None
        if self.buffer.text:
            self._halted_at = -AGAIN_S  # whoever goes on typing does not leave

    @property
    def asked(self) -> Approval | Question | None:
        """What waits for an answer here."""
        return self._asked

    def ask(self, asked: Approval | Question | None) -> None:
        """Put a question, or take it back. What was being typed waits, and answers nothing."""
        if asked == self._asked:
            return
        typed = self.buffer.text
        if self._asked is not None:
            typed = "\n".join(filter(str.strip, (self._late(), self._draft)))
        self.buffer.text, self._draft = ("", typed) if asked is not None else (typed, "")
        self.buffer.cursor_position = len(self.buffer.text)
        self._asked, self._asked_at, self._hint = asked, anyio.current_time(), ""
        self.app.invalidate()

    def _late(self) -> str:
        """What was typed to a question that has closed: it answers no other (HALT-09)."""
        words = self.buffer.text
        asked = self._asked
        if isinstance(asked, Approval) and words.strip().lower() in question.words(asked.choices):
            return ""  # it could be nothing else
        return words

    async def run(self) -> None:
        """Show it, until `leave`."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ticker)
            try:
                await self.app.run_async(handle_sigint=False, set_exception_handler=False)
            except EOFError:  # the terminal is gone
                self._do(Leave())
            finally:
                self._gone.set()
            tasks.cancel_scope.cancel()

    async def leave(self) -> None:
        """End it, and give the terminal back."""
        if self.app.is_running:
            self._print_now()
            self.app.exit()
            await self._gone.wait()

    def _print_now(self) -> None:
        """With every frame: what is final must not vanish below before it stands above."""
        if not (self._unprinted and self.app.is_running):
            return
        lines, self._unprinted = self._without_gaps(self._unprinted), []
        self._drawing.print_above(lines)

    def _without_gaps(self, lines: Sequence[str]) -> list[str]:
        """One empty line is enough, whoever wants one."""
        kept: list[str] = []
        for line in lines:
            if line or not self._at_gap:
                kept.append(line)
            self._at_gap = not line
        return kept

    async def _ticker(self) -> None:
        while True:
            await anyio.sleep(TICK_S)
            if self.view.busy or self.sending:
                self._tick += 1
                self.app.invalidate()

    # How it is laid out

    def _layout(self) -> HSplit:
        def rows(lines: Callable[[], list[str]]) -> ConditionalContainer:
            drawn: tuple[int, list[str]] = (-1, [])  # once a frame, however often it is asked for

            def now() -> list[str]:
                nonlocal drawn
                if drawn[0] != self.app.render_counter:
                    drawn = self.app.render_counter, [harmless(line) for line in lines()]
                return drawn[1]

            control = FormattedTextControl(lambda: ANSI("\n".join(now())))
            window = Window(control, wrap_lines=True, dont_extend_height=True)
            return ConditionalContainer(window, Condition(lambda: bool(now())))

        search = SearchToolbar()
        words = Window(
            BufferControl(
                self.buffer,
                input_processors=[TabsProcessor(char1=" ", char2=" ")],
                search_buffer_control=search.control,
                preview_search=True,
            ),
            height=lambda: Dimension(min=1, max=min(INPUT_ROWS, max(self.size.rows // 3, 1))),
            get_line_prefix=lambda number, wrap: ANSI(self._prefix(number, wrap)),
            wrap_lines=True,
            dont_extend_height=True,
        )
        return HSplit(
            [
                rows(self._live),
                rows(self._waiting),
                rows(self._question),
                rows(lambda: [self.style.dim("─" * self.size.columns)]),
                words,
                search,
                rows(self._menu),
                rows(lambda: [self._status()]),
            ]
        )

    def _live(self) -> list[str]:
        room = max(self.size.rows - 8, 3)
        spinner = SPINNER[self._tick % len(SPINNER)]
        return self.view.live(spinner, asks=self._asked is not None)[-room:]

    def _waiting(self) -> list[str]:
        width = self.size.columns
        shown = [w for waiting in self.view.waiting.values() for w in waiting.words]
        lines = [cut(f"⋯ waits: {_first(w)}", width) for w in shown]
        if lines:
            lines[-1] = cut_before(lines[-1], "  (↑ edits it)", width)
        lines += [cut(f"⋯ on its way: {_first(said.text)}", width) for said in self.sending]
        return [self.style.dim(line) for line in lines]

    def _question(self) -> list[str]:
        asked, width = self._asked, self.size.columns
        if asked is None:
            return []
        if isinstance(asked, Question):
            head, body = "? it asks you:", question.asks(asked)
        else:
            head = f"? it asks for your approval ({question.expires(asked)}):"
            body = question.body(asked, command_first=True)
        rows = [r for line in body.split("\n") for r in keys.rows(line, width)]
        room = max(self.size.rows // 2, min(self.size.rows - 4, 8), 2)
        if len(rows) > room:
            rows = [*rows[: room - 1], f"  … {len(rows) - room + 1} more lines: Ctrl-O shows all"]
        return [*(self.style.ask(row) for row in keys.rows(head, width)), *rows]

    def _prefix(self, number: int, wrap: int) -> str:
        if number or wrap:
            return "  "
        match self._asked:
            case None:
                return self.style.mine("› ")
            case Question() as asked:
                return self.style.ask(question.line(asked))
            case asked:
                return self.style.ask(question.choices(asked))

    def _menu(self) -> list[str]:
        state = self.buffer.complete_state
        if state is None or not state.completions:
            return []
        at = state.complete_index or 0
        first = max(0, min(at - MENU_ROWS + 1, len(state.completions) - MENU_ROWS))
        shown = state.completions[first : first + MENU_ROWS]
        wide = min(max(len(one.display_text) for one in shown), self.size.columns // 2)
        lines: list[str] = []
        for number, one in enumerate(shown, first):
            mark = "▸" if number == state.complete_index else " "
            about = self.style.dim(one.display_meta_text)
            line = f"{mark} {one.display_text}"
            if about:
                line = f"{line.ljust(wide + 2)}  {about}"
            line = cut(line, self.size.columns)
            lines.append(self.style.bold(line) if number == state.complete_index else line)
        return lines

    def _status(self) -> str:
        return self.style.dim(cut(self._hint or self.status(), self.size.columns))


_MEANS = {
    Mode.INTERRUPT: "interrupt it and take its place",
    Mode.QUEUE: "wait for their turn",
    Mode.STEER: "are passed on to it",
}


def _first(text: str) -> str:
    line, *more = text.strip().splitlines() or [""]
    return question.visible(line) + " …" * bool(more)
