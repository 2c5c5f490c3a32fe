"""Permissions: typed rules, and which literal commands are harmless enough to run unasked.

A rule names an executable, its subcommand, the flags it may have and the kind of every
other word. What a rule does not name it does not allow, and a word it cannot place is a
reason to ask, never to guess: that costs one prompt. Rules save prompts; the wall is the
sandbox. Therefore paths are judged by their text, and nothing here may run below L1.

Each entry of the table was read against its manual for the ways in which a reading tool
writes, runs or takes file names from elsewhere: `sort -o`, `uniq IN OUT`, `date MMDD`,
`rg --pre`, `find -exec`, `grep -e`, which turns the pattern's place into a path's, and
bash's own `printf -v 'a[$(id)]'`, for which `printf` is not in it. Only flags whose value
is required are listed as taking one, and a long flag takes it behind `=` alone: where a
value is optional, the next word would be a path that nobody looked at.
"""

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from holdfast.core.execution import BUILTINS, Parsed, escape, render
from holdfast.core.types import Fact, Value


class Kind(StrEnum):
    PATH = "path"  # in the workspace, by its text
    NUMBER = "number"
    TEXT = "text"
    PATTERN = "pattern"
    FORMAT = "+format"
    REVISION = "revision"


class Rule(Fact, tag="rule"):
    exe: str
    subcommand: tuple[str, ...] = ()
    flags: frozenset[str] = frozenset()  # stand alone
    valued: Mapping[str, Kind] = {}  # take a value
    positional: tuple[Kind, ...] = ()  # what the first words are
    rest: Kind | None = None  # what all further words are; nothing: there are none
    least: int = 0
    most: int = 32
    plain: bool = False  # to this one no word is a flag
    program: str = ""  # where it must be; empty: in a system directory


class Line(Fact, tag="line", omit_defaults=True):
    """The permission to run exactly this line, there, so, by these programs, on these files."""

    what: Parsed
    cwd: str
    programs: dict[str, str]
    files: dict[str, str] = {}  # by content: a script that was changed is another one
    background: bool = False
    terminal: bool = False


class Host(Fact, tag="host"):
    """The permission to speak to one host."""

    name: str


Permission = Rule | Line | Host


class Place(Value):
    """Where a command would run."""

    workspace: str
    cwd: str


SYSTEM = ("/bin", "/usr/bin", "/usr/local/bin")
_DIGITS = " -0 -1 -2 -3 -4 -5 -6 -7 -8 -9"
_NUMBER = re.compile(r"[+-]?[0-9]{1,12}(\.[0-9]{1,9})?")
_REVISION = re.compile(r"[\w.@:~^][\w./@:~^-]*")


def allows(rule: Rule, argv: tuple[str, ...], program: str | None, place: Place) -> bool:
    """Whether `rule` covers `argv`, run as `program` at `place`."""
    head = (rule.exe, *rule.subcommand)
    if argv[: len(head)] != head or not _is_the_program(rule, program):
        return False
    words = _positionals(rule, argv[len(head) :], place)
    if words is None or not rule.least <= len(words) <= rule.most:
        return False
    if not under(place.cwd, place.workspace):
        return False
    more = len(words) - len(rule.positional)
    kinds = (*rule.positional, *[rule.rest] * more)
    return all(_fits(kind, word, place) for kind, word in zip(kinds, words, strict=False))


def under(path: str, root: str) -> bool:
    """Whether the absolute `path` lies at or below `root`, by its text."""
    root = root.rstrip("/")
    return bool(root) and ".." not in path.split("/") and f"{path}/".startswith(f"{root}/")


def shown(permission: Permission) -> str:
    """A permission in full, for people."""
    if isinstance(permission, Rule):
        return f"any {_shown(permission)}"
    if isinstance(permission, Host):
        return f"the network host {escape(permission.name)}"
    by = ", ".join(escape(where) for _, where in sorted(permission.programs.items())) or "none"
    so = " in the background" * permission.background + " with a terminal" * permission.terminal
    on = ", ".join(map(escape, sorted(permission.files)))
    on = f"; as long as these stay as they are: {on}" if on else ""
    line = f"exactly {render(permission.what)}{so} in {escape(permission.cwd)}"
    return f"{line} (programs: {by}{on})"


def _shown(rule: Rule) -> str:
    words = [rule.program or rule.exe, *rule.subcommand]
    words += [f"[{flag}]" for flag in sorted(rule.flags)]
    words += [f"[{flag} <{kind}>]" for flag, kind in sorted(rule.valued.items())]
    words += [f"<{kind}>" for kind in rule.positional]
    words += [f"<{rule.rest}>…"] if rule.rest else []
    return f"{' '.join(words)} ({rule.least} to {rule.most} words)"


def _is_the_program(rule: Rule, program: str | None) -> bool:
    if rule.program:
        return program == rule.program
    return rule.exe in BUILTINS or program in [f"{directory}/{rule.exe}" for directory in SYSTEM]


