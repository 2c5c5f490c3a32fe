"""Admit one input: replay or route it, and append. Accepted is what is in the journal.

Nothing is allocated for a request that is refused. Between the last look at the fold
and the append there is no await, so two requests under one key cannot both be first.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from holdfast.core import lifecycle, limits
from holdfast.core.inbox import Idempotency, InputAdmitted
from holdfast.core.intents import RequestKey, Submit, Submitted
from holdfast.core.limits import Limits
from holdfast.core.run import RunQueued, Status
from holdfast.core.session import SessionOpened, admit, go_on
from holdfast.core.types import Fact, InputId, Owner, RunId, SessionId, SessionKey
from holdfast.engine.clock import Clock
from holdfast.engine.sessions import Held, Sessions
from holdfast.errors import JournalUnavailable, Refused
from holdfast.journal.journal import Journal, Pending

_RequestName = tuple[Owner, str, str]


@dataclass(frozen=True, slots=True)
class Defaults:
    """What an input gets that does not ask for anything else."""

    model: str
    home: Path  # sessions get their workspaces below it
    roots: tuple[Path, ...]  # where a request may put one


@dataclass(frozen=True, slots=True)
class _Underway:
    """A request that has been decided and is on its way to the disk."""

    fingerprint: str
    reply: Submitted
    pending: Pending


class Intake:
    """The only way in for words."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        clock: Clock,
        budget: Limits,
        defaults: Defaults,
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._clock = clock
        self._limits = budget
        self._defaults = defaults
        self._underway: dict[_RequestName, _Underway] = {}

    async def submit(self, intent: Submit, process: lifecycle.Status) -> Submitted:
        """Take the words, durably, or say why not. The same request again is the same run."""
        name: _RequestName | None = None
        if (asked := intent.request_key) is not None:
            name = (intent.by.owner, asked.route, asked.key)
            if (reply := await self._replay(name, asked.fingerprint)) is not None:
                return reply
        self._check_open(process)
        key = SessionKey(intent.by.owner, intent.session_id or SessionId(f"ses_{token_hex(16)}"))
        if intent.session_id is None:
            return await self._open(intent, key, name)
        workspace = _resolved(intent.workspace)
        async with self._sessions.hold(key) as held:
            if held is not None and workspace and workspace != held.session.workspace:
                raise Refused(
                    "workspace_fixed",
                    f"Session {key.session_id} works in {held.session.workspace}. Leave "
                    "`workspace` out or name that one.",
                    param="workspace",
                )
            if held is None:
                return await self._open(intent, key, name)
            return await self._admit(intent, held, name, ())

    async def _replay(self, name: _RequestName, fingerprint: str) -> Submitted | None:
        owner, route, key = name
        earlier = await self._journal.replay(owner, route, key)
        if earlier is not None:
            _same_request(earlier.fingerprint, fingerprint, key)
            return Submitted(earlier.run_id, earlier.session_id, replayed=True)
        if (underway := self._underway.get(name)) is not None:
            _same_request(underway.fingerprint, fingerprint, key)
            await underway.pending.wait()
            return Submitted(underway.reply.run_id, underway.reply.session_id, replayed=True)
        return None

    def _check_open(self, process: lifecycle.Status) -> None:
        match lifecycle.decide(process):
            case lifecycle.Decline(code=code, message=message):
                raise Refused(code, message, retry_after_s=5)
            case lifecycle.Admit():
                pass
        if (trouble := self._journal.state()) != "ok":
            raise JournalUnavailable(trouble, retry_after_s=5)
        if not limits.may_queue(self._limits, self._sessions.counts[Status.QUEUED]):
            raise Refused(
                "queue_full",
                f"{self._limits.queued} runs wait for a place already. Try again later.",
                retry_after_s=5,
            )

    async def _open(self, intent: Submit, key: SessionKey, name: _RequestName | None) -> Submitted:
        opened = SessionOpened(
            session_id=key.session_id,
            workspace=self._workspace(intent, key),
            platform=intent.by.platform,
        )
        return await self._admit(intent, self._sessions.create(key), name, (opened,))

    def _workspace(self, intent: Submit, key: SessionKey) -> str:
        if not intent.workspace:
            name = sha256("\0".join(key).encode()).hexdigest()[:32]
            return f"{self._defaults.home}/workspaces/{name}"
        path = Path(_resolved(intent.workspace))
        allowed = intent.by.platform == "cli" or any(
            path.is_relative_to(root.resolve()) for root in self._defaults.roots
        )
        if not allowed:
            raise Refused(
                "workspace_not_allowed",
                "`workspace` does not lie below a directory that gateway.workspace_roots names.",
                param="workspace",
            )
        if not path.is_dir():
            raise Refused(
                "workspace_not_found", f"`workspace` is not a directory: {path}", param="workspace"
            )
        return str(path)

    async def _admit(
        self, intent: Submit, held: Held, name: _RequestName | None, first: tuple[Fact, ...]
    ) -> Submitted:
        run_id, facts = self._facts(intent, held)
        reply = Submitted(run_id, held.key.session_id, replayed=False)
        pending = self._sessions.append(held, *first, *facts)
        if name is None or intent.request_key is None:
            await pending.wait()
            return reply
        self._underway[name] = _Underway(intent.request_key.fingerprint, reply, pending)
        try:
            await pending.wait()
        finally:
            self._underway.pop(name, None)
        return reply

    def _facts(self, intent: Submit, held: Held) -> tuple[RunId, list[Fact]]:
        # Ids that rise with time keep neighbours together on disk, and list in order.
        made_at = f"{int(self._clock.now() * 1000):012x}"
        run_id, input_id = RunId(f"run_{made_at}{token_hex(10)}"), InputId(f"in_{token_hex(12)}")
        facts: list[Fact] = [*admit(held.session), *go_on(held.session)]
        asked = intent.request_key
        facts.append(
            InputAdmitted(
                input_id=input_id,
                run_id=run_id,
                text=intent.text,
                instructions=intent.instructions,
                history=intent.history,
                metadata=dict(intent.metadata),
                idempotency=None if asked is None else _named(asked),
            )
        )
        facts.append(RunQueued(run_id=run_id, input_id=input_id, model=self._defaults.model))
        return run_id, facts


def _named(asked: RequestKey) -> Idempotency:
    return Idempotency(route=asked.route, key=asked.key, fingerprint=asked.fingerprint)


def _same_request(earlier: str, now: str, key: str) -> None:
    if earlier != now:
        raise Refused(
            "idempotency_key_conflict",
            f"The Idempotency-Key {key!r} was used for another request. Use a new one.",
        )


def _resolved(workspace: str) -> str:
    return str(Path(workspace).expanduser().resolve()) if workspace else ""
