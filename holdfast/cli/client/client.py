"""The terminal's way to the front door: HTTP over the owner's unix socket, always.

If an owner serves the home, we are its client. Only if nobody owns the home do we take
the lock, start the engine in this process and go through the same socket. An owner may
go at any moment, killed or not: whoever is left takes over, and a run that is being
followed goes on from the last event seen, without gap or repeat. A submission carries
an Idempotency-Key, so asking again after a lost answer makes no second run. Where there
is neither an answer nor a lock to take (an owner that starts, stops or hangs), we say
so, try for a few seconds and give up with exit code 75; no terminal ever hangs.
"""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
import anyio
import msgspec

from holdfast.app import LINGER_S
from holdfast.cli.exits import Code, Exit
from holdfast.cli.host import Host
from holdfast.cli.library import OWNER, Library
from holdfast.cli.wire import (
    TERMINAL,
    Accepted,
    Answer,
    Answered,
    Approval,
    Approvals,
    Command,
    Commanded,
    CommandInfo,
    CommandList,
    Confined,
    Event,
    Frame,
    Health,
    Message,
    MessageList,
    Passing,
    Question,
    Released,
    Rule,
    Rules,
    Runs,
    RunStatus,
    SessionList,
    SessionObject,
    Submission,
    Words,
    refusal,
)
from holdfast.config import Config
from holdfast.core.types import RunId
from holdfast.lock import SOCKET, take_lock

PATIENCE_S = 10.0
POLL_S = 0.1
LEAVE_S = 12.0  # more than the engine allows itself for its own way down
RETURN_S = 0.5  # between two looks whether somebody serves a session that is only listened to
SILENCE_S = 45.0  # the stream sends a comment every 15 s: three missed ones are a dead owner

_LOOK = aiohttp.ClientTimeout(total=1.0)
_LOST = (aiohttp.ClientError, TimeoutError, OSError)

T = TypeVar("T")


@asynccontextmanager
async def connect(
    config: Config,
    say: Callable[[str], None],
    patience_s: float = PATIENCE_S,
    linger_s: float = LINGER_S,
) -> AsyncIterator["Client"]:
    """A client for as long as the block lasts; `say` tells the user why it waits.

    An engine of our own lets runs finish for `linger_s` at the end.
    """
    async with anyio.create_task_group() as tasks:
        host = Host(config, tasks, linger_s)
        connector = aiohttp.UnixConnector(str(config.home / SOCKET), limit=0)
        try:
            async with aiohttp.ClientSession("http://localhost", connector=connector) as http:
                yield Client(config, http, host, say, patience_s)
        finally:
            # Before the task group hears of an error: the engine is to end, not to be cut.
            with anyio.move_on_after(LEAVE_S, shield=True):
                await host.stop()


class _Stopped(msgspec.Struct, frozen=True):
    unread: tuple[str, ...] = ()


