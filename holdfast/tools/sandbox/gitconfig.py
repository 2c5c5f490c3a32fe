"""Give git the user's name and email, for commits in a home that is not the user's own.

No other setting of the user is copied, because settings can name programs and credentials.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

_SECTION = re.compile(r"\s*\[\s*([^\]\s\"]+)[^\]]*\]")
_SETTING = re.compile(r"\s*(name|email)\s*=\s*\"?([^\"#;\n]+)", re.IGNORECASE)
_TARGET = ".gitconfig"
_FILES = (".gitconfig", ".config/git/config")


def introduce(user_home: str, home: int) -> None:
    """Write the user's identity to the git settings in `home` (an fd), unless there are settings.

    Commands can write to `home` too. So an existing entry, a link above all, is left unchanged.
    """
    with suppress(OSError):
        os.stat(_TARGET, dir_fd=home, follow_symlinks=False)
        return
    if not (known := _identity(user_home)):
        return
    lines = "".join(f'\t{key} = "{value}"\n' for key, value in known.items())
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(_TARGET, flags, 0o600, dir_fd=home)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(f"[user]\n{lines}")


def _identity(user_home: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _FILES:
        with suppress(OSError, UnicodeDecodeError):
            section = ""
            for line in Path(os.path.join(user_home, name)).read_text("utf-8").splitlines():
                if begun := _SECTION.match(line):
                    section = begun[1].lower()
                elif section == "user" and (setting := _SETTING.match(line)):
                    found[setting[1].lower()] = setting[2].strip().replace("\\", "")
    return found
