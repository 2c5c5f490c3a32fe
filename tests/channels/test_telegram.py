"""Telegram, against a server that a real Telegram library believes."""

import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from aiohttp import web
from msgspec.structs import replace

from holdfast.channels.channel import Accepted, Doubtful, Incoming, Later, Refused, Sent
from holdfast.channels.telegram import REPEATED, Settings, Telegram
from holdfast.core.address import Address, ChatType
from holdfast.errors import Misconfigured
from tests.channels.conformance import (
    BUTTONS,
    PATIENCE_S,
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

    def __init__(self, server: fake.Telegram, stack: AsyncExitStack, kind: str) -> None:
        self.server = server
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

    def open(self, **settings: Any) -> Telegram:
        given: dict[str, Any] = {"token": lambda: self.server.token} | settings
        given.setdefault("base_url", self.server.address)
        channel = Telegram(Settings(**given), self._sleep)
        self._stack.push_async_callback(channel.aclose)
        return channel

    async def _sleep(self, seconds: float) -> None:
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
        self.server.then("getUpdates", FAULTS[trouble])


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
    )


@asynccontextmanager
async def opened(kind: str) -> AsyncIterator[Bot]:
    async with fake.serve() as server, AsyncExitStack() as stack:
        yield Bot(server, stack, kind)


