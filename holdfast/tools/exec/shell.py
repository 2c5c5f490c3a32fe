"""A command line as literal words, or the reason why it cannot be had as such.

tree-sitter reads it; only node types on a list count, and every character must belong to
a node or be a space between two. No expansion, substitution, redirect, assignment,
heredoc, glob, tilde, brace, background, function, comment or backslash outside of quotes
is on it. Reading differs from bash all the same somewhere, so the words that were read
run (`serialise`), never the text; a fuzz against bash watches that both mean the same.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.core.execution import RESERVED, Opaque, Operator, Parsed, hidden, serialise

if TYPE_CHECKING:
    from tree_sitter import Language, Node

__all__ = ["parse", "serialise"]

MOST_BYTES = 4_096
MOST_COMMANDS = 10

_NESTS = {"program", "list", "pipeline"}
_OPERATORS = {str(operator) for operator in Operator}
# \w takes letters of every script and no symbol; a tilde behind a letter is one, as in HEAD~1.
_WORD = re.compile(r"(?:[\w./,:@%+=^-]|(?<=\w)~)+")
_STRING = re.compile(r'"((?:[^$`"\\]|\\.)*)"')
_ESCAPED = re.compile(r'\\([$`"\\])')


class _NotLiteral(Exception):
    """The reason travels up from the node it was found at."""


def parse(text: str) -> Parsed | Opaque:
    """The literal commands of `text`, if that is all it is."""
    try:
        _check_letters(text)
        return _commands(text.encode())
    except _NotLiteral as reason:
        return Opaque(text, str(reason))


def _check_letters(text: str) -> None:
    if "\n" in text or "\r" in text:
        raise _NotLiteral("it has more than one line")
    if any(map(hidden, text)):
        raise _NotLiteral("it has characters that cannot be seen")
    if not unicodedata.is_normalized("NFC", text):
        raise _NotLiteral("it has letters that can be written in two ways")
    if len(text.encode()) > MOST_BYTES:
        raise _NotLiteral(f"it is longer than {MOST_BYTES} bytes")


def _commands(source: bytes) -> Parsed:
    # Imported on the first command: its resource loader takes 20 ms of every start.
    from tree_sitter import Parser  # noqa: PLC0415

    root = Parser(_language()).parse(source).root_node
    if root.has_error:
        raise _NotLiteral("it is not plain shell grammar")
    leaves = list(_leaves(root))
    for before, after in pairwise(leaves):
        _check_gap(source[before.end_byte : after.start_byte])
    if leaves:
        _check_gap(source[: leaves[0].start_byte] + source[leaves[-1].end_byte :])
    if len(leaves) > 1 and leaves[-1].type == ";":
        del leaves[-1]
    commands, operators = leaves[::2], leaves[1::2]
    if len(commands) != len(operators) + 1:
        raise _NotLiteral("it is not a sequence of commands")
    if len(commands) > MOST_COMMANDS:
        raise _NotLiteral(f"it has more than {MOST_COMMANDS} commands")
    return Parsed(
        tuple(_argv(node, source) for node in commands),
        tuple(_operator(node) for node in operators),
    )


@cache
def _language() -> "Language":
    import tree_sitter_bash  # noqa: PLC0415
    from tree_sitter import Language  # noqa: PLC0415

    return Language(tree_sitter_bash.language())


def _leaves(root: "Node") -> Iterator["Node"]:
    """Commands and what stands between them, in order; by a stack, as a list may nest deep."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in _NESTS:
            stack.extend(reversed(node.children))
        else:
            yield node


def _check_gap(gap: bytes) -> None:
    if gap.strip(b" "):
        raise _NotLiteral("part of it cannot be placed")


def _operator(node: "Node") -> Operator:
    if node.type not in _OPERATORS:
        raise _unlisted(node)
    return Operator(node.type)


def _argv(node: "Node", source: bytes) -> tuple[str, ...]:
    if node.type != "command":
        raise _unlisted(node)
    for before, after in pairwise(node.children):
        gap = source[before.end_byte : after.start_byte]
        _check_gap(gap)
        if not gap:
            raise _NotLiteral("two words touch")
    name, *words = node.children
    if name.type != "command_name" or len(name.children) != 1:
        raise _unlisted(name)
    first = _literal(name.children[0], source)
    if _text(name, source) in RESERVED or "=" in first:
        raise _NotLiteral("a command begins with a word of the grammar")
    if first.startswith("%"):  # a job to bash, in quotes too
        raise _NotLiteral("a command begins with a job")
    return (first, *(_literal(word, source) for word in words))


def _literal(node: "Node", source: bytes) -> str:
    text = _text(node, source)
    match node.type:
        case "word" | "number" if _WORD.fullmatch(text):
            return text
        case "raw_string":
            return text[1:-1]
        case "string" if (inner := _STRING.fullmatch(text)) and _is_plain(node):
            return _ESCAPED.sub(r"\1", inner[1])
        case "concatenation":
            if any(a.end_byte != b.start_byte for a, b in pairwise(node.children)):
                raise _NotLiteral("part of it cannot be placed")
            return "".join(_literal(child, source) for child in node.children)
        case _:
            raise _unlisted(node)


def _is_plain(string: "Node") -> bool:
    return all(child.type in ('"', "string_content") for child in string.children)


def _text(node: "Node", source: bytes) -> str:
    return source[node.start_byte : node.end_byte].decode()


def _unlisted(node: "Node") -> _NotLiteral:
    return _NotLiteral(f"it has more than literal words ({node.type.replace('_', ' ')})")
