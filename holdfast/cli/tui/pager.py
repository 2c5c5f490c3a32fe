"""Show long text in the user's pager, or in our own if there is none.

While a program has the terminal, the conversation draws nothing: what is printed meanwhile appears
afterwards. Signals from the keyboard are for that program then.
"""

import shlex
from collections.abc import Sequence

import anyio
from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.application.run_in_terminal import in_terminal
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.layout import FormattedTextControl, Layout, Window

from holdfast.cli.tui.style import Style, cut
from holdfast.cli.tui.ui import Ui
from holdfast.config import process as configuration
from holdfast.core.text.escape import steerless

KEYS = "↑ ↓ scroll · Space, b page · g, G ends · q leaves"


async def page(ui: Ui, lines: Sequence[str]) -> None:
    """Show lines until the user leaves the pager."""
    if ui.away:
        return
    shown = [steerless(line) for line in lines]
    with set_app(ui.app):
        ui.away = True
        try:
            async with in_terminal():
                if not await _program(shown):
                    await _own(ui, shown)
        finally:
            ui.away = False


async def _program(lines: Sequence[str]) -> bool:
    """Run the user's pager; False if there is none."""
    command, environment = configuration.pager("R")
    text = "".join(f"{line}\n" for line in lines).encode(errors="replace")
    try:
        program = shlex.split(command)
        process = await anyio.open_process(program, stdout=None, stderr=None, env=environment)
    except (OSError, ValueError):
        return False
    async with process:
        assert process.stdin is not None
        try:
            await process.stdin.send(text)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # it was left before it had read everything
        await process.stdin.aclose()
        await process.wait()
    return True


class Pager:
    """Our own pager: the lines, and the first that is shown."""

    def __init__(self, lines: Sequence[str], style: Style) -> None:
        self._lines = lines
        self._style = style
        self._first = 0

    def move(self, by: int, rows: int) -> None:
        """Scroll by so many lines."""
        last = max(len(self._lines) - rows + 1, 0)
        self._first = max(0, min(self._first + by, last))

    def rows(self, columns: int, rows: int) -> list[str]:
        """Draw the page."""
        end = self._first + rows - 1
        shown = [cut(line, columns) for line in self._lines[self._first : end]]
        told = f"{min(end, len(self._lines))} of {len(self._lines)} lines · {KEYS}"
        return [*shown, *[""] * (rows - 1 - len(shown)), self._style.dim(cut(told, columns))]


async def _own(ui: Ui, lines: Sequence[str]) -> None:
    pager, keys = Pager(lines, ui.style), KeyBindings()

    def rows() -> int:
        return app.output.get_size().rows

    app: Application[None] = Application(
        layout=Layout(
            Window(
                FormattedTextControl(
                    lambda: ANSI("\n".join(pager.rows(app.output.get_size().columns, rows())))
                )
            )
        ),
        key_bindings=keys,
        full_screen=True,
        include_default_pygments_style=False,
        input=ui.app.input,
        output=ui.app.output,
    )
    app.ttimeoutlen = app.timeoutlen = 0.05
    far = len(lines)
    for by, names in (
        (lambda: 1, ("down", "j", "enter")),
        (lambda: -1, ("up", "k")),
        (lambda: rows() - 2, ("pagedown", "space", "f")),
        (lambda: 2 - rows(), ("pageup", "b")),
        (lambda: far, ("end", "G")),
        (lambda: -far, ("home", "g")),
    ):
        for name in names:
            keys.add(name)(lambda _, by=by: pager.move(by(), rows()))
    for name in ("q", "escape", "c-c", "c-d", "c-o"):
        keys.add(name)(lambda _: app.exit())
    await app.run_async(handle_sigint=False, set_exception_handler=False)
