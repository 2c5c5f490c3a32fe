"""The exception tree. The type says who has to act next.

HoldfastError
├── Refused             the caller: the request cannot be accepted; has a code
├── Transient           we, later: the same request may work in a moment
│   └── JournalUnavailable   the journal takes no writes now, so nothing is accepted
├── Overflow            we: the conversation is too long for the model
├── Rejected            the operator: the model's server will never accept this request
│   └── Filtered             the user: the model's filter refused this request or its answer
├── ToolFailed          the model: its call failed, and the text says why
├── Misconfigured       the operator: names the setting and what to write instead
└── IllegalTransition   us: a fact that cannot follow the earlier facts is always a bug
"""


class HoldfastError(Exception):
    """The base of all our exceptions."""


class Refused(HoldfastError):
    """The request cannot be accepted. `code` is for programs, the text for people."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s


class Transient(HoldfastError):
    """It may work in a moment. `retry_after_s` is the wait that the other side asked for, if any.

    `billed` says that it may have cost money all the same: an answer that was cut, not a refusal.
    `status` is the HTTP status of a server that refused; 0: there was none.
    """

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        billed: bool = True,
        status: int = 0,
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.billed = billed
        self.status = status


class JournalUnavailable(Transient):
    """The journal takes no facts now (disk full, closing): nothing may be accepted or started."""


class Overflow(HoldfastError):
    """The request is longer than the model can read."""


class Rejected(HoldfastError):
    """The model's server will never accept this: wrong key, unknown model, bad request."""


class Filtered(Rejected):
    """The model's filter refused the request or its answer; another model may answer it."""


class ToolFailed(HoldfastError):
    """A tool call failed. The text goes to the model."""


class Misconfigured(HoldfastError):
    """The configuration is wrong. `hint` says what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class IllegalTransition(HoldfastError):
    """A fact that cannot follow the earlier facts. Always our bug."""
