"""The live output of commands, made harmless: it is text, whatever it wants to be.

Escape sequences are taken out whole, with the other controls and what turns the direction
of text; line ends and tabs stay. A sequence may come in two pieces: its beginning is kept
back until the rest is there.
"""

import re

# CSI; OSC and its kin with their text, up to their end; any other short one.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-OQ-WYZ`-~\\]"
)
_BEGUN = re.compile(
    r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)|\x9b[0-?]*|\r)\Z"
)
_KEPT_BACK = 1024  # more than that is no sequence
_DROPPED = dict.fromkeys(
    [
        *(c for c in range(32) if chr(c) not in "\n\t"),
        *range(0x7F, 0xA0),
        0x061C,
        *range(0x200E, 0x2010),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
        *range(0xD800, 0xE000),
    ]
)


class Output:
    """What calls say while they work, each a stream of its own."""

    def __init__(self) -> None:
        self._begun: dict[str, str] = {}

    def text(self, call_id: str, delta: str) -> str:
        """What of `delta`, and of what came before, can be shown now."""
        whole = _ESCAPE.sub("", self._begun.pop(call_id, "") + delta)
        begun = _BEGUN.search(whole)
        if begun is not None and len(begun[0]) <= _KEPT_BACK:
            self._begun[call_id] = begun[0]
            whole = whole[: begun.start()]
        # A bar that is drawn over itself becomes a line each time.
        return whole.replace("\r\n", "\n").replace("\r", "\n").translate(_DROPPED)

    def end(self, call_id: str) -> None:
        """The call is over; half a sequence is none."""
        self._begun.pop(call_id, None)
