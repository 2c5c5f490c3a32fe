"""Parse a command line to literal words, or give the reason why it is more than that.

tree-sitter parses the line. Only listed node types are accepted, and every character must belong
to a node or be a space between two. The list has no expansion, substitution, redirection,
assignment, here-document, glob, tilde, brace, background command, function, comment, or backslash
outside of quotes. The parser may still differ from bash somewhere. So the parsed words are what
runs (`serialise`), never the original text. A fuzz test against bash checks that both mean the
same.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.core.approval.execution import RESERVED, Opaque, Operator, Parsed, serialise
from holdfast.core.text.escape import is_hidden

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


_MOST_QUOTED = 40  # characters of a redirection that a reason repeats
_UNPARSED = "a part of it cannot be parsed"
_CONSTRUCTS = {  # node types of tree-sitter-bash
    "redirected_statement": "a redirection",
    "file_redirect": "a redirection",
    "heredoc_redirect": "a here-document",
    "herestring_redirect": "a here-string",
    "simple_expansion": "a variable",
    "expansion": "a variable",
    "arithmetic_expansion": "arithmetic ($((…)))",
    "command_substitution": "a command substitution ($(…))",
    "process_substitution": "a process substitution (<(…))",
    "variable_assignment": "an assignment",
    "variable_assignments": "an assignment",
    "brace_expression": "a brace expansion",
    "extglob_pattern": "a file name pattern",
    "ansi_c_string": "a $'…' string",
    "translated_string": 'a $"…" string',
    "word": "a special character outside of quotes",
    "subshell": "a subshell ((…))",
    "compound_statement": "a group of commands ({…})",
    "negated_command": "a negation (!)",
    "test_command": "a test ([[…]])",
    "if_statement": "an if",
    "case_statement": "a case",
    "while_statement": "a loop",
    "for_statement": "a loop",
    "c_style_for_statement": "a loop",
    "function_definition": "a function",
    "declaration_command": "a declaration",
    "unset_command": "unset",
    "comment": "a comment",
    "&": "a background command (&)",
}


class _NotLiteral(Exception):
    """The reason why a line is not only literal words."""


def parse(text: str) -> Parsed | Opaque:
    """Parse `text` to its literal commands; `Opaque` if it is more than that."""
    try:
        _check_letters(text)
        return _commands(text.encode())
    except _NotLiteral as reason:
        return Opaque(text, str(reason))


def _check_letters(text: str) -> None:
    if len(text) > MOST_BYTES:  # first, because the other checks are slow on long text
        raise _NotLiteral(f"it is longer than {MOST_BYTES} bytes")
    if "\n" in text or "\r" in text:
        raise _NotLiteral("it has more than one line")
    if any(map(is_hidden, text)):
        raise _NotLiteral("it contains invisible characters")
    if not unicodedata.is_normalized("NFC", text):
        raise _NotLiteral("it contains letters that have two Unicode forms")
    if len(text.encode()) > MOST_BYTES:
        raise _NotLiteral(f"it is longer than {MOST_BYTES} bytes")


def _commands(source: bytes) -> Parsed:
    # Imported on the first command, because the import would add 20 ms to every start.
    from tree_sitter import Parser  # noqa: PLC0415

    root = Parser(_language()).parse(source).root_node
    if root.has_error:
        raise _NotLiteral("it cannot be parsed as shell code")
    leaves = list(_leaves(root))
    for before, after in pairwise(leaves):
        _check_gap(source[before.end_byte : after.start_byte])
    if leaves:
        _check_gap(source[: leaves[0].start_byte] + source[leaves[-1].end_byte :])
    if len(leaves) > 1 and leaves[-1].type == ";":
        del leaves[-1]
    commands, operators = leaves[::2], leaves[1::2]
    between = tuple(_operator(node) for node in operators)
    if len(commands) != len(operators) + 1:
        raise _NotLiteral("it is not a plain sequence of commands")
    if len(commands) > MOST_COMMANDS:
        raise _NotLiteral(f"it has more than {MOST_COMMANDS} commands")
    return Parsed(tuple(_argv(node, source) for node in commands), between)


@cache
def _language() -> "Language":
    import tree_sitter_bash  # noqa: PLC0415
    from tree_sitter import Language  # noqa: PLC0415

    return Language(tree_sitter_bash.language())


def _leaves(root: "Node") -> Iterator["Node"]:
    """Yield commands and the operators between them, in order. Not recursive: lists nest deeply."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in _NESTS:
            stack.extend(reversed(node.children))
        else:
            yield node


def _check_gap(gap: bytes) -> None:
    if gap.strip(b" "):
        raise _NotLiteral(_UNPARSED)


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
            raise _NotLiteral("two words are not separated by a space")
    name, *words = node.children
    if name.type != "command_name" or len(name.children) != 1:
        raise _unlisted(name)
    first = _literal(name.children[0], source)
    if _text(name, source) in RESERVED or "=" in first:
        raise _NotLiteral("a command begins with a shell keyword or an assignment")
    if first.startswith("%"):  # bash reads it as a job, even in quotes
        raise _NotLiteral("a command begins with a job (%)")
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
                raise _NotLiteral(_UNPARSED)
            return "".join(_literal(child, source) for child in node.children)
        case _:
            raise _unlisted(node)


def _is_plain(string: "Node") -> bool:
    return all(child.type in ('"', "string_content") for child in string.children)


def _text(node: "Node", source: bytes) -> str:
    return source[node.start_byte : node.end_byte].decode()


def _unlisted(node: "Node") -> _NotLiteral:
    """Name the syntax of a node that is not on the list, as the bash manual does."""
    if node.type in ("string", "concatenation", "redirected_statement"):
        node = next((child for child in node.children if child.type in _CONSTRUCTS), node)
    name = _CONSTRUCTS.get(node.type) or f"shell syntax ({node.type.replace('_', ' ')})"
    text = (node.text or b"").decode()
    if node.type == "file_redirect" and len(text) <= _MOST_QUOTED:
        name += f" ({text})"
    return _NotLiteral(f"it uses {name}")
