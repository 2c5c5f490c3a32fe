"""Outcomes of calls, as facts."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.redaction import Redactor
from holdfast.core.run import call as machine
from holdfast.core.run import files
from holdfast.core.run.call import Call, CallParked, CallSettled, OnCrash, Outcome
from holdfast.core.run.child import ChildBegun
from holdfast.core.run.files import FileChange, FileChanged
from holdfast.core.run.process import PortClosed, PortPublished, Processes, ProcessStarted
from holdfast.core.types import Fact, RunId
from holdfast.tools.tool import Background, Context, Delegated, Park, PortChange, Tool

AUDITED = 200  # files in one entry of the audit; its hash is of all
NAMED = 5  # of these in its summary


def plain(text: str) -> str:
    """Text that can be written down: names of files need not be Unicode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def settled(
    run_id: RunId, call: Call, outcome: Outcome, text: str, duration_s: float = 0.0
) -> CallSettled:
    """It has come to its end."""
    return CallSettled(
        run_id=run_id,
        call_id=call.proposal.call_id,
        tool=call.proposal.tool,
        outcome=outcome,
        text=plain(text),
        duration_s=round(duration_s, 6),
    )


def changes(
    context: Context, made: Iterable[FileChange], redactor: Redactor
) -> tuple[FileChanged, ...]:
    """The files that it changed. A secret in a path is removed; then undo does not find the file."""
    return tuple(
        files.changed(
            context.run_id,
            context.call_id,
            replace(change, path=plain(redactor.clean(change.path))),
        )
        for change in made
    )


def audited(changes: Sequence[FileChanged]) -> dict[str, str]:
    """The files that a call changed, as fields of an entry in the audit."""
    return {
        "call_id": changes[0].call_id,
        "what": files.listed(changes, AUDITED),
        "execution": sha256(msgspec.json.encode(changes)).hexdigest(),
        "result": files.named(changes, NAMED),
    }


def timed_out(run_id: RunId, call: Call, tool: Tool[Any], duration: float) -> CallSettled:
    """It was cut by its time limit."""
    text = f"Timed out after {tool.timeout_s:g} s."
    if tool.on_crash is OnCrash.REPEAT:
        return settled(run_id, call, Outcome.FAILED, text, duration)
    text += " It may have taken effect in part; check before you repeat it."
    return settled(run_id, call, Outcome.UNKNOWN, text, duration)


def aborted(run_id: RunId, call: Call, on_crash: OnCrash) -> CallSettled:
    """Its run is stopped."""
    step = machine.abort(call, on_crash)
    return settled(run_id, call, step.outcome, step.text)


def parked(context: Context, outcome: Park) -> CallParked:
    """It waits for a person, or for a child."""
    return CallParked(
        run_id=context.run_id,
        call_id=context.call_id,
        reason=plain(outcome.reason),
        question=plain(outcome.question),
        options=tuple(map(plain, outcome.options)),
        child=outcome.delegated.child if outcome.delegated else RunId(""),
    )


def background(context: Context, begun: Background | None) -> tuple[ProcessStarted, ...]:
    """It leaves a process behind, if it does."""
    if begun is None:
        return ()
    started = ProcessStarted(
        process_id=begun.process_id,
        started_by=context.run_id,
        call_id=context.call_id,
        command=plain(begun.command),
        notify=begun.notify,
        watch=begun.watch,
        detach=begun.detach,
        origin=context.origin,
    )
    return (started,)


def port(context: Context, change: PortChange | None, now: Processes) -> tuple[Fact, ...]:
    """A port of a process was published or closed; nothing if the process has ended since."""
    if change is None or (found := now.get(change.process_id)) is None or found.status.final:
        return ()
    process_id, port = change.process_id, change.port
    if change.host_port:
        by = context.session.owner
        return (PortPublished(process_id=process_id, port=port, host_port=change.host_port, by=by),)
    closed = PortClosed(process_id=process_id, port=port, reason="closed by the model")
    return (closed,) if port in found.ports else ()


def child(context: Context, begun: Delegated | None, *, background: bool) -> tuple[ChildBegun, ...]:
    """It wants a run of its own, if it does."""
    if begun is None:
        return ()
    wanted = ChildBegun(
        run_id=context.run_id,
        call_id=context.call_id,
        child=begun.child,
        task=plain(begun.task),
        name=plain(begun.name),
        background=background,
        depth=context.depth + 1,
        note=begun.note,
        origin=context.origin,
    )
    return (wanted,)
