"""The layout of the lower edge of the terminal: its panels, top to bottom. ui.py fills them."""

from collections.abc import Callable, Sequence

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.layout import (
    BufferControl,
    ConditionalContainer,
    Dimension,
    FormattedTextControl,
    HSplit,
    Window,
)
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.widgets import SearchToolbar

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.cli.client.frames import AskedQuestion
from holdfast.cli.run import approval
from holdfast.cli.tui.actions import SendMessage
from holdfast.cli.tui.style import Style, cut, cut_before, folded, hanging, middle, top
from holdfast.cli.tui.unfold.chooser import Chooser
from holdfast.cli.tui.view import View
from holdfast.core.text.escape import reveal, steerless

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
INPUT_ROWS = 12
MENU_ROWS = 8


class Panels:
    """The panels below the scrollback: live output, waiting messages, question, input, status."""

    app: Application[None]
    buffer: Buffer
    style: Style
    view: View
    asked: ApprovalObject | AskedQuestion | None  # what waits for an answer here
    sending: list[SendMessage]  # messages that are not accepted yet
    status: Callable[[], str]
    tick: int
    hinted: str
    chooser: Chooser | None
    because: bool  # the reason for a denial is typed
    _unprinted: list[str]  # final lines, for the next frame

    @property
    def size(self) -> Size:
        return self.app.output.get_size()

    def print(self, lines: Sequence[str]) -> None:
        """Print final lines above."""
        if lines:
            self._unprinted += map(steerless, lines)
            self.app.invalidate()

    def hint(self, text: str) -> None:
        """Show a hint in the status line until the next key."""
        self.hinted = text
        self.app.invalidate()

    def _build(self) -> HSplit:
        def rows(lines: Callable[[], list[str]]) -> ConditionalContainer:
            drawn: tuple[int, list[str]] = (-1, [])  # once a frame, however often it is asked for

            def now() -> list[str]:
                nonlocal drawn
                if drawn[0] != self.app.render_counter:
                    drawn = self.app.render_counter, [steerless(line) for line in lines()]
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
                rows(self._chooser),
                rows(lambda: [self.style.dim("─" * self.size.columns)]),
                words,
                search,
                rows(self._menu),
                rows(lambda: [self._status_line()]),
            ]
        )

    def _live(self) -> list[str]:
        room = max(self.size.rows - 8, 3)
        spinner = SPINNER[self.tick % len(SPINNER)]
        return self.view.live(spinner, asks=self.asked is not None)[-room:]

    def _waiting(self) -> list[str]:
        width = self.size.columns
        shown = [w for waiting in self.view.waiting.values() for w in waiting.words]
        lines = [cut(f"⋯ waits: {_first(w)}", width) for w in shown]
        if lines:
            lines[-1] = cut_before(lines[-1], "  (↑ edits it)", width)
        lines += [cut(f"⋯ on its way: {_first(said.text)}", width) for said in self.sending]
        return [self.style.dim(line) for line in lines]

    def _question(self) -> list[str]:
        match self.asked:
            case None:
                return []
            case AskedQuestion() as asked:
                head, keys = "? it asks you:", ""
                rows = middle(self._rows_of(approval.asks(asked).split("\n")), self._room())
            case asked:
                head, keys = approval.head(asked), approval.choice_keys(asked.choices)
                command, why = self._request(asked)
                rows = [*command, *why]
        ours = [*hanging(head, self.size.columns)], [*hanging(keys, self.size.columns)]
        first, last = ([self.style.ask(row) for row in part if row] for part in ours)
        return [*first, *rows, *last]

    def _request(self, asked: ApprovalObject) -> tuple[list[str], list[str]]:
        """Draw the command, its beginning and its end if there is no room for all, and the reason."""
        command, room = self._rows_of(approval.would_run(asked)), self._room()
        why = [row for line in approval.why(asked) for row in hanging(line, self.size.columns)]
        why = top(why, max(room - len(command), min(room // 3, 3)))
        return middle(command, room - len(why)), why

    def shows_whole(self, asked: ApprovalObject) -> bool:
        """Tell whether the whole command is on the screen."""
        return self._request(asked)[0] == self._rows_of(approval.would_run(asked))

    def _chooser(self) -> list[str]:
        return self.chooser.lines(self.style, self.size.columns) if self.chooser else []

    def _rows_of(self, lines: Sequence[str]) -> list[str]:
        return [row for line in lines for row in folded(line, self.size.columns)]

    def _room(self) -> int:
        """The rows that a question may have."""
        return max(self.size.rows // 2, min(self.size.rows - 4, 8), 2)

    def _prefix(self, number: int, wrap: int) -> str:
        if number or wrap:
            return "  "
        match self.asked:
            case None:
                return self.style.mine("› ")
            case AskedQuestion() as asked:
                return self.style.ask(approval.line(asked))
            case _:
                return self.style.ask(f"No, {approval.BECAUSE}: " if self.because else "? ")

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

    def _status_line(self) -> str:
        return self.style.dim(cut(self.hinted or self.status(), self.size.columns))


def _first(text: str) -> str:
    line, *more = text.strip().splitlines() or [""]
    return reveal(line) + " …" * bool(more)
