"""Sessions: list, rename, fork, read, import and search them."""

import msgspec
from msgspec import UNSET, UnsetType

from holdfast.api.schema.runs import ContentPart


class TitleRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of PATCH /api/sessions/{session_id}. An empty title removes it."""

    title: str


class ForkRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /api/sessions/{session_id}/fork. The gateway chooses what is absent."""

    title: str | None = None
    session_id: str | None = None


class SessionObject(
    msgspec.Struct, frozen=True, omit_defaults=True, tag_field="object", tag="hermes.session"
):
    """A session as a list shows it."""

    session_id: str
    title: str
    preview: str  # the beginning of the first message, in one line
    created_at: float
    updated_at: float
    workspace: str
    platform: str
    model: str
    status: str  # "open" or "suspended"
    unfinished: int  # runs
    owner: str = ""  # only where it is not the operator

    @property
    def name(self) -> str:
        """The name for people."""
        return self.title or self.preview or self.session_id


class SessionPage(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /api/sessions: a page, last used first."""

    data: tuple[SessionObject, ...]
    has_more: bool


class ToolFunction(msgspec.Struct, frozen=True):
    """The tool that a call names, and its arguments as JSON."""

    name: str
    arguments: str = ""


class ToolCallObject(msgspec.Struct, frozen=True):
    """A call that the model proposed."""

    id: str
    function: ToolFunction
    type: str | None = "function"


class MessageObject(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a transcript: the calls of an assistant, or the result of one call."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None
    tool_calls: tuple[ToolCallObject, ...] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The text of the message, without pictures."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())

    @property
    def images(self) -> int:
        """The number of pictures."""
        if isinstance(self.content, str):
            return 0
        return sum(part.image_url is not None for part in self.content or ())

    @property
    def calls(self) -> tuple[ToolCallObject, ...]:
        """The calls of the message, if it has any."""
        return self.tool_calls or ()


class MessageList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /api/sessions/{session_id}/messages: the transcript so far.

    With `?settled=true` it ends before the first run that is not over. Events after number
    `after` tell the rest. Some of them may be the last events of runs in the transcript: those
    runs are neither `unfinished` nor queued later.
    """

    data: tuple[MessageObject, ...]
    session_id: str = ""
    has_more: bool = False
    after: int | UnsetType = UNSET
    unfinished: tuple[str, ...] | UnsetType = UNSET


class SettledMessageList(MessageList, frozen=True, kw_only=True):
    """The same with `?settled=true`."""

    after: int
    unfinished: tuple[str, ...] = ()


class ImportRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /v1/operator/import: a session of another program or gateway."""

    session_id: str
    messages: tuple[MessageObject, ...]
    title: str | None = None
    source: str | None = None
    created_at: float | None = None  # absent: unknown
    updated_at: float | None = None
    workspace: str | None = None


class ImportResponse(SessionObject, frozen=True, kw_only=True):
    """The answer to POST /v1/operator/import: the session that was made."""

    left_out: int  # system messages


class SearchHit(msgspec.Struct, frozen=True):
    """A session that has all the search terms, and its best match."""

    session_id: str
    title: str
    role: str  # "user", "assistant" or "title"
    at: float
    snippet: str  # in one line; a match stands between ⟦ and ⟧


class SearchResponse(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /v1/operator/search, newest and best first."""

    data: tuple[SearchHit, ...]
    complete: bool  # False: some sessions are not indexed yet; ask again
