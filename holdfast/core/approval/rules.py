"""Permissions: typed rules, and the check of a literal command against a rule.

A rule names an executable, the flags it may have and the kind of every other word. A rule allows
only what it names. If it does not recognize a word, the user is asked; it never guesses. Rules
only save questions: the protection is the sandbox, and no rule applies below L1.

A `Rule` says what every word may be. A `CommandRule` says how a command begins and leaves the rest
open, so it may allow code of the workspace to run (`pytest …`). Only a person gives one, and it
applies only where the sandbox protects what runs by itself outside of it (L2 and above).

A rule must mean the same to the program as to us, for GNU, BSD and busybox. Therefore:

* `--` is never allowed. For most programs it ends the options; for `find` it does not.
* A flag after an operand is a flag for GNU and an operand for others: it must be harmless as both.
* A long flag takes its value only after `=`, and is not abbreviated.
* Short flags may be clustered; digits may not (`tail -5c 7` reads the file `7`).
* A path is judged by its text and by what `CommandPlace.paths` says about it: the planner has
  followed it below the workspace. For a path that was not followed, the user is asked.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from msgspec.structs import replace

from holdfast.core.approval.execution import BUILTINS, Assignments, Parsed, Seen, render
from holdfast.core.text.escape import escape
from holdfast.core.types import Fact, Value


class WordKind(StrEnum):
    PATH = "path"  # a file or directory in the workspace, or nothing yet
    FILE = "file"  # the same, and no directory
    NUMBER = "number"
    COUNT = "count"  # small, without a sign
    SECONDS = "seconds"  # less than 1,000
    WORD = "word"
    TEXT = "text"
    SET = "set"  # characters for `tr`
    PATTERN = "pattern"  # a regular expression that needs little memory in every implementation
    GLOB = "glob"
    FIELDS = "fields"
    KEY = "key"
    SIZE = "size"
    TYPE = "type"
    FORMAT = "+format"
    LAYOUT = "layout"  # a format of `stat`
    LINES = "lines"  # a script of `sed` that prints lines by number
    REVISION = "revision"  # only in rules of older journals


class Rule(Fact, tag="rule"):
    exe: str
    subcommand: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()  # flags without a value
    valued: Mapping[str, WordKind] = {}  # flags with a value
    positional: tuple[WordKind, ...] = ()  # the kinds of the first operands
    rest: WordKind | None = None  # the kind of all further operands; None: there are none
    least: int = 0
    most: int = 32
    plain: bool = False  # this program has no flags
    program: str = ""  # its path; empty: in a system directory
    lines: bool = False  # accepts `-20` as a word
    late: bool = False  # flags may follow operands: all operands are read, none is written
    expression: bool = False  # `find`: paths, then only flags and values
    linux: frozenset[str] = frozenset()  # flags with another meaning on other systems


class LineRule(Fact, tag="line", omit_defaults=True):
    """The permission to run exactly this line in this directory with these programs and files."""

    what: Parsed
    cwd: str
    programs: dict[str, str]
    files: dict[str, str] = {}  # path → sha256: a changed script is not permitted
    background: bool = False
    terminal: bool = False
    workspace: str = ""  # what it may write to; empty in rules of older journals: any


class CommandRule(Fact, tag="command", omit_defaults=True):
    """The permission to run a program, in the sandbox, with words that begin in one of these ways.

    Behind them, nothing may follow; or any plain words (`more`); or, if `flags` are listed, these
    and words that are no flags.
    """

    exe: str
    begins: tuple[tuple[str, ...], ...] = ((),)
    more: bool = False
    flags: frozenset[str] = frozenset()  # `--color=` allows every value
    code: bool = False  # it runs code of the workspace
    program: str = ""  # its path; empty: any on PATH
    workspace: str = ""  # it applies there and below; empty: everywhere


class OutputRule(Fact, tag="output"):
    """The permission to redirect output into files of a workspace that `write_file` may write."""

    workspace: str


class HostRule(Fact, tag="host"):
    """The permission to connect to one host."""

    name: str


Permission = Rule | LineRule | CommandRule | OutputRule | HostRule


class CommandPlace(Value):
    """The directory of a command, and what is at the words that could be paths."""

    workspace: str
    cwd: str
    paths: Mapping[str, Seen] = {}  # a path that is missing here was not followed
    linux: bool = False  # `grep` is GNU grep on Linux


SYSTEM = ("/bin", "/usr/bin", "/usr/local/bin")
OWN = ("/bin", "/usr/bin")  # not /usr/local: a `cat` there may be any program
_BEGINS = re.compile(r"[\w.]")
_LINES = re.compile(r"-[0-9]{1,9}")
_WIDTH = r"[-_0^#+:]?[0-9]{0,2}"  # a wider field could produce gigabytes of blanks
_SHAPES: Mapping[WordKind, re.Pattern[str]] = {
    WordKind.NUMBER: re.compile(r"[+-]?[0-9]{1,12}"),
    WordKind.COUNT: re.compile(r"[0-9]{1,6}"),
    WordKind.SECONDS: re.compile(r"[0-9]{1,3}(\.[0-9]{1,3})?"),
    WordKind.WORD: re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*"),
    WordKind.TEXT: re.compile(r".*", re.DOTALL),
    WordKind.SET: re.compile(r"(?!.*\*[0-9]{4}).*", re.DOTALL),  # `[a*999999999]` takes long
    # No back reference, which can take unlimited time. A repeat copies what it repeats (glibc does
    # so for `+` too), and nested repeats copy copies. So at most one count, of two digits and of a
    # single character, and at most one `+` after a group or another repeat.
    WordKind.PATTERN: re.compile(
        r"(?=.{0,1000}\Z)(?!.*\\[1-9])"
        r"(?!.*\{[0-9,]*[0-9]{3})(?!.*\{[0-9,].*\{[0-9,])(?!.*[)}*+?]\\?\{[0-9,])"
        r"(?!.*[)}*+?]\\?\+.*[)}*+?]\\?\+).*",
        re.DOTALL,
    ),
    WordKind.GLOB: re.compile(r"[^*]{0,200}(\*[^*]{0,200}){0,8}", re.DOTALL),
    WordKind.FIELDS: re.compile(r"[0-9]{0,6}(-[0-9]{0,6})?(,[0-9]{0,6}(-[0-9]{0,6})?){0,50}"),
    WordKind.KEY: re.compile(r"([0-9]{1,6}(\.[0-9]{1,6})?[bdfgiMhnRrV]*,?){1,2}"),
    WordKind.SIZE: re.compile(r"[+-]?[0-9]{1,12}[bcwkMG]?"),
    WordKind.TYPE: re.compile(r"[bcdflps](,[bcdflps])*"),
    WordKind.FORMAT: re.compile(rf"\+([^%]|%{_WIDTH}[A-Za-z%])*", re.DOTALL),
    # `I` is not a field but a flag, after which any width may follow.
    WordKind.LAYOUT: re.compile(rf"([^%]|%{_WIDTH}[A-HJ-Za-z%])*", re.DOTALL),
    WordKind.LINES: re.compile(r"([0-9]{1,9}|\$)(,([0-9]{1,9}|\$))?p(;[0-9]{1,9}q)?"),
    WordKind.REVISION: re.compile(r"[\w.@:~^][\w./@:~^-]*"),
}


def allows(rule: Rule, argv: tuple[str, ...], program: str | None, place: CommandPlace) -> bool:
    """Tell if `rule` allows `argv`, run as `program` at `place`."""
    head = (rule.exe, *rule.subcommand)
    if argv[: len(head)] != head or not _is_the_program(rule, program, place):
        return False
    words = _positionals(rule, argv[len(head) :], place)
    if words is None or not rule.least <= len(words) <= rule.most:
        return False
    if not is_under(place.cwd, place.workspace):
        return False
    more = len(words) - len(rule.positional)
    kinds = (*rule.positional, *[rule.rest] * more)
    return all(_fits(kind, word, place) for kind, word in zip(kinds, words, strict=False))


# Variables that programs read as data. PYTHONPATH names code, so it needs a rule for code.
_VARIABLES = frozenset(
    "CI DEBUG NODE_ENV FORCE_COLOR NO_COLOR PORT HOST TZ LANG LC_ALL COLUMNS LOG_LEVEL RUST_LOG "
    "RUST_BACKTRACE PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHASHSEED".split()
)
_COUNTED = re.compile(r"-[nU]?[0-9]{1,9}")  # `-5`, `-n5`, `-U3`


def covers(
    rule: CommandRule,
    argv: tuple[str, ...],
    variables: Assignments,
    program: str | None,
    place: CommandPlace,
) -> bool:
    """Tell if `rule` covers `argv`, run as `program` with `variables` at `place`, in the sandbox."""
    if argv[0] != rule.exe or not program or rule.program not in ("", program):
        return False
    if rule.workspace not in ("", place.workspace) or not is_under(place.cwd, place.workspace):
        return False
    known = _VARIABLES | ({"PYTHONPATH"} if rule.code else set())
    if not {name for name, _ in variables} <= known:
        return False
    words = argv[1:]
    heads = [head for head in rule.begins if words[: len(head)] == head]
    return any(_ends_well(rule, words[len(head) :]) for head in heads)


def _ends_well(rule: CommandRule, words: tuple[str, ...]) -> bool:
    if rule.flags:
        flags = [word for word in words if word.startswith("-")]
        return all(_is_listed(flag, rule.flags) for flag in flags)
    return rule.more or not words


def _is_listed(flag: str, flags: frozenset[str]) -> bool:
    name, equals, _ = flag.partition("=")
    return flag in flags or f"{name}{equals}" in flags or bool(_COUNTED.fullmatch(flag))


def is_under(path: str, root: str) -> bool:
    """Tell if the absolute `path` is `root` or below it, by its text."""
    root = root.rstrip("/")
    return bool(root) and ".." not in path.split("/") and f"{path}/".startswith(f"{root}/")


def is_system(program: str | None, name: str, place: CommandPlace) -> bool:
    """Tell if `program` is the system's own `name`, which no tool can write."""
    if program is None or is_under(program, place.workspace):
        return False
    return program in [f"{directory}/{name}" for directory in OWN]


