"""Children: runs that a call of another run has begun.

That a child is wanted stands in its parent's session before there is one. That it has ended
stands there together with what its end means: a result for the call that waits, or, where
none does, a new input. Between the two it is *open*. Whoever stops a run stops its children,
whether it waits for them or not; one that fails takes along those it waits for.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core.run import Origin, RunCancelled, RunFailed, Status, StopAsked
from holdfast.core.types import CallId, Fact, RunId
from holdfast.errors import IllegalTransition


class ChildBegun(Fact, tag="child.begun", omit_defaults=True):
    """A call wants a run of its own, in a session of its own."""

    run_id: RunId  # whose call it is
    call_id: CallId
    child: RunId
    task: str  # all that the child is told
    name: str = ""  # for people
    background: bool = False  # no call waits: its end is a new input
    depth: int = 1  # how many runs it works for, one for the other
    note: str = ""  # what its result has to say beside
    origin: Origin = Origin()


class ChildEnded(Fact, tag="child.ended", omit_defaults=True):
    """Whoever began it has been told of its end, once and for all."""

    child: RunId
    call_id: CallId
    status: Status
    name: str = ""
    background: bool = False
    run_id: RunId | None = None  # whose call it was; None: that run has ended before


class Child(msgspec.Struct, frozen=True):
    begun: ChildBegun
    stop_reason: str = ""  # not empty: its parent is over, and so is it


Children = Mapping[RunId, Child]  # open ones, in order

Own = ChildBegun | ChildEnded
EVENTS: tuple[type[Fact], ...] = (ChildBegun, ChildEnded, StopAsked, RunCancelled, RunFailed)


def evolve(children: Children, event: Fact) -> Children:
    """What `event` means for a session's open children."""
    match event:
        case ChildBegun() if event.child in children:
            raise IllegalTransition(f"ChildBegun for {event.child}, which was begun")
        case ChildBegun():
            return {**children, event.child: Child(event)}
        case ChildEnded() if event.child not in children:
            raise IllegalTransition(f"ChildEnded for {event.child}, which is not open")
        case ChildEnded():
            return {k: c for k, c in children.items() if k != event.child}
        case StopAsked() | RunCancelled():
            return _stopped(children, left_by(children, event.run_id), event.reason or "stopped")
        case RunFailed():
            left = left_by(children, event.run_id)
            waited_for = tuple(k for k in left if not children[k].begun.background)
            return _stopped(children, waited_for, "the run that waited for it has failed")
        case _:
            return children


def left_by(children: Children, run_id: RunId) -> tuple[RunId, ...]:
    """The open children of one run."""
    return tuple(k for k, c in children.items() if c.begun.run_id == run_id)


def _stopped(children: Children, which: tuple[RunId, ...], reason: str) -> Children:
    fresh = {
        k: replace(children[k], stop_reason=reason) for k in which if not children[k].stop_reason
    }
    return {**children, **fresh} if fresh else children
