"""Each command: what it asks of the conversation, what it says, what it says to wrong words."""

import pytest
from msgspec.structs import replace

from holdfast.commands import (
    approvals,
    context,
    gateway,
    messages,
    phrases,
    processes,
    sessions,
    status,
)
from holdfast.core.approval.approval import Choice, Role
from holdfast.core.inbox import Mode
from holdfast.core.run.process import (
    BackgroundProcess,
    ProcessEnd,
    ProcessEnded,
    ProcessStarted,
    ProcessStatus,
)
from holdfast.core.run.run import RunPhase
from holdfast.core.types import OPERATOR, CallId, ProcessId, RunId, SessionKey, Usage
from holdfast.errors import Refused
from holdfast.gateway import ChatStatus, ProcessView
from tests.commands.fake_chat import (
    COMMANDS,
    HEALTH,
    NOW,
    SESSION,
    FakeChat,
    request,
    run,
    session,
    told,
)


async def test_new_begins_a_fresh_session() -> None:
    chat = FakeChat()
    assert "/resume" in await told(chat, "/new")
    assert chat.asked == [("begin",)]


@pytest.mark.parametrize("name", ["new", "retry", "restart", "home"])
async def test_a_command_without_arguments_does_nothing_if_it_gets_one(name: str) -> None:
    chat = FakeChat()
    said = await told(chat, f"/{name} 2")
    assert said == phrases.NO_ARGUMENT.format(name=name)
    assert chat.asked == []


@pytest.mark.parametrize("text", ["/stop", "/stop now!"])
async def test_stop_stops_whatever_stands_behind_it(text: str) -> None:
    chat = FakeChat()
    chat.stops, chat.after = 2, replace(chat.now, suspended=True)
    said = await told(chat, text)
    assert said == f"Stopped: 2 runs. {status.NEXT_IS_NEW}"
    assert chat.asked == [("stop",)]


async def test_stop_with_nothing_at_work_says_so() -> None:
    assert await told(FakeChat(), "/stop") == status.NOT_ACTIVE


async def test_status_of_a_quiet_chat() -> None:
    assert await told(FakeChat(), "/status") == (
        f"{status.NO_ACTIVE_RUN}\n"
        "Model: `openai/m`\n"
        f"{status.BUSY_MODE.format(mode=Mode.INTERRUPT)} (/busy)\n"
        "Sandbox: L2: own namespaces"
    )


async def test_status_tells_what_is_at_work_and_what_it_waits_for() -> None:
    chat = FakeChat()
    chat.now = replace(
        chat.now,
        run=run(status=RunPhase.WAITING),
        steps=1,
        waiting=2,
        question="Which\n`branch`?",
        approvals=(request("a1", "make `x`"), request("b2", "y" * 90)),
    )
    lines = (await told(chat, "/status")).split("\n")
    assert lines[:6] == [
        "**Waiting:** `run_1`, sent 3 min ago, 1 step.",
        "Waiting behind it: 2 runs.",
        "It asks: ``Which `branch`?`` Your next message is the answer.",
        status.NEEDS_APPROVAL,
        "- `` make `x` `` (`apr_a1`, 5 min left)",
        f"- `{'y' * 60}…` (`apr_b2`, 5 min left)",
    ]


@pytest.mark.parametrize("status", [s for s in RunPhase if not s.final])
async def test_status_knows_every_state_of_a_run(status: RunPhase) -> None:
    chat = FakeChat()
    chat.now = replace(chat.now, run=run(status=status))
    said = await told(chat, "/status")
    assert "`run_1`" in said and "no step yet" in said and "Just ended" not in said
    chat.now = replace(chat.now, run=run(status=status, stopping=True))
    assert "**Stopping:**" in await told(chat, "/status")


async def test_status_tells_what_is_wrong() -> None:
    chat = FakeChat()
    why = "the sandbox is weaker than before; run `holdfast sandbox accept`"
    ill = replace(HEALTH, paused=why, sandbox_note=why, status="draining", journal="full")
    chat.now = replace(chat.now, health=ill, suspended=True)
    said = await told(chat, "/status")
    assert said.count(why) == 1 and f"**Paused:** no work is done: {why}" in said
    assert "The gateway is draining." in said and "The journal is full:" in said
    assert status.NEXT_IS_NEW in said


async def test_queue_alone_says_how_many_wait() -> None:
    chat = FakeChat()
    assert await told(chat, "/queue") == messages.NOTHING_WAITS
    chat.now = replace(chat.now, run=run(), waiting=1)
    assert await told(chat, "/queue") == "Waiting: 1 run."
    assert chat.asked == []


