"""What a session's events look like, line by line."""

from typing import Any

import pytest

from holdfast.api.schema.changes import FileDiffObject
from holdfast.api.schema.events import Event
from holdfast.api.schema.runs import UsageObject
from holdfast.cli.run import approval, notes
from holdfast.cli.tui.style import Style, amount, cut, seconds
from holdfast.cli.tui.unfold.changes import SHOWN
from holdfast.cli.tui.view import FAILED, INTERRUPTED_BY_NEXT, View
from holdfast.core.run.run import Incomplete

WIDTH = 60


class Told:
    """A view, and everything it has shown for good."""

    def __init__(self, *, colour: bool = False) -> None:
        self.view = View(Style(colour), lambda: WIDTH, lambda: 100.0)
        self.lines: list[str] = []
        self._seq = 0

    def hear(self, event: str, run_id: str = "run_1", **fields: Any) -> list[str]:
        self._seq += 1
        told = self.view.hear(Event(event, self._seq, run_id, timestamp=90.0, **fields))
        self.lines += told
        return told

    def begin(self, words: str = "do it", run_id: str = "run_1") -> None:
        self.hear("run.queued", run_id, input=words)
        self.hear("run.started", run_id)

    @property
    def text(self) -> str:
        return "\n".join(line for line in self.lines if line)


def test_words_stand_where_the_run_that_reads_them_begins() -> None:
    told = Told()
    told.hear("run.queued", input="first")
    assert told.lines == []
    assert [w.words for w in told.view.waiting.values()] == [("first",)]
    told.hear("run.started")
    assert told.text == "› first"
    assert not told.view.waiting


def test_an_answer_is_shown_once_and_as_it_comes() -> None:
    told = Told()
    told.begin()
    told.hear("message.delta", turn=1, delta="It is **do")
    assert told.view.live("⠋") == ["It is do"]
    told.hear("message.delta", turn=1, delta="ne**.\n\nNext")
    told.hear("run.completed", output="It is **done**.\n\nNext")
    assert told.text == "› do it\nIt is done.\nNext"
    assert told.view.live("⠋") == []


def test_an_answer_that_did_not_stream_is_shown_at_the_end() -> None:
    told = Told()
    told.begin()
    told.hear("run.completed", output="whole")
    assert told.text.endswith("whole")


def test_a_call_is_one_line_and_unfolds() -> None:
    told = Told()
    told.begin()
    call: dict[str, Any] = {"call_id": "c", "tool": "terminal"}
    told.hear("tool.started", preview="make test", **call)
    told.hear("tool.progress", call_id="c", delta="one\ntwo\nthree\nfour\n")
    assert told.view.live("⠋") == ["⠋ terminal  make test · 10s", "│ two", "│ three", "│ four"]
    whole = told.view.details("c") or []
    assert [r for r in whole if r.startswith("│")] == ["│ one", "│ two", "│ three", "│ four"]
    told.hear("tool.completed", duration=1.5, **call)
    assert told.lines[-1] == "✓ terminal  make test · 1.5s"
    assert told.view.details("c") is None


@pytest.mark.promise("TERM-04")
def test_changed_files_are_listed_below_their_call_and_kinds_look_different() -> None:
    told = Told()
    told.begin()
    told.hear("tool.started", call_id="c", tool="write_file")
    for kind, path in (("created", "a"), ("replaced", "b"), ("patched", "c"), ("deleted", "d")):
        counts: dict[str, Any] = {
            "added": 12 * (kind != "deleted"),
            "removed": 3 * (kind != "created"),
        }
        told.hear("file.changed", call_id="c", path=path, kind=kind, **counts)
    told.hear("tool.completed", call_id="c", tool="write_file", duration=1.0)
    assert told.lines[-4:] == [
        "  +12 new file a",
        "  +12 −3 replaced b",
        "  +12 −3 c",
        "  −3 deleted d",
    ]


@pytest.mark.promise("TERM-04")
def test_a_few_lines_of_the_diff_stand_below_the_call() -> None:
    told = Told(colour=True)
    told.begin()
    text = "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1,2 +1,9 @@\n same\n-old\n"
    text += "".join(f"+new {n} \x1b[2J\n" for n in range(9))
    diff = FileDiffObject(
        "x", "patched", 9, 1, "", "", 0, 0, binary=False, diff=text, cut=False, pruned=False
    )
    told.hear("file.changed", call_id="c", path="x", kind="patched", added=9, removed=1)
    told.view.diffs = (diff,)
    told.hear("tool.completed", call_id="c", tool="patch", duration=1.0)
    shown = told.lines[-1 - SHOWN :]
    assert shown[0] == "    \x1b[31m-old\x1b[0m"
    assert shown[1].startswith("    \x1b[32m+new 0 ␛[2J")
    assert shown[-1] == "\x1b[2m    … 2 more: Ctrl-O shows all\x1b[0m"


