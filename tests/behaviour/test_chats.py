"""A chat, from a user's message to the answer, with every fault in between."""

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from holdfast.commands.messages import MEANS
from holdfast.config.process import LAUNCHD_LABEL
from holdfast.core.chat.access import NOTHING_TO_ANSWER
from holdfast.core.inbox import Mode
from holdfast.engine.chats.answers import OVER
from tests.behaviour.chats import GUEST, OWNER, STRANGER, Bot, bot
from tests.behaviour.hands import carrying, command, running
from tests.fakes.gateway import files
from tests.fakes.model_server import ModelServer
from tests.fakes.model_server import say as model_says
from tests.fakes.telegram import Chat, Hold, Json, Reset, TooMany

LAUNCHD = {"XPC_SERVICE_NAME": LAUNCHD_LABEL}  # who starts again what ends with 75


@pytest.fixture
async def both(tmp_path: Path, model: ModelServer) -> AsyncIterator[Bot]:
    async with bot(tmp_path, model.base_url) as it:
        yield it


def owners(it: Bot) -> Chat:
    return it.telegram.private(OWNER)


async def settled(it: Bot, chat: Chat) -> None:
    """Return when whatever was said before this has been dealt with: updates go in order."""
    before = len(it.telegram.accepted)
    it.telegram.say(chat, "/usage")
    await it.until(lambda: [m for m in it.telegram.sent(chat) if "okens" in m["text"]])
    assert len(it.telegram.accepted) > before


def asked_of(model: ModelServer) -> list[str]:
    """The last user text of each request that the model got."""
    return [
        next(m["content"] for m in reversed(r.body["messages"]) if m["role"] == "user")
        for r in model.requests
    ]


async def test_words_are_answered_as_a_reply(both: Bot) -> None:
    chat = owners(both)
    said = both.telegram.say(chat, "say:**Good** morning, see https://evil.example/x?q=secret")
    answer = await both.hears(chat, "Good morning")
    assert answer["reply_to_message"]["message_id"] == said["message_id"]
    assert "evil.example" in answer["text"]  # named by the user: left as it is
    sent = both.telegram.made("sendMessage")[0].params
    assert sent["link_preview_options"]["is_disabled"]


async def test_a_conversation_goes_on_in_its_session(both: Bot, model: ModelServer) -> None:
    chat = owners(both)
    both.telegram.say(chat, "my name is Ada")
    await both.hears(chat, "echo: my name is Ada")
    both.telegram.say(chat, "again")
    await both.hears(chat, "echo: again")
    texts = [m["content"] for m in model.requests[-1].body["messages"] if m["role"] != "system"]
    assert texts == ["my name is Ada", "echo: my name is Ada", "again"]


async def test_topics_and_members_of_a_group_have_sessions_of_their_own(
    both: Bot, model: ModelServer
) -> None:
    group = both.telegram.group()
    one, two = both.telegram.topic(group, "one"), both.telegram.topic(group, "two")
    for user, thread in ((OWNER, one), (OWNER, two), (GUEST, one)):
        both.telegram.say(group, f"I am {user} in {thread}", user, thread)
        answer = await both.hears(group, f"echo: I am {user} in {thread}")
        assert answer["message_thread_id"] == thread
        said = [m for m in model.requests[-1].body["messages"] if m["role"] == "user"]
        assert len(said) == 1


@pytest.mark.fault("F-34")
async def test_a_stranger_is_not_heard_and_is_shown_a_code_only_alone(
    both: Bot, model: ModelServer
) -> None:
    alone, group = both.telegram.private(STRANGER), both.telegram.group()
    both.telegram.say(group, "let me in", STRANGER)
    both.telegram.say(alone, "let me in")
    shown = await both.hears(alone, "holdfast pair")
    both.telegram.say(alone, "/status")
    await settled(both, owners(both))
    assert both.said(group) == []
    assert not model.requests
    code = shown["text"].split("holdfast pair ")[1].strip("`").strip()
    for path, data in files(both.gateway.home):
        assert code.encode() not in data, path


