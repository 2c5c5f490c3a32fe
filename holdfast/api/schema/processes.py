"""Background processes."""

import msgspec


class PortObject(msgspec.Struct, frozen=True):
    """A published port."""

    port: int  # in the network of the session
    host_port: int  # on this machine, at 127.0.0.1
    url: str


class PortRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of POST /api/processes/{process_id}/ports."""

    port: int
    host_port: int = 0  # 0: the same number, or a free one


class ProcessObject(msgspec.Struct, frozen=True, tag_field="object", tag="holdfast.process"):
    """A background process of a session."""

    process_id: str
    session_id: str
    owner: str  # of the session
    run_id: str  # the run that started it
    command: str
    status: str  # "running" or "ended"
    how: str  # how it ended; empty: it runs
    exit_code: int | None
    started_at: float
    duration_s: float  # 0 while it runs
    detach: bool  # it may outlive the gateway
    last_line: str  # of its output
    ports: tuple[PortObject, ...] = ()


class ProcessList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """The answer to GET /api/processes, oldest first."""

    data: tuple[ProcessObject, ...]


class ProcessOutput(msgspec.Struct, frozen=True):
    """The answer to GET /api/processes/{process_id}/output."""

    process_id: str
    output: str  # the end of it; known secrets are removed
