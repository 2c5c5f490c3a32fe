"""Colour code, one line at a time: comments, strings, numbers, keywords; and diffs.

A line is coloured without the lines before it, because it is printed when it ends and never redrawn.
So a text over several lines is coloured line by line. No library: this is 1 ms to import, and the
colours are the terminal's own.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from holdfast.cli.text.wrap import PLAIN, Span, TextStyle

COMMENT = TextStyle(dim=True)
STRING = TextStyle(colour="32")
NUMBER = TextStyle(colour="36")
KEYWORD = TextStyle(colour="35")
ADDED, REMOVED = TextStyle(colour="32"), TextStyle(colour="31")
HUNK, HEAD = TextStyle(colour="36"), TextStyle(bold=True)

_LONGEST = 2_000  # characters of a line that is coloured: code for people is shorter
_STRINGS = r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\""
_HASH, _SLASH, _DASH = r"(?<!\S)#.*", r"//.*|/\*.*?(?:\*/|$)", r"--.*"
_PYTHON = (
    "and as assert async await break case class continue def del elif else except finally for from "
    "global if import in is lambda match nonlocal not or pass raise return try while with yield "
    "None True False self"
)
_C_LIKE = (
    "abstract any as async await bool boolean break byte case catch char class const continue "
    "default defer delete do double else enum export extends extern false final finally float fn for "
    "from func function go if impl implements import in instanceof int interface let long loop match "
    "mod mut namespace new nil null number override package private protected pub public readonly "
    "return self short static string struct super switch this throw throws trait true try type typeof "
    "undefined unsigned use using var void where while yield"
)
_SHELL = (
    "case cd do done echo elif else esac exit export fi for function if in local return set source "
    "sudo then unset while"
)
_SQL = (
    "add alter and as asc begin by case commit create delete desc distinct drop else end exists from "
    "group having in index insert into is join key left like limit not null on or order primary right "
    "rollback select set table then union unique update values view when where with"
)
_DATA = "true false null yes no on off"
_LANGUAGES = {
    **dict.fromkeys(("python", "py", "python3", "pycon"), (_HASH, _PYTHON)),
    **dict.fromkeys(("sh", "bash", "shell", "zsh", "console", "fish"), (_HASH, _SHELL)),
    **dict.fromkeys(("toml", "yaml", "yml", "ini", "dockerfile", "makefile"), (_HASH, _DATA)),
    **dict.fromkeys(("json", "jsonc", "json5"), (_SLASH, _DATA)),
    **dict.fromkeys(
        ("js", "javascript", "jsx", "ts", "typescript", "tsx", "c", "cpp", "c++", "h", "java", "go",
         "rust", "rs", "kotlin", "swift", "csharp", "cs", "php", "scala", "dart", "zig"),
        (_SLASH, _C_LIKE),
    ),
    **dict.fromkeys(("sql", "postgresql", "sqlite"), (_DASH, _SQL)),
    **dict.fromkeys(("ruby", "rb", "perl", "r", "elixir"), (_HASH, f"{_PYTHON} do end unless then")),
}  # fmt: skip
_STYLES = {"comment": COMMENT, "string": STRING, "number": NUMBER, "keyword": KEYWORD}


def coloured(info: str, line: str) -> list[Span]:
    """Return a line of code in the language that the fence names, in spans of one style each."""
    language = info.split()[0].lower().lstrip(".{") if info.strip() else ""
    if language in ("diff", "patch"):
        return [Span(line, _diff_style(line))]
    if language not in _LANGUAGES or len(line) > _LONGEST:
        return [Span(line)]
    return list(_spans(_pattern(language), line))


def _spans(pattern: re.Pattern[str], line: str) -> Iterator[Span]:
    at = 0
    for found in pattern.finditer(line):
        if found.start() > at:
            yield Span(line[at : found.start()])
        yield Span(found[0], _STYLES.get(found.lastgroup or "", PLAIN))
        at = found.end()
    yield Span(line[at:])


@lru_cache
def _pattern(language: str) -> re.Pattern[str]:
    comment, keywords = _LANGUAGES[language]
    flags = re.IGNORECASE if keywords is _SQL else 0
    return re.compile(
        f"(?P<string>{_STRINGS})|(?P<comment>{comment})"
        rf"|(?P<number>\b\d[\w.]*\b)|(?P<keyword>\b(?:{'|'.join(keywords.split())})\b)",
        flags,
    )


def _diff_style(line: str) -> TextStyle:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return HEAD
    if line.startswith("@@"):
        return HUNK
    return {"+": ADDED, "-": REMOVED}.get(line[:1], PLAIN)