@pytest.mark.fault("F-08")
async def test_updates_that_come_again_are_the_same_updates(both: Bot, model: ModelServer) -> None:
    chat = owners(both)
    for n in range(5):
        both.telegram.say(chat, f"say:number {n}")
        await both.hears(chat, f"number {n}")
    both.telegram.say(chat, "/busy queue")
    await both.hears(chat, MEANS[Mode.QUEUE])
    both.telegram.forget_offset()
    await settled(both, chat)
    assert len(model.requests) == 5
    assert sum("number" in text for text in both.said(chat)) == 5
    assert sum(MEANS[Mode.QUEUE] in text for text in both.said(chat)) == 1


@pytest.mark.promise("STOP-14")
async def test_messages_sent_during_a_downtime_are_answered_in_order(
    both: Bot, model: ModelServer
) -> None:
    chat = owners(both)
    both.telegram.say(chat, "/busy queue")
    await both.hears(chat, MEANS[Mode.QUEUE])
    await both.gateway.kill()
    for n in range(3):
        both.telegram.say(chat, f"say:number {n}")
    await both.gateway.start()
    await both.hears(chat, "number 2")
    assert [t for t in both.said(chat) if t.startswith("number")] == [
        f"number {n}" for n in range(3)
    ]


async def question_in(it: Bot, chat: Chat, text: str, user: int = 0) -> Json:
    said = it.telegram.say(chat, command(text), user)
    question = await it.hears(chat, "May this run?")
    assert question["reply_to_message"]["message_id"] == said["message_id"]
    return question


async def test_a_question_stays_to_be_read_with_its_answer(both: Bot) -> None:
    chat = owners(both)
    both.telegram.say(chat, 'tool:ask {"question": "Which?", "options": ["red", "blue"]}')
    question = await both.hears(chat, "Which?")
    both.telegram.click(question, both.buttons(question)["blue"])
    await both.hears(chat, "the tool said: blue")
    assert both.said(chat) == ["Which?\n\n→ blue", "the tool said: blue"]  # no word of progress


@pytest.mark.promise("RUN-13")
async def test_a_button_answers_what_it_was_shown_for_once(both: Bot) -> None:
    chat = owners(both)
    token = secrets.token_hex(6)
    question = await question_in(both, chat, f"echo {token} > made; cat made")
    buttons = both.buttons(question)
    assert set(buttons) == {"Allow once", "Allow in this session", "Deny"}
    both.telegram.click(question, buttons["Allow once"])
    await both.hears(chat, token, 2)
    changed = await both.hears(chat, "Allowed once")
    assert changed["message_id"] == question["message_id"]
    assert not both.buttons(changed)


@pytest.mark.fault("F-34")
async def test_only_the_one_it_works_for_and_administrators_may_answer(both: Bot) -> None:
    group = both.telegram.group()
    token = secrets.token_hex(6)
    question = await question_in(both, group, f"echo {token} > made", OWNER)
    allow = both.buttons(question)["Allow once"]
    pressed = [both.telegram.click(question, allow, other) for other in (GUEST, STRANGER)]
    await settled(both, owners(both))
    alerts = [both.telegram.answered[name].get("text", "") for name in pressed]
    assert alerts == [NOTHING_TO_ANSWER, ""]  # a stranger is told nothing
    assert NOTHING_TO_ANSWER not in both.said(group)  # and nobody else
    assert both.buttons(both.telegram.messages[group.id, question["message_id"]])
    both.telegram.click(question, allow, OWNER)
    await both.hears(group, "Allowed once")


@pytest.mark.fault("F-10")
async def test_a_button_works_once_after_a_restart(both: Bot) -> None:
    chat = owners(both)
    question = await question_in(both, chat, "echo hello > made; cat made")
    await both.gateway.kill()
    await both.gateway.start()
    allow = both.buttons(question)["Allow once"]
    pressed = [both.telegram.click(question, allow) for _ in range(2)]
    answered = both.telegram.answered
    await both.telegram.until(lambda: set(pressed) <= answered.keys())
    assert [answered[name].get("text") for name in pressed] == [None, OVER]
    await both.hears(chat, "the tool said: ")


