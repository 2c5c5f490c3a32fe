"""`holdfast completion`: completion scripts for shells, generated from the argument parser.

The parser is turned into a flat list of command levels: the command so far, its options, and the
possible nth word after it. The script of each shell follows the present words along that list and
then offers what fits. Because it is generated, it cannot become outdated. bash and zsh share the
loop.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence

from holdfast.cli.arguments import parser as our_parser
from holdfast.cli.exits import Code
from holdfast.core.types import Value

_FILES = frozenset({"FILE", "PATH", "DIR", "MESSAGE"})  # metavars that stand for a file


class Completions(Value):
    """The possible words at one position."""

    choices: tuple[str, ...] = ()
    files: bool = False
    endless: bool = False  # also for all words after it


class Option(Value):
    """An option with all its names, and its value if it takes one."""

    names: tuple[str, ...]
    about: str
    value: Completions | None = None


class Stand(Value):
    """A command so far, such as `holdfast gateway`, and what may follow."""

    said: str
    options: tuple[Option, ...]
    words: tuple[Completions, ...]  # by position
    commands: tuple[str, ...]  # its subcommands


def main(args: argparse.Namespace) -> int:
    """Print the script."""
    sys.stdout.write(script(args.shell, our_parser()))
    return Code.OK


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for that shell."""
    stands = list(walk(parser, parser.prog))
    match shell:
        case "bash":
            return _BASH.format(walk=_walk(stands), offers=_offers(stands))
        case "zsh":
            return _ZSH.format(walk=_walk(stands), offers=_offers(stands))
        case _:
            lines = "".join(f"{line}\n" for line in _fish(stands))
            return _FISH.format(
                commands=_said(_commands(stands)), values=_said(_values(stands)), lines=lines
            )


def walk(parser: argparse.ArgumentParser, said: str) -> Iterator[Stand]:
    """Yield every command, each before its subcommands."""
    options: list[Option] = []
    words: list[Completions] = []
    below: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:  # noqa: SLF001  argparse has no public way
        if isinstance(action.choices, dict):
            below = action.choices
        elif action.option_strings:
            value = _offer(action) if action.nargs != 0 else None
            options.append(Option(tuple(action.option_strings), _short(action.help), value))
        else:
            words.append(_offer(action))
    commands = [Completions(tuple(below))] if below else []
    yield Stand(said, tuple(options), (*commands, *words), tuple(below))
    for name, inner in below.items():
        yield from walk(inner, f"{said} {name}")


def _offer(action: argparse.Action) -> Completions:
    choices = tuple(str(choice) for choice in action.choices or ())
    endless = action.nargs in ("*", "+")
    return Completions(choices, action.metavar in _FILES, endless)


def _short(about: str | None) -> str:
    return " ".join((about or "").split())


def _commands(stands: Iterable[Stand]) -> list[str]:
    return [f"{stand.said} {name}" for stand in stands for name in stand.commands]


def _values(stands: Iterable[Stand]) -> list[str]:
    """List the options that take a value."""
    return [
        f"{stand.said} {name}"
        for stand in stands
        for option in stand.options
        if option.value is not None
        for name in option.names
    ]


def _walk(stands: Sequence[Stand]) -> str:
    return (
        f'            {"|".join(_quoted(_commands(stands)))}) at="$at $word" place=0 ;;\n'
        f"            {'|'.join(_quoted(_values(stands)))}) want=$word ;;\n"
    )


def _quoted(words: Iterable[str]) -> list[str]:
    return [f"'{word}'" for word in words]


def _said(words: Iterable[str]) -> str:
    return " ".join(_quoted(words))


def _offers(stands: Sequence[Stand]) -> str:
    """Write the cases: `at want` for a value, `at -` for options, `at place` for words."""
    lines: list[str] = []
    for stand in stands:
        names = [name for option in stand.options for name in option.names]
        lines.append(_case([f"'{stand.said} -'"], Completions(tuple(names))))
        for option in stand.options:
            if option.value is not None:
                keys = _quoted(f"{stand.said} {name}" for name in option.names)
                lines.append(_case(keys, option.value))
        for place, offer in enumerate(stand.words):
            key = f"'{stand.said} '[0-9]*" if offer.endless else f"'{stand.said} {place}'"
            lines.append(_case([key], offer))
    return "".join(f"        {line}\n" for line in lines if line)