class Client(Library):
    """The front door, whoever serves it. Made by `connect`."""

    config: Config
    http: aiohttp.ClientSession
    host: Host
    say: Callable[[str], None]
    patience_s: float
    owner: str = ""  # whose sessions are meant; empty: the operator's own

    def for_owner(self, owner: str) -> "Client":
        """The same, for that owner's sessions. What waits there is for a gateway to take up."""
        return msgspec.structs.replace(self, owner=owner)

    @property
    def _whose(self) -> dict[str, str]:
        return {OWNER: self.owner} if self.owner else {}

    async def submit(self, submission: Submission, key: str = "") -> str:
        """Hand in words; returns the id of the run they have become, for good.

        Whoever may hand them in again, since the answer was lost, gives them a `key`.
        """
        accepted = await self._ask("POST", "/v1/runs", Accepted, submission, _named(key))
        return accepted.run_id

    async def status(self, run_id: str) -> RunStatus:
        """The run as it stands."""
        return await self._ask("GET", _path(run_id), RunStatus)

    async def runs(self, session_id: str = "", limit: int = 20) -> tuple[RunStatus, ...]:
        """The latest runs, of one session if it is named, newest first."""
        whose = f"&session_id={quote(session_id, safe='')}" if session_id else ""
        return (await self._ask("GET", f"/v1/runs?limit={limit}{whose}", Runs)).data

    async def stop(self, run_id: str) -> Sequence[str]:
        """Ask for the run's end; its words, if it had not begun. Raises `NotFound` if it has ended."""
        return await self._stop(f"{_path(run_id)}/stop?unread=true")

    async def take_back(self, run_id: str) -> Sequence[str]:
        """The same of a run that waits. Raises `TooLate` if it has begun."""
        return await self._stop(f"{_path(run_id)}/stop?unread=true&unless_begun=true")

    async def _stop(self, path: str) -> Sequence[str]:
        return (await self._ask("POST", path, _Stopped, headers=_named(""))).unread

    async def approvals(self, *runs: str) -> tuple[Approval, ...]:
        """What waits for an approval, oldest first; `runs` go on here if nobody owns the home."""
        return (await self._ask("GET", "/v1/approvals", Approvals, runs=runs)).data

    async def answer(self, asked: Approval, choice: str) -> Answered:
        """Answer a request. Raises `TooLate` if it waits no more."""
        path = f"/v1/approvals/{quote(asked.request_id, safe='')}"
        return await self._ask("POST", path, Answered, Answer(choice), runs=(asked.run_id,))

    async def reply(self, asked: Question, words: str, key: str = "") -> None:
        """Answer a question. Raises `TooLate` if it waits no more."""
        path, said = f"{_path(asked.run_id)}/steer", Words(words, asked.call_id)
        await self._ask("POST", path, dict, said, _named(key), runs=(asked.run_id,))

    async def rules(self) -> tuple[Rule, ...]:
        """What is permitted for good."""
        return (await self._ask("GET", "/v1/rules", Rules)).data

    async def revoke(self, rule: Rule) -> None:
        """Take a permission back. Raises `NotFound` if somebody was faster."""
        await self._ask("POST", f"/v1/rules/{quote(rule.name, safe='')}/revoke", dict)

    async def sessions(self) -> tuple[SessionObject, ...]:
        """The sessions of the latest runs, newest first."""
        return (await self._ask("GET", "/v1/operator/sessions", SessionList)).data

    async def mark(self, session_id: str, word: str) -> None:
        """Set (`mark`) or drop (`unmark`) a session's mark. Raises `NotFound`."""
        path = f"/v1/operator/sessions/{quote(session_id, safe='')}/{word}"
        await self._ask("POST", path, dict)

    async def release(self) -> int:
        """Let every run go on that is held; how many."""
        return (await self._ask("POST", "/v1/operator/release", Released)).released

    async def unsent(self, *, everything: bool) -> tuple[Message, ...]:
        """Messages to chats that are not sent, newest first; else only what somebody may miss."""
        path = f"/v1/operator/outbox?all={everything:d}"
        return (await self._ask("GET", path, MessageList)).data

    async def message(self, delivery_id: str, word: str = "") -> Message:
        """One of them, after a word to it: `resend` or `drop`. Raises `NotFound`."""
        path = f"/v1/operator/outbox/{quote(delivery_id, safe='')}"
        if word:
            return await self._ask("POST", f"{path}/{word}", Message)
        return await self._ask("GET", path, Message)

    async def command(
        self,
        session_id: str,
        text: str,
        mode: str | None = None,
        workspace: str = "",
        key: str = "",
    ) -> Commanded:
        """Have a slash command done in a session; one that is asked for again is done once."""
        path = f"/v1/operator/sessions/{quote(session_id, safe='')}/command"
        given = Command(text, mode, workspace)
        return await self._ask("POST", path, Commanded, given, _named(key))

    async def commands(self) -> tuple[CommandInfo, ...]:
        """Every slash command there is."""
        return (await self._ask("GET", "/v1/operator/commands", CommandList)).data

    async def accept_sandbox(self) -> Confined:
        """Let work go on, however well commands are confined here; how well that is."""
        return await self._ask("POST", "/v1/sandbox/accept", Confined)

    async def health(self) -> Health | None:
        """What whoever serves says of itself once it knows its sandbox; None: it does not say."""
        found: Health | None = None
        while True:
            try:
                async with self.http.get("/health/detailed", timeout=_LOOK) as response:
                    found = msgspec.json.decode(await response.read(), type=Health)
            except msgspec.DecodeError:
                return None
            except _LOST:
                found = None
            if found is not None and found.sandbox.level:
                return found
            await anyio.sleep(POLL_S)

    @property
    def is_owner(self) -> bool:
        """Whether it is this process that serves the home, since nobody else does."""
        return self.host.serves

    async def follow(self, run_id: str) -> AsyncGenerator[Frame, None]:
        """The run's events from first to last, whoever owns the home meanwhile."""
        after = 0
        deadline: float | None = None
        while True:
            try:
                async with aclosing(self._stream(_path(run_id), after)) as frames:
                    async for frame in frames:
                        after, deadline = frame.event.seq, None
                        yield frame
                        if frame.event.event in TERMINAL:
                            return
            except _LOST:
                pass  # the owner is gone, or cut us off: go on where we were
            if deadline is None:
                deadline = anyio.current_time() + self.patience_s
            await self._pause(deadline)
            await self._find_owner(deadline, RunId(run_id))

    async def first(self, run_id: str) -> int:
        """The number of the run's first event, when there is one."""
        async with aclosing(self.follow(run_id)) as frames:
            return (await anext(frames)).event.seq

    async def listen(self, session_id: str, after: int) -> AsyncGenerator[Frame, None]:
        """The session's events after `after`, for as long as somebody listens.

        It waits quietly for an owner and never becomes one: to listen is no work.
        """
        path = f"/api/sessions/{quote(session_id, safe='')}"
        while True:
            try:
                async with aclosing(self._stream(path, after)) as frames:
                    async for frame in frames:
                        after = frame.event.seq
                        yield frame
            except (*_LOST, Exit):
                pass
            await anyio.sleep(RETURN_S)

    async def attend(
        self, session_id: str, after: int, unfinished: Callable[[], Sequence[str]]
    ) -> AsyncGenerator[Frame, None]:
        """The session's events after `after`, whoever owns the home meanwhile.

        Where nobody does, its `unfinished` runs go on here; without any, there is no need to.
        """
        path = f"/api/sessions/{quote(session_id, safe='')}"
        while True:
            try:
                async with aclosing(self._stream(path, after)) as frames:
                    async for frame in frames:
                        after = frame.event.seq
                        yield frame
            except _LOST:
                pass  # the owner is gone, or cut us off: go on where we were
            if not self.owner and (runs := unfinished()):
                await self._find_owner(anyio.current_time() + self.patience_s, *map(RunId, runs))
            await anyio.sleep(POLL_S)

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
        runs: Sequence[str] = (),
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
                await self._find_owner(deadline, *map(RunId, runs))
                continue
            if response.status < 300:
                return msgspec.json.decode(content, type=kind)
            refused = refusal(response.status, content)
            if not isinstance(refused, Passing):
                raise refused
            await self._pause(deadline)

    async def _find_owner(self, deadline: float, *runs: RunId) -> None:
        """Return when somebody serves the door: an owner, or we ourselves, with these runs."""
        said = False
        while True:
            lock = take_lock(self.config.home)
            if lock is not None:
                await self.host.start(lock, frozenset() if self.owner else frozenset(runs))
                return
            if await self.is_served():
                return
            if not said:
                self.say("whoever owns the home is starting or stopping; waiting for it …")
                said = True
            await self._pause(deadline)

    async def is_served(self) -> bool:
        """Whether somebody answers at the door right now."""
        try:
            async with self.http.get("/health", timeout=_LOOK) as response:
                return response.status < 500
        except _LOST:
            return False

    async def _pause(self, deadline: float) -> None:
        if anyio.current_time() >= deadline:
            raise Exit(
                Code.TRY_AGAIN,
                f"the home {self.config.home} is owned by a process that does not answer; "
                "try again, or end it if it hangs",
            )
        await anyio.sleep(POLL_S)


def _named(key: str) -> dict[str, str]:
    """What a request is known by if it comes again."""
    return {"Idempotency-Key": key or secrets.token_hex(16)}


def _path(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"
