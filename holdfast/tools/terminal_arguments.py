"""The arguments of the `terminal` tool, and what is wrong with them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.errors import ToolFailed
from holdfast.tools.tool import SURROGATE

MAX_COMMAND = 100_000  # bytes; the kernel takes no argument longer than 128 KiB
Timeout = Annotated[
    float,
    Meta(
        ge=1,
        le=3600,
        description="Seconds; default 180, in the background none (3600 if no person is asked)",
    ),
]
Pattern = Annotated[str, Meta(min_length=1, max_length=200)]


class TerminalArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    command: Annotated[str, Meta(description="A command line for bash")]
    timeout: Timeout | None = None
    background: Annotated[
        bool, Meta(description="Return at once; use the process tool for its output and result")
    ] = False
    notify_on_complete: Annotated[
        bool, Meta(description="Background: get a message when it ends, without polling")
    ] = False
    watch_patterns: Annotated[
        list[Pattern],
        Meta(max_length=10, description="Background: get a message for lines that contain these"),
    ] = []
    pty: Annotated[bool, Meta(description="Run it in a pseudo-terminal")] = False
    stdin: Annotated[str, Meta(description="Its complete stdin")] = ""
    stdin_open: Annotated[
        bool, Meta(description="Background: keep stdin open for the process tool's write")
    ] = False
    workdir: Annotated[
        str, Meta(description="Directory for this command; relative to the current directory")
    ] = ""
    detach: Annotated[
        bool, Meta(description="Background: may outlive the gateway; needs an approval")
    ] = False
    unsandboxed: Annotated[
        bool, Meta(description="Outside of the sandbox, with full network; needs an approval")
    ] = False
    purpose: Annotated[
        str, Meta(description="One line that tells the user why, if an approval is needed")
    ] = ""


def check(asked: TerminalArguments) -> None:
    if not asked.command.strip():
        raise ToolFailed("The command is empty; give a command line.")
    try:
        size, *_ = (len(text.encode()) for text in (asked.command, asked.stdin, asked.workdir))
    except UnicodeEncodeError:
        raise ToolFailed(SURROGATE) from None
    if "\0" in asked.command + asked.workdir:
        raise ToolFailed("A command cannot contain a NUL character; remove it.")
    if size > MAX_COMMAND:
        raise ToolFailed("The command is too long; write it to a file and run that.")
    if not asked.background:
        for wanted in ("notify_on_complete", "watch_patterns", "detach", "stdin_open"):
            if getattr(asked, wanted):
                raise ToolFailed(f"{wanted} works only in the background; set background too.")


def takes_more(asked: TerminalArguments) -> bool:
    """Return whether input may be written later. Then the approval question says so."""
    return asked.stdin_open or (asked.background and asked.pty)


def preview(asked: TerminalArguments) -> str:
    """Return the command in one line."""
    return " ↵ ".join(asked.command.strip().splitlines())
