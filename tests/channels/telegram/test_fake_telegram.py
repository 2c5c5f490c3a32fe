"""The fake Bot API is believed by a real library, and is as strict as the real one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from telegram import (
    Bot,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    LinkPreviewOptions,
    Message,
    ReplyParameters,
    Update,
)
from telegram.constants import ChatAction, ParseMode
from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    Forbidden,
    InvalidToken,
    NetworkError,
    RetryAfter,
)
from telegram.ext import (
    Application,
    ApplicationBuilder,
    CallbackQueryHandler,
    CommandHandler,
    ContextTypes,
    MessageHandler,
    filters,
)

from tests.fakes.telegram import Call, Fail, Fault, Hold, Reset, Taken, Telegram, TooMany, serve
from tests.fakes.telegram_markup import Refusal, parse_html

ADA, BOB = 4711, 4712
BUTTONS = InlineKeyboardMarkup(
    [
        [
            InlineKeyboardButton("Yes", callback_data="yes"),
            InlineKeyboardButton("No", callback_data="no"),
        ]
    ]
)
Context = ContextTypes.DEFAULT_TYPE


@pytest.fixture
async def telegram() -> AsyncIterator[Telegram]:
    async with serve() as server:
        yield server


@asynccontextmanager
async def library(server: Telegram) -> AsyncIterator[Bot]:
    """The real library's client, pointed at the fake."""
    async with Bot(server.token, base_url=f"{server.address}/bot") as bot:
        yield bot


@asynccontextmanager
async def polling(app: Application[Any, Any, Any, Any, Any, Any]) -> AsyncIterator[None]:
    """The real library's own loop, as an application runs it."""
    assert app.updater is not None
    async with app:
        await app.updater.start_polling(timeout=10)
        await app.start()
        try:
            yield
        finally:
            await app.updater.stop()
            await app.stop()


async def call(server: Telegram, method: str, **params: object) -> Any:
    """One call as our own client makes it: JSON in, JSON out."""
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{server.base_url}/{method}", json=params) as response,
    ):
        answer = await response.json()
        assert answer["ok"] is (response.status == 200)
        return answer["result"] if answer["ok"] else answer


async def test_a_real_bot_polls_replies_edits_and_hears_buttons(telegram: Telegram) -> None:
    chat = telegram.private(ADA)

    async def on_start(update: Update, _: Context) -> None:
        assert update.message is not None
        await update.message.reply_html("<b>Shall I?</b>", reply_markup=BUTTONS, do_quote=True)

    async def on_text(update: Update, _: Context) -> None:
        assert update.message is not None
        assert update.effective_user is not None
        assert update.effective_user.id == ADA
        await update.message.reply_text(f"echo: {update.message.text}")

    async def on_click(update: Update, _: Context) -> None:
        query = update.callback_query
        assert query is not None
        await query.answer("noted")
        await query.edit_message_text(f"you said {query.data}")

    app = ApplicationBuilder().token(telegram.token).base_url(f"{telegram.address}/bot").build()
    app.add_handler(CommandHandler("start", on_start))
    app.add_handler(MessageHandler(filters.TEXT & ~filters.COMMAND, on_text))
    app.add_handler(CallbackQueryHandler(on_click))
    async with polling(app):
        telegram.say(chat, "hello")
        await telegram.called("sendMessage")
        asked = telegram.say(chat, "/start")
        await telegram.called("sendMessage", 2)
        echo, question = telegram.sent(chat)
        query_id = telegram.click(question, "yes")
        await telegram.called("editMessageText")

    assert echo["text"] == "echo: hello"
    assert question["reply_to_message"]["message_id"] == asked["message_id"]
    assert question["entities"] == [{"type": "bold", "offset": 0, "length": 8}]
    assert telegram.answered[query_id]["text"] == "noted"
    edited = telegram.messages[chat.id, question["message_id"]]
    assert edited["text"] == "you said yes"
    assert "reply_markup" not in edited
    assert [c.method for c in telegram.calls[:2]] == ["getMe", "deleteWebhook"]