@pytest.mark.parametrize("mode", list(Mode))
async def test_words_go_on_whole_and_as_the_command_says(mode: Mode) -> None:
    chat = FakeChat()
    assert await told(chat, f"/{mode} first\n  second") == ""  # a run begins: it will answer
    assert chat.asked == [("say", "first\n  second", mode)]


def _busy(chat: FakeChat, before: ChatStatus, after: ChatStatus) -> FakeChat:
    chat.now, chat.after = before, after
    return chat


async def test_words_for_a_busy_run_are_told_what_became_of_them() -> None:
    quiet = FakeChat().now
    busy = replace(quiet, run=run(), waiting=1)
    longer = replace(busy, waiting=2)
    leaving = replace(longer, run=run(stopping=True))
    others = replace(busy, run=run("run_2"))

    queued = f"{messages.QUEUED} and 1 more."
    assert await told(_busy(FakeChat(), busy, longer), "/queue x") == queued
    assert await told(_busy(FakeChat(), busy, longer), "/interrupt x") == queued  # not theirs
    passed = messages.PASSED_ON
    assert await told(_busy(FakeChat(), busy, busy), "/steer x") == passed
    for after in (leaving, others, quiet):
        assert await told(_busy(FakeChat(), busy, after), "/interrupt x") == ""
    first = replace(quiet, run=run())
    chat = _busy(FakeChat(), first, replace(first, waiting=1))
    assert await told(chat, "/queue x") == f"{messages.QUEUED}."


async def test_words_answer_a_question_in_any_mode() -> None:
    chat = FakeChat()
    chat.now = replace(chat.now, run=run(), question="Which?")
    assert await told(chat, "/queue the second") == messages.ANSWERED


@pytest.mark.parametrize("name", ["steer", "interrupt"])
async def test_words_that_are_missing_are_asked_for(name: str) -> None:
    chat = FakeChat()
    assert (await told(chat, f"/{name}")).startswith(f"/{name} takes a message")
    assert chat.asked == []


async def test_busy_shows_and_chooses() -> None:
    chat = FakeChat()
    assert (await told(chat, "/busy")).startswith(
        f"Now: interrupt. {messages.MEANS[Mode.INTERRUPT]}"
    )
    for mode in Mode:
        assert await told(chat, f"/busy {mode.upper()}") == messages.MEANS[mode]
    assert chat.asked == [("choose_busy_mode", mode) for mode in Mode]


@pytest.mark.parametrize("words", ["wait", "queue steer"])
async def test_busy_says_what_it_takes(words: str) -> None:
    chat = FakeChat()
    assert await told(chat, f"/busy {words}") == "/busy takes interrupt, queue or steer."
    assert chat.asked == []


def _pending(*names: str) -> FakeChat:
    chat = FakeChat()
    chat.now = replace(chat.now, run=run(), approvals=tuple(map(request, names)))
    return chat


@pytest.mark.parametrize(
    ("text", "choice", "name", "said"),
    [
        ("/approve a1", Choice.ONCE, "a1", "Allowed once: `make`"),
        ("/approve session a", Choice.SESSION, "a1", "Allowed in this session: `make`"),
        ("/approve apr_b2", Choice.ONCE, "b2", "Allowed once: `make`"),
        ("/approve SESSION B2", Choice.SESSION, "b2", "Allowed in this session: `make`"),
        ("/approve b once", Choice.ONCE, "b2", "Allowed once: `make`"),
        ("/deny", Choice.DENY, "a1", "Denied: `make`"),
        ("/deny b2", Choice.DENY, "b2", "Denied: `make`"),
    ],
)
async def test_the_named_request_is_answered_and_without_a_name_the_oldest_denied(
    text: str, choice: Choice, name: str, said: str
) -> None:
    chat = _pending("a1", "b2")
    left = "1 more approval waiting: /status lists them."
    assert await told(chat, text) == f"{said}\n{left}"
    assert chat.asked == [("answer", choice, f"apr_{name}")]


async def test_the_last_request_leaves_none_and_then_nothing_waits() -> None:
    chat = _pending("a1")
    assert await told(chat, "/approve") == "Allowed once: `make`"
    for text in ("/approve", "/deny", "/approve a1"):
        assert await told(chat, text) == approvals.NOTHING_WAITS
    assert len(chat.asked) == 1


async def test_always_is_passed_on_and_what_was_recorded_is_told() -> None:
    chat = _pending("a1")
    assert await told(chat, "/approve always") == "Allowed in this session: `make`"
    assert chat.asked == [("answer", Choice.ALWAYS, "apr_a1")]