def is_held(wanted: object, held: tuple[Permission, ...]) -> bool:
    """Tell if `wanted` is among `held`; older rules about a line are for every workspace."""
    if isinstance(wanted, LineRule) and replace(wanted, workspace="") in held:
        return True
    return wanted in held


def describe(permission: Permission) -> str:
    """Describe a permission in full, for people."""
    if isinstance(permission, Rule):
        return f"any {_describe_rule(permission)}"
    if isinstance(permission, CommandRule):
        return _describe_command(permission)
    if isinstance(permission, OutputRule):
        return f"> and >> into ordinary files in {escape(permission.workspace)}"
    if isinstance(permission, HostRule):
        return f"the network host {escape(permission.name)}"
    by = ", ".join(escape(where) for _, where in sorted(permission.programs.items())) or "none"
    so = " in the background" * permission.background + " with a terminal" * permission.terminal
    on = ", ".join(map(escape, sorted(permission.files)))
    on = f"; as long as these stay as they are: {on}" if on else ""
    if permission.workspace not in ("", permission.cwd):
        on += f"; workspace: {escape(permission.workspace)}"
    line = f"exactly {render(permission.what)}{so} in {escape(permission.cwd)}"
    return f"{line} (programs: {by}{on})"


def _describe_command(rule: CommandRule) -> str:
    more = " …" * rule.more
    begins = " | ".join(f"{render(Parsed(((rule.exe, *head),)))}{more}" for head in rule.begins)
    with_flags = f" with {' '.join(sorted(rule.flags))} and words that are no flags"
    where = f" in {escape(rule.workspace)} and below" if rule.workspace else " in every workspace"
    by = f" (program: {escape(rule.program)})" if rule.program else ""
    code = "; this runs code of the workspace, also what is written there later"
    return f"{begins}{with_flags * bool(rule.flags)}, in the sandbox,{where}{by}{code * rule.code}"


