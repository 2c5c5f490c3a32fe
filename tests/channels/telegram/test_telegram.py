"""Telegram, against a server that a real Telegram library believes."""

import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.channels.channel import (
    Accepted,
    Doubtful,
    Hears,
    Hook,
    HookAnswer,
    Incoming,
    Later,
    SendRefused,
)
from holdfast.channels.telegram.api import NOT_TELEGRAM, OTHER_RECEIVER
from holdfast.channels.telegram.channel import (
    CANNOT_RECEIVE,
    CHANNEL,
    SKIPPED_UPDATE,
    Telegram,
    TelegramSettings,
)
from holdfast.channels.telegram.outgoing import REPEATED
from holdfast.channels.text import render
from holdfast.core.address import Address, ChatType
from holdfast.errors import Misconfigured
from tests.api.hooks import Hooks, serve_hooks
from tests.channels.conformance import (
    BUTTONS,
    Check,
    Listener,
    Shown,
    Trouble,
    accepted,
    checks,
    listening,
    out,
)
from tests.fakes import telegram as fake
from tests.fakes.clock import ManualClock
from tests.fakes.telegram import Fail, Hold, Reset, TooMany

ADA, BOB = 4711, 4712
FAULTS: dict[Trouble, fake.Fault] = {
    Trouble.BUSY: TooMany(3),
    Trouble.LOST: Reset(after=True),
    Trouble.DOWN: Reset(after=False),
}
PREVIEW_OFF = {"is_disabled": True}


class Bot:
    """A driver of the conformance suite: one chat with Ada; Bob has blocked the bot."""

    def __init__(
        self, server: fake.Telegram, stack: AsyncExitStack, kind: str, hooks: Hooks | None
    ) -> None:
        self.server = server
        self.hooks = hooks  # none: it polls
        self.secrets: tuple[str, ...] = (server.token, server.token.partition(":")[2])
        self.clock = ManualClock()
        self.naps: list[float] = []  # how long a channel meant to sleep, each time
        private = kind == "private"
        self.room = server.private(ADA) if private else server.group("Lab", kind=kind)
        chat_type = ChatType.DIRECT if private else ChatType.GROUP
        self.chat = Address(
            platform="telegram", chat_type=chat_type, chat=str(self.room.id), user=str(ADA)
        )
        server.private(BOB)
        server.block(BOB)
        self.closed = replace(self.chat, chat_type=ChatType.DIRECT, chat=str(BOB), user=str(BOB))
        self._stack = stack
        self._said: dict[str, dict[str, Any]] = {}
        self._disturbed = False

    def open(self, token: str = "", **settings: Any) -> Telegram:
        if self.hooks is not None:
            settings.setdefault("webhook_url", f"{self.hooks.url}/telegram")
        settings.setdefault("base_url", self.server.address)
        channel = Telegram(TelegramSettings(**settings), token or self.server.token, self)
        if self.hooks is not None:
            self.hooks.channel = channel
        self._stack.push_async_callback(channel.aclose)
        return channel

    def now(self) -> float:
        return self.clock.now()

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        await self.clock.sleep(seconds)

    def open_unreachable(self) -> Telegram:
        deaf = self._stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))  # and nobody listens
        return self.open(base_url=f"http://127.0.0.1:{deaf.getsockname()[1]}")

    def thread(self) -> str:
        return str(self.server.topic(self.room, "Topic"))

    def say(self, text: str, *, thread: str = "", reply_to: str = "") -> str:
        place, replied = int(thread or 0), int(reply_to or 0)
        message = self.server.say(self.room, text, ADA, place, reply_to=replied)
        self._said[str(message["message_id"])] = message
        return str(message["message_id"])

    def change(self, message_id: str, text: str) -> None:
        self.server.edit(self._said[message_id], text)

    def press(self, message_id: str, data: str) -> None:
        message = self.server.messages[self.room.id, int(message_id)]
        self.server.click(message, data, ADA)

    def shown(self) -> list[Shown]:
        return [_shown(message) for message in self.server.sent(self.room)]

    def meet(self, trouble: Trouble) -> None:
        self.server.then("sendMessage", FAULTS[trouble])

    def disturb(self, trouble: Trouble) -> None:
        self.server.then("setWebhook" if self.hooks else "getUpdates", FAULTS[trouble])
        self._disturbed = True

    async def wait_out(self) -> None:
        if self.hooks is None or self._disturbed:  # else it is Telegram that tries again
            await self.clock.due_within(60)
            self.clock.advance(60)

    async def crash(self) -> None:
        if self.hooks is not None:
            self.hooks.crash()

    def redeliver(self) -> None:
        self.server.forget_offset(1)


