"""The environment of a command: its variables, and the user's git identity in its home.

The variables are built from nothing, so that none of ours reaches the command. Of the user's git
settings only name and email are copied, for commits: others can name programs and credentials.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_GIT = {  # overrides settings by which a repository can name programs to run
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.pager": "cat",
    "log.showSignature": "false",
    "protocol.ext.allow": "never",
    "safe.bareRepository": "explicit",  # a bare one inside another repository has own settings
}
TOOLCHAINS = {  # toolchains look for themselves below the home, which is another one here
    "PYENV_ROOT": ".pyenv",
    "RBENV_ROOT": ".rbenv",
    "NODENV_ROOT": ".nodenv",
    "GOENV_ROOT": ".goenv",
    "RUSTUP_HOME": ".rustup",
    "ASDF_DATA_DIR": ".asdf",
    "SDKMAN_DIR": ".sdkman",
    "MISE_DATA_DIR": ".local/share/mise",
}

_SECTION = re.compile(r"\s*\[\s*([^\]\s\"]+)[^\]]*\]")
_SETTING = re.compile(r"\s*(name|email)\s*=\s*\"?([^\"#;\n]+)", re.IGNORECASE)
_TARGET = ".gitconfig"
_FILES = (".gitconfig", ".config/git/config")


def build(user_home: str, path: Sequence[str], home: str, temp: str) -> dict[str, str]:
    """Return the environment of a command with `home` as its home; `temp` may be empty."""
    toolchains = {name: os.path.join(user_home, at) for name, at in TOOLCHAINS.items()}
    git = {
        name: value
        for i, (key, wanted) in enumerate(_GIT.items())
        for name, value in ((f"GIT_CONFIG_KEY_{i}", key), (f"GIT_CONFIG_VALUE_{i}", wanted))
    }
    return {
        "HOME": home,
        "PATH": os.pathsep.join((*path, f"{home}/.local/bin")),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PAGER": "cat",
        **({"TMPDIR": temp} if temp else {}),
        **{name: at for name, at in toolchains.items() if os.path.isdir(at)},
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_CONFIG_COUNT": str(len(_GIT)),
        **git,
    }


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
