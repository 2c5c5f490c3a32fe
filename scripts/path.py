"""Print the modules on the path of a request: POST /v1/runs, from its bytes to its 202.

A gateway serves one real request in this process. A profile notes each function of ours that runs
meanwhile: in the task of the request, in a callback of the loop, or in the thread that writes the
journal. The work that the request causes runs in tasks of its own and is not on the path.

    python -m scripts.path          the modules, in the order in which they are reached
    python -m scripts.path -v       and the functions that run in each
    python -m scripts.path --check  only if there are more of them than a reader can follow

Two kinds of modules are listed apart, because a reader of the path need not follow their code:
those of values (only methods of structs and enumerations run, or one function of the pure core
that calls nothing of ours: its name says its result), and those that only hear of the commit (the
202 waits for the disk; what they do is the beginning of the work).
"""

import asyncio
import http.client
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from enum import Enum
from pathlib import Path
from types import CodeType, FrameType

import anyio
import anyio.to_thread
import msgspec

from holdfast.app.doors import serve_network
from holdfast.app.engine import engine
from holdfast.config import load
from holdfast.config.home import api_key
from holdfast.core.run.run import CutCause
from holdfast.engine.messenger import Chatting

ROOT = Path(__file__).parent.parent
OURS = f"{ROOT / 'holdfast'}/"
CORE = "holdfast.core."
HANDLER = "RequestHandler."  # begins the names of aiohttp's coroutines that serve a request
MOST = 18  # modules with code that a reader of the path has to follow
COMMITS = f"{OURS}engine/commits.py"  # calls those that hear of a commit

Modules = dict[str, list[CodeType]]


class Trace:
    """The functions of ours that run on the path while it is on, in order."""

    def __init__(self) -> None:
        self.on = False
        self.seen: dict[CodeType, None] = {}
        self.heard: dict[CodeType, None] = {}  # of those that hear of the commit
        self.calls: set[CodeType] = set()  # those that call others of ours

    def note(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call. This is the profile function."""
        if not self.on or event != "call" or not _is_ours(frame) or not _on_path():
            return
        stack = [f.f_code for f in _stack(frame) if _is_ours(f)]
        self.calls.update(stack[1:2])
        hears = any(code.co_filename == COMMITS for code in stack)
        (self.heard if hears else self.seen)[frame.f_code] = None


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OURS)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _on_path() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop here: the thread of the journal, or a worker
        return threading.current_thread().name == "journal"
    return task is None or str(getattr(task.get_coro(), "__qualname__", "")).startswith(HANDLER)


def post(address: str, key: str, trace: Trace) -> None:
    """Start a run, and return when it has ended; what follows the 202 is not traced."""
    client = http.client.HTTPConnection(address.removeprefix("http://"))
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    client.request("POST", "/v1/runs", b'{"input": "hello"}', headers)
    response = client.getresponse()
    trace.on = False
    started = msgspec.json.decode(response.read())
    if response.status != 202:
        raise SystemExit(f"POST /v1/runs: {response.status} {started}")
    client.request("GET", f"/v1/runs/{started['run_id']}/events", headers=headers)
    client.getresponse().read()
    client.close()


async def serve(home: Path, trace: Trace) -> None:
    """Serve two requests: the first fills the caches, the second is traced."""
    environ = {"HOLDFAST_HOME": str(home), "HOLDFAST_MODEL": "offline/none", "HOLDFAST_PORT": "0"}
    config = load.load(environ, {})
    key = api_key(config).reveal()
    async with engine(config, Chatting({}, {})) as (service, _), AsyncExitStack() as doors:
        address = await serve_network(config, service, (), doors)
        await service.start()
        await anyio.to_thread.run_sync(post, address, key, trace)
        trace.on = True
        await anyio.to_thread.run_sync(post, address, key, trace)
        await service.stop(0, CutCause.SHUTDOWN)


def by_module(codes: Mapping[CodeType, None]) -> Modules:
    """The functions by module, in the order in which the modules were reached."""
    found: Modules = {}
    for code in codes:
        name = str(Path(code.co_filename).relative_to(ROOT).with_suffix(""))
        found.setdefault(name.replace("/", "."), []).append(code)
    return found


def of_values(module: str) -> Iterator[CodeType]:
    """The code of the methods of a module's values."""
    for found in vars(sys.modules[module]).values():
        if isinstance(found, type) and issubclass(found, msgspec.Struct | Enum):
            for member in vars(found).values():
                function = getattr(member, "fget", member)
                if (code := getattr(function, "__code__", None)) is not None:
                    yield code


def needs_no_following(module: str, codes: Sequence[CodeType], trace: Trace) -> bool:
    """Tell if a reader of the path only looks up names in that module."""
    left = {c for c in codes if not c.co_name.startswith("<")} - {*of_values(module)}
    return not left or (len(left) == 1 and module.startswith(CORE) and not left & trace.calls)


def show(title: str, modules: Modules, *, functions: bool) -> None:
    """Print one list."""
    print(f"{len(modules)} {title}")
    for name, codes in modules.items():
        print(f"  {name}")
        names = dict.fromkeys(c.co_qualname for c in codes if not c.co_name.startswith("<"))
        for function in names if functions else ():
            print(f"      {function}")


def main(arguments: Sequence[str]) -> int:
    """Trace a request and print its path; fail if it is too long."""
    trace = Trace()
    threading.setprofile(trace.note)
    sys.setprofile(trace.note)
    with tempfile.TemporaryDirectory() as home:
        anyio.run(serve, Path(home), trace)
    sys.setprofile(None)
    modules = by_module(trace.seen)
    values = {name: c for name, c in modules.items() if needs_no_following(name, c, trace)}
    followed = {name: c for name, c in modules.items() if name not in values}
    heard = {name: c for name, c in by_module(trace.heard).items() if name not in modules}
    functions = "-v" in arguments
    if "--check" not in arguments:
        show("modules with code to follow", followed, functions=functions)
        show("modules of values", values, functions=functions)
        show("modules that only hear of the commit", heard, functions=functions)
    if too_long := len(followed) > MOST:
        print(f"path: {len(followed)} modules, over the limit of {MOST}: {', '.join(followed)}")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