async def test_an_id_that_is_none_or_several_answers_nothing() -> None:
    chat = _pending("a1", "a2")
    assert await told(chat, "/approve c") == "There is no request `c`. /status lists them."
    assert await told(chat, "/approve apr_") == ("There is no request `apr_`. /status lists them.")
    for text in ("/approve", "/approve session", "/approve a"):
        assert await told(chat, text) == "2 requests match: `apr_a1`, `apr_a2`. Add the id."
    assert await told(chat, "/deny a") == "2 requests match: `apr_a1`, `apr_a2`. Add the id."
    assert chat.asked == []


async def test_an_approval_with_too_many_words_answers_nothing() -> None:
    chat = _pending("a1")
    assert (await told(chat, "/approve once session")).startswith("/approve takes once or session")
    assert (await told(chat, "/approve a1 b2")).startswith("/approve takes once or session")
    assert chat.asked == []


@pytest.mark.promise("ASK-07")
@pytest.mark.parametrize(
    ("text", "named", "reason"),
    [
        ("/deny", "apr_a1b2c3", ""),
        ("/deny use the staging server", "apr_a1b2c3", "use the staging server"),
        ("/deny a better way exists", "apr_a1b2c3", "a better way exists"),
        ("/deny wrong", "apr_a1b2c3", "wrong"),
        ("/deny d4", "apr_d4e5f6", ""),
        ("/deny d4e5 not now", "apr_d4e5f6", "not now"),
        ("/deny apr_d4 not now", "apr_d4e5f6", "not now"),
    ],
)
async def test_what_is_said_with_deny_is_the_reason(text: str, named: str, reason: str) -> None:
    chat = _pending("a1b2c3", "d4e5f6")
    assert (await told(chat, text)).startswith("Denied")
    assert chat.asked == [("answer", Choice.DENY, named, *([reason] if reason else []))]


async def test_a_refused_approval_says_why() -> None:
    chat = _pending("a1")
    chat.refusal = Refused("invalid_approval_choice", "This request offers once, deny.")
    assert await told(chat, "/approve session") == "This request offers once, deny."


async def test_retry_leaves_the_word_to_the_run() -> None:
    chat = FakeChat()
    assert await told(chat, "/retry") == ""
    assert chat.asked == [("retry",)]


async def test_model_shows_and_chooses() -> None:
    chat = FakeChat()
    assert (await told(chat, "/model")).startswith("Model: `openai/m`. ")
    assert "Others: `groq/x`" in await told(chat, "/model")
    assert chat.asked == []
    assert "`openai/Big`" in await told(chat, "/model openai/Big")
    assert "`openai/configured`" in await told(chat, "/model Default")
    assert (await told(chat, "/model two words")).startswith("/model takes one name")
    assert chat.asked == [("choose_model", "openai/Big"), ("choose_model", "")]


async def test_usage_counts_tokens() -> None:
    chat = FakeChat()
    assert await told(chat, "/usage") == "No tokens yet in this session."
    chat.spent = Usage(12000, 345)
    assert await told(chat, "/usage") == (
        "Tokens in this session: 12,345 (12,000 read, 345 written)."
    )


@pytest.mark.promise("CTX-04")
async def test_context_shows_what_fills_the_window() -> None:
    chat = FakeChat()
    shown = await told(chat, "/context")
    assert "2,000 of 8,000 tokens (25 %)" in shown and "about" not in shown
    chat.filling = replace(chat.filling, window=0, measured=False)
    shown = await told(chat, "/context")
    assert "about 2,000 tokens" in shown and context.NOT_KNOWN in shown


@pytest.mark.promise("CTX-04")
async def test_compact_passes_on_what_to_keep_and_says_what_is_hidden() -> None:
    chat = FakeChat()
    assert await told(chat, "/compact") == context.NOTHING_LEFT
    chat.filling = replace(chat.filling, hidden=40, summary=90)
    assert context.COMPACTED.format(hidden="40 messages") in await told(chat, "/compact the names")
    assert chat.asked == [("compact", ""), ("compact", "the names")]


async def test_sessions_are_listed_newest_first() -> None:
    chat = FakeChat()
    assert await told(chat, "/sessions") == sessions.NO_SESSIONS
    chat.had = [
        session(1, "long ago", 40 * 86400),
        session(2, "a `tick`\n[x](http://y)", 86400),
        session(3, "two hours", 7300, current=True),
        session(4, "", 5),
    ]
    assert await told(chat, "/sessions") == (
        "4. no messages yet, just now\n"
        "3. `two hours`, 2 h ago, **current**\n"
        "2. ``a `tick` [x](http://y)``, 1 day ago\n"
        "1. `long ago`, on 2001-07-31\n"
        "/resume NUMBER returns to one of them."
    )


