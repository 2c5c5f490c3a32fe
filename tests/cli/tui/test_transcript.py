"""A session that is opened again is drawn as it was."""

import json

from holdfast.api.schema.sessions import MessageObject, ToolCallObject, ToolFunction
from holdfast.cli.tui import transcript
from holdfast.cli.tui.style import Style
from holdfast.cli.tui.view import View
from holdfast.core.material import fenced

WIDTH = 80


def drawn(*messages: MessageObject) -> list[str]:
    view = View(Style(False), lambda: WIDTH, lambda: 100.0)
    return [line for line in transcript.shown(view, messages, ()) if line]


def called(tool: str, result: str, **arguments: object) -> list[MessageObject]:
    call = ToolCallObject("c", ToolFunction(tool, json.dumps(arguments)))
    return [
        MessageObject(role="assistant", content="", tool_calls=(call,)),
        MessageObject(role="tool", content=result, tool_call_id="c"),
    ]


def test_a_command_is_drawn_with_how_it_ended_and_without_its_json() -> None:
    colours = json.dumps({"exit_code": 0, "output": "\x1b[31mred\x1b[0m"})
    assert drawn(*called("terminal", colours, command="ls")) == ["✓ terminal  ls"]
    failed = json.dumps({"exit_code": 2, "output": "\x1b[31mno\x1b[0m"})
    assert drawn(*called("terminal", failed, command="make")) == ["✗ terminal  make · exit code 2"]
    killed = json.dumps({"exit_code": None, "signal": 9, "output": ""})
    assert drawn(*called("terminal", killed, command="x")) == ["✗ terminal  x · killed by signal 9"]
    out_of_time = json.dumps({"error": "killed: it ran out of time", "output": ""})
    assert drawn(*called("terminal", out_of_time, command="x")) == [
        "✗ terminal  x · killed: it ran out of time"
    ]


def test_a_result_that_is_text_shows_its_first_line_and_no_escapes() -> None:
    (line,) = drawn(*called("read_file", "\n\x1b[2J1\tone\x07\ntwo", path="a.txt", lines=4))
    assert line == "→ read_file  a.txt · 1 one"


def test_a_call_without_a_result_is_drawn_alone() -> None:
    call = ToolCallObject("c", ToolFunction("terminal", "not json"))
    assert drawn(MessageObject(role="assistant", content="", tool_calls=(call,))) == [
        "→ terminal  not json"
    ]


def test_a_notice_of_ours_is_no_words_of_the_user() -> None:
    """While it happens, the event tells of it."""
    head = "[Background process proc_1 has ended: exit code 0.]"
    notice = f"{head}\n{fenced('background process proc_1', 'Command: x')}"
    (line,) = drawn(MessageObject(role="user", content=notice))
    assert line == "● Background process proc_1 has ended: exit code 0."
    view = View(Style(False), lambda: WIDTH, lambda: 100.0)
    assert view.words(notice) == []
    (typed,) = drawn(MessageObject(role="user", content=head))
    assert typed.startswith("› ")
