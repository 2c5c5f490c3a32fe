"""Tools for tests, loaded by a real gateway as a plugin. Their effects can be counted outside."""

import ctypes
import os
import resource
import threading
from hashlib import sha256
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from holdfast.core.approval.approval import Choice, Level
from holdfast.core.approval.execution import ExecutionRequest, Parsed, Wants
from holdfast.core.approval.tree import LeftOut, Tree
from holdfast.core.run.call import OnCrash
from holdfast.errors import ToolFailed
from holdfast.tools.sandbox import private
from holdfast.tools.tool import (
    Context,
    Done,
    Effect,
    Judge,
    Outcome,
    Permission,
    Question,
    Tool,
    free,
)

TRACED = "HOLDFAST_TEST_TRACED"


def look_at_nothing() -> None:
    """Have no machine to look through: a tracer stops at every system call, so that takes 7 s."""
    private.HERE = private.Private(roots=())


if os.environ.get(TRACED):
    look_at_nothing()


class Bump(msgspec.Struct):
    path: str
    tag: str


class Touch(msgspec.Struct):
    path: str = ""


async def bump(context: Context, asked: Bump) -> Outcome:
    """Append a line: an effect that a second run would repeat visibly."""
    line = f"{asked.tag} {context.call_id}\n".encode()
    descriptor = os.open(asked.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)
    return Done(f"bumped {asked.tag}")


async def peek(context: Context, asked: Bump) -> Outcome:
    """The same, but it says that it is safe to repeat."""
    return await bump(context, asked)


async def linger(context: Context, asked: Bump) -> Outcome:
    """Repeatable too: it hangs the first time it is run, and says so the second time."""
    await bump(context, asked)
    if len(Path(asked.path).read_text().splitlines()) == 1:  # noqa: ASYNC240  its own line
        await anyio.sleep_forever()
    return Done(f"lingered {asked.tag}")


async def hang(context: Context, asked: Touch) -> Outcome:
    """Say that it has begun, then never end by itself; it can be cancelled."""
    if asked.path:
        Path(asked.path).write_text(context.call_id)  # noqa: ASYNC240  a test's marker
    await anyio.sleep_forever()
    return Done("never")


async def wedge(context: Context, asked: Touch) -> Outcome:
    """Block a worker thread for good: no cancellation reaches it."""
    if asked.path:
        Path(asked.path).write_text(context.call_id)  # noqa: ASYNC240  a test's marker
    await anyio.to_thread.run_sync(threading.Event().wait)
    return Done("never")


async def die(context: Context, asked: Touch) -> Outcome:
    """Take the whole process down, as a poison call would."""
    os.kill(os.getpid(), 9)
    return Done("never")


async def explode(context: Context, asked: Touch) -> Outcome:
    """Fail when it is cancelled: its cleanup raises."""
    if asked.path:
        Path(asked.path).write_text(context.call_id)  # noqa: ASYNC240  a test's marker
    try:
        await anyio.sleep_forever()
    finally:
        raise RuntimeError("cleanup broke")
    return Done("never")


class Blurt(msgspec.Struct):
    path: str
    how: str = "say"


async def blurt(context: Context, asked: Blurt) -> Outcome:
    """Tell what is in a file: as a result, as a failure or as an accident."""
    text = Path(asked.path).read_text()  # noqa: ASYNC240  a few bytes
    match asked.how:
        case "fail":
            raise ToolFailed(text)
        case "raise":
            raise RuntimeError(text)
        case _:
            return Done(text)


async def exposed(context: Context, asked: Touch) -> Outcome:
    """What a child of the gateway is given, and who may look into the gateway itself."""
    child = await anyio.run_process(["/usr/bin/env"])
    dumpable = ctypes.CDLL(None).prctl(3)  # PR_GET_DUMPABLE
    core = resource.getrlimit(resource.RLIMIT_CORE)
    names = sorted(line.partition("=")[0] for line in child.stdout.decode().splitlines())
    return Done(f"child: {' '.join(names)}; dumpable: {dumpable}; core: {core[0]} of {core[1]}")


def _preview(asked: msgspec.Struct) -> str:
    return str(asked)


async def tell_ground(context: Context, asked: Touch) -> Outcome:
    """Say whether it runs because a rule calls it harmless."""
    return Done(f"unasked: {context.unasked}")


async def judged(context: Context, asked: Touch) -> Permission:
    """As a command line of one word would be."""

    async def look(within_s: float, but: LeftOut) -> tuple[Tree, ...]:
        return ()

    request = ExecutionRequest(
        what=Parsed(((asked.path,),)),
        cwd=str(context.workspace),
        programs={},
        files={},
        environment={},
        stdin="",
        profile=(),
        wants=Wants(),
        purpose="",
        bash="/bin/bash",
    )
    return Judge(request, Level.L2, look)


async def ask_first(context: Context, asked: Bump) -> Permission:
    """Whatever it is, somebody has to say yes to exactly this."""
    execution = sha256(f"{asked.path}\0{asked.tag}\0{_seal()}".encode()).hexdigest()
    choices = (Choice.ONCE, Choice.SESSION, Choice.DENY)
    return Question(f"bump {asked.tag}", "appends a line", execution, choices)


def _seal() -> str:
    """Something outside that a test can change between the approval and the start."""
    seal = os.environ.get("TEST_SEAL", "")
    return Path(seal).read_text() if seal and os.path.exists(seal) else ""


TOOLS = (
    Tool(
        "risky", "Append a line.", Bump, Effect.ACT, OnCrash.UNKNOWN, 10, bump, _preview, ask_first
    ),
    Tool("ground", "Tell.", Touch, Effect.ACT, OnCrash.UNKNOWN, 10, tell_ground, _preview, judged),
    Tool("bump", "Append a line.", Bump, Effect.ACT, OnCrash.UNKNOWN, 10, bump, _preview, free),
    Tool(
        "peek",
        "Append a line, repeatably.",
        Bump,
        Effect.READ,
        OnCrash.REPEAT,
        10,
        peek,
        _preview,
        free,
    ),
    Tool("linger", "Linger.", Bump, Effect.READ, OnCrash.REPEAT, 600, linger, _preview, free),
    Tool("blurt", "Tell.", Blurt, Effect.READ, OnCrash.REPEAT, 10, blurt, _preview, free),
    Tool("exposed", "Look.", Touch, Effect.READ, OnCrash.REPEAT, 10, exposed, _preview, free),
    Tool("hang", "Hang.", Touch, Effect.ACT, OnCrash.UNKNOWN, 600, hang, _preview, free),
    Tool("wedge", "Wedge.", Touch, Effect.ACT, OnCrash.UNKNOWN, 600, wedge, _preview, free),
    Tool("die", "Die.", Touch, Effect.ACT, OnCrash.UNKNOWN, 10, die, _preview, free),
    Tool("explode", "Explode.", Touch, Effect.ACT, OnCrash.UNKNOWN, 600, explode, _preview, free),
)