async def test_many_sessions_fit_a_phone_and_the_current_one_is_among_them() -> None:
    chat = FakeChat()
    chat.had = [session(n, "x", 3 * 86400, current=n == 2) for n in range(1, 31)]
    lines = (await told(chat, "/sessions")).split("\n")
    numbers = [line.split(".")[0] for line in lines[:11]]
    assert numbers == [*map(str, range(30, 20, -1)), "2"]
    assert lines[10].endswith("3 days ago, **current**") and lines[11] == "And 19 older."


@pytest.mark.parametrize(("words", "number"), [("", None), ("3", 3), ("#3", 3)])
async def test_resume_brings_back_the_one_before_or_the_named(
    words: str, number: int | None
) -> None:
    chat = FakeChat()
    said = await told(chat, f"/resume {words}")
    assert said == f"Back in session {number or 7}: `hello`, started 2 h ago."
    assert chat.asked == [("resume", number)]


@pytest.mark.parametrize("words", ["last", "-1", "1 2", "#", "²", "1" * 5000])
async def test_resume_says_what_it_takes(words: str) -> None:
    chat = FakeChat()
    said = await told(chat, f"/resume {words}")
    assert said == "/resume takes the number of a session; /sessions lists them."
    assert chat.asked == []


async def test_restart_leaves_the_word_to_the_warning_where_there_is_one() -> None:
    chat = FakeChat()
    assert await told(chat, "/restart") == gateway.RESTARTING
    chat.now = replace(chat.now, run=run())
    assert await told(chat, "/restart") == ""
    assert chat.asked == [("restart",), ("restart",)]


async def test_home_is_here() -> None:
    chat = FakeChat()
    assert (await told(chat, "/home")) == gateway.IS_HOME
    assert chat.asked == [("make_home",)]


async def test_help_lists_what_the_speaker_may_use() -> None:
    everything = await told(FakeChat(), "/help")
    assert all(f"\n/{name}" in everything for name in COMMANDS)
    little = await told(FakeChat(Role.READ), "/help")
    assert "\n/status: " in little and "\n/restart" not in little and "\n/busy" not in little


@pytest.mark.parametrize("words", ["busy", "/busy", "BUSY"])
async def test_help_tells_of_one_command(words: str) -> None:
    said = await told(FakeChat(Role.READ), f"/help {words}")
    assert said == f"/busy [interrupt|queue|steer]: {COMMANDS['busy'].help}"


async def test_help_for_what_there_is_not() -> None:
    assert "Did you mean /steer?" in await told(FakeChat(), "/help ster")
    for words in ("busy queue", "//", "äh"):
        said = await told(FakeChat(), f"/help {words}")
        assert said == "/help takes the name of one command, or nothing."


@pytest.mark.parametrize("text", ["/start", "/start from-a-link"])
async def test_start_greets_with_the_head_of_help(text: str) -> None:
    said = await told(FakeChat(Role.READ), text)
    assert said and (await told(FakeChat(), "/help")).startswith(said + "\n\n")


def background(name: str, ended: ProcessEnd | None = None) -> ProcessView:
    """A process that was started five minutes ago."""
    started = ProcessStarted(
        process_id=ProcessId(name), started_by=RunId("r"), call_id=CallId("c"), command="make all"
    )
    found = BackgroundProcess(started, NOW - 300)
    if ended is not None:
        how = ProcessEnded(process_id=ProcessId(name), cause=ended, duration_s=120.0)
        found = replace(found, status=ProcessStatus.ENDED, ended=how)
    return ProcessView(SessionKey(OPERATOR, SESSION), found, "compiling")


@pytest.mark.promise("PROC-01")
async def test_ps_lists_running_processes_first_and_a_few_that_ended() -> None:
    chat = FakeChat()
    assert await told(chat, "/ps") == processes.NO_PROCESSES
    chat.background = [background(f"proc_{n}", ProcessEnd.EXITED) for n in range(9)]
    chat.background.append(background("proc_x"))
    first, *rest = (await told(chat, "/ps")).splitlines()
    assert "proc_x" in first and "5 min ago" in first and "compiling" in first
    assert len(rest) == processes.SHOWN_ENDED


async def test_ps_shows_output_and_kills_one() -> None:
    chat = FakeChat()
    chat.background = [background("proc_x", ProcessEnd.KILLED)]
    assert (await told(chat, "/ps output x")).startswith("````\nits ```output```")
    assert "killed on request" in await told(chat, "/ps kill proc_x")
    assert chat.asked == [("process_output", "x"), ("kill_process", "proc_x")]
    assert await told(chat, "/ps what") == processes.USAGE
    reader = FakeChat(Role.READ)
    await told(reader, "/ps kill proc_x")
    assert reader.asked == []
