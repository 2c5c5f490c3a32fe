"""Admit one input: replay or route it, and append. Accepted is what is in the journal.

Nothing is allocated for a request that is refused. Requests with the same key are decided one
at a time: the others wait until the first is in the journal or refused, and then get its result.
This does not depend on the caller: a client that disconnects meanwhile and sends the request again
finds its run.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from holdfast.core import workspace as workspaces
from holdfast.core.approval.approval import Role
from holdfast.core.events import Record
from holdfast.core.inbox import Idempotency, InputAdmitted, Mode
from holdfast.core.intents import Principal, RequestKey, Submit, Submitted
from holdfast.core.life.lifecycle import DECLINES, LifecyclePhase
from holdfast.core.redaction import Redactor
from holdfast.core.run.limits import Limits
from holdfast.core.run.run import Origin, RunPhase, RunQueued
from holdfast.core.session import placement as words
from holdfast.core.session.session import SessionOpened, Undone, admit, requeue_interrupted
from holdfast.core.types import Fact, InputId, Owner, RunId, SessionKey, Value
from holdfast.engine.clock import Clock
from holdfast.engine.commits import Commits
from holdfast.engine.ids import Ids
from holdfast.engine.sessions import LoadedSession, Sessions
from holdfast.errors import JournalUnavailable, Refused
from holdfast.journal.journal import Journal
from holdfast.models.model import Models

_RequestName = tuple[Owner, str, str]


class Defaults(Value):
    """Defaults for what a request leaves out."""

    models: Models
    home: Path  # sessions get their workspaces below it
    roots: tuple[Path, ...]  # where a request may put one


@dataclass(slots=True)
class _Claim:
    """A request with a key that is being decided or written."""

    name: _RequestName
    enqueued: bool = False
    settled: anyio.Event = field(default_factory=anyio.Event)


class Intake:
    """Admits inputs."""

    def __init__(
        self,
        journal: Journal,
        sessions: Sessions,
        clock: Clock,
        budget: Limits,
        defaults: Defaults,
        redactor: Redactor,
    ) -> None:
        self._journal = journal
        self._sessions = sessions
        self._ids = Ids(clock)
        self._limits = budget
        self._defaults = defaults
        self._redactor = redactor
        self._claims: dict[_RequestName, _Claim] = {}
        self._enqueued: dict[InputId, _Claim] = {}
        journal.on_failure(self._lost)

    def subscribe(self, commits: Commits) -> None:
        """Hear from the journal when an input is durable."""
        commits.subscribe((InputAdmitted,), self._landed)

    async def submit(self, intent: Submit, process: LifecyclePhase) -> Submitted:
        """Admit the input durably, or refuse it. The same request again returns the same run."""
        if intent.request_key is None:
            return await self._take(intent, process, None)
        asked = self._redactor.cleaned(intent.request_key)  # as it will be recorded
        name = (intent.by.owner, asked.route, asked.key)
        while (twin := self._claims.get(name)) is not None:
            await twin.settled.wait()
        claim = self._claims[name] = _Claim(name)
        try:
            reply = await self._replay(name, asked.fingerprint)
            return reply or await self._take(intent, process, claim)
        finally:
            if not claim.enqueued:
                self._settle(claim)

    async def _replay(self, name: _RequestName, fingerprint: str) -> Submitted | None:
        owner, route, key = name
        earlier = await self._journal.replay(owner, route, key)
        if earlier is None:
            return None
        _same_request(earlier.fingerprint, fingerprint, key)
        return Submitted(earlier.run_id, earlier.session_id, replayed=True)

    def _settle(self, claim: _Claim) -> None:
        del self._claims[claim.name]
        claim.settled.set()

    def _landed(self, record: Record) -> None:
        assert isinstance(record.fact, InputAdmitted)
        if (claim := self._enqueued.pop(record.fact.input_id, None)) is not None:
            self._settle(claim)

    def _lost(self) -> None:
        """Release all claims after a failed commit: nothing that was enqueued is in the journal."""
        while self._enqueued:
            self._settle(self._enqueued.popitem()[1])

    async def _take(
        self, intent: Submit, process: LifecyclePhase, claim: _Claim | None
    ) -> Submitted:
        if intent.session_id is None:
            self._check_open(intent, process)
            self._check_model(intent, "")
            key = SessionKey(intent.by.owner, self._ids.session())
            return await self._open(intent, key, claim)
        key = SessionKey(intent.by.owner, intent.session_id)
        workspace = _resolved(intent.workspace)
        load = self._sessions.load_whole if intent.instead else self._sessions.load
        async with load(key) as loaded:
            self._check_open(intent, process)
            self._check_model(intent, loaded.session.model if loaded else "")
            if loaded is None:
                return await self._open(intent, key, claim)
            if workspace and workspace != loaded.session.workspace:
                raise Refused(
                    "workspace_fixed",
                    f"Session {key.session_id} works in {loaded.session.workspace}. Leave "
                    "`workspace` out or name that one.",
                    param="workspace",
                )
            return await self._admit(intent, loaded, claim, ())

    def _check_open(self, intent: Submit, process: LifecyclePhase) -> None:
        if (trouble := self._journal.state()) != "ok":
            raise JournalUnavailable(trouble, retry_after_s=5)
        if intent.came is not None:
            return  # a chat message is accepted also while draining or with a full queue
        if (declined := DECLINES.get(process)) is not None:
            raise Refused(declined.code, declined.message, retry_after_s=5)
        queued, size = self._sessions.counts[RunPhase.QUEUED], self._sessions.queued_bytes
        if not self._limits.may_queue(queued, size):
            raise Refused(
                "queue_full",
                f"{queued} runs with {size >> 20} MB of input wait for a place already. "
                "Try again later.",
                retry_after_s=5,
            )

    def _check_model(self, intent: Submit, chosen: str) -> None:
        """Refuse a model that is not served: neither configured nor chosen for the session."""
        models = self._defaults.models
        if intent.model and intent.model != chosen and not models.serves(intent.model):
            raise Refused(
                "model_not_served",
                f"`model` must be a model of {', '.join(models.providers)}, like "
                f"{models.main.name}, or be left out. To have others served, write "
                "[models.NAME] in config.toml.",
                param="model",
            )

    async def _open(self, intent: Submit, key: SessionKey, claim: _Claim | None) -> Submitted:
        if intent.by.visits:  # only the owner may start a session
            raise Refused("session_not_found", f"There is no such session of {key.owner}.")
        opened = SessionOpened(
            session_id=key.session_id,
            workspace=self.workspace(intent.by, intent.workspace, key),
            platform=intent.by.platform,
        )
        return await self._admit(intent, self._sessions.create(key), claim, (opened,))

    def workspace(self, by: Principal, wanted: str, key: SessionKey) -> str:
        """Return the workspace of a new session; refused if it is not allowed."""
        if not wanted:
            return workspaces.own(str(self._defaults.home), key)
        path = Path(_resolved(wanted))
        if self._redactor.hides(str(path)):  # the name of a directory is recorded as it is
            raise Refused(
                "workspace_not_allowed",
                "The name of `workspace` contains a configured key. Rename the directory, or name "
                "another one.",
                param="workspace",
            )
        allowed = by.platform == "cli" or any(
            path.is_relative_to(root.resolve()) for root in self._defaults.roots
        )
        if not allowed:
            raise Refused(
                "workspace_not_allowed",
                "`workspace` does not lie below a directory that gateway.workspace_roots names.",
                param="workspace",
            )
        home = str(self._defaults.home.resolve())
        insists = by.platform == "cli"
        if str(path) != workspaces.own(home, key) and (
            workspaces.inside(str(path), home)
            or (workspaces.holds(str(path), home) and not insists)
        ):
            raise Refused(
                "workspace_not_allowed",
                "`workspace` is, holds or lies in Holdfast's own home. Name another directory.",
                param="workspace",
            )
        if not os.path.isdir(path):  # unlike Path.is_dir, it does not raise for a long name
            raise Refused(
                "workspace_not_found", f"`workspace` is not a directory: {path}", param="workspace"
            )
        return str(path)

    async def _admit(
        self, intent: Submit, loaded: LoadedSession, claim: _Claim | None, first: tuple[Fact, ...]
    ) -> Submitted:
        run_id, facts = self._facts(intent, loaded)
        pending = self._sessions.append(loaded, *first, *facts)
        if claim is not None:
            claim.enqueued = True
            self._enqueued[_input_of(facts)] = claim
        await pending.wait()
        self._sessions.rest(loaded)
        return Submitted(run_id, loaded.key.session_id, replayed=False)

    def _facts(self, intent: Submit, loaded: LoadedSession) -> tuple[RunId, Sequence[Fact]]:
        run_id, input_id = self._ids.run(), self._ids.input()
        now, asked = loaded.session, intent.request_key
        admitted = InputAdmitted(
            input_id=input_id,
            run_id=run_id,
            text=intent.text,
            instructions=intent.instructions,
            history=intent.history,
            metadata=dict(intent.metadata),
            idempotency=None if asked is None else _named(asked),
            came=intent.came,
            hosts=intent.hosts,
            images=loaded.transcript.last_images() if intent.instead else intent.images,
        )
        model = intent.model or now.model or self._defaults.models.main.name
        queued = RunQueued(run_id=run_id, input_id=input_id, model=model, origin=_origin(intent))
        if intent.came is None and not intent.instead and intent.mode is Mode.QUEUE:
            return run_id, (*admit(now), *requeue_interrupted(now), admitted, queued)
        if intent.instead:
            if now.runs:
                raise Refused("session_busy", "Something is at work here. Stop it first.")
            return run_id, (*admit(now), Undone(by=intent.by.who), admitted, queued)
        speaker = words.Speaker(intent.by.who, Role.ADMIN in intent.by.roles)
        answers = intent.came is not None and words.asks_in_chat(now)
        placement = words.place(now, intent.mode, speaker, answers=answers)
        read_by = run_id if isinstance(placement, words.OwnRun) else placement.run_id
        return read_by, words.admitted(now, placement, admitted, queued)


def _input_of(facts: Sequence[Fact]) -> InputId:
    """Return the admitted input. A message with a key never answers a question, so there is one."""
    return next(f.input_id for f in facts if isinstance(f, InputAdmitted))


def _origin(intent: Submit) -> Origin:
    """Return the run's origin: what its door can do, and what its request asks for."""
    door = intent.by.door
    return Origin(
        platform=door.platform,
        answerable=door.answerable and intent.answerable,
        late=door.late or intent.late,
        address=intent.address,
        reply_to=intent.came.message_id if intent.came else "",
        works_for=intent.by.speaker,
        progress=intent.progress,
    )


def _named(asked: RequestKey) -> Idempotency:
    return Idempotency(route=asked.route, key=asked.key, fingerprint=asked.fingerprint)


def _same_request(earlier: str, now: str, key: str) -> None:
    if earlier != now:
        raise Refused(
            "idempotency_key_conflict",
            f"The Idempotency-Key {key!r} was used for another request. Use a new one.",
        )


def _resolved(workspace: str) -> str:
    try:
        path = str(Path(workspace).expanduser().resolve()) if workspace else ""
        path.encode()
        return path
    except UnicodeEncodeError:  # a fact has to name it
        raise Refused(
            "workspace_not_allowed",
            "`workspace` leads to a name that is not UTF-8. Rename it, or name another directory.",
            param="workspace",
        ) from None
    except (RuntimeError, OSError):  # no such user, or links in a circle
        raise Refused(
            "workspace_not_found", "`workspace` leads nowhere.", param="workspace"
        ) from None