async def test_getme_and_what_a_message_carries(telegram: Telegram) -> None:
    chat = telegram.group("Crew")
    topic = telegram.topic(chat, "Deploys")
    said = telegram.say(chat, "ship it", BOB, topic)
    async with library(telegram) as bot:
        me = await bot.get_me()
        assert (me.username, me.is_bot) == ("holdfast_bot", True)
        [update] = await bot.get_updates()
        message = update.message
        assert message is not None
        assert message.is_topic_message and message.message_thread_id == topic
        assert message.reply_to_message and message.reply_to_message.forum_topic_created
        assert message.chat.is_forum
        answer = await bot.send_message(
            chat.id,
            'see <a href="https://example.org/">this</a>',
            parse_mode=ParseMode.HTML,
            message_thread_id=topic,
            reply_parameters=ReplyParameters(said["message_id"]),
            link_preview_options=LinkPreviewOptions(is_disabled=True),
            reply_markup=BUTTONS,
        )
        assert await bot.send_chat_action(chat.id, ChatAction.TYPING, message_thread_id=topic)
    assert isinstance(answer, Message)
    assert answer.message_id > said["message_id"]
    assert answer.reply_to_message and answer.reply_to_message.text == "ship it"
    assert answer.entities[0].url == "https://example.org/"
    [sent] = telegram.made("sendMessage")
    assert sent.params["link_preview_options"] == {"is_disabled": True}
    assert sent.params["reply_parameters"] == {"message_id": said["message_id"]}
    assert telegram.actions[0]["action"] == "typing"


async def test_an_update_comes_again_until_a_later_poll_confirms_it(telegram: Telegram) -> None:
    chat = telegram.private(ADA)
    for text in ("one", "two", "three"):
        telegram.say(chat, text)
    async with library(telegram) as bot:
        first = await bot.get_updates()
        again = await bot.get_updates()
        ids = [update.update_id for update in first]
        assert ids == sorted(set(ids)) == [update.update_id for update in again]
        rest = await bot.get_updates(offset=ids[1])
        assert [update.update_id for update in rest] == ids[1:]
        assert len(await bot.get_updates()) == 2
        [last] = await bot.get_updates(offset=-1)
        assert last.update_id == ids[2]
        assert await bot.get_updates(offset=ids[2] + 1) == ()
    assert telegram.pending == []


async def test_a_long_poll_waits_for_what_comes(telegram: Telegram) -> None:
    chat = telegram.private(ADA)
    got: list[Update] = []
    async with library(telegram) as bot, anyio.create_task_group() as tasks:

        async def poll() -> None:
            got.extend(await bot.get_updates(timeout=30))

        tasks.start_soon(poll)
        await telegram.until(lambda: telegram.made("getUpdates"))
        telegram.say(chat, "late")
    assert got[0].message is not None
    assert got[0].message.text == "late"


async def test_only_allowed_kinds_come_and_the_choice_is_kept(telegram: Telegram) -> None:
    chat = telegram.private(ADA)
    async with library(telegram) as bot:
        await bot.get_updates(allowed_updates=["message"])
        said = telegram.say(chat, "first")
        telegram.edit(said, "changed")
        [only] = await bot.get_updates()
        assert only.message is not None
        await bot.get_updates(offset=only.update_id + 1, allowed_updates=["edited_message"])
        telegram.say(chat, "unheard")
        telegram.edit(said, "again")
        [only] = await bot.get_updates()
        assert only.edited_message is not None
        assert only.edited_message.text == "again"


async def test_a_second_poller_ends_the_first(telegram: Telegram) -> None:
    async with (
        library(telegram) as bot,
        library(telegram) as other,
        anyio.create_task_group() as tasks,
    ):

        async def first() -> None:
            with pytest.raises(Conflict, match="terminated by other getUpdates"):
                await bot.get_updates(timeout=30)

        tasks.start_soon(first)
        await telegram.until(lambda: telegram.made("getUpdates"))
        await other.get_updates(timeout=0)


