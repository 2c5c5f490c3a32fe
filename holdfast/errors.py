"""The exception tree. The type says who acts next.

HoldfastError
├── Refused             the caller: asked for something that cannot be had; has a code
├── Transient           we, later: the same thing may work in a moment
│   └── JournalUnavailable   nothing can be written down right now, so nothing is accepted
├── Overflow            we: the conversation no longer fits the model
├── Rejected            the operator: the model's server will never take this request
├── ToolFailed          the model: its call did not work, and the text says why
├── Misconfigured       the operator: names the key and what to write instead
└── IllegalTransition   us: a fact that cannot follow the facts before it is always a bug
"""


class HoldfastError(Exception):
    """Base of everything we raise on purpose."""


class Refused(HoldfastError):
    """The caller asked for something it cannot have. `code` is for programs, the text for people."""

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
    """It may work in a moment. `retry_after_s` is what the other side asked us to wait, if it did."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class JournalUnavailable(Transient):
    """The journal cannot take facts now (disk full, closing): nothing may be accepted or started."""


class Overflow(HoldfastError):
    """The request is longer than the model can read."""


class Rejected(HoldfastError):
    """The model's server refused the request for good: wrong key, unknown model, bad request."""


class ToolFailed(HoldfastError):
    """A tool could not do what was asked. The text goes to the model."""


class Misconfigured(HoldfastError):
    """The configuration is wrong. `hint` says what to write instead."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class IllegalTransition(HoldfastError):
    """A fact that cannot follow the facts before it. Always our bug."""