def _describe_rule(rule: Rule) -> str:
    words = [rule.program or rule.exe, *rule.subcommand]
    words += [f"[{flag}]" for flag in sorted(rule.flags)]
    words += ["[-<number>]"] if rule.lines else []
    words += [f"[{flag} <{kind}>]" for flag, kind in sorted(rule.valued.items())]
    words += [f"<{kind}>" for kind in rule.positional]
    words += [f"<{rule.rest}>…"] if rule.rest else []
    return f"{' '.join(words)} ({rule.least} to {rule.most} words)"


def _is_the_program(rule: Rule, program: str | None, place: CommandPlace) -> bool:
    if rule.program:
        return program == rule.program
    return rule.exe in BUILTINS or is_system(program, rule.exe, place)


def _positionals(rule: Rule, words: tuple[str, ...], place: CommandPlace) -> list[str] | None:
    """Return the words that are not flags; None if there is a flag that is not allowed."""
    if rule.plain:
        return list(words)
    found: list[str] = []
    flagged = False
    rest = iter(words)
    for word in rest:
        if word.startswith("-") or word in rule.flags:
            if found and not _may_follow(rule, words, found[0], place):
                return None
            if not _flag_fits(rule, word, rest, place):
                return None
            flagged = True
        elif flagged and rule.expression:
            return None
        else:
            found.append(word)
    return found


