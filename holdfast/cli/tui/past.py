"""What was said in a session before, as it would have been shown then: short, and all of it."""

import json
from collections.abc import Sequence

from holdfast.cli import question
from holdfast.cli.tui.view import View
from holdfast.cli.wire import RunStatus
from holdfast.cli.wire_sessions import Said

_ENDED = {"failed": "the last run failed", "cancelled": "the last run was stopped"}


def shown(view: View, messages: Sequence[Said], runs: Sequence[RunStatus]) -> list[str]:
    """Lines for what was said, and for how the last run ended if it did not end well."""
    lines: list[str] = []
    for message in messages:
        match message.role:
            case "user":
                lines += view.words(message.text, message.images)
            case "assistant":
                lines += view.answer(message.text)
                lines += [
                    view.called(c.function.name, _arguments(c.function.arguments))
                    for c in message.tool_calls
                ]
            case _:
                pass  # results are in their calls' lines, instructions are not for people
    if runs and runs[0].status in _ENDED:
        why = f": {question.visible(runs[0].error)}" if runs[0].error else ""
        lines += ["", view.note(f"… {_ENDED[runs[0].status]}{why}")]
    return lines


def _arguments(raw: str) -> str:
    """The arguments of a call in one line."""
    try:
        given = json.loads(raw)
    except ValueError:
        return raw
    if not isinstance(given, dict):
        return raw
    return " ".join(v if isinstance(v, str) else json.dumps(v) for v in given.values())
