"""The terminal's client: HTTP over the unix socket of the home, always.

If a process owns the home, we are its client. If none does, we take the lock, start the
engine in this process and go through the same socket. The owner may end at any moment,
killed or not: another process takes over, and a run that is followed continues from the
last event seen, without gap or repeat. A submission carries an Idempotency-Key, so
repeating it after a lost answer makes no second run. If there is neither an answer nor a
lock to take (an owner that starts, stops or hangs), we tell the user, try for a few
seconds and give up with exit code 75; no terminal ever hangs.
"""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Protocol, TypeVar

import aiohttp
import anyio
import msgspec

from holdfast.api.schema import approvals as approval
from holdfast.api.schema import operator
from holdfast.api.schema import runs as run
from holdfast.api.schema.approvals import ApprovalObject, RuleObject
from holdfast.api.schema.events import TERMINAL, Event
from holdfast.api.schema.health import HealthDetails, SandboxObject
from holdfast.api.schema.operator import CommandObject, CommandResponse, DeliveryObject, SessionMark
from holdfast.api.schema.processes import PortRequest, ProcessList, ProcessObject, ProcessOutput
from holdfast.api.schema.runs import RunObject, RunRequest
from holdfast.app.embedded import LINGER_S
from holdfast.cli.client.embedded import EmbeddedEngine
from holdfast.cli.client.frames import AskedQuestion, Frame
from holdfast.cli.client.refusals import Passing, refusal
from holdfast.cli.client.sessions import OWNER, SessionsClient, path_part, session_path
from holdfast.cli.exits import Code, Exit
from holdfast.config.settings import Config
from holdfast.core.inbox import Mode
from holdfast.core.types import RunId
from holdfast.host.lock import SOCKET, take_lock

PATIENCE_S = 10.0
POLL_S = 0.1
LEAVE_S = 12.0  # more than the engine allows itself for its own way down
RETURN_S = 0.5  # between two attempts to listen
SILENCE_S = 45.0  # the stream sends a comment every 15 s: three missed ones are a dead owner
WAITING = "the process that owns the home is starting or stopping; waiting for it …"

_LOOK = aiohttp.ClientTimeout(total=1.0)
_LOST = (aiohttp.ClientError, TimeoutError, OSError)

T = TypeVar("T")


class WaitForOwner(Protocol):
    """Waits for the next owner; `moved`: events have arrived since the last time."""

    async def __call__(self, *, moved: bool) -> None: ...


@asynccontextmanager
async def connect(
    config: Config,
    say: Callable[[str], None],
    patience_s: float = PATIENCE_S,
    linger_s: float = LINGER_S,
) -> AsyncIterator["Client"]:
    """Make a client for the length of the block; `say` tells the user why it waits.

    An engine in this process lets runs finish for `linger_s` at the end.
    """
    async with anyio.create_task_group() as tasks:
        host = EmbeddedEngine(config, tasks, linger_s)
        connector = aiohttp.UnixConnector(str(config.home / SOCKET), limit=0)
        try:
            async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
                yield Client(config, http, host, say, patience_s)
        finally:
            # Before the task group hears of an error: the engine is to end, not to be cut.
            with anyio.move_on_after(LEAVE_S, shield=True):
                await host.stop()