async def test_a_webhook_gets_each_update_with_the_secret_until_it_is_taken(
    telegram: Telegram,
) -> None:
    chat = telegram.private(ADA)
    telegram.say(chat, "before")
    got: list[tuple[str, str]] = []
    answers = iter([500, 200, 200])

    async def hook(request: web.Request) -> web.Response:
        update = Update.de_json(await request.json())
        assert update.message is not None and update.message.text is not None
        got.append((request.headers["X-Telegram-Bot-Api-Secret-Token"], update.message.text))
        return web.Response(status=next(answers))

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with library(telegram) as bot:
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
            await bot.set_webhook(
                url, secret_token="s3cret", allowed_updates=["message"], max_connections=1
            )
            telegram.say(chat, "after")
            await telegram.until(lambda: not telegram.pending)
            with pytest.raises(Conflict, match="while webhook is active"):
                await bot.get_updates()
            info = await bot.get_webhook_info()
            assert (info.url, info.max_connections, info.pending_update_count) == (url, 1, 0)
            assert info.allowed_updates == ("message",)
            assert "500" in (info.last_error_message or "")
            await bot.delete_webhook()
            assert (await bot.get_webhook_info()).url == ""
            telegram.say(chat, "polled")
            assert len(await bot.get_updates()) == 1
    finally:
        await runner.cleanup()
    assert got == [("s3cret", "before"), ("s3cret", "before"), ("s3cret", "after")]
    assert telegram.pushes == [500, 200, 200]


async def test_an_invalid_webhook_is_refused(telegram: Telegram) -> None:
    async with library(telegram) as bot:
        with pytest.raises(BadRequest, match="(?i)an https url must be provided"):
            await bot.set_webhook("nowhere")
        with pytest.raises(BadRequest, match="(?i)unallowed characters"):
            await bot.set_webhook("http://127.0.0.1:9/", secret_token="no spaces")
        assert (await bot.get_webhook_info()).url == ""


async def test_waiting_updates_survive_a_switch_between_webhook_and_polling(
    telegram: Telegram,
) -> None:
    telegram.say(telegram.private(ADA), "kept")
    async with library(telegram) as bot:
        await bot.set_webhook("http://127.0.0.1:9/")
        await telegram.until(lambda: telegram.pushes)
        assert (await bot.get_webhook_info()).last_error_message == "Connection refused"
        await bot.delete_webhook()
        assert [u.message and u.message.text for u in await bot.get_updates()] == ["kept"]
        await bot.delete_webhook(drop_pending_updates=True)
        assert await bot.get_updates() == ()


async def test_a_lost_offset_brings_back_what_was_confirmed(telegram: Telegram) -> None:
    chat = telegram.private(ADA)
    for text in ("one", "two"):
        telegram.say(chat, text)
    async with library(telegram) as bot:
        first = await bot.get_updates()
        after = first[-1].update_id + 1
        assert await bot.get_updates(offset=after) == ()
        telegram.forget_offset()
        again = await bot.get_updates(offset=after)
        assert [u.update_id for u in again] == [u.update_id for u in first]
        assert await bot.get_updates(offset=after) == ()


async def test_a_group_becomes_another_chat(telegram: Telegram) -> None:
    old = telegram.group("Crew", kind="group")
    new = telegram.upgrade(old)
    async with library(telegram) as bot:
        with pytest.raises(ChatMigrated) as moved:
            await bot.send_message(old.id, "hi")
        assert moved.value.new_chat_id == new.id
        await bot.send_message(new.id, "hi")
    assert [message["text"] for message in telegram.sent(new)] == ["hi"]


async def test_effects_are_recorded_in_order(telegram: Telegram) -> None:
    chat = telegram.group("Crew")
    topic = telegram.topic(chat, "Deploys")
    telegram.then("sendMessage", Fail(502), Reset(after=True))
    async with library(telegram) as bot:
        for text in ("lost before", "lost after"):
            with pytest.raises(NetworkError):
                await bot.send_message(chat.id, text)
        sent = await bot.send_message(chat.id, "half", message_thread_id=topic)
        await bot.edit_message_text("all", chat.id, sent.message_id)
        telegram.delete(chat, sent.message_id)
        with pytest.raises(BadRequest, match="Message to edit not found"):
            await bot.edit_message_text("more", chat.id, sent.message_id)
    assert telegram.accepted == [
        Taken(chat.id, 0, sent.message_id - 1, "lost after", edit=False),
        Taken(chat.id, topic, sent.message_id, "half", edit=False),
        Taken(chat.id, topic, sent.message_id, "all", edit=True),
    ]


