"""The user's name in git, for commits made in a home that is not the user's own. Nothing else of
their settings: those may name programs, and credentials.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

_SECTION = re.compile(r"\s*\[\s*([^\]\s\"]+)[^\]]*\]")
_WORD = re.compile(r"\s*(name|email)\s*=\s*\"?([^\"#;\n]+)", re.IGNORECASE)
_FILES = (".gitconfig", ".config/git/config")


def introduce(user_home: str, home: str) -> None:
    """Tell git in `home` who the user is, unless it has settings of its own there."""
    target = Path(home, ".gitconfig")
    with suppress(OSError):
        if target.exists() or not (known := _identity(user_home)):
            return
        lines = "".join(f'\t{key} = "{value}"\n' for key, value in known.items())
        target.write_text(f"[user]\n{lines}", "utf-8")


def _identity(user_home: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _FILES:
        with suppress(OSError, UnicodeDecodeError):
            section = ""
            for line in Path(os.path.join(user_home, name)).read_text("utf-8").splitlines():
                if begun := _SECTION.match(line):
                    section = begun[1].lower()
                elif section == "user" and (said := _WORD.match(line)):
                    found[said[1].lower()] = said[2].strip().replace("\\", "")
    return found
