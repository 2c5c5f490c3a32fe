"""The home: the directory with our files, and the API key that is generated in it."""

import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from holdfast.config.secrets import Secret
from holdfast.config.settings import Config, shown
from holdfast.errors import Misconfigured

KEY_FILE = "api_key"

_SOCKET_ROOM = 103 - len("/run/front.sock")  # what the system leaves for a socket's address


def find_home(environ: Mapping[str, str]) -> Path:
    """HOLDFAST_HOME, else ~/.holdfast; absolute."""
    user = user_home(environ)
    given = environ.get("HOLDFAST_HOME") or "~/.holdfast"
    if given == "~" or given.startswith("~/"):
        return user / given[2:]
    return Path(os.path.abspath(given))


def user_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or os.path.expanduser("~"))


def user_config(environ: Mapping[str, str]) -> Path:
    given = environ.get("XDG_CONFIG_HOME", "")
    return Path(given) if given.startswith("/") else user_home(environ) / ".config"


def check_home(home: Path) -> None:
    """Raise `Misconfigured` if `home` cannot be one."""
    other = "set HOLDFAST_HOME to a directory that you own"
    if len(os.fsencode(home)) > _SOCKET_ROOM:
        raise Misconfigured(
            f"the home {home} has too long a path for a socket",
            f"set HOLDFAST_HOME to one of at most {_SOCKET_ROOM} bytes",
        )
    try:
        there = next(p for p in (home, *home.parents) if p.exists())
    except OSError as error:
        raise Misconfigured(f"the home {home} cannot be used: {error.strerror}", other) from None
    if not there.is_dir():
        what = "is a file" if there == home else f"lies below {there}, which is a file"
        raise Misconfigured(f"the home {home} {what}", other)
    if not os.access(there, os.W_OK | os.X_OK):
        what = "is not writable" if there == home else f"cannot be made: {there} is not writable"
        raise Misconfigured(f"the home {home} {what}", other)
    if there != home and (why := probe(there)):
        raise Misconfigured(f"the home {home} cannot be made: {why}", other)


def probe(directory: Path) -> str:
    """Why nothing can be made in `directory`, or nothing if it can. Tries, and leaves no trace.

    Permissions do not tell: root has them all, and still cannot write below /sys.
    """
    try:
        os.rmdir(tempfile.mkdtemp(dir=directory, prefix=".holdfast-"))
    except OSError as error:
        return f"in {directory}: {error.strerror}"
    return ""


def known_secrets(config: Config) -> list[str]:
    """Everything that must not be seen anywhere; of a generated key, if there is one by now."""
    given = [value for _, value, _ in shown(config) if isinstance(value, Secret)]
    found = list(dict.fromkeys(key.reveal() for key in (*given, *config.vendor_keys.values())))
    if config.gateway.api_key is None and (config.home / KEY_FILE).exists():
        with suppress(Misconfigured):  # no key: reported where one is needed
            found.append(api_key(config).reveal())
    return found


def api_key(config: Config) -> Secret:
    """The key of the HTTP door: the given one, else the generated one, made at first need.

    Safe if several processes do it at once: the first link counts, and no process reads half a
    key.
    """
    if config.gateway.api_key is not None:
        return config.gateway.api_key
    path = config.home / KEY_FILE
    try:
        if not path.exists():
            _create_key(path)
        value = path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(
            f"{path} cannot be used: {error}", "make it a file of your own with mode 0600"
        ) from None
    if len(value) < 16:
        raise Misconfigured(f"{path} holds no key of 16 characters", "delete it for a new one")
    return Secret(value)


def _create_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".api_key.")  # mode 0600, O_EXCL
    try:
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        pass  # another process was faster: its key counts
    finally:
        os.unlink(draft)
