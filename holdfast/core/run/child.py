"""Child runs: runs that a call of another run started.

The parent's session records that a child is wanted before the child exists. When the child has
ended, the parent's session records that in one append with the consequence: a result for the
call that waits or, if no call waits, a new input. Between these two records the child is *open*.

Stopping a run stops all its children. When a run fails, only the children it waits for stop.
"""

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core.run.run import Origin, RunCancelled, RunFailed, RunPhase, StopAsked
from holdfast.core.types import CallId, Fact, RunId
from holdfast.errors import IllegalTransition


class ChildBegun(Fact, tag="child.begun", omit_defaults=True):
    """A call requests a child run, which gets its own session."""

    run_id: RunId  # the parent run
    call_id: CallId
    child: RunId
    task: str  # the only input that the child gets
    name: str = ""  # for people
    background: bool = False  # no call waits: the child's end becomes a new input
    depth: int = 1  # the number of ancestors
    note: str = ""  # added to the child's result
    origin: Origin = Origin()


class ChildEnded(Fact, tag="child.ended", omit_defaults=True):
    """The parent's session was told that the child has ended. Recorded once per child."""

    child: RunId
    call_id: CallId
    status: RunPhase
    name: str = ""
    background: bool = False
    run_id: RunId | None = None  # the parent run; None: it had ended before the child


class Child(msgspec.Struct, frozen=True):
    begun: ChildBegun
    stop_reason: str = ""  # not empty: its parent has ended, so it has to stop


Children = Mapping[RunId, Child]  # the open ones, oldest first

Own = ChildBegun | ChildEnded
EVENTS: tuple[type[Fact], ...] = (ChildBegun, ChildEnded, StopAsked, RunCancelled, RunFailed)


def evolve(children: Children, event: Fact) -> Children:
    """Return a session's open children after `event`."""
    match event:
        case ChildBegun() if event.child in children:
            raise IllegalTransition(f"ChildBegun for {event.child}, which is open already")
        case ChildBegun():
            return {**children, event.child: Child(event)}
        case ChildEnded() if event.child not in children:
            raise IllegalTransition(f"ChildEnded for {event.child}, which is not open")
        case ChildEnded():
            return {k: c for k, c in children.items() if k != event.child}
        case StopAsked() | RunCancelled():
            own = children_of(children, event.run_id)
            return _stopped(children, own, event.reason or "stopped")
        case RunFailed():
            own = children_of(children, event.run_id)
            waited_for = tuple(k for k in own if not children[k].begun.background)
            return _stopped(children, waited_for, "the run that waited for it has failed")
        case _:
            return children


def children_of(children: Children, run_id: RunId) -> tuple[RunId, ...]:
    """Return the open children of one run."""
    return tuple(k for k, c in children.items() if c.begun.run_id == run_id)


def _stopped(children: Children, which: tuple[RunId, ...], reason: str) -> Children:
    stopped = {
        k: replace(children[k], stop_reason=reason) for k in which if not children[k].stop_reason
    }
    return {**children, **stopped} if stopped else children