def test_a_call_that_failed_says_how() -> None:
    told = Told()
    told.begin()
    told.hear("tool.started", call_id="c", tool="terminal", preview="false")
    told.hear("tool.completed", call_id="c", tool="terminal", error=True, outcome="failed")
    assert told.lines[-1] == "✗ terminal  false · failed"
    told.hear("tool.started", call_id="d", tool="terminal", preview="false")
    told.hear("tool.completed", call_id="d", tool="terminal", duration=0.1, summary="exit code 1")
    assert told.lines[-1] == "✗ terminal  false · 0.1s · exit code 1"


@pytest.mark.promise("HALT-03")
def test_an_interrupted_run_says_what_interrupted_it() -> None:
    told = Told()
    told.begin()
    told.hear("run.queued", "run_2", input="rather this")
    told.hear("run.cancelled", reason="superseded")
    assert INTERRUPTED_BY_NEXT in told.text
    told.hear("run.started", "run_2")
    assert told.text.endswith("› rather this")


def test_a_message_that_was_taken_back_leaves_no_line() -> None:
    told = Told()
    told.begin()
    told.hear("run.queued", "run_2", input="never mind")
    before = list(told.lines)
    assert told.hear("run.cancelled", "run_2", reason="Stop requested via API") == []
    assert told.lines == before
    assert not told.view.waiting


def test_words_that_join_a_run_that_waits_stand_below_its_own() -> None:
    told = Told()
    told.hear("run.queued", input="first")
    told.hear("run.steered", input="and this")
    told.hear("run.started")
    assert told.text == "› first\n› and this"


def test_words_that_steer_a_run_at_work_stand_where_they_came() -> None:
    told = Told()
    told.begin()
    told.hear("message.delta", turn=1, delta="half a word")
    told.hear("run.steered", input="the other way")
    assert told.text == "› do it\nhalf a word\n› the other way"


@pytest.mark.promise("HALT-01")
def test_words_that_a_stopped_run_has_not_read_come_back() -> None:
    told = Told()
    told.begin()
    told.hear("run.steered", input="the other way", input_id="in_2")
    told.hear("input.superseded", input_id="in_2", reason="Stop requested via API")
    told.hear("run.cancelled", reason="Stop requested via API")
    assert told.view.take_unread() == ["the other way"]
    assert told.view.take_unread() == []


@pytest.mark.parametrize("ending", ["run.failed", "run.cancelled"])
def test_words_that_another_run_reads_do_not_come_back(ending: str) -> None:
    told = Told()
    told.begin()
    told.hear("run.steered", input="the other way", input_id="in_2")
    told.hear("input.superseded", input_id="in_2", reason="superseded")
    told.hear(ending, reason="superseded")
    assert told.view.take_unread() == []


@pytest.mark.promise("MODEL-01")
def test_a_model_that_is_asked_again_is_shown_with_the_reason_and_the_wait() -> None:
    told = Told()
    told.begin()
    failed: dict[str, Any] = {"turn": 1, "attempt": 1, "model": "a/b", "reason": "a/b is busy"}
    told.hear("model.retry", **failed, next_model="a/b", wait_s=30.0)
    assert "a/b is busy" in told.text and "attempt 2 in 30 s" in told.text
    told.hear("model.retry", **failed, next_model="c/d")
    assert "asking c/d" in told.text


@pytest.mark.promise("SAY-02")
def test_the_wait_for_the_next_attempt_is_counted_down() -> None:
    told = Told()  # its clock is 10 s after each event
    told.begin()
    busy: dict[str, Any] = {"turn": 1, "model": "a/b", "next_model": "a/b", "reason": "busy"}
    told.hear("model.retry", attempt=2, attempts=12, wait_s=33.0, http_status=429, **busy)
    assert told.view.live("⠋") == ["⠋ next try in 23s: a/b, attempt 3 of 12 "]
    told.hear("model.retry", attempt=3, attempts=12, wait_s=5.0, **busy)
    assert told.view.live("⠋") == ["⠋ thinking … "], "it is being asked"
    told.hear("model.retry", attempt=4, attempts=12, wait_s=33.0, **busy)
    told.hear("reasoning.delta", turn=1, delta="hm")
    assert told.view.live("⠋") == ["⠋ thinking … hm"]


@pytest.mark.promise("SAY-03")
@pytest.mark.parametrize("flaw", list(Incomplete))
def test_an_answer_that_is_cut_or_empty_is_marked_below_it(flaw: str) -> None:
    told = Told()
    told.begin()
    told.hear("run.completed", output="half of" if flaw == "cut" else "", incomplete=flaw)
    assert told.lines[-2] == notes.INCOMPLETE[flaw]


