"""The error object: every refusal has this form."""

import msgspec


class ErrorBody(msgspec.Struct, frozen=True):
    """Why a request was refused. `code` is for programs, `message` for people."""

    message: str = ""
    type: str = ""
    param: str | None = None
    code: str = ""


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of every refusal."""

    error: ErrorBody
