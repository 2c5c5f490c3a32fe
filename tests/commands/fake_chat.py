"""A conversation that only remembers what was asked of it."""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast import plugins
from holdfast.commands import parse
from holdfast.core.approval.approval import ApprovalRequested, Choice, Role
from holdfast.core.inbox import Mode
from holdfast.core.run.run import RunPhase
from holdfast.core.session.compaction import Filling
from holdfast.core.session.rewind import Point, RewindChoice, RewindDone
from holdfast.core.session.rewound import FileStep, RewindScope, Rewound
from holdfast.core.types import OPERATOR, CallId, RequestId, RewindId, RunId, SessionId, Usage
from holdfast.errors import HoldfastError
from holdfast.gateway import ChatSession, ChatStatus, FileDiff, Health, ProcessView, RunView

NOW = 1_000_000_000.0
SESSION = SessionId("ses_1")
COMMANDS = plugins.find_commands()

HEALTH = Health(
    status="ready",
    version="1",
    model="openai/m",
    running=0,
    queued=0,
    waiting=0,
    loop_lag_ms=0.0,
    journal="ok",
    uptime_s=1.0,
    sandbox="L2",
    sandbox_note="L2: own namespaces",
    paused="",
    models=("openai/m", "groq/x"),
)


def run(
    name: str = "run_1", status: RunPhase = RunPhase.RUNNING, *, stopping: bool = False
) -> RunView:
    """A run that was asked for three minutes ago."""
    return RunView(
        run_id=RunId(name),
        session_id=SESSION,
        status=status,
        stopping=stopping,
        waiting_for_approval=False,
        approval=None,
        created_at=NOW - 200,
        updated_at=NOW,
        model="openai/m",
        last_event="run.started",
        usage=Usage(),
        ending=None,
        ended_seq=None,
    )


def request(name: str, command: str = "make") -> ApprovalRequested:
    """A question that waits for five minutes more."""
    return ApprovalRequested(
        run_id=RunId("run_1"),
        call_id=CallId("call_1"),
        request_id=RequestId(f"apr_{name}"),
        command=command,
        description="",
        execution="",
        choices=(Choice.ONCE, Choice.SESSION, Choice.DENY),
        expires_at=NOW + 300,
    )


def session(number: int, words: str, age_s: float, *, current: bool = False) -> ChatSession:
    return ChatSession(
        number=number,
        session_id=SessionId(f"ses_{number}"),
        begun_at=NOW - age_s,
        current=current,
        first_words=words,
        now=NOW,
    )


class FakeChat:
    """As quiet as can be, unless a test says otherwise."""

    def __init__(self, *roles: Role) -> None:
        self.roles = frozenset(roles or Role)
        self.asked: list[tuple[object, ...]] = []  # all that changes something
        self.refusal: HoldfastError | None = None
        self.stops = 0
        self.spent = Usage()
        self.had: list[ChatSession] = []
        self.can_go_back_to: tuple[Point, ...] = ()
        self.takes_back: tuple[RunId, ...] = (RunId("run_1"),)
        self.restores: tuple[FileStep, ...] = ()
        self.background: list[ProcessView] = []
        self.changes: list[FileDiff] = []
        self.filling = Filling(8_000, 2_000, 500, 0, 1_200, 300, 12, 0, measured=True)
        self.now = ChatStatus(
            session_id=SESSION,
            run=None,
            steps=0,
            waiting=0,
            question="",
            approvals=(),
            busy_mode=Mode.INTERRUPT,
            model="openai/m",
            suspended=False,
            health=HEALTH,
            now=NOW,
        )
        self.after: ChatStatus | None = None  # how things stand once something was asked

    async def status(self) -> ChatStatus:
        return self.now

    async def stop(self) -> int:
        self._ask("stop")
        return self.stops

    async def begin(self) -> None:
        self._ask("begin")

    async def say(self, text: str, mode: Mode | None) -> None:
        self._ask("say", text, mode)

    async def choose_busy_mode(self, mode: Mode) -> None:
        self._ask("choose_busy_mode", mode)

    async def choose_model(self, name: str) -> str:
        self._ask("choose_model", name)
        return name or "openai/configured"

    async def answer(self, choice: Choice, request_id: str, reason: str = "") -> Choice:
        self._ask("answer", choice, request_id, *([reason] if reason else []))
        left = tuple(a for a in self.now.approvals if a.request_id != request_id)
        self.now = replace(self.now, approvals=left)
        return Choice.SESSION if choice is Choice.ALWAYS else choice

    async def retry(self) -> None:
        self._ask("retry")

    async def points(self) -> Sequence[Point]:
        return self.can_go_back_to

    async def rewind(self, asked: RewindChoice) -> RewindDone:
        self._ask("rewind", asked)
        done = Rewound(
            rewind_id=RewindId("rew_1"),
            point=RunId("run_1"),
            by=OPERATOR,
            what=asked.what,
            runs=() if asked.what is RewindScope.FILES else self.takes_back,
            files=self.restores,
            redo=asked.redo,
        )
        return RewindDone(done, "make *it*\nbetter")

    async def usage(self) -> Usage:
        return self.spent

    async def diff(self, run: str) -> Sequence[FileDiff]:
        self._ask("diff", run)
        return self.changes

    async def context(self) -> Filling:
        return self.filling

    async def compact(self, focus: str) -> Filling | None:
        self._ask("compact", focus)
        return self.filling if self.filling.hidden else None

    async def processes(self) -> Sequence[ProcessView]:
        return self.background

    async def process_output(self, process_id: str) -> str:
        self._ask("process_output", process_id)
        return "its ```output```\n"

    async def kill_process(self, process_id: str) -> ProcessView:
        self._ask("kill_process", process_id)
        return self.background[-1]

    async def sessions(self) -> Sequence[ChatSession]:
        return self.had

    async def resume(self, number: int | None) -> ChatSession:
        self._ask("resume", number)
        return session(number or 7, "hello", 7200, current=True)

    async def restart(self) -> None:
        self._ask("restart")

    async def make_home(self) -> None:
        self._ask("make_home")

    def _ask(self, *what: object) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(what)
        self.now = self.after or self.now


async def told(chat: FakeChat, text: str) -> str:
    """What is said when somebody writes `text`, which is a command."""
    call = parse.read(text)
    assert call is not None
    return await parse.answer(call, chat, COMMANDS)
