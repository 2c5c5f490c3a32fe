"""Print what a command found: a row each for people, a JSON object each for programs.

Notes go to stderr. With NO_COLOR no escape sequence is used at all.
"""

import curses
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TypeVar

import msgspec

from holdfast.cli.exits import Code, Exit
from holdfast.config import process as settings
from holdfast.core.text.escape import visible

ERASE = "\r\x1b[K"

T = TypeVar("T")


def print_each(
    found: Sequence[T], row: Callable[[T], str], none: str, encode: Callable[[T], str] | None
) -> None:
    """Print a row each, or `none`; with `encode` a JSON object each, or nothing."""
    for one in found:
        print(encode(one) if encode else row(one))
    if none and not found and not encode:
        print(none)


def as_json(value: object) -> str:
    """Encode a value as the API does."""
    return msgspec.json.encode(value).decode()


def all_fields(struct: msgspec.Struct) -> str:
    """Encode a struct with every field, also those that the API leaves out."""
    return as_json(msgspec.structs.asdict(struct))


def only(found: Sequence[T], key: Callable[[T], str], start: str, things: str, none: str) -> T:
    """Return the one whose key begins so. Raises `Exit` if there is none, or several."""
    match [one for one in found if key(one).startswith(start)]:
        case [one]:
            return one
        case []:
            raise Exit(Code.FAILED, none)
        case several:
            listed = ", ".join(map(key, several))
            raise Exit(Code.USAGE, f"{len(several)} {things} match: {listed}")


def local(at: float) -> datetime:
    """Return a time in the time zone of this machine."""
    return datetime.fromtimestamp(at, UTC).astimezone()


def short(text: str, room: int) -> str:
    """Return the beginning of a text on one line."""
    line = " ".join(text.split())
    return line if len(line) <= room else f"{line[: room - 1]}…"


def note(text: str) -> None:
    """Print a note of our own."""
    tell(visible(text) + "\n")


def tell(text: str) -> None:
    """Print to stderr; that it cannot be written must not cost the answer."""
    with suppress(OSError):
        print(text, end="", file=sys.stderr, flush=True)


def is_clever() -> bool:
    """Tell whether stderr is a terminal that can dim text and erase a line."""
    if sys.stderr is None or not sys.stderr.isatty() or settings.wants_no_colour():
        return False
    try:
        curses.setupterm(fd=sys.stderr.fileno())
        return bool(curses.tigetstr("dim") and curses.tigetstr("el"))
    except curses.error:  # nothing is known of it
        return False
