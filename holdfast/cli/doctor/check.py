"""A finding of `holdfast doctor`, and what to do about it."""

from enum import StrEnum

from holdfast.core.types import Value


class CheckResult(StrEnum):
    OK = "ok"
    NOTE = "note"  # usable, but worth knowing
    BAD = "bad"  # needs a fix


class Check(Value):
    """One thing that was checked, and the next step if there is one."""

    name: str
    verdict: CheckResult
    finding: str
    next_step: str = ""


Checks = list[Check]


def ok(name: str, finding: str) -> Checks:
    """Report that something works."""
    return [Check(name, CheckResult.OK, finding)]


def note(name: str, finding: str, next_step: str = "") -> Checks:
    """Report something worth knowing."""
    return [Check(name, CheckResult.NOTE, finding, next_step)]


def bad(name: str, finding: str, next_step: str) -> Checks:
    """Report something that needs a fix."""
    return [Check(name, CheckResult.BAD, finding, next_step)]