def _positionals(rule: Rule, words: tuple[str, ...], place: Place) -> list[str] | None:
    """The words that are no flags, or nothing if one is a flag that is not allowed."""
    found: list[str] = []
    rest = iter(words)
    for word in rest:
        if rule.plain or not word.startswith("-"):
            found.append(word)
        elif word == "--":
            found += rest
        elif not _flag_fits(rule, word, rest, place):
            return None
    return found


def _flag_fits(rule: Rule, word: str, rest: Iterator[str], place: Place) -> bool:
    if word in rule.flags:
        return True
    if word.startswith("--"):
        name, _, value = word.partition("=")
        return name in rule.valued and name != word and _fits(rule.valued[name], value, place)
    if word in rule.valued:  # `find -name`: one dash, many letters
        return _next_fits(rule.valued[word], rest, place)
    for at in range(1, len(word)):
        flag, attached = f"-{word[at]}", word[at + 1 :]
        if flag in rule.valued:
            kind = rule.valued[flag]
            return _fits(kind, attached, place) if attached else _next_fits(kind, rest, place)
        if flag not in rule.flags:
            return False
    return word != "-"


def _next_fits(kind: Kind, rest: Iterator[str], place: Place) -> bool:
    value = next(rest, "-")
    return (kind is Kind.NUMBER or not value.startswith("-")) and _fits(kind, value, place)


def _fits(kind: Kind | None, word: str, place: Place) -> bool:
    match kind:
        case Kind.PATH:
            return _in_workspace(word, place)
        case Kind.NUMBER:
            return _NUMBER.fullmatch(word) is not None
        case Kind.TEXT | Kind.PATTERN:
            return True
        case Kind.FORMAT:
            return word.startswith("+")
        case Kind.REVISION:
            return _REVISION.fullmatch(word) is not None and ".." not in word.split("/")
        case _:  # no such word has a place
            return False


def _in_workspace(word: str, place: Place) -> bool:
    if word.startswith("/"):
        return under(word, place.workspace)
    return word not in ("", "-") and not word.startswith("~") and ".." not in word.split("/")


def _rule(
    command: str,
    flags: str = "",
    valued: Mapping[str, Kind] | None = None,
    *,
    positional: tuple[Kind, ...] = (),
    rest: Kind | None = None,
    least: int = 0,
    most: int = 32,
) -> Rule:
    exe, *subcommand = command.split()
    return Rule(
        exe=exe,
        subcommand=tuple(subcommand),
        flags=frozenset(flags.split()),
        valued=valued or {},
        positional=positional,
        rest=rest,
        least=least,
        most=most,
    )


_N, _P, _T = Kind.NUMBER, Kind.PATH, Kind.TEXT