@pytest.mark.filterwarnings("ignore:Deprecated since version v22.2")
async def test_each_call_draws_its_own_faults(telegram: Telegram) -> None:
    chat = telegram.private(ADA)

    def weather(call: Call) -> Fault | None:
        return TooMany(1) if call.params.get("text") == "now" else None

    telegram.weather = weather
    telegram.delay_s = 0.01
    async with library(telegram) as bot:
        for _ in range(2):
            with pytest.raises(RetryAfter):
                await bot.send_message(chat.id, "now")
        await bot.send_message(chat.id, "later")
    assert [taken.text for taken in telegram.accepted] == ["later"]


async def test_refusals_are_those_a_real_library_knows(telegram: Telegram) -> None:
    chat = telegram.private(ADA)
    said = telegram.say(chat, "hi")
    async with library(telegram) as bot:
        sent = await bot.send_message(chat.id, "x" * 4096)
        with pytest.raises(BadRequest, match="Message is too long"):
            await bot.send_message(chat.id, "😀" * 2049)
        with pytest.raises(BadRequest, match="Message is not modified"):
            await bot.edit_message_text("x" * 4096, chat.id, sent.message_id)
        with pytest.raises(BadRequest, match="Message to edit not found"):
            await bot.edit_message_text("y", chat.id, 99_999)
        with pytest.raises(BadRequest, match="Message can't be edited"):
            await bot.edit_message_text("y", chat.id, said["message_id"])
        with pytest.raises(BadRequest, match="Message to be replied not found"):
            await bot.send_message(chat.id, "y", reply_parameters=ReplyParameters(99_999))
        with pytest.raises(BadRequest, match="Message thread not found"):
            await bot.send_message(chat.id, "y", message_thread_id=99_999)
        with pytest.raises(BadRequest, match="(?i)can't parse entities: unmatched end tag"):
            await bot.send_message(chat.id, "<b>y</i>", parse_mode=ParseMode.HTML)
        with pytest.raises(BadRequest, match="Chat not found"):
            await bot.send_message(1, "y")
        with pytest.raises(BadRequest, match="Query is too old"):
            await bot.answer_callback_query("1")
        long = InlineKeyboardMarkup([[InlineKeyboardButton("b", callback_data="d" * 65)]])
        with pytest.raises(BadRequest, match="(?i)button_data_invalid"):
            await bot.send_message(chat.id, "y", reply_markup=long)
        telegram.block(ADA)
        with pytest.raises(Forbidden, match="bot was blocked by the user"):
            await bot.send_message(chat.id, "y")
    with pytest.raises(InvalidToken):
        async with Bot("1:wrong", base_url=f"{telegram.address}/bot"):
            pass
    assert len(telegram.sent(chat)) == 1
    with pytest.raises(LookupError):
        telegram.click(telegram.sent(chat)[0], "never offered")


@pytest.mark.filterwarnings("ignore:Deprecated since version v22.2")
async def test_faults_happen_before_or_after_the_effect(telegram: Telegram) -> None:
    chat = telegram.private(ADA)
    faults = (TooMany(3), Fail(502), Fail(500, after=True), Reset(), Reset(after=True))
    telegram.then("sendMessage", *faults)
    async with library(telegram) as bot:
        with pytest.raises(RetryAfter, match="Retry in 3 seconds"):
            await bot.send_message(chat.id, "429")
        for text in ("502 before", "500 after", "reset before", "reset after"):
            with pytest.raises(NetworkError):
                await bot.send_message(chat.id, text)
        await bot.send_message(chat.id, "well")
    assert [m["text"] for m in telegram.sent(chat)] == ["500 after", "reset after", "well"]
    assert [c.status for c in telegram.made("sendMessage")] == [429, 502, 500, 0, 0, 200]


async def test_a_held_answer_waits_for_the_test(telegram: Telegram) -> None:
    chat = telegram.private(ADA)
    hold = Hold()
    telegram.then("sendMessage", hold)
    async with library(telegram) as bot, anyio.create_task_group() as tasks:
        tasks.start_soon(bot.send_message, chat.id, "slow")
        await telegram.until(lambda: telegram.sent(chat))
        assert telegram.made("sendMessage")[0].status == -1
        hold.gate.set()
    assert telegram.made("sendMessage")[0].status == 200