class Client(SessionsClient):
    """A client of the home's server, whichever process that is. Made by `connect`."""

    config: Config
    http: aiohttp.ClientSession
    host: EmbeddedEngine
    say: Callable[[str], None]
    patience_s: float
    owner: str = ""  # of the sessions that requests name; empty: the operator

    def for_owner(self, owner: str) -> "Client":
        """The same for that owner's sessions. Only a gateway goes on with their runs."""
        return msgspec.structs.replace(self, owner=owner)

    @property
    def _whose(self) -> dict[str, str]:
        return {OWNER: self.owner} if self.owner else {}

    async def submit(self, submission: RunRequest, key: str = "") -> str:
        """Submit input; returns the id of its run, which is recorded by then.

        With a `key` the same input can be submitted again if the answer was lost.
        """
        accepted = await self._ask("POST", "/v1/runs", run.StartResponse, submission, _named(key))
        return accepted.run_id

    async def status(self, run_id: str) -> RunObject:
        """The status of a run."""
        return await self._ask("GET", _path(run_id), RunObject)

    async def runs(self, session_id: str = "", limit: int = 20) -> tuple[RunObject, ...]:
        """The latest runs, newest first; of one session if given."""
        whose = f"&session_id={path_part(session_id)}" if session_id else ""
        return (await self._ask("GET", f"/v1/runs?limit={limit}{whose}", run.RunList)).data

    async def stop(self, run_id: str) -> Sequence[str]:
        """Stop a run; returns its input if it had not begun. Raises `NotFound` if it is over."""
        return await self._stop(f"{_path(run_id)}/stop?unread=true")

    async def take_back(self, run_id: str) -> Sequence[str]:
        """The same for a queued run. Raises `TooLateExit` if it has begun."""
        return await self._stop(f"{_path(run_id)}/stop?unread=true&unless_begun=true")

    async def _stop(self, path: str) -> Sequence[str]:
        unread = (await self._ask("POST", path, run.StopResponse, headers=_named(""))).unread
        return unread if isinstance(unread, tuple) else ()

    async def approvals(self, *of: str) -> tuple[ApprovalObject, ...]:
        """List waiting approvals, oldest first. Without an owner, the runs `of` these ids go on here."""
        found: tuple[ApprovalObject, ...] = ()
        after = ""
        while True:
            path = f"/v1/approvals{after}"
            page = await self._ask("GET", path, approval.ApprovalPage, resume=of)
            found += page.data
            if not isinstance(page.next, str):
                return found
            after = f"?after={path_part(page.next)}"

    async def answer(
        self, asked: ApprovalObject, choice: str, reason: str = ""
    ) -> approval.ApprovalResponse:
        """Answer a request; a denial may have a reason. Raises `TooLateExit` if it waits no more."""
        path = f"/v1/approvals/{path_part(asked.request_id)}"
        body = approval.ApprovalRequest(choice, reason=reason)
        return await self._ask(
            "POST", path, approval.ApprovalResponse, body, resume=(asked.run_id,)
        )

    async def reply(self, asked: AskedQuestion, text: str, key: str = "") -> None:
        """Answer a question. Raises `TooLateExit` if it waits no more."""
        path, body = f"{_path(asked.run_id)}/steer", run.SteerRequest(text, asked.call_id)
        await self._ask("POST", path, run.SteerResponse, body, _named(key), resume=(asked.run_id,))

    async def rules(self) -> tuple[RuleObject, ...]:
        """List standing permissions."""
        return (await self._ask("GET", "/v1/rules", approval.RuleList)).data

    async def allow(self, pattern: str) -> RuleObject:
        """Add a standing permission for the commands that match a pattern."""
        body = approval.RuleRequest(pattern)
        return await self._ask("POST", "/v1/rules", RuleObject, body)

    async def revoke(self, rule: RuleObject) -> None:
        """Revoke a permission. Raises `NotFound` if it was revoked before."""
        path = f"/v1/rules/{path_part(rule.name)}/revoke"
        await self._ask("POST", path, approval.RevokeResponse)

    async def sessions(self) -> tuple[SessionMark, ...]:
        """The sessions of the latest runs and their marks, newest first."""
        return (await self._ask("GET", "/v1/operator/sessions", operator.SessionMarkList)).data

    async def mark(self, session_id: str, verb: str) -> None:
        """Set (`mark`) or clear (`unmark`) a session's mark. Raises `NotFound`."""
        path = f"/v1/operator/sessions/{path_part(session_id)}/{verb}"
        await self._ask("POST", path, operator.MarkResponse)

    async def release(self) -> int:
        """Release all runs in quarantine; returns their number."""
        return (await self._ask("POST", "/v1/operator/release", operator.ReleaseResponse)).released

    async def unsent(self, *, everything: bool) -> tuple[DeliveryObject, ...]:
        """List undelivered chat messages, newest first; all of them if `everything`."""
        path = f"/v1/operator/outbox?all={everything:d}"
        return (await self._ask("GET", path, operator.DeliveryList)).data

    async def message(self, delivery_id: str, verb: str = "") -> DeliveryObject:
        """One of them, after `resend` or `drop` if given. Raises `NotFound`."""
        path = f"/v1/operator/outbox/{path_part(delivery_id)}"
        method, path = ("POST", f"{path}/{verb}") if verb else ("GET", path)
        return await self._ask(method, path, DeliveryObject)

    async def processes(self, *, ended: bool) -> tuple[ProcessObject, ...]:
        """List the background processes of all sessions, oldest first."""
        return (await self._ask("GET", f"/api/processes?ended={ended:d}", ProcessList)).data

    async def process_output(self, process_id: str) -> str:
        """The end of the output of one. Raises `NotFound`."""
        path = f"/api/processes/{path_part(process_id)}/output"
        return (await self._ask("GET", path, ProcessOutput)).output

    async def publish_port(self, process_id: str, port: int, host_port: int) -> ProcessObject:
        """Publish a port of a process on this machine. Raises `NotFound`."""
        path = f"/api/processes/{path_part(process_id)}/ports"
        return await self._ask("POST", path, ProcessObject, PortRequest(port, host_port))

    async def close_port(self, process_id: str, port: int) -> ProcessObject:
        """Close a published port. Raises `NotFound`."""
        path = f"/api/processes/{path_part(process_id)}/ports/{port}"
        return await self._ask("DELETE", path, ProcessObject)

    async def kill_process(self, process_id: str) -> ProcessObject:
        """Kill one. Raises `NotFound`."""
        path = f"/api/processes/{path_part(process_id)}/kill"
        return await self._ask("POST", path, ProcessObject)

    async def command(
        self,
        session_id: str,
        text: str,
        mode: Mode | None = None,
        workspace: str = "",
        key: str = "",
    ) -> CommandResponse:
        """Execute a slash command in a session, once for each key."""
        path = f"/v1/operator/sessions/{path_part(session_id)}/command"
        given = operator.CommandRequest(text, mode, workspace or None)
        return await self._ask("POST", path, CommandResponse, given, _named(key))

    async def commands(self) -> tuple[CommandObject, ...]:
        """List all slash commands."""
        return (await self._ask("GET", "/v1/operator/commands", operator.CommandList)).data

    async def accept_sandbox(self) -> SandboxObject:
        """Let work go on with the sandbox as it is; returns what it is."""
        return await self._ask("POST", "/v1/sandbox/accept", SandboxObject)

    async def health(self) -> HealthDetails | None:
        """The health of the server once it has tried its sandbox; None if it does not report it."""
        found: HealthDetails | None = None
        while True:
            try:
                async with self.http.get("/health/detailed", timeout=_LOOK) as response:
                    found = msgspec.json.decode(await response.read(), type=HealthDetails)
            except msgspec.DecodeError:
                return None
            except _LOST:
                found = None
            if found is not None and found.sandbox.level:
                return found
            await anyio.sleep(POLL_S)

    @property
    def is_owner(self) -> bool:
        """Tell whether this process serves the home."""
        return self.host.serves

    def follow(self, run_id: str) -> AsyncGenerator[Frame, None]:
        """Yield the run's events to its last, also if the owner of the home changes meanwhile."""
        deadline = 0.0

        async def wait(*, moved: bool) -> None:
            nonlocal deadline
            if moved or not deadline:
                deadline = anyio.current_time() + self.patience_s
            await self._pause(deadline)
            await self._find_owner(deadline, RunId(run_id))

        return self._resumed(_path(run_id), 0, wait, until=TERMINAL)

    async def first(self, run_id: str) -> int:
        """Return the number of the run's first event, as soon as there is one."""
        async with aclosing(self.follow(run_id)) as frames:
            return (await anext(frames)).event.seq

    def listen(self, session_id: str, after: int) -> AsyncGenerator[Frame, None]:
        """Yield the session's events after `after`, without end.

        It waits for an owner and never becomes one: to listen is no work.
        """

        async def wait(*, moved: bool) -> None:
            await anyio.sleep(RETURN_S)

        return self._resumed(session_path(session_id), after, wait, (*_LOST, Exit))

    def attend(
        self, session_id: str, after: int, unfinished: Callable[[], Sequence[str]]
    ) -> AsyncGenerator[Frame, None]:
        """Yield the session's events after `after`, also if the owner of the home changes meanwhile.

        Without an owner, its `unfinished` runs go on here, if it has any.
        """

        async def wait(*, moved: bool) -> None:
            if not self.owner and (left := unfinished()):
                await self._find_owner(anyio.current_time() + self.patience_s, *map(RunId, left))
            await anyio.sleep(POLL_S)

        return self._resumed(session_path(session_id), after, wait)

    async def _resumed(
        self,
        path: str,
        after: int,
        wait: WaitForOwner,
        passing: tuple[type[Exception], ...] = _LOST,
        until: Collection[str] = (),
    ) -> AsyncGenerator[Frame, None]:
        """Yield the events after `after`; if the owner is gone or cut us off, `wait` and go on."""
        while True:
            before = after
            with suppress(*passing):
                async with aclosing(self._stream(path, after)) as frames:
                    async for frame in frames:
                        after = frame.event.seq
                        yield frame
                        if frame.event.event in until:
                            return
            await wait(moved=after > before)

    async def _stream(self, path: str, after: int) -> AsyncGenerator[Frame, None]:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.patience_s, sock_read=SILENCE_S
        )
        headers = {"Last-Event-ID": str(after), **self._whose}
        async with self.http.get(path + "/events", headers=headers, timeout=timeout) as response:
            if response.status != 200:
                refused = refusal(response.status, await response.read())
                if isinstance(refused, Passing):
                    return
                raise refused
            # Not by lines: aiohttp limits their length, and an answer may be long.
            rest = b""
            async for chunk in response.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n\n")
                for raw in whole:
                    for line in raw.split(b"\n"):
                        if line.startswith(b"data:"):
                            data = line[5:].strip()
                            yield Frame(msgspec.json.decode(data, type=Event), data.decode())

    async def _ask(
        self,
        method: str,
        path: str,
        kind: type[T],
        body: msgspec.Struct | None = None,
        headers: dict[str, str] | None = None,
        resume: Sequence[str] = (),
    ) -> T:
        deadline = anyio.current_time() + self.patience_s
        options: dict[str, Any] = {"headers": self._whose | (headers or {})}
        if body is not None:
            options["data"] = msgspec.json.encode(body)
            options["headers"] |= {"Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=self.patience_s)
        lost = False
        while True:
            try:
                async with self.http.request(method, path, timeout=timeout, **options) as response:
                    content = await response.read()
            except _LOST:
                if lost:
                    await self._pause(deadline)
                lost = True
                await self._find_owner(deadline, *map(RunId, resume))
                continue
            if response.status < 300:
                return msgspec.json.decode(content, type=kind)
            refused = refusal(response.status, content)
            if not isinstance(refused, Passing):
                raise refused
            await self._pause(deadline)

    async def _find_owner(self, deadline: float, *runs: RunId) -> None:
        """Return when the socket is served: by an owner, or by this process, with these runs."""
        said = False
        while True:
            lock = take_lock(self.config.home)
            if lock is not None:
                await self.host.start(lock, frozenset() if self.owner else frozenset(runs))
                return
            if await self.is_served():
                return
            if not said:
                self.say(WAITING)
                said = True
            await self._pause(deadline)

    async def is_served(self) -> bool:
        """Tell whether a server answers at the socket now."""
        try:
            async with self.http.get("/health", timeout=_LOOK) as response:
                return response.status < 500
        except _LOST:
            return False

    async def _pause(self, deadline: float) -> None:
        if anyio.current_time() >= deadline:
            what = f"the home {self.config.home} is owned by a process that does not answer"
            raise Exit(Code.TRY_AGAIN, f"{what}; try again, or end it if it hangs")
        await anyio.sleep(POLL_S)


def _named(key: str) -> dict[str, str]:
    """The key by which the server knows a repeated request."""
    return {"Idempotency-Key": key or secrets.token_hex(16)}


def _path(run_id: str) -> str:
    return f"/v1/runs/{path_part(run_id)}"
