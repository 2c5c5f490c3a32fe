"""The execution: exactly what is about to run, as it is judged, shown and recorded.

A command line is either `Parsed` into literal words (with redirections and variables that are
literal too), or `Opaque`, a script that only a shell can read. Of a parsed one the words are run, never the original text, so what was judged and what
happens cannot differ. Everything people see of either is escaped, so that nothing is hidden and
two executions that look the same are the same. The hash covers everything that decides what will
happen. An approval is valid only for that hash, and only as long as its trees are unchanged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from hashlib import sha256

import msgspec

from holdfast.core.approval.tree import Tree
from holdfast.core.text.escape import escape
from holdfast.core.types import Value


class Operator(StrEnum):
    AND = "&&"
    OR = "||"
    THEN = ";"
    PIPE = "|"


class RedirectKind(StrEnum):
    READ = "<"
    WRITE = ">"
    APPEND = ">>"
    BOTH = "&>"
    BOTH_APPEND = "&>>"
    SAME = ">&"  # the target is the number of a descriptor


class Redirect(Value):
    """One redirection of a command, with a literal target."""

    kind: RedirectKind
    target: str
    fd: int

    @property
    def writes(self) -> bool:
        """Tell if it opens a file to write to it. `/dev/null` is none."""
        return self.kind not in (RedirectKind.READ, RedirectKind.SAME) and self.target != DEV_NULL

    @property
    def reads(self) -> bool:
        return self.kind is RedirectKind.READ and self.target != DEV_NULL


Redirects = tuple[Redirect, ...]
Assignments = tuple[tuple[str, str], ...]  # variables that are set for one command


class Parsed(Value, omit_defaults=True):
    """Literal commands, and the operators between them.

    `redirects` and `variables` have one entry for each command, or none if no command has any.
    """

    commands: tuple[tuple[str, ...], ...]
    # With a factory it is always encoded, as in older journals: names of rules depend on that.
    operators: tuple[Operator, ...] = msgspec.field(default_factory=lambda: ())
    redirects: tuple[Redirects, ...] = ()
    variables: tuple[Assignments, ...] = ()

    @property
    def redirections(self) -> Redirects:
        """All redirections, of all commands."""
        return tuple(redirect for of_one in self.redirects for redirect in of_one)

    @property
    def writes(self) -> bool:
        """Tell if a redirection writes to a file."""
        return any(redirect.writes for redirect in self.redirections)

    def variables_of(self, at: int) -> Assignments:
        """Return the variables that are set for one command."""
        return self.variables[at] if self.variables else ()

    def redirects_of(self, at: int) -> Redirects:
        """Return the redirections of one command."""
        return self.redirects[at] if self.redirects else ()


class Opaque(Value):
    """A script, and why it cannot be parsed into literal words."""

    text: str
    reason: str


class Wants(Value):
    """The needs of an execution beyond the default sandbox."""

    hosts: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    unsandboxed: bool = False
    detach: bool = False
    background: bool = False
    terminal: bool = False
    open_input: bool = False  # input may be written to it later, without another question


class Seen(StrEnum):
    """The kind of file at a word that reads like a path in the workspace."""

    FILE = "file"
    DIRECTORY = "directory"
    MISSING = "missing"
    ASTRAY = "astray"  # a link leads outside, or it is a device, a pipe or not accessible


class ExecutionRequest(Value):
    """One execution. What is not in here must not change its effect."""

    what: Parsed | Opaque
    cwd: str
    programs: Mapping[str, str]  # an executable's name → its path
    files: Mapping[str, str]  # programs, and words that name workspace files → sha256
    environment: Mapping[str, str]  # variables set in addition to the sandbox's own
    stdin: str  # its input; empty: none
    profile: tuple[str, ...]  # the sandbox, without ports, paths and the like of one spawn
    wants: Wants
    purpose: str  # stated by the model, not verified
    beside: int = 0  # running processes that can write where it reads; not in the hash
    trees: tuple[Tree, ...] = ()  # everything it may read; not in the hash: see `tree.holds`
    paths: Mapping[str, Seen] = {}  # words that could be paths in the workspace → what is there
    targets: Mapping[str, str] = {}  # files that redirections write → why to ask; empty: no reason
    bash: str = ""  # the path of the bash that would run it
    linux: bool = False  # `grep` is GNU grep on Linux, which follows no link


DEV_NULL = "/dev/null"
OUTSIDE = "it is not in the workspace"
NOT_ORDINARY = "a link leads there, it has several names, or it is no ordinary file"
NAMES, NAME = 20, 100  # the number of file names shown to people, and characters of each

# Builtins of bash, which are not looked up on PATH.
BUILTINS = frozenset(
    ". : [ alias bg bind break builtin caller cd command compgen complete compopt continue "
    "declare dirs disown echo enable eval exec exit export false fc fg getopts hash help history "
    "jobs kill let local logout mapfile popd printf pushd pwd read readarray readonly return set "
    "shift shopt source suspend test times trap true type typeset ulimit umask unalias unset "
    "wait".split()
)
# As the first word these are syntax and not a command, unless they are quoted.
RESERVED = frozenset(
    "if then else elif fi case esac for select while until do done in function time { } ! [[ ]] "
    "coproc".split()
)
_BARE = re.compile(r"[A-Za-z0-9_./,:@%+-]+")  # no "=": a first word with it is an assignment


def serialise(parsed: Parsed, programs: Mapping[str, str]) -> str:
    """Return the commands as text for `bash --noprofile --norc -c`, each program with its path."""
    lines = [
        _line(argv, programs, parsed.variables_of(at), parsed.redirects_of(at))
        for at, argv in enumerate(parsed.commands)
    ]
    return lines[0] + "".join(
        f" {operator} {line}" for operator, line in zip(parsed.operators, lines[1:], strict=True)
    )


def _line(
    argv: tuple[str, ...],
    programs: Mapping[str, str],
    variables: Assignments,
    redirects: Redirects,
) -> str:
    name = argv[0] if argv[0] in BUILTINS else programs.get(argv[0], argv[0])
    # Quotes turn syntax, and what bash would take for an option, into an ordinary word.
    first = _quoted(name) if name in RESERVED or name[:1] in ("-", "+") else quote(name)
    before = [f"{name}={quote(value) if value else ''}" for name, value in variables]
    return " ".join([*before, first, *map(quote, argv[1:]), *map(_redirect, redirects)])


def _redirect(redirect: Redirect) -> str:
    match redirect.kind:
        case RedirectKind.SAME:
            return f"{redirect.fd}>&{int(redirect.target)}"
        case RedirectKind.WRITE | RedirectKind.APPEND if redirect.fd != 1:
            return f"{redirect.fd}{redirect.kind} {quote(redirect.target)}"
        case _:
            return f"{redirect.kind} {quote(redirect.target)}"


def quote(word: str) -> str:
    """Quote `word` for bash, if needed. (`shlex.quote` does not quote `LD_PRELOAD=x`.)"""
    return word if _BARE.fullmatch(word) else _quoted(word)


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\"'\"'") + "'"


def shown_name(name: str) -> str:
    """Show a file name as one quoted word of limited length."""
    cut = name if len(name) <= NAME else f"{name[: NAME // 2]}…{name[-NAME // 2 :]}"
    return quote(escape(cut))


def render(what: Parsed | Opaque) -> str:
    """Show all that will run: the literal words, or the script with a bar before each line."""
    if isinstance(what, Parsed):
        return escape(serialise(what, {}))
    lines = [escape(line) for line in what.text.split("\n")]
    return lines[0] if len(lines) == 1 else "\n".join(f"| {line}" for line in lines)


def render_all(request: ExecutionRequest) -> str:
    """Show all that will run, with all of its input."""
    shown = render(request.what)
    if not request.stdin:
        return shown
    lines = "\n".join(f"| {escape(line)}" for line in request.stdin.split("\n"))
    return f"{shown}\nwith this input:\n{lines}"


def describe_checks(request: ExecutionRequest) -> Iterator[str]:
    """Describe which files must be unchanged when it starts, and which are not checked."""
    named = _names(sorted(request.files))
    whole = [
        f"all {tree.files:,} in {escape(tree.path)}{_names(tree.but)}"
        for tree in request.trees
        if not tree.gap
    ]
    if whole:
        yield f"Files checked again before it starts: {', '.join(whole)}; no others{named}"
    for tree in request.trees:
        if tree.gap:
            yield f"Files are not checked in {escape(tree.path)}: {tree.gap}{named}"
    if request.beside:
        # Writes through mapped memory do not change a file's times at once.
        unseen = " and unseen" if any(not tree.content for tree in request.trees) else ""
        yield f"Processes at work there, which can change files later{unseen}: {request.beside}"


def _names(names: Sequence[str]) -> str:
    shown = [shown_name(name) for name in names[:NAMES]]
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f" but {', '.join(shown)}{more}" if names else ""


def execution_hash(request: ExecutionRequest) -> str:
    """Return the sha256 that an approval is bound to. The model's purpose is not a part of it."""
    if isinstance(request.what, Parsed):
        argvs = [_texts(argv) for argv in request.what.commands]
        what: dict[str, object] = {"argv": argvs, "operators": request.what.operators}
        if request.what.redirects or request.what.variables:  # older hashes are without these
            what["line"] = escape(serialise(request.what, {}))
            what["targets"] = _pairs(request.targets)
        # A link or a directory created later changes the hash; a file does so by its content.
        for seen in (Seen.ASTRAY, Seen.DIRECTORY):
            if words := [word for word, found in request.paths.items() if found is seen]:
                what[seen] = sorted(_texts(tuple(words)))
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
    return [escape(text) for text in texts]  # paths may have lone surrogates, which JSON refuses


def _pairs(pairs: Mapping[str, str]) -> dict[str, str]:
    return {escape(name): escape(value) for name, value in pairs.items()}