# Nothing here writes, runs another program or speaks to anybody.
HARMLESS: tuple[Rule, ...] = (
    Rule(exe="echo", rest=_T, most=1_000, plain=True),
    _rule("true", most=0),
    _rule("false", most=0),
    _rule("pwd", "-L -P", most=0),
    _rule("cd", rest=_P, least=1, most=1),
    _rule("sleep", rest=_N, least=1),
    _rule("seq", rest=_N, least=1, most=3),
    _rule("basename", rest=_T, least=1, most=2),
    _rule("dirname", rest=_T, least=1),
    _rule("date", "-u -R -I --utc", rest=Kind.FORMAT, most=1),
    _rule("uname", "-a -s -n -r -v -m -p -i -o", most=0),
    _rule("whoami", most=0),
    _rule("id", "-u -g -n -G", most=0),
    _rule(
        "ls",
        "-l -a -A -h -t -r -R -S -1 -d -F -i -s -n -p -C -x -X -o -g --all --almost-all "
        "--human-readable --recursive --reverse --directory --full-time --color "
        "--group-directories-first",
        {"--color": _T, "--sort": _T, "--time-style": _T},
        rest=_P,
    ),
    _rule("cat", "-n -b -A -E -T -s -v -e -t --number --show-all", rest=_P),
    _rule("head", "-q -v" + _DIGITS, {"-n": _N, "-c": _N, "--lines": _N, "--bytes": _N}, rest=_P),
    _rule("tail", "-q -v" + _DIGITS, {"-n": _N, "-c": _N, "--lines": _N, "--bytes": _N}, rest=_P),
    _rule("wc", "-l -w -c -m -L --lines --words --bytes --chars", rest=_P),
    _rule("nl", "-p", {"-w": _N, "-v": _N, "-i": _N}, rest=_P),
    _rule("stat", "-L -t -f --dereference --terse", {"-c": _T, "--format": _T}, rest=_P, least=1),
    _rule("file", "-b -i --brief --mime --mime-type", rest=_P, least=1),
    _rule(
        "du",
        "-s -h -a -c -k -m -b -x --summarize --human-readable --all --total --apparent-size",
        {"-d": _N, "--max-depth": _N},
        rest=_P,
    ),
    _rule("realpath", "-e -m -s", rest=_P, least=1),
    _rule("readlink", "-e -f -m -n", rest=_P, least=1),
    _rule("md5sum", "-b -t", rest=_P),
    _rule("sha1sum", "-b -t", rest=_P),
    _rule("sha256sum", "-b -t", rest=_P),
    _rule(
        "sort",
        "-n -r -u -f -h -V -b -d -g -s -M -z -c --numeric-sort --reverse --unique --human-numeric-sort",
        {"-k": _T, "-t": _T, "--key": _T, "--field-separator": _T},
        rest=_P,
    ),
    _rule("uniq", "-c -d -u -i -D -z", {"-f": _N, "-s": _N, "-w": _N}, rest=_P, most=1),
    _rule(
        "cut",
        "-s -n -z --complement",
        {"-d": _T, "-f": _T, "-c": _T, "-b": _T, "--delimiter": _T, "--fields": _T},
        rest=_P,
    ),
    _rule("tr", "-c -C -d -s -t", rest=_T, least=1, most=2),
    _rule(
        "diff",
        "-u -r -q -w -b -B -N -y -i -a -s --brief --recursive --unified --color",
        {"-U": _N, "--unified": _N, "--color": _T},
        positional=(_P, _P),
        least=2,
        most=2,
    ),
    _rule("cmp", "-s -l -b", {"-n": _N}, positional=(_P, _P), least=2, most=2),
    _rule(
        "grep",
        "-r -n -i -v -l -L -c -w -x -E -F -G -o -h -H -s -q -I -a --color --recursive "
        "--line-number --ignore-case --files-with-matches --count --invert-match" + _DIGITS,
        {f: _N for f in ("-A", "-B", "-C", "-m", "--context", "--max-count")}
        | {f: Kind.PATTERN for f in ("--include", "--exclude", "--exclude-dir")}
        | {"--color": _T},
        positional=(Kind.PATTERN,),
        rest=_P,
        least=1,
    ),
    _rule(
        "rg",
        "-n -N -i -S -s -l -c -w -x -F -o -v -u -H -I --hidden --no-ignore --no-heading --json "
        "--line-number --ignore-case --files-with-matches --count --smart-case",
        {f: _N for f in ("-A", "-B", "-C", "-m", "--context", "--max-count", "--max-depth")}
        | {f: Kind.PATTERN for f in ("-g", "--glob")}
        | {f: _T for f in ("-t", "-T", "--type", "--type-not", "--color")},
        positional=(Kind.PATTERN,),
        rest=_P,
        least=1,
    ),
    _rule(
        "find",
        "-print -print0 -empty -o -a -not -mount -xdev",
        {f: Kind.PATTERN for f in ("-name", "-iname", "-path", "-ipath")}
        | {f: _N for f in ("-maxdepth", "-mindepth", "-mtime", "-mmin")}
        | {"-type": _T, "-size": _T},
        rest=_P,
    ),
)

_HISTORY = (
    "--oneline --stat --graph --decorate --all --name-only --name-status --no-merges --reverse "
    "--shortstat --numstat --abbrev-commit --no-color --no-ext-diff --no-textconv --follow"
)

# git reads a repository's own configuration, which may name programs: filters, fsmonitor, pagers,
# textconv, signatures. A filter or textconv goes by any name, so no setting turns all of them off:
# these rules hold only where `GIT_SAFETY` is set and no tool can write a `.git` or what is in it.
GIT: tuple[Rule, ...] = (
    _rule(
        "git status",
        "-s -b --short --branch --porcelain --ignored --untracked-files=no",
        rest=_P,
    ),
    _rule(
        "git log",
        f"-p --patch {_HISTORY}{_DIGITS}",
        {"-n": _N, "--max-count": _N, "--since": _T, "--until": _T, "--author": _T, "--grep": _T},
        rest=Kind.REVISION,
    ),
    _rule(
        "git diff",
        f"--cached --staged --check -w -b {_HISTORY}",
        {"--diff-filter": _T},
        rest=Kind.REVISION,
    ),
    _rule("git show", _HISTORY, rest=Kind.REVISION),
    _rule("git branch --list", "-a -r -v --all --remotes --verbose --no-color", rest=Kind.PATTERN),
)

# For GIT_CONFIG_COUNT, GIT_CONFIG_KEY_n, GIT_CONFIG_VALUE_n: stronger than a repository's own.
GIT_SAFETY: tuple[tuple[str, str], ...] = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.untrackedCache", "false"),
    ("diff.ignoreSubmodules", "all"),
    ("log.showSignature", "false"),
    ("protocol.ext.allow", "never"),
    ("safe.bareRepository", "explicit"),
    ("submodule.recurse", "false"),
)
