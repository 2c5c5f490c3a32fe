"""Run a command that can make no namespaces, nor can its children, as in many containers.

    .venv/bin/python -m scripts.without_namespaces make test

The sandbox stands at L1 there, with bubblewrap or without.
"""

import ctypes
import os
import struct
import sys

from holdfast.tools.sandbox import seccomp

_DENIED = ("clone", "clone3", "unshare")
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def main(command: list[str]) -> None:
    """Deny namespaces to this process and become the command."""
    program = seccomp.program({name: seccomp.NAMESPACED[name] for name in _DENIED})
    held = ctypes.create_string_buffer(program, len(program))
    pointer = struct.pack("@HP", len(program) // 8, ctypes.addressof(held))
    libc = ctypes.CDLL(None, use_errno=True)
    nothing = ctypes.c_ulong(0)
    if libc.prctl(_NO_NEW_PRIVS, ctypes.c_ulong(1), nothing, nothing, nothing) or libc.prctl(
        _SET_SECCOMP, ctypes.c_ulong(_FILTER), pointer, nothing, nothing
    ):
        sys.exit(f"could not deny namespaces: {os.strerror(ctypes.get_errno())}")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
