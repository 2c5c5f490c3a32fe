"""Events as the terminal receives them, and the questions and approvals they tell of."""

from holdfast.api.schema.approvals import ApprovalObject
from holdfast.api.schema.events import Event
from holdfast.core.types import Value


class Frame(Value):
    """An event, and the line of JSON that it came as."""

    event: Event
    line: str


class AskedQuestion(Value):
    """A question of a run to its user."""

    call_id: str
    question: str
    options: tuple[str, ...] = ()
    run_id: str = ""

    @property
    def key(self) -> str:
        """The key under which a terminal keeps it among everything that waits for an answer."""
        return f"{self.run_id} {self.call_id}"

    @property
    def name(self) -> str:
        """The name that a terminal shows."""
        return "the question"


def question_of(event: Event) -> AskedQuestion:
    """The question that a `question.asked` tells of."""
    return AskedQuestion(event.call_id, event.question, event.options, event.run_id)


def approval_of(event: Event) -> ApprovalObject:
    """The request that an `approval.request` tells of."""
    return ApprovalObject(
        request_id=event.request_id,
        run_id=event.run_id,
        call_id=event.call_id,
        command=event.command,
        description=event.description,
        choices=event.choices,
        expires_at=event.expires_at,
    )
