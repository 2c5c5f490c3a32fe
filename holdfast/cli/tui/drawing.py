"""Draw the application: final lines go above the part that still changes, in one write.

So nothing flickers, and the terminal does not take a paste for typing meanwhile. A terminal that
becomes narrower folds the rows that were drawn, so there are more of them to draw over. Rows that
were sent just before may or may not be folded: then a row may be left over, but none too many is
erased.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import anyio
from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from holdfast.config import process as configuration

# A terminal that supports it shows nothing between these two.
_HOLD, _SHOW = "\x1b[?2026h", "\x1b[?2026l"
# This row, then all below it: some terminals keep what is erased from their top left corner.
_ERASE = "\x1b[2K\x1b[B\x1b[J\x1b[A"
_ARRIVED_S = 0.05  # after that, drawn rows have reached the terminal


class Drawing:
    """The rows of an application on the screen."""

    def __init__(self, app: Application[None]) -> None:
        self._app = app
        self._folds = configuration.folds_again()
        self._width = 0
        self._drawn_at = 0.0  # all of it
        self._above: tuple[int, ...] = ()  # how wide the rows are, down to the cursor
        app.before_render += lambda _: self._unfold()
        app.after_render += lambda _: self._remember()

    def print_above(self, lines: Sequence[str]) -> None:
        """Print lines where the application begins, and draw it again below them."""
        app, output, renderer = self._app, self._app.output, self._app.renderer
        erase = _ERASE if renderer.last_rendered_screen is not None else "\x1b[J"
        app.render_counter += 1  # the panels are computed again
        with set_app(app), _doing(output, flush=lambda: None):
            output.write_raw(_HOLD)
            with _doing(output, erase_down=lambda: output.write_raw(erase)):
                renderer.erase(leave_alternate_screen=False)
            output.write_raw("".join(f"{line}\r\n" for line in lines))
            renderer.render(app, app.layout)
            output.write_raw(_SHOW)
        output.flush()
        self._drawn_at = anyio.current_time()
        self._remember()

    def _remember(self) -> None:
        screen = self._app.renderer.last_rendered_screen
        if screen is None:
            self._above = ()
            return
        cursor = screen.get_cursor_position(self._app.layout.current_window)
        rows = (screen.data_buffer[y] for y in range(cursor.y))
        wide = (
            max((x + c.width for x, c in row.items() if c.char.strip()), default=0) for row in rows
        )
        self._above = (*wide, cursor.x + 1)

    def _unfold(self) -> None:
        """Move the cursor up by the folded rows: it is where it was drawn, as if none was folded."""
        width, now = self._app.output.get_size().columns, anyio.current_time()
        if width == self._width:
            return
        if self._folds and 0 < width < self._width and now - self._drawn_at > _ARRIVED_S:
            self._app.output.cursor_up(sum(max(wide - 1, 0) // width for wide in self._above))
            self._app.output.erase_down()
        self._width, self._drawn_at = width, now


@contextmanager
def _doing(output: Output, **otherwise: Callable[[], None]) -> Iterator[None]:
    """Replace methods of the output during the block."""
    for name, do in otherwise.items():
        setattr(output, name, do)
    try:
        yield
    finally:
        for name in otherwise:
            delattr(output, name)


def terminal() -> Output:
    """Return the terminal. It is never asked where its cursor is.

    An answer that came after lines were printed above would be wrong by as many rows, and the
    application would scroll those lines out of sight.
    """
    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output
