"""Types of settings: what a value may be, with the description that error messages give."""

from typing import Annotated, Literal

from msgspec import Meta

from holdfast.config.secrets import Secret
from holdfast.core.approval.approval import ApprovalMode
from holdfast.core.session.session import OnStart

_LINE = r"^[^\x00-\x1f\x7f]+$"
_VISIBLE = r"^[\x21-\x7e]+$"

Text = Annotated[str, Meta(pattern=_LINE, description="a text in quotes")]
Url = Annotated[
    str,
    Meta(pattern=r"^https?://[\x21-\x7e]+$", description="an address with http:// or https://"),
]
Count = Annotated[int, Meta(ge=1, le=2**31, description="a whole number, at least 1")]
Size = Annotated[int, Meta(ge=0, le=2**31, description="a whole number, 0 or more")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a whole number from 0 to 65535")]
Ports = Annotated[
    tuple[Annotated[int, Meta(ge=1, le=65535)], ...], Meta(description="a list of ports")
]
Seconds = Annotated[float, Meta(ge=0, le=86400, description="a number of seconds, 0 to 86400")]
Price = Annotated[float, Meta(ge=0, le=1e6, description="US dollars for a million tokens")]
Dollars = Annotated[float, Meta(ge=0, le=1e6, description="US dollars, 0 or more")]
Expiry = Annotated[float, Meta(gt=0, le=604800, description="seconds, up to 7 days (604800)")]
Days = Annotated[int, Meta(ge=1, le=3650, description="a whole number of days, at least 1")]
Hours = Annotated[int, Meta(ge=24, le=2**16, description="a whole number of hours, at least 24")]
Texts = Annotated[tuple[Text, ...], Meta(description="a list of texts")]
Directories = Annotated[
    tuple[Annotated[str, Meta(pattern="^/")], ...],
    Meta(description="a list of absolute directories"),
]
Image = Annotated[
    str,
    Meta(
        pattern=r"^(/[^\x00-\x1f\x7f]*|[A-Za-z0-9][A-Za-z0-9._/:@-]*)?$",
        description="the name of an image, or an absolute directory",
    ),
]
Policy = Annotated[OnStart, Meta(description='"resume", "wait" or "suspend"')]
Level = Annotated[
    Literal["debug", "info", "warning", "error"],
    Meta(description='"debug", "info", "warning" or "error"'),
]
Asking = Annotated[ApprovalMode, Meta(description='"ask" or "sandboxed"')]
Flag = Annotated[bool, Meta(description="true or false")]
ProviderKey = Annotated[
    Secret | None,
    Meta(description="a text of visible characters", extra={"pattern": _VISIBLE}),
]
OwnKey = Annotated[
    Secret | None,
    Meta(description="at least 16 visible characters", extra={"pattern": r"^[\x21-\x7e]{16,}$"}),
]
