"""The door: the one way from a network namespace to the proxy. Its source is run inside.

    python -I -S -c SOURCE FD PORT ARGV…

It listens on loopback in the namespace, hands that socket to the gateway over the inherited
`FD`, and becomes the command. Nothing of it stays: connections are accepted from outside.
"""

import _signal  # type: ignore[import-not-found]  # `signal` builds enums for as long as all else
import os
import socket
import sys


def main(arguments: list[str]) -> None:
    fd, port, *argv = arguments
    with socket.socket(fileno=int(fd)) as gateway, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(port)))
        listener.listen(64)
        socket.send_fds(gateway, [b"."], [listener.fileno()])
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores them; a command must not
        _signal.signal(number, _signal.SIG_DFL)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.stderr.write(f"holdfast: not run: {error}\n")
        sys.exit(126)