def _shown(message: dict[str, Any]) -> Shown:
    thread = str(message.get("message_thread_id", ""))
    replied = str(message.get("reply_to_message", {}).get("message_id", ""))
    rows = message.get("reply_markup", {}).get("inline_keyboard", [])
    return Shown(
        message_id=str(message["message_id"]),
        text=message["text"],
        thread=thread,
        reply_to="" if replied == thread else replied,
        buttons=tuple(button["callback_data"] for row in rows for button in row),
        preview=message.get("link_preview_options") != PREVIEW_OFF,
    )


@asynccontextmanager
async def opened(kind: str, *, hooked: bool = False) -> AsyncIterator[Bot]:
    async with fake.serve() as server, AsyncExitStack() as stack:
        hooks = await stack.enter_async_context(serve_hooks()) if hooked else None
        yield Bot(server, stack, kind, hooks)


@pytest.fixture
async def bot() -> AsyncIterator[Bot]:
    async with opened("supergroup") as driver:
        yield driver


@pytest.fixture
async def called() -> AsyncIterator[Bot]:
    """One whose updates come to a webhook."""
    async with opened("supergroup", hooked=True) as driver:
        yield driver


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Everything anybody logs; none of it may show the token."""
    with caplog.at_level(logging.DEBUG):
        yield caplog
    assert "AAFakeToken" not in caplog.text + repr([vars(record) for record in caplog.records])


@pytest.mark.promise("LATE-09")
@pytest.mark.parametrize(
    ("kind", "hooked"),
    [("private", False), ("supergroup", False), ("supergroup", True)],
    ids=["private", "supergroup", "webhook"],
)
@pytest.mark.parametrize("check", checks(Telegram.capabilities), ids=lambda check: check.__name__)
async def test_conformance(
    check: Check, kind: str, hooked: bool, log: pytest.LogCaptureFixture
) -> None:
    async with opened(kind, hooked=hooked) as driver:
        await check(driver)


async def test_a_poll_asks_for_what_comes_after_the_cursor(bot: Bot) -> None:
    bot.say("one")
    bot.say("two")
    async with listening(bot.open(poll_s=7)) as listener:
        cursors = [incoming.cursor for incoming in await listener.heard(2)]
        await bot.server.until(lambda: len(bot.server.made("getUpdates")) == 2)
    first, second = (call.params for call in bot.server.made("getUpdates"))
    assert "offset" not in first, "what was waiting before the first start is heard too"
    assert second["offset"] == int(cursors[1]) + 1
    assert second["timeout"] == 7
    assert second["allowed_updates"] == ["message", "edited_message", "callback_query"]
    assert bot.server.pending == []


async def test_an_unknown_cursor_moves_to_telegrams_position(bot: Bot) -> None:
    bot.say("one")
    async with listening(bot.open(), cursor="990000000") as listener:
        await listener.heard(1)
        bot.say("two")
        taken = await listener.heard(2)
        await bot.server.until(lambda: not bot.server.pending)
    assert [incoming.text for incoming in taken] == ["one", "two"]


async def test_a_button_is_answered_once_its_press_is_ours(bot: Bot) -> None:
    channel = bot.open()
    sent = accepted(await channel.deliver(replace(out(bot), buttons=BUTTONS)))
    bot.press(sent, "yes")
    answered: list[int] = []
    taken = anyio.Event()

    async def take(incoming: Incoming) -> str:
        answered.append(len(bot.server.answered))
        taken.set()
        return "Not yours."

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.receive, "", take)
        await taken.wait()
        await bot.server.called("answerCallbackQuery")
        tasks.cancel_scope.cancel()
    assert answered == [0]
    (alert,) = bot.server.answered.values()
    assert (alert["text"], alert["show_alert"]) == ("Not yours.", True)
    assert len(bot.server.answered) == 1


async def test_an_answer_to_a_button_that_fails_stops_nothing(bot: Bot) -> None:
    channel = bot.open()
    sent = accepted(await channel.deliver(replace(out(bot), buttons=BUTTONS)))
    bot.server.then("answerCallbackQuery", Fail(400, "Bad Request: query is too old"))
    bot.press(sent, "yes")
    bot.say("next")
    async with listening(channel) as listener:
        taken = await listener.heard(2)
    assert [incoming.pressed or incoming.text for incoming in taken] == ["yes", "next"]


async def test_commands_to_another_bot_are_ignored(bot: Bot) -> None:
    for text in ("/stop@other_bot", "/stop@Holdfast_Bot now", "/new", "mail me@holdfast_bot"):
        bot.say(text)
    async with listening(bot.open()) as listener:
        taken = await listener.heard(3)
    assert [incoming.text for incoming in taken] == ["/stop now", "/new", "mail me@holdfast_bot"]


def arrives(bot: Bot, **content: Any) -> None:
    """An update that the fake makes nobody say."""
    number = 869_000_000 + len(bot.server.pending)
    message = {"message_id": number, "chat": bot.room.public(), "date": 1} | content
    bot.server.pending.append({"update_id": number, "message": message})


async def test_attachments_are_described_and_empty_updates_are_skipped(bot: Bot) -> None:
    ada = {"id": ADA, "is_bot": False, "first_name": "Ada", "last_name": "L"}
    arrives(bot, **{"from": ada}, new_chat_title="Lab")
    arrives(bot, **{"from": ada}, voice={"duration": 3})
    arrives(bot, **{"from": ada}, photo=[{}], caption="what is this?")
    arrives(bot, **{"from": ada}, document={"file_id": "x", "file_name": "a\n b.pdf"})
    async with listening(bot.open()) as listener:
        taken = await listener.heard(3)
        await bot.server.until(lambda: not bot.server.pending)
    assert [incoming.text for incoming in taken] == [
        "[voice]",
        "[photo]\nwhat is this?",
        "[document: a b.pdf]",
    ]
    assert {incoming.name for incoming in taken} == {"Ada L"}


async def test_an_invalid_update_is_skipped(bot: Bot, log: pytest.LogCaptureFixture) -> None:
    arrives(bot, chat="no chat")
    bot.say("two")
    async with listening(bot.open()) as listener:
        assert (await listener.heard(1))[0].text == "two"
    assert SKIPPED_UPDATE in log.text


async def test_a_message_in_the_name_of_a_chat_is_from_that_chat(bot: Bot) -> None:
    everybody = {"id": 1087968824, "is_bot": True, "first_name": "Group"}
    arrives(bot, **{"from": everybody}, sender_chat=bot.room.public(), text="I am an admin")
    async with listening(bot.open()) as listener:
        incoming = (await listener.heard(1))[0]
    assert incoming.address.user == str(bot.room.id)
    assert incoming.name == "Lab"


async def test_another_poller_is_reported_and_polling_continues(
    bot: Bot, log: pytest.LogCaptureFixture
) -> None:
    channel = bot.open()
    bot.server.then(
        "getUpdates", Fail(409, "Conflict: terminated by other getUpdates request"), Fail(409)
    )
    bot.say("one")
    async with listening(channel) as listener:
        await bot.clock.due_within(1)
        assert OTHER_RECEIVER in channel.trouble
        bot.clock.advance(1)
        await bot.clock.due_within(2)
        bot.clock.advance(2)
        await listener.heard(1)
        await bot.server.until(lambda: len(bot.server.made("getUpdates")) == 4)
        assert channel.trouble == ""
    assert CANNOT_RECEIVE in log.text


async def test_pauses_grow_and_retry_after_is_obeyed(bot: Bot) -> None:
    bot.server.then("getUpdates", *[Fail(502)] * 8, TooMany(90))
    bot.say("one")
    async with listening(bot.open()) as listener:
        for nap in range(9):
            await bot.clock.due_within(90)
            bot.clock.advance(bot.naps[nap])
        await listener.heard(1)
    assert bot.naps == [1, 2, 4, 8, 16, 32, 60, 60, 90]


@pytest.mark.promise("CHAT-03")
async def test_updates_that_come_newest_first_are_taken_in_order_and_none_is_passed(
    bot: Bot,
) -> None:
    bot.server.newest_first = True
    for n in range(5):
        bot.say(f"number {n}")
    async with listening(bot.open()) as listener:
        await listener.heard(5)
    assert [i.text for i in listener.taken] == [f"number {n}" for n in range(5)]
    numbers = [int(i.cursor) for i in listener.taken]
    assert numbers == sorted(numbers)  # wherever it is killed, what is behind is taken


@pytest.mark.parametrize("method", ["getMe", "getUpdates"])
async def test_a_refused_token_is_a_configuration_error(
    bot: Bot, log: pytest.LogCaptureFixture, method: str
) -> None:
    bot.server.then(method, Fail(401, "Unauthorized"))
    with pytest.raises(Misconfigured, match="TELEGRAM_BOT_TOKEN") as caught:
        await bot.open().receive("", Listener().take)
    assert caught.value.hint
    assert caught.value.__cause__ is None and caught.value.__context__ is None


async def test_a_message_waits_for_the_operator_while_the_token_is_refused(bot: Bot) -> None:
    sent = await bot.open(token="1:wrong-secret").deliver(out(bot))
    assert isinstance(sent, Later) and sent.after_s >= 60
    assert "TELEGRAM_BOT_TOKEN" in sent.reason and "wrong-secret" not in sent.reason


@pytest.mark.parametrize("token", ["", "hunter2", "12:34/../..", "12:AAF\nX"])
def test_an_invalid_token_is_refused_without_a_request(token: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        Telegram(TelegramSettings(), token, ManualClock())
    assert not token or token not in f"{caught.value!r} {caught.value.hint}"


def test_printing_it_shows_no_token() -> None:
    assert "AAF" not in repr(Telegram(TelegramSettings(), "12:AAF", ManualClock()))


def test_it_is_made_from_a_table_and_the_environment() -> None:
    settings = msgspec.convert({"poll_s": 7}, CHANNEL.settings)
    [token] = CHANNEL.secrets
    channel = CHANNEL.create(settings, {token: "12:AAF"}.__getitem__, ManualClock())
    assert channel.name == CHANNEL.name
    assert isinstance(channel, Hears) and channel.path == ""
    hooked = msgspec.convert({"webhook_url": "https://a.example/hooks/telegram"}, CHANNEL.settings)
    assert Telegram(hooked, "12:AAF", ManualClock()).path == "telegram"


@pytest.mark.parametrize(
    "table", [{"pol_s": 1}, {"poll_s": 51}, {"webhook_url": "ftp://x"}, {"base_url": ""}]
)
def test_invalid_settings_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, CHANNEL.settings)


async def test_markup_that_is_refused_is_sent_without(bot: Bot) -> None:
    bot.server.then("sendMessage", Fail(400, "Bad Request: can't parse entities: Unclosed tag"))
    accepted(await bot.open().deliver(out(bot, "**bold** & `code`")))
    marked, plain = (call.params for call in bot.server.made("sendMessage"))
    assert (marked["parse_mode"], marked["text"]) == ("HTML", "<b>bold</b> &amp; <code>code</code>")
    assert ("parse_mode" in plain, plain["text"]) == (False, "bold & code")
    assert [shown.text for shown in bot.shown()] == ["bold & code"]


async def test_no_message_has_a_preview(bot: Bot) -> None:
    channel = bot.open()
    bot.server.then("sendMessage", Fail(400, "Bad Request: can't parse entities: x"))
    first = accepted(await channel.deliver(out(bot, "one")))
    accepted(await channel.deliver(replace(out(bot, "two"), edit=first)))
    calls = [*bot.server.made("sendMessage"), *bot.server.made("editMessageText")]
    assert [call.params["link_preview_options"] for call in calls] == [PREVIEW_OFF] * 3


async def test_messages_follow_a_group_to_its_new_id(bot: Bot) -> None:
    old = bot.server.group("Old", kind="group")
    new = bot.server.upgrade(old)
    message = replace(out(bot), address=replace(bot.chat, chat=str(old.id)))
    sent = accepted(await bot.open().deliver(message))
    assert [str(m["message_id"]) for m in bot.server.sent(new)] == [sent]
    assert [call.status for call in bot.server.made("sendMessage")] == [400, 200]


async def test_a_group_is_followed_once(bot: Bot) -> None:
    old = bot.server.group("Old", kind="group")
    bot.server.upgrade(bot.server.upgrade(old))
    message = replace(out(bot), address=replace(bot.chat, chat=str(old.id)))
    assert isinstance(await bot.open().deliver(message), SendRefused)
    assert len(bot.server.made("sendMessage")) == 2


async def test_a_deleted_message_cannot_be_edited(bot: Bot) -> None:
    channel = bot.open()
    first = accepted(await channel.deliver(out(bot, "one")))
    bot.server.delete(bot.room, int(first))
    assert isinstance(await channel.deliver(replace(out(bot, "two"), edit=first)), SendRefused)


async def test_the_piece_that_is_quoted_is_told(bot: Bot) -> None:
    first = bot.server.say(bot.room, "one and two", ADA)
    bot.server.say(bot.room, "why?", ADA, reply_to=first["message_id"], quote="and two")
    async with listening(bot.open()) as listener:
        assert [incoming.quoted for incoming in await listener.heard(2)] == ["", "and two"]


async def test_polling_removes_a_webhook_without_losing_updates(bot: Bot) -> None:
    bot.server.webhook = {"url": "http://127.0.0.1:9/", "secret_token": ""}
    bot.say("one")
    async with listening(bot.open()) as listener:
        assert (await listener.heard(1))[0].text == "one"
    [removal] = bot.server.made("deleteWebhook")
    assert "drop_pending_updates" not in removal.params


async def test_a_webhook_is_asked_for_with_a_secret_and_in_order(called: Bot) -> None:
    called.say("before")
    channel = called.open()
    async with listening(channel) as listener:
        assert (await listener.heard(1))[0].cursor == ""
        assert channel.trouble == ""
    [wanted] = called.server.made("setWebhook")
    assert len(wanted.params["secret_token"]) >= 32
    assert called.server.token.partition(":")[2] not in wanted.params["secret_token"]
    assert wanted.params["max_connections"] == 1
    assert wanted.params["allowed_updates"] == ["message", "edited_message", "callback_query"]
    assert "drop_pending_updates" not in wanted.params
    assert called.server.made("getUpdates") == []


@pytest.mark.parametrize("secret", [None, "", "wrong", "\udcff"])
async def test_a_request_with_a_wrong_secret_is_refused(called: Bot, secret: str | None) -> None:
    channel = called.open()
    headers = {} if secret is None else {"x-telegram-bot-api-secret-token": secret}
    async with listening(channel) as listener:
        await called.server.called("setWebhook")
        answer = await channel.hear(Hook(headers, b'{"update_id": 1}'))
    assert answer.status == 401 and listener.taken == []


async def test_the_webhook_status_tells_whether_the_update_was_stored(called: Bot) -> None:
    channel = called.open()

    async def hear(body: bytes) -> HookAnswer:
        [wanted, *_] = called.server.made("setWebhook")
        secret = wanted.params["secret_token"]
        return await channel.hear(Hook({"x-telegram-bot-api-secret-token": secret}, body))

    async with listening(channel, refuse=1) as listener:
        await called.server.called("setWebhook")
        assert (await hear(b"no update")).status == 400
        arrives(called, **{"from": {"id": ADA, "first_name": "Ada"}}, text="hi")
        update = json.dumps(called.server.pending.pop()).encode()
        assert (await hear(update)).status == 503
        assert "journal is full" in channel.trouble
        assert (await hear(update)).status == 200
        assert (channel.trouble, len(listener.taken)) == ("", 1)
    assert (await hear(update)).status == 503, "nobody takes it any more"


async def test_an_unreachable_webhook_is_reported_and_set_again(
    called: Bot, log: pytest.LogCaptureFixture
) -> None:
    assert called.hooks is not None
    called.hooks.faults.extend([502] * 1000)
    called.say("one")
    channel = called.open()
    async with listening(channel) as listener:
        await called.server.until(lambda: called.server.pushes)
        await called.clock.due_within(300)
        assert channel.trouble == ""
        called.clock.advance(300)
        await called.clock.due_within(60)
        assert "cannot reach the webhook" in channel.trouble
        called.server.webhook.clear()  # as another one who uses the bot would do
        called.hooks.faults.clear()
        called.clock.advance(60)
        assert (await listener.heard(1))[0].text == "one"
        assert len(called.server.made("setWebhook")) == 3


@pytest.mark.promise("LATE-09")
@pytest.mark.parametrize("fault", [Fail(500), Fail(502, after=True), Reset(), Reset(after=True)])
async def test_a_message_without_an_answer_is_in_doubt_and_a_change_is_not(
    bot: Bot, fault: fake.Fault
) -> None:
    channel = bot.open()
    bot.server.then("sendMessage", fault)
    assert isinstance(await channel.deliver(out(bot)), Doubtful)
    first = accepted(await channel.deliver(out(bot, "one")))
    change = replace(out(bot, "two"), edit=first)
    bot.server.then("editMessageText", fault)
    assert isinstance(await channel.deliver(change), Later)
    assert accepted(await channel.deliver(replace(change, repeated=True))) == first
    assert bot.shown()[-1].text == "two", "to change it twice is no repetition"


async def test_an_answer_that_does_not_come_is_not_waited_for(bot: Bot) -> None:
    hold = Hold()
    bot.server.then("sendMessage", hold)
    sent = await bot.open(answer_s=0.05).deliver(out(bot))
    assert isinstance(sent, Doubtful) and "did not answer" in sent.reason
    hold.gate.set()


async def test_a_repetition_says_so_before_anything_else(bot: Bot) -> None:
    accepted(await bot.open().deliver(replace(out(bot, "```\ncode\n```"), repeated=True)))
    message = bot.server.sent(bot.room)[0]
    assert message["text"] == f"{REPEATED.strip().strip('*')}\n\ncode"
    assert [entity["type"] for entity in message["entities"]] == ["italic", "pre"]


@pytest.mark.parametrize("thread", ["", "7777"])
async def test_a_refusal_is_in_telegrams_words_without_the_token(bot: Bot, thread: str) -> None:
    channel = bot.open()
    bot.server.then("sendMessage", Fail(400, f"Bad Request: no {bot.server.token} here"))
    assert await channel.deliver(out(bot)) == SendRefused("Bad Request: no 123456789:… here")
    gone = replace(bot.chat, chat="-99", thread=thread)
    sent = await channel.deliver(replace(out(bot), address=gone))
    assert sent == SendRefused("Bad Request: chat not found")


async def test_an_edit_without_a_numeric_id_is_refused(bot: Bot) -> None:
    assert isinstance(await bot.open().deliver(replace(out(bot), edit="no number")), SendRefused)


async def test_typing_is_shown_in_the_thread(bot: Bot) -> None:
    thread = bot.thread()
    await bot.open().show_typing(replace(bot.chat, thread=thread))
    assert [(a["action"], a["message_thread_id"]) for a in bot.server.actions] == [
        ("typing", int(thread))
    ]


@asynccontextmanager
async def stranger(status: int, body: str) -> AsyncIterator[str]:
    """Somebody who answers in Telegram's place, always the same."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (200, "<html>", Doubtful),
        (200, '{"ok": true, "result": 7}', Doubtful),
        (200, '{"ok": true, "result": true}', Accepted),
        (302, "", Later),
        (403, "<html>blocked by your administrator", Later),
        (504, "<html>", Doubtful),
    ],
)
async def test_replies_that_are_not_from_telegram_refuse_nothing(
    bot: Bot, status: int, body: str, kind: type, log: pytest.LogCaptureFixture
) -> None:
    async with stranger(status, body) as address:
        channel = bot.open(base_url=address)
        assert isinstance(await channel.deliver(out(bot)), kind)
        async with listening(channel) as listener:
            await bot.clock.due_within(1)
            bot.clock.advance(1)
            await bot.clock.due_within(2)
            assert listener.taken == []
            assert NOT_TELEGRAM in channel.trouble
        await channel.aclose()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from([*"ab .:/\n*_`~>#-1é😀。", "http://", "evil.example", "[a]"])))
def test_parts_of_a_very_long_text_fit_although_they_are_not_rendered(units: list[str]) -> None:
    bot = Telegram(TelegramSettings(), "1:a", ManualClock())
    text = "".join(units) * 400
    for part in bot.split(text):
        shown = render.telegram(part, named_hosts=())
        assert shown is not None
        assert render.utf16_length(shown.text) <= render.TELEGRAM_LENGTH
