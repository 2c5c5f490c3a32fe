"""Make text from models, tools, files and people harmless to display. Pure.

A terminal obeys control characters: they move the cursor and more. Direction marks make a line
read differently from what it is; other characters cannot be seen at all. There are four uses:

* `escape` shows every hidden character by its number and is reversible: for approvals and names.
* `reveal` does the same to a line that may contain such escapes already.
* `visible` keeps text readable: controls become pictures (␛), direction marks are dropped.
* `OutputCleaner` drops terminal sequences from the live output of commands.

`steerless` is the last check of a line with our own colours before it reaches the screen;
`for_chat` removes what chat platforms drop or refuse.
"""

import re

_DIRECTION = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_LINES = (0x2028, 0x2029)
_TAGS = range(0xE0000, 0xE0080)  # invisible letters
_SURROGATES = range(0xD800, 0xE000)
STEERING = (0x7F, *range(0x80, 0xA0), *_DIRECTION, *_LINES, *_TAGS)  # besides C0 controls

VISIBLE: dict[int, int | str | None] = {c: 0x2400 + c for c in range(32) if chr(c) not in "\n\t\r"}
VISIBLE |= {ord("\r"): None, 0x7F: 0x2421} | dict.fromkeys(_LINES, " ")
VISIBLE |= dict.fromkeys([*range(0x80, 0xA0), *_SURROGATES], 0xFFFD)
VISIBLE |= dict.fromkeys((*_DIRECTION, *_TAGS, 0xFEFF))

_DROPPED = dict.fromkeys([c for c in range(32) if chr(c) not in "\n\t"])
_DROPPED |= dict.fromkeys((*STEERING, *_SURROGATES))

# Printable by name, invisible by nature: fillers, joiners, variation selectors, the blank cell.
_INVISIBLE = frozenset(
    map(chr, [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0])
) | frozenset(
    chr(code)
    for first, last in [(0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF)]
    for code in range(first, last + 1)
)
_UNCOLOURED = re.compile(
    r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def is_hidden(character: str) -> bool:
    """Tell whether a reader cannot see it as it is: controls, bidi, odd spaces, surrogates."""
    return not character.isprintable() or character in _INVISIBLE


def escape(text: str) -> str:
    """Write hidden characters as `\\u{202e}`; no two texts look the same."""
    return reveal(text.replace("\\u{", "\\u{5c}u{"))


def reveal(line: str) -> str:
    """Write hidden characters as `\\u{202e}`; escapes that are already there stay."""
    return "".join(f"\\u{{{ord(c):x}}}" if is_hidden(c) else c for c in line)


def reveal_lines(text: str) -> list[str]:
    """Return the lines of `text`, each revealed."""
    return [reveal(line) for line in text.split("\n")]


def visible(text: str) -> str:
    """Replace or drop what steers a terminal; line ends and tabs stay."""
    return text.translate(VISIBLE)


def steerless(line: str) -> str:
    """Replace everything that steers a terminal except our own colours."""
    return _UNCOLOURED.sub("�", line)


def for_chat(text: str) -> str:
    """Remove what chat platforms drop or refuse: controls, bidi overrides, half pairs."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub("[\x00-\x08\x0b-\x1f\x7f\u2028-\u202e]", "", text)
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", text)


# CSI; OSC and its relatives with their text up to their end; any other short sequence.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-OQ-WYZ`-~\\]"
)
_BEGUN = re.compile(
    r"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]*\x1b?|[ -/]*)|\x9b[0-?]*|\r)\Z"
)
_KEPT_BACK = 1024  # a longer one is not a sequence


class OutputCleaner:
    """Clean the live output of calls; the beginning of a sequence is held until its end arrives."""

    def __init__(self) -> None:
        self._begun: dict[str, str] = {}

    def text(self, call_id: str, delta: str) -> str:
        """Take a piece of a call's output; return what can be shown now."""
        whole = _SEQUENCE.sub("", self._begun.pop(call_id, "") + delta)
        begun = _BEGUN.search(whole)
        if begun is not None and len(begun[0]) <= _KEPT_BACK:
            self._begun[call_id] = begun[0]
            whole = whole[: begun.start()]
        # A progress bar that overwrites itself becomes one line each time.
        return whole.replace("\r\n", "\n").replace("\r", "\n").translate(_DROPPED)

    def end(self, call_id: str) -> None:
        """Forget the call; half a sequence is dropped."""
        self._begun.pop(call_id, None)
