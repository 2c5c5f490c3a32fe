"""The commands that run unasked. None of them writes, runs another program, uses the network,
reads outside the workspace or takes unlimited time.

Each rule was checked against the manuals of GNU, BSD and busybox and by experiment, for options
that make a reading tool do one of these things. docs/safety.md says why each rule is right, one
row per program; a test compares the rows with this table. If you cannot fill in the row, leave
the program out: one more question to the user costs less.

git is not in the table: a repository's settings name programs (filters, textconv, fsmonitor,
signatures) under names that cannot be listed in advance, and the origin of the repository is not
known. `printf` is not, because bash's own runs code in `printf -v 'a[$(id)]'` and its widths have
no limit. `file` is not, because it reads its rules from a home directory that commands can write.
"""

from holdfast.core.approval.rules import Rule, WordKind

_PATH, _FILE, _TEXT = WordKind.PATH, WordKind.FILE, WordKind.TEXT
_NUMBER, _WORD, _GLOB = WordKind.NUMBER, WordKind.WORD, WordKind.GLOB


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SUM_FLAGS = _flags("-b -t")
_PART = {"-n": _NUMBER, "-c": _NUMBER, "--lines": _NUMBER, "--bytes": _NUMBER}

HARMLESS: tuple[Rule, ...] = (
    Rule(exe="echo", rest=_TEXT, most=1_000, plain=True),
    Rule(exe="true", most=0),
    Rule(exe="false", most=0),
    Rule(exe="pwd", flags=_flags("-L -P"), most=0),
    Rule(exe="cd", rest=_PATH, least=1, most=1),
    Rule(exe="sleep", rest=WordKind.SECONDS, least=1, most=1),
    Rule(exe="seq", rest=WordKind.COUNT, least=1, most=2),
    Rule(exe="basename", rest=_TEXT, least=1, most=2),
    Rule(exe="dirname", rest=_TEXT, least=1),
    Rule(exe="date", flags=_flags("-u -R -I --utc"), rest=WordKind.FORMAT, most=1),
    Rule(exe="uname", flags=_flags("-a -s -n -r -v -m -p -i -o"), most=0),
    Rule(exe="whoami", most=0),
    Rule(exe="id", flags=_flags("-u -g -n -G"), most=0),
    Rule(
        exe="ls",
        flags=_flags(
            "-l -a -A -h -t -r -R -S -1 -d -F -i -s -n -p -C -x -X -o -g --all --almost-all "
            "--human-readable --recursive --reverse --directory --full-time --color "
            "--group-directories-first"
        ),
        valued={"--color": _WORD, "--sort": _WORD, "--time-style": _WORD},
        rest=_PATH,
        late=True,
    ),
    Rule(
        exe="cat",
        flags=_flags("-n -b -A -E -T -s -v -e -t --number --show-all"),
        rest=_PATH,
        late=True,
    ),
    Rule(exe="head", flags=_flags("-q -v"), valued=_PART, rest=_PATH, lines=True, late=True),
    Rule(exe="tail", flags=_flags("-q -v"), valued=_PART, rest=_PATH, lines=True, late=True),
    Rule(
        exe="wc",
        flags=_flags("-l -w -c -m -L --lines --words --bytes --chars"),
        rest=_PATH,
        late=True,
    ),
    Rule(exe="sed", flags=_flags("-n"), positional=(WordKind.LINES,), rest=_PATH, least=1),
    Rule(exe="nl", flags=_flags("-ba"), rest=_PATH),
    Rule(
        exe="stat",
        flags=_flags("-L --dereference"),
        valued={"-c": WordKind.LAYOUT, "--format": WordKind.LAYOUT},
        rest=_PATH,
        least=1,
    ),
    Rule(
        exe="du",
        flags=_flags(
            "-s -h -a -c -k -m -b -x --summarize --human-readable --all --total --apparent-size"
        ),
        valued={"-d": _NUMBER, "--max-depth": _NUMBER},
        rest=_PATH,
        late=True,
    ),
    Rule(exe="realpath", flags=_flags("-e -m -s"), rest=_PATH, least=1),
    Rule(exe="readlink", flags=_flags("-e -f -m -n"), rest=_PATH, least=1),
    Rule(exe="md5sum", flags=_SUM_FLAGS, rest=_PATH),
    Rule(exe="sha1sum", flags=_SUM_FLAGS, rest=_PATH),
    Rule(exe="sha256sum", flags=_SUM_FLAGS, rest=_PATH),
    Rule(
        exe="sort",
        flags=_flags(
            "-n -r -u -f -h -V -b -d -g -s -M -z -c --numeric-sort --reverse --unique "
            "--human-numeric-sort"
        ),
        valued={"-k": WordKind.KEY, "-t": _TEXT, "--key": WordKind.KEY, "--field-separator": _TEXT},
        rest=_PATH,
        late=True,
    ),
    Rule(
        exe="uniq",
        flags=_flags("-c -d -u -i"),
        valued={"-f": _NUMBER, "-s": _NUMBER, "-w": _NUMBER},
        rest=_PATH,
        most=1,
    ),
    Rule(
        exe="cut",
        flags=_flags("-s -n -z --complement"),
        valued={flag: WordKind.FIELDS for flag in ("-f", "-c", "-b", "--fields")}
        | {flag: _TEXT for flag in ("-d", "--delimiter")},
        rest=_PATH,
    ),
    Rule(exe="tr", flags=_flags("-c -C -d -s -t"), rest=WordKind.SET, least=1, most=2),
    Rule(
        exe="diff",
        flags=_flags("-u -q -w -b -B -i -a -s --brief --unified --color"),
        valued={"-U": _NUMBER, "--unified": _NUMBER, "--color": _WORD},
        positional=(_FILE, _FILE),
        least=2,
        most=2,
    ),
    Rule(
        exe="cmp",
        flags=_flags("-s -l -b"),
        valued={"-n": _NUMBER},
        positional=(_FILE, _FILE),
        least=2,
        most=2,
    ),
    Rule(
        exe="grep",
        flags=_flags(
            "-r -n -i -v -l -L -c -w -x -E -F -G -o -h -H -s -q -I -a --color --recursive "
            "--line-number --ignore-case --files-with-matches --count --invert-match"
        ),
        valued={f: _NUMBER for f in ("-A", "-B", "-C", "-m", "--context", "--max-count")}
        | {f: _GLOB for f in ("--include", "--exclude", "--exclude-dir")}
        | {"--color": _WORD},
        positional=(WordKind.PATTERN,),
        rest=_PATH,
        least=1,
        lines=True,
        late=True,
        linux=_flags("-r --recursive"),
    ),
    Rule(
        exe="rg",
        flags=_flags(
            "-n -N -i -S -s -l -c -w -x -F -o -v -u -H -I --hidden --no-ignore --no-heading --json "
            "--line-number --ignore-case --files-with-matches --count --smart-case"
        ),
        valued={
            f: _NUMBER for f in ("-A", "-B", "-C", "-m", "--context", "--max-count", "--max-depth")
        }
        | {f: _GLOB for f in ("-g", "--glob")}
        | {f: _WORD for f in ("-t", "-T", "--type", "--type-not", "--color")},
        positional=(WordKind.PATTERN,),
        rest=_PATH,
        least=1,
        late=True,
    ),
    Rule(
        exe="find",
        flags=_flags("-print -print0 -empty -prune -o -or -a -and -not ! ( ) -mount -xdev"),
        valued={f: _GLOB for f in ("-name", "-iname", "-path", "-ipath")}
        | {f: WordKind.COUNT for f in ("-maxdepth", "-mindepth")}
        | {f: _NUMBER for f in ("-mtime", "-mmin")}
        | {"-type": WordKind.TYPE, "-size": WordKind.SIZE},
        rest=_PATH,
        expression=True,
    ),
)
