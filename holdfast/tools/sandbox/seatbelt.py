"""Seatbelt: the sandbox of macOS, through `sandbox-exec`. UNTESTED: written from its manual.

The canary test decides here too: if the profile does not hold, or `sandbox-exec` no longer exists
(Apple has called it deprecated for years), the next lower level is used. The last matching rule
wins, so the view is written from the root downwards, as for bubblewrap.
"""

from collections.abc import Sequence

from holdfast.tools.sandbox.mounts import Access, View

PROGRAM = "/usr/bin/sandbox-exec"

_HEAD = """(version 1)
(deny default)
(allow process-exec) (allow process-fork) (allow sysctl-read) (allow mach-lookup
  (global-name "com.apple.system.notification_center")
  (global-name "com.apple.system.opendirectoryd.libinfo"))
(allow signal (target same-sandbox))
(allow file-read-metadata)
(allow file-ioctl (literal "/dev/tty"))
(allow file-read* file-write* (literal "/dev/null") (literal "/dev/zero") (literal "/dev/tty"))
"""

_RULES = {
    Access.HIDE: "(deny file-read-data file-write* (subpath {path}))",
    Access.READ: "(allow file-read* (subpath {path})) (deny file-write* (subpath {path}))",
    Access.WRITE: "(allow file-read* file-write* (subpath {path}))",
}


def confine(view: View, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` confined: no network, and only the files in `view`."""
    return [PROGRAM, "-p", profile(view), *argv]


def profile(view: View) -> str:
    """Write `view` in seatbelt's language."""
    lines = (_RULES[access].format(path=_quoted(path)) for path, access in view.items())
    return _HEAD + "\n".join(lines) + "\n"


def _quoted(path: str) -> str:
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