@pytest.fixture
async def bot() -> AsyncIterator[Bot]:
    async with opened("supergroup") as driver:
        yield driver


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Everything anybody logs; none of it may show the token."""
    with caplog.at_level(logging.DEBUG):
        yield caplog
    assert "AAFakeToken" not in caplog.text + repr([vars(record) for record in caplog.records])


@pytest.mark.promise("LATE-09")
@pytest.mark.parametrize("kind", ["private", "supergroup"])
@pytest.mark.parametrize("check", checks(Telegram.capabilities), ids=lambda check: check.__name__)
async def test_conformance(check: Check, kind: str, log: pytest.LogCaptureFixture) -> None:
    async with opened(kind) as driver:
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


async def test_a_cursor_from_elsewhere_moves_to_where_telegram_is(bot: Bot) -> None:
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

    async def take(incoming: Incoming) -> None:
        answered.append(len(bot.server.answered))
        taken.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(channel.receive, "", take)
        await taken.wait()
        await bot.server.called("answerCallbackQuery")
        tasks.cancel_scope.cancel()
    assert answered == [0]
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


async def test_a_command_is_for_whom_it_names(bot: Bot) -> None:
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


async def test_what_is_not_text_is_told_and_what_says_nothing_is_passed_over(bot: Bot) -> None:
    ada = {"id": ADA, "is_bot": False, "first_name": "Ada", "last_name": "L"}
    arrives(bot, **{"from": ada}, new_chat_title="Lab")
    arrives(bot, **{"from": ada}, voice={"duration": 3})
    arrives(bot, **{"from": ada}, photo=[{}], caption="what is this?")
    async with listening(bot.open()) as listener:
        taken = await listener.heard(2)
        await bot.server.until(lambda: not bot.server.pending)
    assert [incoming.text for incoming in taken] == [
        "[voice: cannot be read here]",
        "[photo: cannot be read here]\nwhat is this?",
    ]
    assert {incoming.name for incoming in taken} == {"Ada L"}


async def test_an_update_nobody_understands_is_passed_over(
    bot: Bot, log: pytest.LogCaptureFixture
) -> None:
    arrives(bot, chat="no chat")
    bot.say("two")
    async with listening(bot.open()) as listener:
        assert (await listener.heard(1))[0].text == "two"
    assert "an update was not understood" in log.text


async def test_whoever_speaks_as_a_chat_is_that_chat(bot: Bot) -> None:
    everybody = {"id": 1087968824, "is_bot": True, "first_name": "Group"}
    arrives(bot, **{"from": everybody}, sender_chat=bot.room.public(), text="I am an admin")
    async with listening(bot.open()) as listener:
        incoming = (await listener.heard(1))[0]
    assert incoming.address.user == str(bot.room.id)
    assert incoming.name == "Lab"


async def test_another_poller_is_told_in_words_and_outlasted(
    bot: Bot, log: pytest.LogCaptureFixture
) -> None:
    channel = bot.open()
    bot.server.then(
        "getUpdates", Fail(409, "Conflict: terminated by other getUpdates request"), Fail(409)
    )
    bot.say("one")
    async with listening(channel) as listener:
        await bot.clock.due_within(1)
        assert "somebody else receives this bot's messages" in channel.trouble
        bot.clock.advance(1)
        await bot.clock.due_within(2)
        bot.clock.advance(2)
        await listener.heard(1)
        await bot.server.until(lambda: len(bot.server.made("getUpdates")) == 4)
        assert channel.trouble == ""
    assert "telegram cannot be heard" in log.text


async def test_pauses_grow_and_what_telegram_asks_for_is_kept(bot: Bot) -> None:
    bot.server.then("getUpdates", *[Fail(502)] * 8, TooMany(90))
    bot.say("one")
    async with listening(bot.open()) as listener:
        for nap in range(9):
            await bot.clock.due_within(90)
            bot.clock.advance(bot.naps[nap])
        await listener.heard(1)
    assert bot.naps == [1, 2, 4, 8, 16, 32, 60, 60, 90]


@pytest.mark.parametrize("method", ["getMe", "getUpdates"])
async def test_a_token_that_is_refused_is_for_the_operator(
    bot: Bot, log: pytest.LogCaptureFixture, method: str
) -> None:
    bot.server.then(method, Fail(401, "Unauthorized"))
    with pytest.raises(Misconfigured, match="TELEGRAM_BOT_TOKEN") as caught:
        await bot.open().receive("", Listener().take)
    assert caught.value.hint
    assert caught.value.__cause__ is None and caught.value.__context__ is None


async def test_what_is_sent_with_a_token_that_is_refused_waits_for_the_operator(bot: Bot) -> None:
    sent = await bot.open(token=lambda: "1:wrong-secret").deliver(out(bot))
    assert isinstance(sent, Later) and sent.after_s >= 60
    assert "TELEGRAM_BOT_TOKEN" in sent.reason and "wrong-secret" not in sent.reason


@pytest.mark.parametrize("token", ["", "hunter2", "12:34/../..", "12:AAF\nX"])
def test_a_token_that_is_none_is_not_even_tried(token: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        Telegram(Settings(token=lambda: token), ManualClock().sleep)
    assert not token or token not in f"{caught.value!r} {caught.value.hint}"


def test_printing_what_it_is_made_of_shows_no_token() -> None:
    settings = Settings(token=lambda: "12:AAF")
    assert "AAF" not in repr(settings) + repr(Telegram(settings, ManualClock().sleep))


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


LONG = "\n\n".join(f"{number} " + "x" * 3000 for number in range(3))


async def test_of_several_parts_the_first_is_the_reply_and_the_last_has_the_buttons(
    bot: Bot,
) -> None:
    question = bot.say("?")
    channel = bot.open()
    message = replace(out(bot, LONG), reply_to=question, buttons=BUTTONS)
    first = accepted(await channel.deliver(message))
    shown = bot.shown()
    assert [part.reply_to for part in shown] == [question, "", ""]
    assert [part.buttons for part in shown] == [(), (), ("yes", "no")]
    last = accepted(await channel.deliver(replace(message, edit=first)))
    assert [part.text[:1] for part in bot.shown()] == ["0", "1", "0", "1", "2"]
    assert [part.message_id for part in bot.shown()][2::2] == [first, last]


async def deliver_long(bot: Bot, naps: int) -> Sent:
    """Deliver what has three parts while the clock moves on so many times."""
    sent: list[Sent] = []

    async def deliver() -> None:
        sent.append(await bot.open().deliver(out(bot, LONG)))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(deliver)
            for _ in range(naps):
                await bot.clock.due_within(3)
                bot.clock.advance(3)
    return sent[0]


@pytest.mark.promise("LATE-09")
async def test_a_later_part_waits_out_what_telegram_asks_for_but_not_for_ever(bot: Bot) -> None:
    bot.server.then("sendMessage", Hold(gate=_open()), TooMany(3))
    assert isinstance(await deliver_long(bot, naps=1), Accepted)
    assert [message.text[:1] for message in bot.shown()] == ["0", "1", "2"]
    bot.server.then("sendMessage", Hold(gate=_open()), *[TooMany(3)] * 4)
    sent = await deliver_long(bot, naps=3)
    assert isinstance(sent, Doubtful) and "1 of 3 parts arrived" in sent.reason


def _open() -> anyio.Event:
    gate = anyio.Event()
    gate.set()
    return gate


@pytest.mark.promise("LATE-09")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Reset(after=True), Doubtful),
        (Fail(502), Doubtful),
        (Fail(403, "Forbidden: bot was kicked"), Refused),
    ],
)
async def test_of_a_message_that_arrived_in_part_that_is_said(
    bot: Bot, fault: fake.Fault, kind: type
) -> None:
    bot.server.then("sendMessage", Hold(gate=_open()), fault)
    sent = await deliver_long(bot, naps=0)
    assert isinstance(sent, kind) and isinstance(sent, Doubtful | Refused)
    assert "1 of 3 parts arrived" in sent.reason
    assert [message.text[:1] for message in bot.shown()][2:] == []


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
    assert message["text"] == f"{REPEATED.strip('*')}\n\ncode"
    assert [entity["type"] for entity in message["entities"]] == ["italic", "pre"]


@pytest.mark.parametrize("thread", ["", "7777"])
async def test_a_refusal_is_in_telegrams_words_without_the_token(bot: Bot, thread: str) -> None:
    channel = bot.open()
    bot.server.then("sendMessage", Fail(400, f"Bad Request: no {bot.server.token} here"))
    assert await channel.deliver(out(bot)) == Refused("Bad Request: no 123456789:… here")
    gone = replace(bot.chat, chat="-99", thread=thread)
    sent = await channel.deliver(replace(out(bot), address=gone))
    assert sent == Refused("Bad Request: chat not found")


async def test_a_change_of_what_is_gone_is_refused(bot: Bot) -> None:
    for name in ("4242", "no number"):
        assert isinstance(await bot.open().deliver(replace(out(bot), edit=name)), Refused)


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
async def test_who_does_not_speak_like_telegram_refuses_nothing(
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
            assert "not Telegram" in channel.trouble
        await channel.aclose()