@pytest.mark.promise("HALT-08")
async def test_words_interrupt_what_is_at_work_by_default(both: Bot, model: ModelServer) -> None:
    chat = owners(both)
    both.telegram.say(chat, "tool:hang {}")
    await both.hears(chat, "Working")
    both.telegram.say(chat, "say:never mind")
    await both.hears(chat, "never mind")
    await both.hears(chat, "Stopped after 1 step")
    texts = asked_of(model)
    assert texts[-1].endswith("say:never mind")


async def test_words_wait_in_queue_mode_in_order(both: Bot) -> None:
    chat = owners(both)
    both.telegram.say(chat, "/busy queue")
    await both.hears(chat, MEANS[Mode.QUEUE])
    both.telegram.say(chat, "slow:0.5 first")
    for n in range(5):
        both.telegram.say(chat, f"say:number {n}")
    await both.hears(chat, "number 4")
    said = both.said(chat)[1:]
    assert [t for t in said if t.startswith("number")] == [f"number {n}" for n in range(5)]
    assert said[0].endswith("first")


async def test_words_steer_what_is_at_work_in_steer_mode(both: Bot, model: ModelServer) -> None:
    chat = owners(both)
    both.telegram.say(chat, "/busy steer")
    await both.hears(chat, MEANS[Mode.STEER])
    both.telegram.say(chat, "slow:1 first")
    await model.asked(1)
    await both.until(lambda: both.telegram.actions)  # somebody is seen typing
    both.telegram.say(chat, "say:steered")
    await both.hears(chat, "steered")
    assert len(model.requests) == 2


@pytest.mark.promise("BACK-05")
async def test_stop_leaves_the_session_and_resume_brings_it_back(
    both: Bot, model: ModelServer
) -> None:
    chat = owners(both)
    both.telegram.say(chat, "my name is Ada")
    await both.hears(chat, "echo: my name is Ada")
    both.telegram.say(chat, "tool:hang {}")
    await both.hears(chat, "Working")
    both.telegram.say(chat, "/stop")
    await both.hears(chat, "Stopped: 1 run")
    both.telegram.say(chat, "who am I")
    await both.hears(chat, "suspended")
    await both.hears(chat, "echo: who am I")
    said = [m["content"] for m in model.requests[-1].body["messages"] if m["role"] == "user"]
    assert said == ["who am I"]
    both.telegram.say(chat, "/resume")
    await both.until(lambda: [m for m in both.telegram.sent(chat) if "my name" in m["text"]], 2)
    both.telegram.say(chat, "and now")
    await both.hears(chat, "echo: and now")
    said = [m["content"] for m in model.requests[-1].body["messages"] if m["role"] == "user"]
    assert said[0] == "my name is Ada"


@pytest.mark.fault("F-07")
@pytest.mark.promise("LATE-09")
async def test_an_answer_whose_sending_was_cut_comes_again_marked(both: Bot) -> None:
    chat = owners(both)
    both.telegram.then("sendMessage", Hold())
    both.telegram.say(chat, "say:only once")
    await both.until(lambda: [m for m in both.telegram.sent(chat) if "only once" in m["text"]])
    await both.gateway.kill()
    await both.gateway.start()
    again = await both.hears(chat, "only once", 2)
    assert "Possibly repeated" in again["text"]
    await settled(both, chat)
    assert sum("only once" in t for t in both.said(chat)) == 2


@pytest.mark.promise("LATE-09")
async def test_messages_to_a_busy_platform_are_sent_later_in_order(both: Bot) -> None:
    chat = owners(both)
    both.telegram.then("sendMessage", TooMany(1), Reset())
    both.telegram.say(chat, "say:first")
    await both.hears(chat, "first")
    both.telegram.say(chat, "say:second")
    await both.hears(chat, "second")
    assert [t.rpartition("\n")[2] for t in both.said(chat)][-1] == "second"


@pytest.mark.promise("LATE-05")
async def test_a_process_that_ends_wakes_an_idle_chat(both: Bot) -> None:
    chat = owners(both)
    words = command("sleep 0.5; echo finished", background=True, notify_on_complete=True)
    both.telegram.say(chat, words)
    started = await both.hears(chat, "the tool said")
    told = json.loads(started["text"].split("the tool said: ")[1])
    assert told["notify_on_complete"] is True
    assert "notify_unsupported" not in told
    await both.hears(chat, "has ended")


