"""kill -9 at exactly one point of what happens in a chat, for every such point.

The points are the syncs of the journal: before each, what is about to be certain is not. For
words also each time before a byte leaves the process. After each kill the gateway is started
again, and what people see must be what they would have seen without it; only a message whose
arrival nobody knows of may stand there twice, and then it says so.
"""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import aiohttp
import anyio
import pytest

from holdfast.commands.sessions import STARTED
from holdfast.commands.status import NEXT_IS_NEW, NOT_ACTIVE
from holdfast.core.chat.access import WELCOME
from tests.behaviour.chats import OWNER, Bot, bot
from tests.crash import kills
from tests.crash.chatter import MARK
from tests.crash.evidence import THOROUGH, UNKNOWN, ask_for, facts, lines, noted
from tests.fakes.model_server import ModelServer
from tests.fakes.telegram import Chat, Json

pytestmark = [pytest.mark.anyio, pytest.mark.debian("strace"), pytest.mark.timeout(300)]

STEP = 1 if THOROUGH else 2
PATIENCE_S = 30.0
STRANGERS = 7000


@pytest.fixture
async def both(tmp_path: Path, model: ModelServer) -> AsyncIterator[Bot]:
    async with bot(tmp_path, model.base_url) as it:
        yield it


def on_its_way(home: Path) -> int:
    """How many messages are neither sent nor given up."""
    with closing(sqlite3.connect(f"file:{home}/journal.db?mode=ro", uri=True)) as journal:
        query = "SELECT count(*) FROM outbox WHERE status NOT IN ('sent', 'dead')"
        return int(journal.execute(query).fetchone()[0])


async def lives(it: Bot) -> bool:
    """Whether it does: one that is being killed may look alive until it is spoken to."""
    try:
        return it.gateway.alive and (await it.gateway.get("/health"))[0] == 200
    except aiohttp.ClientError:
        return False


async def quiet(it: Bot, done: Callable[[], object]) -> bool:
    """Wait until it is done and all is said; False: the gateway has ended before."""
    try:
        with anyio.fail_after(PATIENCE_S):
            while not (done() and not it.telegram.pending and not on_its_way(it.gateway.home)):
                if not await lives(it):
                    return False
        return await lives(it)
    except TimeoutError:
        lines = it.gateway.lines[-20:]
        raise AssertionError(f"{it.telegram.accepted[-5:]} {it.telegram.pending} {lines}") from None


Act = Callable[[], object]


async def kill_at_each(
    it: Bot,
    scene: Callable[[str], Awaitable[tuple[Act, Act]]],
    check: Callable[[str], Awaitable[None]],
    call: str = "fdatasync",
    step: int = STEP,
) -> int:
    """Play a scene until it goes through, killed at its 1st, (1 + step)th … `call`; how often.

    A scene gives what is done then, and what tells that it is done.
    """
    wal = it.gateway.home / "journal.db-wal" if call == "fdatasync" else None
    for number in count(1, step):
        key = f"{call}x{number}"
        with noted(f"killed at {call} {number}"):
            act, done = await scene(key)
            assert await quiet(it, lambda: True)
            async with kills.attached(it.gateway, call, number, wal):
                act()
                through = await quiet(it, done)
                if not through:
                    await it.gateway.ended()
            if not await lives(it):
                await it.gateway.ended()
                await it.gateway.start()
            assert await quiet(it, done)
            await check(key)
            if through:
                return number
    raise AssertionError


def copies(it: Bot, chat: Chat, text: str) -> list[str]:
    """What the bot said there with `text` in it, all but the first marked."""
    found = [t for t in it.said(chat) if text in t]
    assert all(MARK in copy for copy in found[1:]), found
    return found


def is_said(it: Bot, chat: Chat, text: str) -> bool:
    return any(text in said for said in it.said(chat))


def admitted(it: Bot, text: str) -> list[Json]:
    return [f for f in facts(it.gateway.home, "input.admitted") if text in f["text"]]


def check_effect(it: Bot, chat: Chat, effects: Path, key: str) -> None:
    """One message, one run, one effect, one answer; or it says that nobody knows."""
    (words,) = admitted(it, key)
    home, run_id = it.gateway.home, words["run_id"]
    for once in ("run.queued", "run.started", "call.started", "call.settled", "run.completed"):
        assert len(facts(home, once, run_id=run_id)) == 1, once
    (settled,) = facts(home, "call.settled", run_id=run_id)
    written = len(lines(effects, key))
    if settled["outcome"] == "unknown":
        assert written <= 1
        asked = [
            m
            for m in it.telegram.sent(chat)
            if key in m.get("reply_to_message", {}).get("text", "")
            and not m["text"].startswith("Allowed once")  # the question, which replies too
        ]
        assert all(UNKNOWN in m["text"] for m in asked)
        assert all(MARK in m["text"] for m in asked[1:]) and asked
    else:
        assert settled["outcome"] == "ok" and written == 1
        assert copies(it, chat, f"the tool said: bumped {key}")


def answered(it: Bot, chat: Chat, key: str) -> bool:
    """Whether a run that was given `key` has been answered."""
    replies = (m for m in it.telegram.sent(chat) if "the tool said" in m["text"])
    return any(key in m.get("reply_to_message", {}).get("text", "") for m in replies)