def _case(keys: Sequence[str], offer: Completions) -> str:
    if offer.choices:
        return f"{'|'.join(keys)}) offered='{' '.join(offer.choices)}' ;;"
    return f"{'|'.join(keys)}) files=yes ;;" if offer.files else ""


def _fish(stands: Sequence[Stand]) -> Iterator[str]:
    for stand in stands:
        here = f"complete -c holdfast -n \"__holdfast_at '{stand.said}'\""
        for option in stand.options:
            flags = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            about = option.about.replace("\\", "\\\\").replace("'", "\\'")
            yield f"{here} {flags}{_fish_value(option.value)} -d '{about}'"
        for place, offer in enumerate(stand.words):
            there = here if offer.endless else f'{here[:-1]} {place}"'
            if offer.choices:
                yield f"{there} -a '{' '.join(offer.choices)}'"
            elif offer.files:
                yield f"{there} -F"


def _fish_value(value: Completions | None) -> str:
    if value is None:
        return ""
    if value.choices:
        return f" -x -a '{' '.join(value.choices)}'"
    return " -r -F" if value.files else " -x"


_BASH = """\
# Completion of holdfast for bash:  eval "$(holdfast completion bash)"
_holdfast() {{
    local word cur=${{COMP_WORDS[COMP_CWORD]}} at=holdfast want= place=0 i=1 offered= files=
    while ((i < COMP_CWORD)); do
        word=${{COMP_WORDS[i]}}
        i=$((i + 1))
        if [[ -n $want && $word != -* ]]; then
            [[ $word == = ]] || want=
            continue
        fi
        want=
        case "$at $word" in
{walk}            *' -'*|*' =') ;;
            *) place=$((place + 1)) ;;
        esac
    done
    [[ $cur == = ]] && cur=
    if [[ $cur == -* ]]; then place=-; elif [[ -n $want ]]; then place=$want; fi
    case "$at $place" in
{offers}    esac
    COMPREPLY=($(compgen -W "$offered" -- "$cur"))
    if [[ -n $files ]]; then compopt -o default 2>/dev/null; fi
    return 0
}}
complete -F _holdfast holdfast
"""

_ZSH = """\
#compdef holdfast
# Completion of holdfast for zsh, after compinit:  source <(holdfast completion zsh)
_holdfast() {{
    local word cur=${{words[CURRENT]}} at=holdfast want= place=0 i=2 offered= files=
    while ((i < CURRENT)); do
        word=${{words[i]}}
        i=$((i + 1))
        if [[ -n $want && $word != -* ]]; then
            want=
            continue
        fi
        want=
        case "$at $word" in
{walk}            *' -'*) ;;
            *) place=$((place + 1)) ;;
        esac
    done
    if [[ $cur == -* ]]; then place=-; elif [[ -n $want ]]; then place=$want; fi
    case "$at $place" in
{offers}    esac
    if [[ -n $files ]]; then _files; else compadd -- ${{=offered}}; fi
}}
if [[ ${{funcstack[1]}} == _holdfast ]]; then _holdfast "$@"; else compdef _holdfast holdfast; fi
"""

_FISH = """\
# Completion of holdfast for fish:  holdfast completion fish | source
function __holdfast_at
    set -l at holdfast
    set -l place 0
    set -l want
    set -l said (commandline -opc)
    set -e said[1]
    for word in $said
        if test -n "$want"; and not string match -q -- '-*' $word
            set want
            continue
        end
        set want
        switch "$at $word"
            case {commands}
                set at "$at $word"
                set place 0
            case {values}
                set want $word
            case '* -*'
            case '*'
                set place (math $place + 1)
        end
    end
    test "$at" = "$argv[1]"; and begin
        test (count $argv) -eq 1; or test "$place" -eq "$argv[2]"
    end
end
complete -c holdfast -f
{lines}"""
