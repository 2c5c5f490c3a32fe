"""Parse a command line to literal words, or give the reason why it is more than that.

tree-sitter parses the line. Only listed node types are accepted, and every character must belong
to a node or be a space between two. The list has no expansion, substitution, here-document, glob,
tilde, brace, background command, function, comment, or backslash outside of quotes. Variables
before a command are accepted if their values are literal words, redirections behind its words if
their targets are. The parser attaches a redirection to a whole pipeline or list; bash, and we,
attach it to the command before it. The parser may still differ from bash somewhere. So the parsed words are what
runs (`serialise`), never the original text. A fuzz test against bash checks that both mean the
same.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from holdfast.core.approval.execution import (
    RESERVED,
    Assignments,
    Opaque,
    Operator,
    Parsed,
    Redirect,
    RedirectKind,
    serialise,
)
from holdfast.core.text.escape import is_hidden

if TYPE_CHECKING:
    from tree_sitter import Language, Node

__all__ = ["parse", "serialise"]

MOST_BYTES = 4_096
MOST_COMMANDS = 10

_NESTS = {"program", "list", "pipeline", "redirected_statement"}
_REDIRECT = "file_redirect"
_OUTPUTS, _INPUTS = ("1", "2"), ("0",)  # descriptors that a redirection may name
_OPERATORS = {str(operator) for operator in Operator}
# \w takes letters of every script and no symbol; a tilde behind a letter is one, as in HEAD~1.
_WORD = re.compile(r"(?:[\w./,:@%+=^-]|(?<=\w)~)+")
_STRING = re.compile(r'"((?:[^$`"\\]|\\.)*)"')
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPED = re.compile(r'\\([$`"\\])')


_UNPARSED = "a part of it cannot be parsed"
_CONSTRUCTS = {  # node types of tree-sitter-bash
    "file_redirect": "a redirection of a kind that is not read",
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
    return _parsed(leaves, source)


def _parsed(leaves: list["Node"], source: bytes) -> Parsed:
    """Read commands, each with the redirections behind it, and operators, in turn."""
    commands: list[Node] = []
    operators: list[Node] = []
    redirects: list[list[Redirect]] = []
    for leaf in leaves:
        between = len(operators) == len(commands)  # a command must follow
        if leaf.type == _REDIRECT and not between:
            redirects[-1].append(_redirect(leaf, source))
        elif between:
            commands.append(leaf)
            redirects.append([])
        else:
            operators.append(leaf)
    read = tuple(_command(node, source) for node in commands)
    joined = tuple(_operator(node) for node in operators)
    if len(commands) != len(operators) + 1:
        raise _NotLiteral("it is not a plain sequence of commands")
    if len(commands) > MOST_COMMANDS:
        raise _NotLiteral(f"it has more than {MOST_COMMANDS} commands")
    return Parsed(
        tuple(argv for _, argv in read),
        joined,
        tuple(map(tuple, redirects)) if any(redirects) else (),
        tuple(variables for variables, _ in read) if any(v for v, _ in read) else (),
    )


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


def _command(node: "Node", source: bytes) -> tuple[Assignments, tuple[str, ...]]:
    if node.type != "command":
        raise _unlisted(node)
    for before, after in pairwise(node.children):
        gap = source[before.end_byte : after.start_byte]
        _check_gap(gap)
        if not gap:
            raise _NotLiteral("two words are not separated by a space")
    variables = [child for child in node.children if child.type == "variable_assignment"]
    name, *words = node.children[len(variables) :]
    if name.type != "command_name" or len(name.children) != 1:
        raise _unlisted(name)
    first = _literal(name.children[0], source)
    if _text(name, source) in RESERVED or "=" in first:
        raise _NotLiteral("a command begins with a shell keyword or an assignment")
    if first.startswith("%"):  # bash reads it as a job, even in quotes
        raise _NotLiteral("a command begins with a job (%)")
    argv = (first, *(_literal(word, source) for word in words))
    return tuple(_variable(one, source) for one in variables), argv


def _variable(node: "Node", source: bytes) -> tuple[str, str]:
    """Read `NAME=value`. An array, `+=` and a tilde in the value, which bash expands, are more."""
    name, _, value = _text(node, source).partition("=")
    parts = node.children
    if not _NAME.fullmatch(name) or [part.type for part in parts[:2]] != ["variable_name", "="]:
        raise _unlisted(node)
    if "~" in value or len(parts) > 3 or parts[-1].end_byte != node.end_byte:
        raise _unlisted(node)
    return name, _literal(parts[2], source) if len(parts) == 3 else ""


def _redirect(node: "Node", source: bytes) -> Redirect:
    """Read a redirection: `<`, `>`, `>>` or `&>` with a word, or one like `2>&1`."""
    *fd, operator, target = node.children if len(node.children) > 1 else (None, None)
    if operator is None or target is None or operator.type not in set(RedirectKind) or len(fd) > 1:
        raise _unlisted(node)
    kind = RedirectKind(operator.type)
    if fd and (fd[0].type != "file_descriptor" or fd[0].end_byte != operator.start_byte):
        raise _unlisted(node)
    both = kind in (RedirectKind.BOTH, RedirectKind.BOTH_APPEND)
    default = "0" if kind is RedirectKind.READ else "1"
    number = _text(fd[0], source) if fd else default
    if number not in (_INPUTS if kind is RedirectKind.READ else _OUTPUTS) or (both and fd):
        raise _unlisted(node)
    gap = source[operator.end_byte : target.start_byte]
    _check_gap(gap)
    word = _literal(target, source)
    if kind is RedirectKind.SAME and (gap or word not in _OUTPUTS):
        raise _unlisted(node)
    if not word:
        raise _unlisted(node)
    return Redirect(kind, word, int(number))


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
    if node.type in ("string", "concatenation"):
        node = next((child for child in node.children if child.type in _CONSTRUCTS), node)
    name = _CONSTRUCTS.get(node.type) or f"shell syntax ({node.type.replace('_', ' ')})"
    return _NotLiteral(f"it uses {name}")