@pytest.mark.promise("LATE-05")
async def test_a_process_that_died_with_the_gateway_is_told_of_after_the_restart(
    both: Bot,
) -> None:
    chat = owners(both)
    token = secrets.token_hex(8)
    words = command(f"sleep 1000; : {token}", background=True, notify_on_complete=True)
    both.telegram.say(chat, words)
    question = await both.hears(chat, "May this run?")
    both.telegram.click(question, both.buttons(question)["Allow once"])
    await both.hears(chat, "the tool said")
    await running(token)
    await both.gateway.kill()
    await both.gateway.start()
    await both.hears(chat, "restart")
    assert not carrying(token)


@pytest.mark.promise("STOP-15")
@pytest.mark.promise("BACK-01")
async def test_a_shutdown_warns_the_chats_that_are_busy_and_they_go_on_afterwards(
    both: Bot, model: ModelServer
) -> None:
    chat, idle = owners(both), both.telegram.private(GUEST)
    both.telegram.say(idle, "say:hello")
    await both.hears(idle, "hello")
    both.telegram.say(chat, "slow:60 first")
    await model.asked(2)
    assert await both.gateway.stop() == 0
    warned = await both.hears(chat, "Gateway shutting down")
    assert "interrupted" in warned["text"]
    assert both.said(idle) == ["hello"]
    model.then(model_says("went on"))
    await both.gateway.start()
    await both.hears(chat, "went on")


@pytest.mark.promise("STOP-08")
@pytest.mark.promise("STOP-09")
async def test_a_restart_asked_for_in_a_chat_is_told_there_and_where_work_is_cut(
    tmp_path: Path, model: ModelServer
) -> None:
    async with bot(tmp_path, model.base_url, **LAUNCHD) as both:
        chat, busy, home = owners(both), both.telegram.private(GUEST), both.telegram.group()
        both.telegram.say(home, "/home", OWNER)
        await both.until(lambda: both.telegram.sent(home))
        both.telegram.say(busy, "slow:60 first")
        await model.asked(1)
        said = both.telegram.say(chat, "/restart")
        assert await both.gateway.ended() == 75
        warned = await both.hears(busy, "Gateway restarting")
        assert "try to resume" in warned["text"]
        model.then(model_says("went on"))
        await both.gateway.start()
        back = await both.hears(chat, "Gateway is back")
        assert back["reply_to_message"]["message_id"] == said["message_id"]
        await both.hears(busy, "went on")
        assert not any("Gateway is back" in t for t in both.said(busy))
        assert len(both.said(home)) == 1


@pytest.mark.promise("STOP-09")
@pytest.mark.promise("STOP-15")
async def test_after_any_other_restart_the_home_is_told(tmp_path: Path, model: ModelServer) -> None:
    async with bot(tmp_path, model.base_url) as both:
        home, busy = both.telegram.group(), owners(both)
        thread = both.telegram.topic(home, "news")
        both.telegram.say(home, "/home", OWNER, thread)
        await both.until(lambda: both.telegram.sent(home))
        both.telegram.say(busy, "slow:60 first")
        await model.asked(1)
        assert await both.gateway.stop() == 0
        warned = await both.hears(home, "Gateway shutting down")
        assert warned["message_thread_id"] == thread
        await both.hears(busy, "Gateway shutting down")
        model.then(model_says("went on"))
        await both.gateway.start()
        await both.hears(busy, "went on")
        await both.hears(home, "Gateway is back")
        await settled(both, busy)
        assert not any("Gateway is back" in t for t in both.said(busy))


SOON_S = 10.0  # 1 s on a quiet machine; others may keep this one busy


async def test_a_chat_is_answered_soon_after_the_start(both: Bot) -> None:
    chat = owners(both)
    await both.gateway.kill()
    both.telegram.say(chat, "say:hello")
    begun = anyio.current_time()
    await both.gateway.start()
    await both.hears(chat, "hello")
    assert anyio.current_time() - begun <= SOON_S