async def test_our_own_json_is_taken_like_the_librarys_forms(telegram: Telegram) -> None:
    chat = telegram.group("Crew")
    keyboard = {"inline_keyboard": [[{"text": "ok", "callback_data": "ok"}]]}
    sent = await call(telegram, "sendMessage", chat_id=chat.id, text="hm", reply_markup=keyboard)
    telegram.click(sent, "ok", BOB)
    [update] = await call(telegram, "getUpdates", timeout=0)
    query = update["callback_query"]
    assert (query["data"], query["from"]["id"]) == ("ok", BOB)
    assert query["message"]["message_id"] == sent["message_id"]
    refused = await call(telegram, "flyToTheMoon")
    assert (refused["error_code"], refused["ok"]) == (404, False)


async def test_a_reply_in_a_group_is_a_thread_but_no_topic(telegram: Telegram) -> None:
    chat = telegram.group("Crew")
    first = telegram.say(chat, "a", ADA)
    reply = telegram.say(chat, "b", BOB, reply_to=first["message_id"])
    assert reply["message_thread_id"] == first["message_id"]
    assert "is_topic_message" not in reply
    refused = await call(
        telegram, "sendMessage", chat_id=chat.id, text="c", message_thread_id=first["message_id"]
    )
    assert refused["description"] == "Bad Request: message thread not found"


# What Telegram's own tests expect of its parser (tdlib, test/message_entities.cpp).
@pytest.mark.parametrize(
    ("markup", "complaint"),
    [
        ("🏟 🏟&lt;<abacaba", "Unclosed start tag at byte offset 13"),
        ("🏟 🏟&lt;<abac aba>", 'Unsupported start tag "abac" at byte offset 13'),
        ("🏟 🏟&lt;<i   =aba>", 'Empty attribute name in the tag "i" at byte offset 13'),
        ("🏟 🏟&lt;<i    aba>", 'Can\'t find end tag corresponding to start tag "i"'),
        ("🏟 🏟&lt;<i    aba  =  ", 'Unclosed start tag "i" at byte offset 13'),
        ("🏟 🏟&lt;<i    aba  =  190azAz-.,", "Unexpected end of name token at byte offset 27"),
        ('🏟 🏟&lt;<i    aba  =  "&lt;&gt;&quot;>', "Unclosed start tag at byte offset 13"),
        ("🏟 🏟&lt;</", "Unexpected end tag at byte offset 13"),
        ("🏟 🏟&lt;<b></b></", "Unexpected end tag at byte offset 20"),
        ("🏟 🏟&lt;<i>a</i   ", "Unclosed end tag at byte offset 17"),
        (
            "🏟 🏟&lt;<i>a</em   >",
            'Unmatched end tag at byte offset 17, expected "</i>", found "</em>"',
        ),
    ],
)
def test_broken_markup_is_refused_in_telegrams_words(markup: str, complaint: str) -> None:
    with pytest.raises(Refusal) as refused:
        parse_html(markup)
    assert str(refused.value) == f"Bad Request: can't parse entities: {complaint}"


@pytest.mark.parametrize(
    ("markup", "text", "entities"),
    [
        ("&ge;&lt;&gt;&amp;&quot;&#12345678;", '&ge;<>&"&#12345678;', []),
        ("🏟 🏟<i>🏟 &lt🏟</i>", "🏟 🏟🏟 <🏟", [("italic", 5, 6)]),
        (
            "🏟 🏟<i>🏟 &gt;<b aba   =   caba>&lt🏟</b></i>",
            "🏟 🏟🏟 ><🏟",
            [("italic", 5, 7), ("bold", 9, 3)],
        ),
        ("🏟 🏟&lt;<i>🏟 🏟&lt;</>", "🏟 🏟<🏟 🏟<", [("italic", 6, 6)]),
        ("🏟 🏟&lt;<b></b>", "🏟 🏟<", []),
        ("<a> </a>", " ", []),
        ("<pre><code>x</code></pre>", "x", [("pre", 0, 1), ("code", 0, 1)]),
        ('<pre><code class="language-fift">x</></>', "x", [("pre", 0, 1, "fift")]),
        ('<pre><code class="language-fift">x</> </>', "x ", [("pre", 0, 2), ("code", 0, 1)]),
        ("<blockquote>a<pre  >b</></>", "ab", [("blockquote", 0, 2), ("pre", 1, 1)]),
    ],
)
def test_markup_is_read_as_telegram_reads_it(
    markup: str, text: str, entities: list[tuple[object, ...]]
) -> None:
    got, found = parse_html(markup)
    assert got == text
    assert [tuple(entity.values()) for entity in found] == entities