@pytest.mark.fault("F-01", "F-07")
@pytest.mark.promise("LATE-09")
@pytest.mark.parametrize("call", ["fdatasync", "sendto"])
async def test_words_are_answered_once_wherever_it_is_killed(
    both: Bot, tmp_path: Path, call: str
) -> None:
    chat, effects = both.telegram.private(OWNER), tmp_path / "effects"

    async def scene(key: str) -> tuple[Act, Act]:
        text = ask_for("bump", path=effects, tag=key)
        return partial(both.telegram.say, chat, text), partial(answered, both, chat, key)

    async def check(key: str) -> None:
        check_effect(both, chat, effects, key)

    step = STEP if call == "fdatasync" else 2 * STEP
    assert await kill_at_each(both, scene, check, call, step) > 5


@pytest.mark.fault("F-10")
@pytest.mark.promise("RUN-13")
async def test_a_button_counts_once_wherever_it_is_killed(both: Bot, tmp_path: Path) -> None:
    chat, effects = both.telegram.private(OWNER), tmp_path / "effects"

    async def scene(key: str) -> tuple[Act, Act]:
        both.telegram.say(chat, ask_for("risky", path=effects, tag=key))
        question = await both.hears(chat, f"bump {key}")
        allow = both.buttons(question)["Allow once"]
        return partial(both.telegram.click, question, allow), partial(answered, both, chat, key)

    async def check(key: str) -> None:
        check_effect(both, chat, effects, key)
        (question,) = [m for m in both.telegram.sent(chat) if f": bump {key}" in m["text"]]
        assert question["text"].startswith("Allowed once") and not both.buttons(question)
        (words,) = admitted(both, key)
        assert len(facts(both.gateway.home, "approval.granted", run_id=words["run_id"])) == 1

    assert await kill_at_each(both, scene, check) > 3


async def test_a_fresh_start_is_made_once_wherever_it_is_killed(
    both: Bot, model: ModelServer
) -> None:
    chat = both.telegram.private(OWNER)
    said: dict[str, Json] = {}

    async def scene(key: str) -> tuple[Act, Act]:
        both.telegram.say(chat, f"before {key}")
        await both.hears(chat, f"echo: before {key}")

        def act() -> None:
            said[key] = both.telegram.say(chat, "/new")

        return act, lambda: replies(both, chat, said[key])

    async def check(key: str) -> None:
        (told, *more) = replies(both, chat, said[key])
        assert STARTED in told and all(MARK in copy for copy in more)
        both.telegram.say(chat, f"after {key}")
        await both.hears(chat, f"echo: after {key}")
        users = [m["content"] for m in model.requests[-1].body["messages"] if m["role"] == "user"]
        assert users == [f"after {key}"]
        fresh = [f for f in facts(both.gateway.home, "key.bound") if f["reason"] == "new"]
        assert len(fresh) == len(said), "once for each /new"

    assert await kill_at_each(both, scene, check, step=1) >= 3


def replies(it: Bot, chat: Chat, to: Json) -> list[str]:
    """What answers that message."""
    number = to["message_id"]
    sent = it.telegram.sent(chat)
    return [m["text"] for m in sent if m.get("reply_to_message", {}).get("message_id") == number]


@pytest.mark.promise("BACK-05")
async def test_a_stop_command_takes_effect_wherever_the_gateway_is_killed(
    both: Bot, tmp_path: Path
) -> None:
    chat = both.telegram.private(OWNER)
    said: dict[str, Json] = {}

    async def scene(key: str) -> tuple[Act, Act]:
        begun = tmp_path / key
        both.telegram.say(chat, ask_for("hang", path=begun))
        with anyio.fail_after(PATIENCE_S):
            while not begun.exists():
                await lives(both)

        def act() -> None:
            said[key] = both.telegram.say(chat, "/stop")

        def done() -> bool:
            (run,) = admitted(both, key)
            ended = facts(both.gateway.home, "run.cancelled", run_id=run["run_id"])
            return bool(ended and replies(both, chat, said[key]))

        return act, done

    async def check(key: str) -> None:
        (told, *more) = replies(both, chat, said[key])
        # Nothing is at work any more if it was cut after the stop, and has ended since.
        assert "Stopped: 1 run." in told or NOT_ACTIVE in told, told
        assert NEXT_IS_NEW in told and all(MARK in copy for copy in more), (told, more)
        (run,) = admitted(both, key)
        assert len(facts(both.gateway.home, "run.cancelled", run_id=run["run_id"])) == 1
        after = both.telegram.say(chat, f"after {key}")
        await both.hears(chat, f"echo: after {key}")
        assert sum("reason: suspended" in text for text in replies(both, chat, after)) == 1

    assert await kill_at_each(both, scene, check, step=1) >= 3


@pytest.mark.fault("F-34")
async def test_a_stranger_gets_a_code_that_works_wherever_it_is_killed(
    both: Bot, model: ModelServer
) -> None:
    strangers = count(STRANGERS)
    alone: dict[str, Chat] = {}

    async def scene(key: str) -> tuple[Act, Act]:
        alone[key] = both.telegram.private(next(strangers))

        def offered() -> bool:
            return len(facts(both.gateway.home, "pairing.offered")) >= len(alone)

        return partial(both.telegram.say, alone[key], "let me in"), offered

    async def check(key: str) -> None:
        chat = alone[key]
        if not is_said(both, chat, "holdfast pair"):  # it was not said, and nobody can say it again
            both.telegram.say(chat, "hello?")
        await both.hears(chat, "holdfast pair")
        code = both.said(chat)[-1].split("holdfast pair ")[1].strip("`").strip()
        done = await both.gateway.holdfast("pair", code, "--yes")
        assert done.returncode == 0, done
        await both.hears(chat, WELCOME)
        assert len(copies(both, chat, WELCOME)) >= 1
        assert len(model.requests) == 0

    assert await kill_at_each(both, scene, check, step=1) >= 2
