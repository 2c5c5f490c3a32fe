"""Sessions as the terminal reads and writes them at the front door."""

import msgspec


class SessionInfo(msgspec.Struct, frozen=True):
    """A session as a list shows it."""

    session_id: str
    title: str
    preview: str  # the first words, in one line
    created_at: float
    updated_at: float
    workspace: str
    platform: str
    model: str
    status: str  # "open" or "suspended"
    unfinished: int  # runs
    owner: str = ""  # empty: the operator's own

    @property
    def name(self) -> str:
        """What people know it by."""
        return self.title or self.preview or self.session_id


class SessionInfos(msgspec.Struct, frozen=True):
    """What `GET /api/sessions` answers."""

    data: tuple[SessionInfo, ...]
    has_more: bool


class Title(msgspec.Struct, frozen=True):
    """What `PATCH /api/sessions/{id}` takes."""

    title: str


class Fork(msgspec.Struct, frozen=True):
    """What `POST /api/sessions/{id}/fork` takes."""

    session_id: str
    title: str


class Url(msgspec.Struct, frozen=True):
    url: str


class Part(msgspec.Struct, frozen=True, omit_defaults=True):
    """A piece of what was said: text, or a picture."""

    type: str
    text: str = ""
    image_url: Url | None = None


class Function(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class Called(msgspec.Struct, frozen=True):
    """A call that the model asked for."""

    id: str
    function: Function
    type: str = "function"


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of a transcript."""

    role: str
    content: str | tuple[Part, ...]
    tool_calls: tuple[Called, ...] = ()
    tool_call_id: str = ""

    @property
    def text(self) -> str:
        """Its words."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)

    @property
    def images(self) -> int:
        """How many pictures came with them."""
        if isinstance(self.content, str):
            return 0
        return sum(part.image_url is not None for part in self.content)


class History(msgspec.Struct, frozen=True):
    """What was said before the first run that is not over, and where the events tell the rest.

    Among those there may be the last ones of runs that are told of here: they are neither
    `unfinished` nor queued since.
    """

    messages: tuple[Said, ...] = msgspec.field(name="data")
    after: int
    unfinished: tuple[str, ...] = ()


class Transcript(msgspec.Struct, frozen=True):
    """What `GET /api/sessions/{id}/messages` answers: everything that was said so far."""

    data: tuple[Said, ...]


class Import(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `POST /v1/operator/import` takes: a session as it was somewhere else."""

    session_id: str
    messages: tuple[Said, ...]
    source: str
    title: str = ""
    created_at: float = 0.0  # 0: nobody knows
    updated_at: float = 0.0  # when it was last spoken in
    workspace: str = ""


class Hit(msgspec.Struct, frozen=True):
    """A session in which words were found, and the best place of them in it."""

    session_id: str
    title: str
    role: str  # "user", "assistant" or "title"
    at: float
    snippet: str  # in one line; what was found stands between ⟦ and ⟧


class Hits(msgspec.Struct, frozen=True):
    """What `GET /v1/operator/search` answers, newest and best first."""

    data: tuple[Hit, ...]
    complete: bool  # False: not all sessions have been looked at yet; ask again
