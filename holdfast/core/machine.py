"""The step of a state machine: its table says which event is possible in which status."""

from typing import Any, TypeVar

from holdfast.core.types import Fact
from holdfast.errors import IllegalTransition

S = TypeVar("S")


def moved(table: dict[tuple[S, type[Any]], S], status: S, event: Fact, what: str, name: str) -> S:
    """Return the status after `event`, by the table of a state machine."""
    if (after := table.get((status, type(event)))) is None:
        raise IllegalTransition(f"{type(event).__name__} while {what} {name} is {status}")
    return after