@pytest.mark.promise("SAY-04")
def test_the_first_lines_of_a_failed_call_are_shown_below_it() -> None:
    told = Told()
    told.begin()
    call: dict[str, Any] = {"call_id": "c", "tool": "terminal"}
    told.hear("tool.started", preview="make", **call)
    told.hear("tool.progress", call_id="c", delta="".join(f"line {n}\n" for n in range(9)))
    shown = told.hear("tool.completed", duration=1.0, summary="exit code 2", **call)
    assert shown[1:] == [*(f"│ line {n}" for n in range(FAILED)), "│ … 5 more (Ctrl-O)"]
    told.hear("tool.started", preview="x", call_id="d", tool="patch")
    wrong: dict[str, Any] = {"call_id": "d", "tool": "patch", "outcome": "failed", "error": True}
    shown = told.hear("tool.completed", detail="x: there is no such file", **wrong)
    assert shown[1:] == ["│ x: there is no such file"]


@pytest.mark.promise("SAY-06")
def test_what_follows_an_answer_in_the_journal_is_below_it_on_the_screen() -> None:
    told = Told()
    told.begin()
    told.hear("message.delta", turn=1, delta="I will run make.")
    told.hear("model.answered", turn=1)
    told.hear("approval.responded", choice="once")
    told.hear("tool.started", call_id="c", tool="terminal", preview="make")
    order = [told.text.index(t) for t in ("I will run make.", approval.answered("once"))]
    assert order == sorted(order)


@pytest.mark.promise("SAY-06")
@pytest.mark.parametrize("void", [False, True])
def test_a_note_that_comes_in_the_middle_of_an_answer_is_below_it(*, void: bool) -> None:
    told = Told()
    told.begin()
    told.hear("message.delta", turn=1, delta="half a para")
    told.hear("process.ended", process_id="p1", how="it ended")
    assert "p1" not in told.text
    if void:
        told.hear("message.void", turn=1, reason="cut")
    else:
        told.hear("message.delta", turn=1, delta="graph")
        told.hear("model.answered", turn=1)
        assert told.text.index("half a paragraph") < told.text.index("p1")
    assert "p1" in told.text
    told.hear("process.ended", process_id="p2", how="it ended")
    assert "p2" in told.text


@pytest.mark.promise("CTX-01")
def test_a_conversation_that_was_compacted_says_so() -> None:
    told = Told()
    told.begin()
    told.hear("context.compacted", reason="full", messages=0)
    assert "notes" not in told.text, "only results were shortened"
    told.hear("context.compacted", reason="full", messages=40)
    assert notes.COMPACTED.format(40) in told.text


def test_a_void_answer_is_said_to_be_void() -> None:
    told = Told()
    told.begin()
    told.hear("message.delta", turn=1, delta="half")
    told.hear("message.void", turn=1, reason="cut")
    told.hear("message.delta", turn=1, delta="whole")
    told.hear("run.completed", output="whole")
    assert notes.CONNECTION_LOST in told.text
    assert told.text.endswith("whole")


def test_tokens_add_up_and_the_latest_request_fills_the_context() -> None:
    told = Told()
    told.begin()
    told.hear("model.answered", turn=1, usage=UsageObject(100, 5))
    told.hear("model.answered", turn=2, usage=UsageObject(150, 7))
    view = told.view
    assert (view.input_tokens, view.output_tokens, view.context_tokens) == (250, 12, 157)


@pytest.mark.parametrize("hostile", ["\x1b[2Jgone", "a\rb", "x\u202ey"])
def test_nothing_that_is_said_steers_the_terminal(hostile: str) -> None:
    told = Told()
    told.begin(hostile)
    told.hear("message.delta", turn=1, delta=f"{hostile}\n\n")
    told.hear("tool.started", call_id="c", tool="terminal", preview=hostile)
    told.hear("tool.progress", call_id="c", delta=hostile)
    shown = "\n".join([*told.lines, *told.view.live("⠋"), *(told.view.details("c") or ())])
    told.hear("tool.completed", call_id="c", tool="terminal", summary=hostile)
    told.hear("run.failed", error=hostile)
    shown += "\n".join(told.lines)
    assert not {"\x1b", "\r", "\u202e"} & set(shown)


@pytest.mark.parametrize("width", [1, 2, 5, 12])
def test_a_painted_line_is_cut_to_its_columns(width: int) -> None:
    style = Style(True)
    line = cut(f"{style.good('✓')} 日本語 words", width)
    plain = line.replace("\x1b[32m", "").replace("\x1b[0m", "")
    wide = sum(2 if c in "日本語" else 1 for c in plain)
    assert wide <= width
    assert plain.endswith("…")


def test_figures_are_short() -> None:
    assert [seconds(s) for s in (0.4, 59, 61, 3660)] == ["0s", "59s", "1m 01s", "1h 01m"]
    assert [amount(n) for n in (7, 1234, 250_000)] == ["7", "1.2k", "250k"]
