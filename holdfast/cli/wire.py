"""What the terminal reads and writes at the front door, as far as it needs it."""

from collections.abc import Sequence

import msgspec

from holdfast.cli.exits import Code, Exit
from holdfast.core.images import to_url
from holdfast.core.messages import Image
from holdfast.core.types import Value

TERMINAL = frozenset({"run.completed", "run.failed", "run.cancelled"})
_PASSING = frozenset({"gateway_draining", "gateway_starting"})
ENDED = frozenset({"completed", "failed", "cancelled"})
_TOO_LATE = frozenset(
    {
        "approval_not_pending",
        "approval_not_active",
        "question_not_waiting",
        "run_not_accepting_steer",
        "run_begun",
    }
)


class _Text(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    text: str


class _Url(msgspec.Struct, frozen=True):
    url: str


class _Picture(msgspec.Struct, frozen=True, tag="image_url", tag_field="type"):
    image_url: _Url


class Spoken(msgspec.Struct, frozen=True):
    """What somebody says with pictures."""

    content: tuple[_Text | _Picture, ...]
    role: str = "user"


def spoken(words: str, images: Sequence[Image]) -> str | tuple[Spoken, ...]:
    """Words, and the pictures that go with them, as a submission has them."""
    if not images:
        return words
    pictures = (_Picture(_Url(to_url(image))) for image in images)
    return (Spoken((*((_Text(words),) if words else ()), *pictures)),)


class Submission(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `POST /v1/runs` takes."""

    input: str | tuple[Spoken, ...]
    workspace: str = ""
    session_id: str = ""
    instructions: str = ""
    model: str = ""
    answerable: bool = True  # False: nobody is there who could be asked
    mode: str = "queue"  # what the words do to a run of the session that is at work


class Accepted(msgspec.Struct, frozen=True):
    run_id: str


class Question(msgspec.Struct, frozen=True):
    """What a run asks its user."""

    call_id: str
    question: str
    options: tuple[str, ...] = ()
    run_id: str = ""

    @property
    def key(self) -> str:
        return f"{self.run_id} {self.call_id}"

    @property
    def name(self) -> str:
        return "the question"


class Words(msgspec.Struct, frozen=True):
    """What `POST /v1/runs/{id}/steer` takes."""

    input: str
    call_id: str  # whose question it answers


class RunStatus(msgspec.Struct, frozen=True):
    """What we read of a run's status object."""

    run_id: str
    status: str
    session_id: str
    model: str
    created_at: float
    question: Question | None = None
    error: str = ""  # why it failed
    owner: str = ""  # empty: the operator's own

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class Runs(msgspec.Struct, frozen=True):
    data: tuple[RunStatus, ...]


class Approval(msgspec.Struct, frozen=True):
    """A request for approval."""

    request_id: str
    run_id: str
    call_id: str
    command: str
    description: str
    choices: tuple[str, ...]
    expires_at: float
    owner: str = ""  # empty: the operator's own

    @property
    def key(self) -> str:
        return self.request_id

    @property
    def name(self) -> str:
        return self.request_id


class Approvals(msgspec.Struct, frozen=True):
    """What `GET /v1/approvals` answers: all that waits, oldest first."""

    data: tuple[Approval, ...]


class Answer(msgspec.Struct, frozen=True):
    """What `POST /v1/approvals/{id}` takes."""

    choice: str


class Answered(msgspec.Struct, frozen=True):
    """What has been recorded; `note` says why, if it is not what was chosen."""

    run_id: str
    choice: str
    note: str = ""


class Rule(msgspec.Struct, frozen=True):
    """A standing permission: a name that stays the same, and its words."""

    name: str
    rule: str


class Rules(msgspec.Struct, frozen=True):
    """What `GET /v1/rules` answers."""

    data: tuple[Rule, ...]


class SessionObject(msgspec.Struct, frozen=True):
    """A session, and what cut its work if no run has completed since."""

    session_id: str
    status: str
    reason: str
    unfinished: int
    held: int
    mark: str
    mark_reason: str
    marked_at: float


class SessionList(msgspec.Struct, frozen=True):
    data: tuple[SessionObject, ...]


class Released(msgspec.Struct, frozen=True):
    released: int


class Message(msgspec.Struct, frozen=True):
    """A message on its way to a chat."""

    delivery_id: str
    status: str
    platform: str
    chat: str
    thread: str
    run_id: str
    edits: str
    queued_at: float
    updated_at: float
    due_at: float
    attempts: int
    repeated: bool  # the platform may have a copy already
    reason: str  # of the last trouble
    text: str  # in a list only its beginning


class MessageList(msgspec.Struct, frozen=True):
    """What `GET /v1/operator/outbox` answers."""

    data: tuple[Message, ...]


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `POST /v1/operator/sessions/{id}/command` takes."""

    input: str
    mode: str | None = None  # what words do here to a run that is at work
    workspace: str = ""  # for the session, if words of the command begin it


class Commanded(msgspec.Struct, frozen=True):
    """What came of a slash command."""

    output: str  # markdown; empty: there is nothing to say
    session_id: str  # to go on with
    busy: str | None = None  # what words do from now on, if that was chosen
    run_id: str | None = None  # the run that reads words of the command
    undone: str | None = None  # the words that were taken back
    owner: str = ""  # whose session it is; empty: the operator's own
    refused: bool = False  # the words of the command: nobody will read them


class CommandInfo(msgspec.Struct, frozen=True):
    """A slash command: without the slash."""

    name: str
    arguments: str
    help: str


class CommandList(msgspec.Struct, frozen=True):
    """What `GET /v1/operator/commands` answers."""

    data: tuple[CommandInfo, ...]


class Confined(msgspec.Struct, frozen=True):
    """How well commands are confined; without a level while that is not known yet."""

    level: str
    note: str


class Health(msgspec.Struct, frozen=True):
    """What we read of `GET /health/detailed`."""

    sandbox: Confined
    paused: str  # why no work is done, and what to do about it; empty: it is
    held: str = ""  # why some runs do not go on, and what to do about it


class Model(msgspec.Struct, frozen=True):
    id: str


class Models(msgspec.Struct, frozen=True):
    """What `GET /v1/models` answers: the one model that is served."""

    data: tuple[Model, ...]


class Tokens(msgspec.Struct, frozen=True):
    """What a request to the model, or a run, has cost."""

    input_tokens: int = 0
    output_tokens: int = 0


class Event(msgspec.Struct, frozen=True):
    """What we read of an event; each kind fills its own fields."""

    event: str
    seq: int
    run_id: str = ""  # a session's own events have none
    timestamp: float = 0.0
    turn: int = 0
    delta: str = ""
    output: str = ""
    tool: str = ""
    preview: str = ""
    reason: str = ""
    code: str = ""
    outcome: str = ""
    summary: str = ""
    error: object = None
    call_id: str = ""
    request_id: str = ""
    command: str = ""
    description: str = ""
    choices: tuple[str, ...] = ()
    choice: str = ""
    expires_at: float = 0.0
    sandbox: str = ""
    process_id: str = ""
    how: str = ""
    lines: str = ""
    question: str = ""
    options: tuple[str, ...] = ()
    child_run_id: str = ""
    name: str = ""
    status: str = ""
    background: bool = False
    detach: bool = False
    input: str = ""
    input_id: str = ""
    images: int = 0
    duration: float = 0.0
    usage: Tokens | None = None

    @property
    def why(self) -> str:
        """What went wrong, in words; empty where nothing did or nobody knows."""
        match self.error:
            case str(text):
                return text
            case {"message": str(text)}:
                return text
            case _:
                return self.reason


def question_of(event: Event) -> Question:
    """The question that a `question.asked` tells of."""
    return Question(event.call_id, event.question, event.options, event.run_id)


def requested(event: Event) -> Approval:
    """The request that an `approval.request` tells of."""
    return Approval(
        request_id=event.request_id,
        run_id=event.run_id,
        call_id=event.call_id,
        command=event.command,
        description=event.description,
        choices=event.choices,
        expires_at=event.expires_at,
    )


class Frame(Value):
    """An event, and the line of JSON it came as."""

    event: Event
    line: str


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    code: str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error


class NotFound(Exit):
    """There is no such run, or it is over."""


class WorkspaceFixed(Exit):
    """The session works in another directory and stays there."""


class TooLate(Exit):
    """What asked was answered before, ran out, or lost its run."""


class Exists(Exit):
    """There is a session of that name already. Nothing has changed."""


class Passing(Exit):
    """Refused for a moment only."""


def refusal(status: int, content: bytes) -> Exit:
    """What a refused request means for the command."""
    try:
        error = msgspec.json.decode(content, type=_Refusal).error
    except msgspec.DecodeError:
        error = _Error(f"the server answered {status}")
    if error.code in _PASSING:
        return Passing(Code.TRY_AGAIN, error.message)
    if status == 404:
        return NotFound(Code.FAILED, error.message)
    if error.code in _TOO_LATE:
        return TooLate(Code.FAILED, error.message)
    if error.code == "session_exists":
        return Exists(Code.FAILED, error.message)
    if error.code == "workspace_fixed":
        return WorkspaceFixed(Code.USAGE, error.message)
    return Exit(Code.TRY_AGAIN if status in (429, 503) else Code.FAILED, error.message)
