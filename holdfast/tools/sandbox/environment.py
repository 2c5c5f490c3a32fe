"""The environment of a command: built from nothing, so that no variable of ours reaches it."""

import os
from collections.abc import Sequence

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
