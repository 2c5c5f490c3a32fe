"""The listener: the only connection from a network namespace to the proxy. Runs in the sandbox.

    python -I -S -c SOURCE FD NETWORK ARGV…

It listens on a free port of loopback in the command's namespace, sends that socket to the gateway
over the inherited `FD`, names the port in the environment, and runs the command in its place. So no
extra process remains in the sandbox: the gateway accepts the connections from outside. It runs
nothing if it is not in the namespace with the inode `NETWORK` (0: any). It also limits the number of the command's processes:
here, inside, processes of the same user outside of the sandbox are not counted.
"""

import _signal  # type: ignore[import-not-found]  # `signal` doubles the import time with its enums
import os
import resource
import socket
import sys

PROXIED = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
PROCESSES = 1 << 12  # of the command; counted in its own user namespace. Root is exempt


def main(arguments: list[str]) -> None:
    fd, network, *argv = arguments
    if int(network) not in (0, os.stat("/proc/self/ns/net").st_ino):
        raise OSError("it is not in the network of its session")
    with socket.socket(fileno=int(fd)) as gateway, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        socket.send_fds(gateway, [b"."], [listener.fileno()])
    os.environ.update(dict.fromkeys(PROXIED, address))  # noqa: TID251 — it becomes the command's
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = PROCESSES if most == resource.RLIM_INFINITY else min(most, PROCESSES)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # ignored by Python; not by commands
        _signal.signal(number, _signal.SIG_DFL)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"holdfast: command not run: {error}\n")
        sys.exit(126)
