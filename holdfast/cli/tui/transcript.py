"""Draw the transcript of a session in short lines, and one call in full."""

import json
from collections.abc import Sequence

from holdfast.api.schema.runs import RunObject
from holdfast.api.schema.sessions import MessageObject, ToolCallObject
from holdfast.cli.run import approval
from holdfast.cli.tui.view import View
from holdfast.core.text.escape import reveal

SHOWN = 400  # messages; a terminal's scrollback is not endless either
_ENDED = {"failed": "the last run failed", "cancelled": "the last run was stopped"}


def shown(view: View, messages: Sequence[MessageObject], runs: Sequence[RunObject]) -> list[str]:
    """Draw the messages, and how the last run ended if it did not complete."""
    lines: list[str] = []
    if len(messages) > SHOWN:
        hint = "holdfast sessions show prints all"
        lines.append(view.note(f"… {len(messages) - SHOWN} earlier messages; {hint}"))
    results = {m.tool_call_id: m.text for m in messages if m.tool_call_id}
    for message in messages[-SHOWN:]:
        match message.role:
            case "user" if told := approval.notice(message.text):
                lines.append(view.note(f"● {told}"))
            case "user":
                lines += view.words(message.text, message.images)
            case "assistant":
                lines += view.answer(message.text)
                lines += [_called(view, c, results.get(c.id, "")) for c in message.calls]
            case _:
                pass  # results are in their calls' lines, instructions are not for people
    if runs and runs[0].status in _ENDED:
        why = f": {reveal(runs[0].failure)}" if runs[0].failure else ""
        lines += ["", view.note(f"… {_ENDED[runs[0].status]}{why}")]
    return lines


def _called(view: View, call: ToolCallObject, result: str) -> str:
    failed, outcome = _outcome(result)
    arguments = _arguments(call.function.arguments)
    return view.called(call.function.name, arguments, outcome, failed=failed)


def _outcome(result: str) -> tuple[bool | None, str]:
    """Return whether a call failed (None: unknown), and a short outcome."""
    given = _object(result)
    if given is None:
        return None, next((line for line in result.splitlines() if line.strip()), "")
    if error := given.get("error"):
        return True, str(error)
    if (number := given.get("signal")) is not None:
        return True, f"killed by signal {number}"
    code = given.get("exit_code")
    return bool(code), f"exit code {code}" if code else ""


def calls(view: View, messages: Sequence[MessageObject]) -> list[tuple[ToolCallObject, str]]:
    """Return every call with its line, oldest first."""
    results = {m.tool_call_id: m.text for m in messages if m.tool_call_id}
    found = (call for message in messages for call in message.calls)
    return [(call, _called(view, call, results.get(call.id, ""))) for call in found]


def unfolded(view: View, messages: Sequence[MessageObject], call_id: str) -> list[str]:
    """Draw all of a call: its arguments and its result."""
    call = next((c for message in messages for c in message.calls if c.id == call_id), None)
    if call is None:
        return []
    result = next((m.text for m in messages if m.tool_call_id == call_id), "")
    return view.unfolded(call.function.name, _fields(call.function.arguments), _fields(result))


def _fields(raw: str) -> str:
    """Return the fields of a JSON object, one per line; any other text as it is."""
    given = _object(raw)
    if given is None:
        return raw
    return "\n".join(f"{name}: {_plain(value)}" for name, value in given.items())


def _arguments(raw: str) -> str:
    """Return the arguments of a call on one line."""
    given = _object(raw)
    if given is None:
        return raw
    texts = [value for value in given.values() if isinstance(value, str)]
    return " ".join(map(_plain, texts or given.values()))


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
