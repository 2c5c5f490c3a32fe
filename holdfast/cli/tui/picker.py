"""`holdfast --resume`: the named session, or one that is chosen from a list, newest first.

Typed words are looked up in titles, first messages and directories. Nothing is chosen until Enter
is pressed; Esc and Ctrl-C leave without a choice.
"""

from collections.abc import Sequence

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.key_binding.key_processor import KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output import Output

from holdfast.api.schema.sessions import SessionObject
from holdfast.cli.client import latest
from holdfast.cli.client.client import connect
from holdfast.cli.exits import Code, Exit
from holdfast.cli.tui.style import Style, cut, wall_clock
from holdfast.commands.phrases import ago
from holdfast.config import process as configuration
from holdfast.config.settings import Config
from holdfast.core.text.escape import reveal

SHOWN = 500
QUESTION = "Continue which session?"


class Picker:
    """The list, the typed search text, and the position of the mark."""

    def __init__(self, sessions: Sequence[SessionObject], style: Style, now: float) -> None:
        self._sessions = sessions
        self._style = style
        self._now = now
        self._typed = ""
        self._at = 0

    def found(self) -> list[SessionObject]:
        """Return the sessions that contain every typed word."""
        wanted = self._typed.lower().split()

        def text(one: SessionObject) -> str:
            words = one.title, one.preview, one.workspace, one.session_id, one.owner
            return " ".join(words).lower()

        return [one for one in self._sessions if all(word in text(one) for word in wanted)]

    def type(self, text: str) -> None:
        """Add to the search text."""
        self._typed, self._at = self._typed + text, 0

    def rub_out(self) -> None:
        """Remove the last character of the search text."""
        self._typed, self._at = self._typed[:-1], 0

    def move(self, by: int) -> None:
        """Move the mark."""
        self._at = max(0, min(self._at + by, len(self.found()) - 1))

    def chosen(self) -> SessionObject | None:
        """Return the marked session."""
        found = self.found()
        return found[self._at] if found else None

    def lines(self, columns: int, rows: int) -> list[str]:
        """Draw the list."""
        found, style = self.found(), self._style
        head = f"{QUESTION}  {self._typed}▏"
        room = max(rows - 3, 1)
        first = max(0, min(self._at - room + 1, len(found) - room))
        lines = [cut(style.bold(head), columns)]
        for number, one in enumerate(found[first : first + room], first):
            mark = "▸" if number == self._at else " "
            when = ago(one.updated_at, self._now)
            busy = " · at work" if one.unfinished else ""
            where = one.owner.replace(":", " · ") or one.workspace
            told = style.dim(f"  {when}{busy} · {reveal(where)}")
            name = f"{mark} {reveal(one.name)}"
            named = style.bold(name) if number == self._at else name
            lines.append(cut(f"{named}{told}", columns))
        if not found:
            lines.append("  No session matches; holdfast sessions search looks into the messages.")
        return [
            *lines,
            cut(style.dim("↑ ↓ choose · Enter continues · type to search · Esc leaves"), columns),
        ]


async def pick(
    picker: Picker, typed: Input | None = None, output: Output | None = None
) -> SessionObject | None:
    """Show the list and return the chosen session; None: none was chosen."""
    keys = KeyBindings()

    def text() -> ANSI:
        size = app.output.get_size()
        return ANSI("\n".join(picker.lines(size.columns, min(size.rows, 20))))

    app: Application[SessionObject | None] = Application(
        layout=Layout(Window(FormattedTextControl(text), dont_extend_height=True)),
        key_bindings=keys,
        erase_when_done=True,
        include_default_pygments_style=False,
        input=typed,
        output=output,
    )
    app.ttimeoutlen = app.timeoutlen = 0.05

    @keys.add(Keys.Any)
    def _(event: KeyPressEvent) -> None:
        if event.data.isprintable():
            picker.type(event.data)

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        if (chosen := picker.chosen()) is not None:
            app.exit(result=chosen)

    keys.add("backspace")(lambda event: picker.rub_out())
    keys.add("up")(lambda event: picker.move(-1))
    keys.add("down")(lambda event: picker.move(1))
    for leave in ("escape", "c-c", "c-d"):
        keys.add(leave)(lambda event: app.exit(result=None))
    return await app.run_async(handle_sigint=False, set_exception_handler=False)


async def choose(config: Config, given: str) -> SessionObject | None:
    """Return the session to continue; None: none was chosen."""
    async with connect(config, lambda text: None, linger_s=0.0) as client:
        if given:
            return await latest.named(client, given)
        sessions = await client.list_sessions(SHOWN)
    if not sessions:
        raise Exit(Code.USAGE, "there is no session yet; start one: holdfast")
    style = Style(colour=not configuration.wants_no_colour())
    return await pick(Picker(sessions, style, wall_clock()))
