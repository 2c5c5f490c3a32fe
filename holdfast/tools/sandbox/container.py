"""The launcher of L3: a podman container for one command, from an image or a root directory.

    python -I -S container.py PODMAN WORD…

Podman, and no other engine. It has no daemon: what it starts descends from our shim, which
reaps every orphan below it, and so dies with it. Docker's containers are children of its
daemon, and would live on. The runtime must be crun, which takes our own seccomp filter as it
is; another one ignores it, the canary reaches a unix socket, and the rung does not count.

The image is the system here: nothing of the machine's is seen but the workspace, what was
granted beside it and the home of the commands. It needs `sh`; `python3` on its PATH for the
canary; and `bash` where the machine has it, because commands are given by that path. Its
entry point, user, volumes and health checks are ignored, its variables are kept. It is never
pulled. Root inside is whoever runs Holdfast, without capabilities. There is no network, not
even by the proxy: single hosts cannot be opened.

A container has no cgroup of its own (`--cgroups=disabled`), so conmon stays in ours. Its
first process is a shell that stays: the kernel keeps signals from a first process that does
not expect them, and a command should hear that it has to end. One that is killed leaves no
process, but often podman's record of it and its mounts, which are removed before the next
canary, and a few files of crun's in /run, which are not. Without root podman keeps one
process for each user, which holds the user namespace; it runs nothing, and stays. If it is
killed after such a container, podman refuses to work until it is reset.

It stands alone (no site, no package): run as a program it hands on the file descriptors it
has, and a terminal if it has one, and becomes podman. That cannot be known earlier.
"""

import base64
import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence

_GLOBAL = ("--cgroup-manager=cgroupfs", "--log-level=error")  # its warnings are output too
_WALLS = (
    *("--rm", "-i", "--network", "none", "--read-only", "--cap-drop", "all", "--pull", "never"),
    *("--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
    *("--cgroups", "disabled", "--log-driver", "none", "--http-proxy=false", "--user", "0:0"),
    *("--image-volume", "ignore", "--no-healthcheck", "--tmpfs", "/tmp"),
)
_FIRST = 'PATH=$PATH:$HOME/.local/bin; "$@"; exit $?'
_LIMITS = {  # the same as on L1
    "nofile": (resource.RLIMIT_NOFILE, 1 << 16),
    "nproc": (resource.RLIMIT_NPROC, 1 << 12),
}
_LABEL = "holdfast"

LOST = "system migrate"
"""In what podman says when it believes that containers run and finds none that does."""


def confine(
    podman: str,
    image: str,
    argv: Sequence[str],
    *,
    writable: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    seccomp: bytes,
    owner: str,
    handed: Sequence[str] = (),
) -> list[str]:
    """`argv` as a command in a container. `handed` are variables podman itself will have.

    `ValueError` if a path cannot be said to podman. An `image` with a slash in front is a root
    directory: it is seen through an overlay, and not changed.
    """
    if bad := [path for path in writable if "," in path or "\n" in path]:
        raise ValueError(f"podman cannot mount {bad[0]!r}: use a name without commas and new lines")
    options = [
        *_WALLS,
        *(word for limit in _limits() for word in ("--ulimit", limit)),
        *("--annotation", f"run.oci.seccomp_bpf_data={base64.b64encode(seccomp).decode()}"),
        *("--label", f"{_LABEL}={owner}"),
        *(w for path in writable for w in ("--mount", f"type=bind,src={path},dst={path}")),
        *(w for name in handed for w in ("--env", name)),
        *(w for name, value in env.items() for w in ("--env", f"{name}={value}")),
        *("-w", cwd, "--entrypoint", "/bin/sh"),
    ]
    root = ("--rootfs", f"{image}:O") if image.startswith("/") else (image,)
    words = (*options, *root, "-c", _FIRST, "sh", *argv)
    return [sys.executable, "-I", "-S", __file__, podman, *words]


def listing(podman: str, owner: str) -> list[str]:
    """The command that lists the containers of `owner`, for `dead`."""
    words = ("--no-trunc", "--filter", f"label={_LABEL}={owner}", "--format", "{{.ID}} {{.Pid}}")
    return [podman, *_GLOBAL, "ps", "--all", *words]


def dead(listed: str) -> list[str]:
    """Those without a process. Podman does not know: it takes conmon's word, and conmon is dead."""
    pairs = (line.split() for line in listed.splitlines())
    return [name for name, pid in pairs if not (int(pid) and os.path.exists(f"/proc/{pid}"))]


def reset(podman: str) -> list[str]:
    """The command against `LOST`. It stops what runs under podman: then, nothing does."""
    return [podman, *_GLOBAL, *LOST.split()]


def removal(podman: str, names: Sequence[str]) -> list[str]:
    """The command that removes them."""
    return [podman, *_GLOBAL, "rm", "--force", "--time", "0", *names]


def _limits() -> Iterator[str]:
    """Podman would raise them to its own, which not every root may; "host" does that too."""
    for name, (kind, most) in _LIMITS.items():
        hard = resource.getrlimit(kind)[1]
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        yield f"{name}={value}:{value}"


def main(podman: str, *words: str) -> None:
    """Become podman."""
    with os.scandir("/proc/self/fd") as found:
        fds = {int(entry.name) for entry in found}
    fds = {fd for fd in fds if fd > 2 and _is_open(fd)}
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3, max(fds, default=2) + 1):  # podman takes all from 3 on, without gaps
        if fd not in fds:
            os.dup2(null, fd)
        os.set_inheritable(fd, True)  # noqa: FBT003 — the name of the flag is the name of the call
    passed = f"--preserve-fds={max(fds, default=2) - 2}"
    terminal = ("-t",) if os.isatty(0) else ()
    os.execv(podman, (podman, *_GLOBAL, "run", passed, *terminal, *words))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:  # the one that listed them
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
