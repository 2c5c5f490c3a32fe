"""The execution: exactly what is about to run, as it is judged, shown and remembered.

A command line is either `Parsed`, literal words to the last letter, or `Opaque`, a
script that only a shell can read. Of a parsed one the words run and never the text they
were read from, so what was judged and what happens cannot differ. Whatever people see
of either is escaped so that nothing in it can hide, and two executions that look the
same are the same. The hash covers all that decides what will happen; an answer to a
question about an execution holds for that hash alone.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256

import msgspec

from holdfast.core.types import Value


class Operator(StrEnum):
    AND = "&&"
    OR = "||"
    THEN = ";"
    PIPE = "|"


class Parsed(Value):
    """Literal commands, and what stands between each two of them."""

    commands: tuple[tuple[str, ...], ...]
    operators: tuple[Operator, ...] = ()


class Opaque(Value):
    """A script, and why it cannot be taken as literal words."""

    text: str
    reason: str


class Wants(Value):
    """What an execution asks for beyond the sandbox as it is."""

    hosts: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    unsandboxed: bool = False
    detach: bool = False
    background: bool = False
    terminal: bool = False
    open_input: bool = False  # more may be written to it later, which nobody is asked about


class ExecutionRequest(Value):
    """One execution. What is not in here must not change what it does."""

    what: Parsed | Opaque
    cwd: str
    programs: Mapping[str, str]  # an executable's name → where it was found
    files: Mapping[str, str]  # programs, and words that name workspace files → sha256
    environment: Mapping[str, str]  # what is set beside the sandbox's own
    stdin: str  # what is written to it; empty: nothing
    profile: tuple[str, ...]  # the sandbox, without ports, paths and the like of one spawn
    wants: Wants
    purpose: str  # the model's words, and no more than that


# What bash has itself: these are not looked up on any PATH.
BUILTINS = frozenset(
    ". : [ alias bg bind break builtin caller cd command compgen complete compopt continue "
    "declare dirs disown echo enable eval exec exit export false fc fg getopts hash help history "
    "jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly return set "
    "shift shopt source suspend test times trap true type typeset ulimit umask unalias unset "
    "wait".split()
)
# As the first word these are grammar and no command, unless they are quoted.
RESERVED = frozenset(
    "if then else elif fi case esac for select while until do done in function time { } ! [[ ]] "
    "coproc".split()
)
_BARE = re.compile(r"[A-Za-z0-9_./,:@%+-]+")  # no "=": a first word with it is an assignment


def serialise(parsed: Parsed, programs: Mapping[str, str]) -> str:
    """The literal words as text for `bash --noprofile --norc -c`, each program where it was found."""
    lines = [_line(argv, programs) for argv in parsed.commands]
    return lines[0] + "".join(
        f" {operator} {line}" for operator, line in zip(parsed.operators, lines[1:], strict=True)
    )


def _line(argv: tuple[str, ...], programs: Mapping[str, str]) -> str:
    name = argv[0] if argv[0] in BUILTINS else programs.get(argv[0], argv[0])
    # Grammar, and what bash would take for an option of its own, are none of that in quotes.
    first = _quoted(name) if name in RESERVED or name[:1] in ("-", "+") else quote(name)
    return " ".join([first, *map(quote, argv[1:])])


def quote(word: str) -> str:
    """`word` so that bash reads it as that word. (`shlex.quote` leaves `LD_PRELOAD=x` bare.)"""
    return word if _BARE.fullmatch(word) else _quoted(word)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"


# Printable by name, invisible by nature: fillers, joiners, variation selectors, the blank cell.
_INVISIBLE = frozenset(
    map(chr, [0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0])
) | frozenset(
    chr(code)
    for first, last in [(0x180B, 0x180F), (0xFE00, 0xFE0F), (0xE0100, 0xE01EF)]
    for code in range(first, last + 1)
)


def hidden(character: str) -> bool:
    """Whether a reader cannot see it for what it is: controls, bidi, odd spaces, surrogates."""
    return not character.isprintable() or character in _INVISIBLE


def escape(text: str) -> str:
    """`text` with all that hides made visible as `\\u{202e}`; no two texts look the same."""
    marked = text.replace("\\u{", "\\u{5c}u{")
    return "".join(f"\\u{{{ord(c):x}}}" if hidden(c) else c for c in marked)


def render(what: Parsed | Opaque) -> str:
    """What will run, whole: the literal words, or the script with a bar before each line."""
    if isinstance(what, Parsed):
        return escape(serialise(what, {}))
    lines = [escape(line) for line in what.text.split("\n")]
    return lines[0] if len(lines) == 1 else "\n".join(f"| {line}" for line in lines)


def render_all(request: ExecutionRequest) -> str:
    """The same with the input it is given, whole."""
    shown = render(request.what)
    if not request.stdin:
        return shown
    lines = "\n".join(f"| {escape(line)}" for line in request.stdin.split("\n"))
    return f"{shown}\nwith this input:\n{lines}"


def execution_hash(request: ExecutionRequest) -> str:
    """The sha256 that an approval is bound to. The model's words are no part of it."""
    if isinstance(request.what, Parsed):
        argvs = [_texts(argv) for argv in request.what.commands]
        what: object = {"argv": argvs, "operators": request.what.operators}
    else:
        what = {"script": escape(request.what.text)}
    body = {
        "what": what,
        "cwd": escape(request.cwd),
        "programs": _pairs(request.programs),
        "files": _pairs(request.files),
        "environment": _pairs(request.environment),
        "stdin": escape(request.stdin),
        "profile": _texts(request.profile),
        "hosts": sorted(_texts(request.wants.hosts)),
        "writable": sorted(_texts(request.wants.writable)),
        "unsandboxed": request.wants.unsandboxed,
        "detach": request.wants.detach,
        "background": request.wants.background,
        "terminal": request.wants.terminal,
        "open_input": request.wants.open_input,
    }
    return sha256(msgspec.json.encode(body, order="deterministic")).hexdigest()


def _texts(texts: tuple[str, ...]) -> list[str]:
    return [escape(text) for text in texts]  # JSON takes no lone surrogates; paths may have them


def _pairs(pairs: Mapping[str, str]) -> dict[str, str]:
    return {escape(name): escape(value) for name, value in pairs.items()}
