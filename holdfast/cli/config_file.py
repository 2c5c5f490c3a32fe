"""`config.toml`, changed as little as can be: a few values, and every other byte stays.

The text is cut into statements: from where one begins, the next is the fewest lines that are
TOML by themselves. So no line within a string is ever taken for a setting. What comes out is
read again and must say what was wanted and nothing else; where that cannot be had (a section
written as an inline table, say) nothing is changed, and it is told what to write.

The file is replaced whole: whoever is killed in the middle leaves the old one, and a draft that
`holdfast doctor --fix` takes away.
"""

import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.cli.exits import Code, Exit
from holdfast.config_channels import toml
from holdfast.core.types import Value

DRAFT = ".config.toml."  # what the name of one begins with
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


class _Statement(Value):
    """A line of the file, or several that belong together."""

    text: str
    says: Mapping[str, Any]  # nothing: a comment, or an empty line

    @property
    def is_header(self) -> bool:
        return self.text.lstrip().startswith("[")

    def sets(self, *path: str) -> bool:
        """Whether it gives `path`, or something below it, a value."""
        inner: Any = self.says
        for name in path:
            if not isinstance(inner, dict) or name not in inner:
                return False
            inner = inner[name]
        return not self.is_header


def changed(path: Path, text: str, values: Mapping[str, str]) -> str:
    """The text with these values, each by its key; raises `Exit` where that is not safe."""
    wanted = tomllib.loads(text)
    new = text
    try:
        for key, value in values.items():
            section, _, name = key.rpartition(".")
            table = wanted.setdefault(section, {}) if section else wanted
            if table.get(name) != value:
                table[name] = value
                new = _set(new, section, name, value)
        if tomllib.loads(new) == wanted:
            return new
    except (AttributeError, TypeError, tomllib.TOMLDecodeError):
        pass  # as if it had come out otherwise than it should
    lines = ", ".join(f"{key} = {toml(value)}" for key, value in values.items())
    raise Exit(Code.FAILED, f"{path} cannot be changed safely; write it yourself: {lines}")


def _set(text: str, section: str, name: str, value: str) -> str:
    statements = _statements(text)
    end = next((i for i, s in enumerate(statements) if s.is_header), len(statements))
    path = (section, name) if section else (name,)
    for at, one in enumerate(statements[:end]):  # also as section.name
        if one.sets(*path):
            return _joined(statements, at, _replaced(one, path, value))
    if not section:
        return _inserted(statements, _above(statements, end), f"{name} = {toml(value)}")
    dotted = [i for i, s in enumerate(statements[:end]) if s.sets(section)]
    if dotted:
        return _inserted(statements, dotted[-1] + 1, f"{section}.{name} = {toml(value)}")
    return _set_below(statements, section, name, value)


def _set_below(statements: list[_Statement], section: str, name: str, value: str) -> str:
    """The value under the section's own header, which is added if it is not there."""
    line = f"{name} = {toml(value)}"
    for begin, header in enumerate(statements):
        if not header.is_header or header.says != {section: {}}:
            continue
        last = begin
        for at in range(begin + 1, len(statements)):
            one = statements[at]
            if one.is_header:
                break
            if one.sets(name):
                return _joined(statements, at, _replaced(one, (name,), value))
            last = at if one.says else last
        return _inserted(statements, last + 1, line)
    gap = [""] if any(s.text.strip() for s in statements[-1:]) else []
    return _inserted(statements, len(statements), *gap, f"[{section}]", line)


def _statements(text: str) -> list[_Statement]:
    found: list[_Statement] = []
    begun = ""
    for line in _LINE.findall(text):
        begun += line
        try:
            says = tomllib.loads(begun)
        except tomllib.TOMLDecodeError:
            continue
        found.append(_Statement(begun, says))
        begun = ""
    return [*found, _Statement(begun, {})] if begun else found


def _above(statements: list[_Statement], end: int) -> int:
    """Where a value for no section goes: below the others, above what belongs to the first one."""
    given = [i for i, s in enumerate(statements[:end]) if s.says]
    if given:
        return given[-1] + 1
    while end < len(statements) and end and statements[end - 1].text.strip():
        end -= 1  # comments right above a header are the header's
    return end


def _replaced(one: _Statement, path: tuple[str, ...], value: str) -> str:
    """The statement with another value, and whatever stands around it."""
    head, equals, rest = one.text.partition("=")
    inner = rest.lstrip(" \t")
    head += equals + rest[: len(rest) - len(inner)]
    for length in range(1, len(inner) + 1):  # the fewest characters that say what it says
        try:
            if tomllib.loads(head + inner[:length]) == one.says:
                return head + toml(value) + inner[length:]
        except tomllib.TOMLDecodeError:
            continue
    raise TypeError(path)


def _joined(statements: list[_Statement], at: int, text: str) -> str:
    return "".join(text if i == at else s.text for i, s in enumerate(statements))


def _inserted(statements: list[_Statement], at: int, *lines: str) -> str:
    before = "".join(s.text for s in statements[:at])
    after = "".join(s.text for s in statements[at:])
    end = "\r\n" if "\r\n" in before + after else "\n"
    if before and not before.endswith("\n"):
        before += end
    if after.lstrip(" \t").startswith(("[", "#")):  # the next section keeps its distance
        lines = (*lines, "")
    return before + "".join(line + end for line in lines) + after


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
