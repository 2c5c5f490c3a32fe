"""Tell a key that answers an approval from text that happens to be typed there.

One key answers, without Enter, and a person who writes a sentence must not allow a command with
its first letter. So a key answers only if it is alone: the question has been on the screen for
`SEEN_S`, no other key came shortly before, and none follows for `ALONE_S`. All else is text.
"""

from collections.abc import Callable, Mapping

SEEN_S = 0.3  # a question that appeared just now has not been read
ALONE_S = 0.2  # between two keys of a person who types
FLOW_S = 0.8  # between two keys of a sentence that was begun before the question came


class AnswerKeys:
    """The keys pressed since a question appeared."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._asked_at = 0.0
        self._key_at = float("-inf")
        self._gap = float("inf")  # between the latest two keys
        self._flows = False
        self._pressed: tuple[str, str] | None = None  # a key that may answer, and its choice

    def open(self, *, draft: str) -> None:
        """Begin with a new question; `draft` is the text that was being typed."""
        now = self._now()
        self._asked_at, self._pressed = now, None
        self._flows = bool(draft) and now - self._key_at < FLOW_S

    def note(self) -> None:
        """Note that a key was pressed, whatever it is."""
        now = self._now()
        self._gap, self._key_at = now - self._key_at, now

    @property
    def is_seen(self) -> bool:
        """Tell whether the question has been on the screen long enough to be read."""
        return self._now() - self._asked_at >= SEEN_S

    @property
    def flows(self) -> bool:
        """Tell whether the latest key continues a sentence that was begun before the question."""
        self._flows = self._flows and self._gap < FLOW_S
        return self._flows

    def press(self, key: str, choices: Mapping[str, str], *, more: bool) -> str:
        """Take a key on an empty line; return what is text of it. `more`: others came with it."""
        if self._pressed is not None:
            return self.drop() + key
        alone = self._gap >= ALONE_S and not more
        if not (alone and self.is_seen and key in choices):
            return key
        self._pressed = key, choices[key]
        return ""

    def drop(self) -> str:
        """Forget the key that may answer; return it."""
        pressed, self._pressed = self._pressed, None
        return pressed[0] if pressed else ""

    @property
    def waiting(self) -> str:
        """The choice that is made if no key follows; empty: none."""
        return self._pressed[1] if self._pressed else ""

    def ripe(self) -> str:
        """Return the choice whose key has stayed alone; empty: none."""
        if self._pressed is None or self._now() - self._key_at < ALONE_S:
            return ""
        choice, self._pressed = self._pressed[1], None
        return choice
