"""The launcher of level L3: a podman container for one command, from an image or a root directory.

    python -I -S container.py PODMAN WORD…

Only podman is supported. It has no daemon: the processes it starts descend from our shim, which
reaps every orphan below it, so they die with the shim. Docker's containers are children of its
daemon and would survive. The runtime must be crun, which applies our own seccomp filter. Other
runtimes ignore the filter; then the canary reaches a unix socket, and the level is not used.

The image is the file system of the command. Of the machine it sees only the workspace, granted
directories and the home of the commands. The image needs `sh`; `python3` on its PATH, for the
canary; and `bash` at the same path as on the machine, because commands are run with that path. Its
entry point, user, volumes and health checks are ignored, its variables are kept, except those that
add options or start-up files to reading commands. The image is never pulled. Root inside is the
user who runs Holdfast, without capabilities. There is no network, not even through the proxy, so
single hosts cannot be allowed.

A container has no cgroup of its own (`--cgroups=disabled`), so conmon stays in ours. The first
process is a shell that keeps running: the kernel does not deliver signals to the first process of
a namespace unless it handles them, and a command must receive the signal to end. A killed
container leaves no process, but often podman's record of it and its mounts, which are removed
before the next canary test, and a few files of crun in /run, which are not. Without root, podman
keeps one process per user, which holds the user namespace and does nothing else. If that process
is killed after such a container, podman refuses to work until it is reset.

This file stands alone (no site, no package). When it runs as a program, it passes its file
descriptors, and its terminal if it has one, to podman and becomes podman. Which descriptors those
are is known only then.
"""

import base64
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence

_GLOBAL = ("--cgroup-manager=cgroupfs", "--log-level=error")  # warnings would mix with the output
_WALLS = (
    *("--rm", "-i", "--network", "none", "--read-only", "--cap-drop", "all", "--pull", "never"),
    *("--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
    *("--cgroups", "disabled", "--log-driver", "none", "--http-proxy=false", "--user", "0:0"),
    *("--image-volume", "ignore", "--no-healthcheck", "--tmpfs", "/tmp"),
)
# By these an image could have reading commands, which run unasked, run code from the workspace.
_DROPPED = "BASH_ENV CDPATH ENV GREP_OPTIONS POSIXLY_CORRECT RIPGREP_CONFIG_PATH"
_FIRST = f'unset {_DROPPED}; PATH=$PATH:$HOME/.local/bin; "$@"; exit $?'
_LIMITS = {  # the same as on L1
    "nofile": (resource.RLIMIT_NOFILE, 1 << 16),
    "nproc": (resource.RLIMIT_NPROC, 1 << 12),
}
_LABEL = "holdfast"

LOST = "system migrate"
"""Part of podman's error message if its records name running containers that do not exist."""


def confine(
    podman: str,
    image: str,
    argv: Sequence[str],
    *,
    writable: Sequence[str],
    fixed: Sequence[str] = (),
    env: Mapping[str, str],
    cwd: str,
    seccomp: bytes,
    owner: str,
    handed: Sequence[str] = (),
) -> list[str]:
    """Return the command that runs `argv` in a container.

    `fixed` paths are read-only inside of the writable ones. `handed` names variables that are
    passed on from podman's own environment. An `image` that starts with a slash is a root
    directory; it is used through an overlay and not changed. Raises `ValueError` if podman cannot
    mount a path.
    """
    if bad := [path for path in (*writable, *fixed) if "," in path or "\n" in path]:
        raise ValueError(f"podman cannot mount {bad[0]!r}: use a name without commas and newlines")
    options = [
        *_WALLS,
        *(word for limit in _limits() for word in ("--ulimit", limit)),
        *("--annotation", f"run.oci.seccomp_bpf_data={base64.b64encode(seccomp).decode()}"),
        *("--label", f"{_LABEL}={owner}"),
        *(w for path in writable for w in ("--mount", f"type=bind,src={path},dst={path}")),
        *(w for path in fixed for w in ("--mount", f"type=bind,src={path},dst={path},ro=true")),
        *(w for name in handed for w in ("--env", name)),
        *(w for name, value in env.items() for w in ("--env", f"{name}={value}")),
        *("-w", cwd, "--entrypoint", "/bin/sh"),
    ]
    root = ("--rootfs", f"{image}:O") if image.startswith("/") else (image,)
    words = (*options, *root, "-c", _FIRST, "sh", *argv)
    return [sys.executable, "-I", "-S", __file__, podman, *words]


def listing(podman: str, owner: str) -> list[str]:
    """Return the command that lists the containers of `owner`; `dead` reads its output."""
    words = ("--no-trunc", "--filter", f"label={_LABEL}={owner}", "--format", "{{.ID}} {{.Pid}}")
    return [podman, *_GLOBAL, "ps", "--all", *words]


def dead(listed: str) -> list[str]:
    """Return the containers without a process.

    Podman itself does not know: it relies on conmon, which was killed too.
    """
    pairs = (line.split() for line in listed.splitlines())
    return [name for name, pid in pairs if not (int(pid) and os.path.exists(f"/proc/{pid}"))]


def reset(podman: str) -> list[str]:
    """Return the command that repairs `LOST`. It stops all containers; at that point none runs."""
    return [podman, *_GLOBAL, *LOST.split()]


def removal(podman: str, names: Sequence[str]) -> list[str]:
    """Return the command that removes these containers."""
    return [podman, *_GLOBAL, "rm", "--force", "--time", "0", *names]


def _limits() -> Iterator[str]:
    """Return limits for podman. Its defaults, and "host", raise limits, which may be forbidden."""
    for name, (kind, most) in _LIMITS.items():
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        yield f"{name}={value}:{value}"


def main(podman: str, *words: str) -> None:
    """Replace this process by podman."""
    with os.scandir("/proc/self/fd") as found:
        fds = {int(entry.name) for entry in found}
    fds = {fd for fd in fds if fd > 2 and _is_open(fd)}
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3, max(fds, default=2) + 1):  # podman passes a range from 3 without gaps
        if fd not in fds:
            os.dup2(null, fd)
        os.set_inheritable(fd, True)  # noqa: FBT003 — the name of the flag is the name of the call
    passed = f"--preserve-fds={max(fds, default=2) - 2}"
    terminal = ("-t",) if os.isatty(0) else ()
    os.execv(podman, (podman, *_GLOBAL, "run", passed, *terminal, *words))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:  # the descriptor that listed the directory
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
