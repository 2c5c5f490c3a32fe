"""What `holdfast doctor` finds out: one thing each, and what to do about it."""

from enum import StrEnum

from holdfast.core.types import Value


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"  # usable, but worth knowing
    BAD = "bad"  # needs mending


class Check(Value):
    """One thing looked at, and what to do about it if something is to be done."""

    name: str
    verdict: Verdict
    finding: str
    next_step: str = ""
