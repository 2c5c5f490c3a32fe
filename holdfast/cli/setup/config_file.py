"""Edit `config.toml`: set a few values and keep every other byte.

tomlkit keeps comments, order and spacing. The result is read again and must hold the new values
and otherwise what the file held before; if it does not, nothing is changed and the message lists
the lines to write by hand.

The file is replaced as a whole: a process killed in between leaves the old file, and a draft that
`holdfast doctor --fix` removes.
"""

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.cli.exits import Code, Exit
from holdfast.config.tables import toml

DRAFT = ".config.toml."  # the prefix of a draft's name
_BARE_END = re.compile(r"(?<!\r)\n")
# In a file whose first statement is a header: the header, with the comments right above it.
_FIRST_HEADER = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\r?\n)*?(?P<header>(?:[ \t]*#[^\n]*\n)*[ \t]*\[)")


def changed(path: Path, text: str, values: Mapping[str, str]) -> str:
    """Return the text with these values set; raise `Exit` where that is not safe."""
    from tomlkit.exceptions import TOMLKitError  # noqa: PLC0415  60 ms, for an edit alone

    wanted = tomllib.loads(text)
    end = "\r\n" if "\r\n" in text else "\n"
    new = text
    try:
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            table = wanted
            for part in filter(None, section.split(".")):
                table = table.setdefault(part, {})
            if table.get(name) != value:
                table[name] = value
                new = _set(new, section, name, value, end)
        if not _BARE_END.search(text) and end == "\r\n":
            new = _BARE_END.sub(end, new)
        if tomllib.loads(new) == wanted:
            return new
    except (AttributeError, TypeError, TOMLKitError, tomllib.TOMLDecodeError):
        pass  # the same as a result that differs from the wanted one
    lines = ", ".join(f"{key} = {toml(value)}" for key, value in values.items())
    raise Exit(Code.FAILED, f"{path} cannot be changed safely; write it yourself: {lines}")


def _set(text: str, section: str, name: str, value: str, end: str) -> str:
    if not section and (first := _FIRST_HEADER.match(text)) is not None:
        at = first.start("header")
        return f"{text[:at]}{name} = {toml(value)}{end}{end}{text[at:]}"
    import tomlkit  # noqa: PLC0415  as above

    document = tomlkit.parse(text)
    if text[-1:] not in "\n" and name not in _inner(document, section):
        document = tomlkit.parse(text + end)
    item = tomlkit.string(value)
    item.trivia.trail = end
    if not section:
        document[name] = item
        return tomlkit.dumps(document)
    *outer, last = section.split(".")
    table: MutableMapping[str, Any] = document
    for part in outer:
        if part not in table:
            table[part] = tomlkit.table(is_super_table=True)
        table = table[part]
    if last not in table:
        new = tomlkit.table()
        new.trivia.trail = end
        new.trivia.indent = end if text else ""
        table[last] = new
    inner = table[last]
    if not isinstance(inner, MutableMapping):
        raise TypeError(section)
    inner[name] = item
    return tomlkit.dumps(document)


def _inner(document: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    for part in filter(None, section.split(".")):
        document = document.get(part, {})
    return document


def read(path: Path) -> str:
    """The file as it is, with its own line ends; nothing if there is none."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""


def write(path: Path, text: str, mode: int | None = None) -> None:
    """Put the whole text in place of the file. Without `mode` the file keeps its own."""
    target = Path(os.path.realpath(path))  # it may be kept elsewhere, with a link to it
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if mode is None:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
    descriptor, draft = tempfile.mkstemp(dir=target.parent, prefix=DRAFT)
    try:
        with open(descriptor, "wb") as file:
            file.write(text.encode("utf-8"))
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        with suppress(FileNotFoundError):  # it is the file now
            os.unlink(draft)
