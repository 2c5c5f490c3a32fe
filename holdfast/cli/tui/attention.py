"""Call the user, who may look at another window: bell, notification, title of the window.

Only a real terminal is written to. What is written may come from a model or a file: characters
that would steer the terminal are dropped, and the text is cut.
"""

from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output

from holdfast.config import process as configuration
from holdfast.core.text.escape import reveal
from holdfast.core.text.width import clip

LONG_S = 10.0  # the end of a run that took longer is worth a call
_TITLE, _TEXT = 60, 120  # characters
_SAVE, _RESTORE = "\x1b[22;2t", "\x1b[23;2t"  # the title, on the terminal's own stack
_BARE = frozenset({"linux", "eterm-color"})  # would print what they do not understand


class Attention:
    """The signals of one terminal."""

    def __init__(self, output: Output, *, calls: bool) -> None:
        self._output = output
        self._calls = calls and isinstance(output, Vt100_Output)
        self._titles = isinstance(output, Vt100_Output) and output.term not in _BARE
        self._title = ""

    def call(self, text: str) -> None:
        """Ring the bell and show a notification."""
        if not self._calls:
            return
        self._output.write_raw("\a")
        if self._titles:
            self._output.write_raw(notification(text, old=configuration.notifies_by_777()))
        self._output.flush()

    def show_title(self, text: str) -> None:
        """Set the title of the window."""
        text = _plain(text, _TITLE)
        if self._titles and text != self._title:
            self._output.write_raw("" if self._title else _SAVE)
            self._title = text
            self._output.set_title(text)

    def restore(self) -> None:
        """Set the title that the window had before."""
        if self._title:
            self._title = ""
            self._output.write_raw(_RESTORE)
            self._output.flush()


def notification(text: str, *, old: bool) -> str:
    """Return what a terminal shows as a notification: OSC 9, or OSC 777 where it is `old`."""
    shown = _plain(text, _TEXT)
    if old:
        return f"\x1b]777;notify;Holdfast;{shown.replace(';', ',')}\x07"
    return f"\x1b]9;Holdfast: {shown}\x07"  # never begins with a digit: 9;4 is a progress bar


def _plain(text: str, length: int) -> str:
    return clip(reveal(" ".join(text.split())), length)
