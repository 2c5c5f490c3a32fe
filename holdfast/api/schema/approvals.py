"""Approvals that wait, the answers to them, and what `always` answers have permitted."""

import msgspec
from msgspec import UNSET, UnsetType


class ApprovalRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/runs/{run_id}/approval and of POST /v1/approvals/{request_id}."""

    choice: str
    all: msgspec.Raw | UnsetType = UNSET  # true, "true", "1", "yes" or "on": answer every request
    request_id: str | None = None
    reason: str = ""  # only with `deny`: the model reads it


class ApprovalObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for an approval that waits for an answer."""

    request_id: str
    run_id: str
    call_id: str
    command: str
    description: str
    choices: tuple[str, ...]
    expires_at: float
    owner: str = ""  # only where it is not the operator

    @property
    def key(self) -> str:
        """The key under which a terminal keeps it among everything that waits for an answer."""
        return self.request_id

    @property
    def name(self) -> str:
        """The name that a terminal shows."""
        return self.request_id


class ApprovalPage(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/approvals: a page, oldest first."""

    data: tuple[ApprovalObject, ...]
    has_more: bool = False
    next: str | UnsetType = UNSET  # `after` for the next page, if there is one


class ApprovalResponse(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag_field="object",
    tag="hermes.run.approval_response",
):
    """The recorded choice. `note` says why it is not the one that was sent."""

    run_id: str
    choice: str
    resolved: int
    note: str = ""


class RuleObject(msgspec.Struct, frozen=True):
    """A standing permission: a name that stays the same, and its text."""

    name: str
    rule: str


class RuleRequest(msgspec.Struct, frozen=True):
    """The body of POST /v1/rules: a pattern for commands, such as `pytest *`."""

    pattern: str


class RuleList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/rules."""

    data: tuple[RuleObject, ...]
    has_more: bool = False


class RevokeResponse(msgspec.Struct, frozen=True):
    """The answer to POST /v1/rules/{name}/revoke."""

    name: str
    revoked: bool = True