def _may_follow(rule: Rule, words: tuple[str, ...], operand: str, place: CommandPlace) -> bool:
    """Tell if flags may follow `operand`: for some programs they are operands there."""
    behind = words[words.index(operand) + 1 :]
    return rule.expression or (rule.late and all(_stays(word, place) for word in behind))


def _stays(word: str, place: CommandPlace) -> bool:
    """Tell if `word` was followed as a path and stays in the workspace."""
    return place.paths.get(word, Seen.ASTRAY) is not Seen.ASTRAY


def _flag_fits(rule: Rule, word: str, rest: Iterator[str], place: CommandPlace) -> bool:
    if not place.linux and not rule.linux.isdisjoint(_letters(word)):
        return False
    if word in rule.flags:
        return True
    if word.startswith("--"):
        name, _, value = word.partition("=")
        return name in rule.valued and name != word and _fits(rule.valued[name], value, place)
    if rule.expression:
        return word in rule.valued and _next_fits(rule.valued[word], rest, place)
    if rule.lines and _LINES.fullmatch(word):
        return True
    for at, flag in enumerate(_letters(word), start=2):
        if flag in rule.valued:
            kind, attached = rule.valued[flag], word[at:]
            return _fits(kind, attached, place) if attached else _next_fits(kind, rest, place)
        if flag not in rule.flags:
            return False
    return word != "-"


def _letters(word: str) -> list[str]:
    """Split a cluster of short flags; a long flag stays whole."""
    return [word] if word.startswith("--") else [f"-{letter}" for letter in word[1:]]


def _next_fits(kind: WordKind, rest: Iterator[str], place: CommandPlace) -> bool:
    value = next(rest, "-")
    signed = kind in (WordKind.NUMBER, WordKind.SIZE)
    return (signed or not value.startswith("-")) and _fits(kind, value, place)


def _fits(kind: WordKind | None, word: str, place: CommandPlace) -> bool:
    match kind:
        case None:  # the rule allows no further words
            return False
        case WordKind.PATH:
            return _in_workspace(word, place)
        case WordKind.FILE:
            return _in_workspace(word, place) and place.paths[word] is not Seen.DIRECTORY
        case _:
            return _SHAPES[kind].fullmatch(word) is not None


def reads_inside(word: str, place: CommandPlace) -> bool:
    """Tell if `word` names a file in the workspace that may be read."""
    return _fits(WordKind.FILE, word, place)


def _in_workspace(word: str, place: CommandPlace) -> bool:
    """Tell if `word` names a path in the workspace, by its text and by where it leads.

    A first character with a special meaning, as in `tail +5f`, `-`, `~` or `@file`, is refused.
    """
    if not _stays(word, place) or ".." in word.split("/"):
        return False
    if word.startswith("/"):
        return is_under(word, place.workspace)
    return _BEGINS.match(word) is not None
