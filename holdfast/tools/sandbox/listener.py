"""The listener: the only connection from a network namespace to the proxy. Runs in the sandbox.

    python -I -S -c SOURCE FD PORT ARGV…

It listens on loopback in the command's namespace, sends that socket to the gateway over the
inherited `FD`, and runs the command in its place. So no extra process remains in the sandbox: the
gateway accepts the connections from outside. It also limits the number of the command's processes:
here, inside, processes of the same user outside of the sandbox are not counted.
"""

import _signal  # type: ignore[import-not-found]  # `signal` doubles the import time with its enums
import os
import resource
import socket
import sys

PROCESSES = 1 << 12  # of the command; counted in its own user namespace. Root is exempt


def main(arguments: list[str]) -> None:
    fd, port, *argv = arguments
    with socket.socket(fileno=int(fd)) as gateway, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen(64)
        socket.send_fds(gateway, [b"."], [listener.fileno()])
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
