"""What was said in a session before, as it would have been shown then: short, and all of it."""

import json
from collections.abc import Sequence

from holdfast.cli import question
from holdfast.cli.tui.view import View
from holdfast.cli.wire import RunStatus
from holdfast.cli.wire_sessions import Said

SHOWN = 400  # messages; a terminal's scrollback is not endless either
_ENDED = {"failed": "the last run failed", "cancelled": "the last run was stopped"}


def shown(view: View, messages: Sequence[Said], runs: Sequence[RunStatus]) -> list[str]:
    """Lines for what was said, and for how the last run ended if it did not end well."""
    lines: list[str] = []
    if len(messages) > SHOWN:
        hint = "holdfast sessions show prints all"
        lines.append(view.note(f"… {len(messages) - SHOWN} earlier messages; {hint}"))
    results = {m.tool_call_id: m.text for m in messages if m.tool_call_id}
    for message in messages[-SHOWN:]:
        match message.role:
            case "user":
                lines += view.words(message.text, message.images)
            case "assistant":
                lines += view.answer(message.text)
                lines += [
                    view.called(
                        c.function.name, _arguments(c.function.arguments), results.get(c.id, "")
                    )
                    for c in message.tool_calls
                ]
            case _:
                pass  # results are in their calls' lines, instructions are not for people
    if runs and runs[0].status in _ENDED:
        why = f": {question.visible(runs[0].error)}" if runs[0].error else ""
        lines += ["", view.note(f"… {_ENDED[runs[0].status]}{why}")]
    return lines


def unfolded(view: View, messages: Sequence[Said]) -> list[str]:
    """All of the latest call: what it was given, and what came of it."""
    calls = [call for message in messages for call in message.tool_calls]
    if view.calling or not calls:
        return view.details()
    last = calls[-1]
    result = next((m.text for m in messages if m.tool_call_id == last.id), "")
    return view.unfolded(last.function.name, _fields(last.function.arguments), _fields(result))


def _fields(raw: str) -> str:
    """What an object holds, a field a line, its texts as they are; any other text as it is."""
    given = _object(raw)
    if given is None:
        return raw
    return "\n".join(f"{name}: {_plain(value)}" for name, value in given.items())


def _arguments(raw: str) -> str:
    """The arguments of a call in one line."""
    given = _object(raw)
    return raw if given is None else " ".join(map(_plain, given.values()))


def _plain(value: object) -> str:
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return f"\n{value}" if "\n" in value else value


def _object(raw: str) -> dict[str, object] | None:
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
