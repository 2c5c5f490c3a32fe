"""Runs: start, list, read, stop and steer them."""

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.core.inbox import Mode

ENDED = frozenset({"completed", "failed", "cancelled"})  # statuses of a run


class ImageUrl(msgspec.Struct, frozen=True):
    """The address of a picture, as OpenAI's clients send it."""

    url: str


Picture = Annotated[
    str | ImageUrl | None,
    msgspec.Meta(
        description="With type image_url or input_image: a picture as a data: URL in base64, PNG, "
        "JPEG, GIF or WebP, up to 5 MiB; in messages of the user, up to 8 in each."
    ),
]


class ContentPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of content: text (text, input_text, output_text) or a picture."""

    type: str
    text: str = ""
    image_url: Picture = None


class InputMessage(msgspec.Struct, frozen=True):
    """A message of the conversation that a request brings with it."""

    role: str
    content: str | tuple[ContentPart, ...]


class RunRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/runs."""

    input: str | tuple[InputMessage, ...]
    session_id: str | None = None
    instructions: str | None = None
    conversation_history: tuple[InputMessage, ...] | None = None
    previous_response_id: str | None = None
    model: Annotated[
        str | None,
        msgspec.Meta(
            description="One that GET /v1/models lists, or that was chosen for the session; any "
            "other is refused with 400 `model_not_served`. Absent or null: the session's, else "
            "the configured one."
        ),
    ] = None
    workspace: str | None = None
    metadata: dict[str, str] | None = None
    webhook: msgspec.Raw | UnsetType = UNSET  # refused whatever its value: it is not parsed
    late: str | None = None
    answerable: bool = True  # False: there is no person to answer approvals and questions
    mode: Mode = Mode.QUEUE  # what the input does to an active run of the session


class StartResponse(msgspec.Struct, frozen=True):
    """The answer to POST /v1/runs."""

    run_id: str
    status: str = "started"


class StopResponse(msgspec.Struct, frozen=True):
    """The answer to POST /v1/runs/{run_id}/stop."""

    run_id: str
    status: str = "stopping"
    unread: tuple[str, ...] | UnsetType = UNSET  # with ?unread=true: input the run had not read


class SteerRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/runs/{run_id}/steer: guidance, or the answer to a question of the run."""

    input: str
    call_id: str | None = None  # the question it answers; 409 if that no longer waits


class SteerResponse(msgspec.Struct, frozen=True, tag_field="object", tag="hermes.run.steer"):
    """The answer to POST /v1/runs/{run_id}/steer."""

    run_id: str
    accepted: bool = True


class UsageObject(msgspec.Struct, frozen=True):
    """Tokens that a model request or a run has used."""

    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cached_tokens: int | msgspec.UnsetType = msgspec.UNSET  # of the input
    cost_usd: float | msgspec.UnsetType = msgspec.UNSET  # absent: not known


class QuestionObject(msgspec.Struct, frozen=True):
    """A question of a run to its user. Answered by POST /v1/runs/{run_id}/steer."""

    call_id: str
    question: str
    options: tuple[str, ...] = ()  # suggestions; any other text is an answer too


class RunObject(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="object", tag="hermes.run"
):
    """A run's status."""

    run_id: str
    status: str
    created_at: float
    updated_at: float
    session_id: str
    model: str
    last_event: str | None
    output: str | UnsetType = UNSET
    usage: UsageObject | None = None
    error: str | UnsetType = UNSET  # why it failed
    error_code: str | UnsetType = UNSET
    question: QuestionObject | None = None
    approval: ApprovalObject | None = None
    owner: str = ""  # only where it is not the operator
    incomplete: str = ""  # its answer is "cut" (at the model's limit of tokens) or "empty"

    @property
    def ended(self) -> bool:
        """Tell whether the run is over."""
        return self.status in ENDED

    @property
    def failure(self) -> str:
        """The reason why it failed; empty if it did not."""
        return self.error if isinstance(self.error, str) else ""


class RunList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/runs: a page, newest first."""

    data: tuple[RunObject, ...]
    has_more: bool = False
