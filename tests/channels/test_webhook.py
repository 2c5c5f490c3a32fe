"""The webhook channel, against a peer that checks signatures itself."""

import base64
import json
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.channels.channel import (
    Accepted,
    Doubtful,
    Hears,
    Hook,
    HookAnswer,
    Later,
    SendRefused,
)
from holdfast.channels.webhook import CHANNEL, TOLERANCE_S, Webhook, WebhookSettings
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
from tests.fakes import webhook as fake
from tests.fakes.clock import ManualClock
from tests.fakes.webhook import Hold, Reset, Say, sign

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdefghijklmnopqrstuv").decode()
FAULTS: dict[Trouble, fake.Fault] = {
    Trouble.BUSY: Say(429, retry_after=3),
    Trouble.LOST: Reset(after=True),
    Trouble.DOWN: Reset(after=False),
}
CALLS = {Trouble.BUSY: 503, Trouble.DOWN: 0}


class Party:
    """A driver of the conformance suite: one chat with Ada, and one that takes nothing."""

    def __init__(self, platform: fake.Platform, hooks: Hooks, stack: AsyncExitStack) -> None:
        self.platform = platform
        self.hooks = hooks
        self.clock = ManualClock()
        self.secrets: tuple[str, ...] = (SECRET, SECRET.removeprefix("whsec_"))
        self.chat = Address(platform="webhook", chat_type=ChatType.DIRECT, chat="room", user="ada")
        self.closed = replace(self.chat, chat="closed")
        self._stack = stack
        self._said: dict[str, str] = {}
        platform.closed.add("closed")
        platform.hook_url = f"{hooks.url}/webhook"

    def open(self, **settings: Any) -> Webhook:
        settings.setdefault("url", self.platform.url)
        channel = Webhook(WebhookSettings(**settings), SECRET, self.clock)
        self.hooks.channel = channel
        self._stack.push_async_callback(channel.aclose)
        return channel

    def open_unreachable(self) -> Webhook:
        deaf = self._stack.enter_context(socket.socket())
        deaf.bind(("127.0.0.1", 0))  # and nobody listens
        return self.open(url=f"http://127.0.0.1:{deaf.getsockname()[1]}")

    def thread(self) -> str:
        return "a thread"

    def say(self, text: str, *, thread: str = "", reply_to: str = "") -> str:
        more = {"thread": thread, "reply_to": reply_to, "quoted": self._said.get(reply_to, "")}
        given = {name: value for name, value in more.items() if value}
        number = self.platform.say("room", "ada", text, **given)
        self._said[number] = text
        return number

    def change(self, message_id: str, text: str) -> None:
        self.platform.change("room", "ada", message_id, text)

    def press(self, message_id: str, data: str) -> None:
        self.platform.press("ada", message_id, data)

    def shown(self) -> list[Shown]:
        return [
            Shown(m.message_id, m.text, m.thread, m.reply_to, m.buttons, preview=False)
            for m in self.platform.shown("room")
        ]

    def meet(self, trouble: Trouble) -> None:
        self.platform.then(FAULTS[trouble])

    def disturb(self, trouble: Trouble) -> None:
        self.hooks.faults.append(CALLS[trouble])

    async def wait_out(self) -> None:
        """It is the sender that tries again, at its own pace."""

    async def crash(self) -> None:
        self.hooks.crash()

    def redeliver(self) -> None:
        self.platform.send_again()


@asynccontextmanager
async def opened() -> AsyncIterator[Party]:
    now = ManualClock().now
    async with fake.serve(SECRET, now) as platform, serve_hooks() as hooks:
        async with AsyncExitStack() as stack:
            yield Party(platform, hooks, stack)


@pytest.fixture
async def party() -> AsyncIterator[Party]:
    async with opened() as driver:
        yield driver


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Everything anybody logs; none of it may show the secret."""
    with caplog.at_level(logging.DEBUG):
        yield caplog
    shown = caplog.text + repr([vars(record) for record in caplog.records])
    assert SECRET.removeprefix("whsec_") not in shown


@pytest.mark.promise("LATE-09")
@pytest.mark.parametrize("check", checks(Webhook.capabilities), ids=lambda check: check.__name__)
async def test_conformance(check: Check, log: pytest.LogCaptureFixture) -> None:
    async with opened() as driver:
        await check(driver)
        assert driver.platform.forged == 0


def signed(body: bytes, *, at: float, name: str = "msg_1", secret: str = SECRET) -> Hook:
    seconds = int(at)
    signature = sign(secret, name, seconds, body)
    headers = {"webhook-id": name, "webhook-timestamp": str(seconds)}
    return Hook(headers | {"webhook-signature": signature}, body)


def said(**content: object) -> bytes:
    return json.dumps({"chat": "room", "user": "ada", "text": "hi"} | content).encode()


async def heard(party: Party, hook: Hook) -> tuple[HookAnswer, Listener]:
    """What a channel that listens makes of it."""
    channel = party.open()
    async with listening(channel) as listener:
        party.platform.say("room", "ada", "first")
        await listener.heard(1)
        listener.taken.clear()
        answer = await channel.hear(hook)
    return answer, listener


async def test_the_signature_is_that_of_the_standard() -> None:
    """The example with which the libraries of Standard Webhooks are tested."""
    secret, body, at = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}', 1614265330
    signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", at, body) == signature
    channel = Webhook(WebhookSettings(url="http://x/"), secret, ManualClock(at))
    hook = signed(body, at=at, name="msg_p5jXN8AQM9LWM0D4loKWxJek", secret=secret)
    assert hook.headers["webhook-signature"] == signature
    assert (await channel.hear(hook)).status == 400, "it is believed, and says nothing"


async def test_every_field_of_a_request_is_read(party: Party) -> None:
    body = said(
        thread="t", name="Ada L", chat_type="group", message_id="m1", reply_to="m0", quoted="what?"
    )
    answer, listener = await heard(party, signed(body, at=party.clock.now(), name="msg_7"))
    [incoming] = listener.taken
    assert answer == HookAnswer(200)
    assert (incoming.external_id, incoming.cursor) == ("msg_7", "")
    assert incoming.address == Address(
        platform="webhook", chat_type=ChatType.GROUP, chat="room", thread="t", user="ada"
    )
    assert (incoming.name, incoming.text, incoming.message_id) == ("Ada L", "hi", "m1")
    assert (incoming.reply_to, incoming.quoted) == ("m0", "what?")


async def test_one_of_several_signatures_is_enough(party: Party) -> None:
    hook = signed(said(), at=party.clock.now())
    both = f"v1,{'A' * 43}= v2,x {hook.headers['webhook-signature']}"
    hook = Hook({**hook.headers, "webhook-signature": both}, hook.body)
    answer, listener = await heard(party, hook)
    assert (answer.status, len(listener.taken)) == (200, 1)


OTHER = "whsec_" + base64.b64encode(b"x" * 32).decode()


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-signature": ""},
        {"webhook-signature": None},
        {"webhook-signature": sign(OTHER, "msg_1", 1_700_000_000, said())},
        {"webhook-signature": sign(SECRET, "msg_1", 1_700_000_000, said()).removeprefix("v1,")},
        {"webhook-signature": "v1,\udcff"},
        {"webhook-id": "msg_2"},
        {"webhook-id": None},
        {"webhook-id": ""},
        {"webhook-timestamp": "1700000001"},
        {"webhook-timestamp": None},
        {"webhook-timestamp": "soon"},
        {"webhook-timestamp": "-1"},
        {"webhook-timestamp": "9" * 400},
        {"webhook-timestamp": "²"},
    ],
)
async def test_an_unsigned_request_is_refused(party: Party, change: dict[str, str | None]) -> None:
    hook = signed(said(), at=party.clock.now())
    headers = {
        name: value for name, value in {**hook.headers, **change}.items() if value is not None
    }
    answer, listener = await heard(party, Hook(headers, hook.body))
    assert answer.status == 401 and listener.taken == []


async def test_a_changed_body_is_refused(party: Party) -> None:
    hook = signed(said(), at=party.clock.now())
    answer, listener = await heard(party, Hook(hook.headers, said(text="ho")))
    assert answer.status == 401 and listener.taken == []


@pytest.mark.parametrize("off_s", [-TOLERANCE_S - 1, TOLERANCE_S + 1])
async def test_an_old_request_is_refused_although_it_is_signed(party: Party, off_s: float) -> None:
    now = party.clock.now()
    answer, listener = await heard(party, signed(said(), at=now + off_s))
    assert answer.status == 401 and b"timestamp" in answer.body and listener.taken == []
    answer, listener = await heard(party, signed(said(), at=now + off_s * 0.99))
    assert (answer.status, len(listener.taken)) == (200, 1)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b"{", ""),
        (b"\xff", ""),
        (b"[]", "object"),
        (b'{"user": "ada", "text": "hi"}', "chat"),
        (said(chat=7), "chat"),
        (said(chat=""), "chat"),
        (said(user="u" * 257), "user"),
        (said(text=""), "text"),
        (said(chat_type="party"), "chat_type"),
        (said(edit="yes"), "edit"),
    ],
)
async def test_an_invalid_body_is_refused_with_the_field_name(
    party: Party, body: bytes, names: str
) -> None:
    answer, listener = await heard(party, signed(body, at=party.clock.now()))
    assert answer.status == 400 and answer.body and listener.taken == []
    assert names in answer.body.decode()


async def test_a_request_of_ours_cannot_be_returned_to_us(party: Party) -> None:
    channel = party.open()
    accepted(await channel.deliver(out(party, "approve it")))
    body = json.dumps(party.platform.accepted[0].body).encode()
    answer, listener = await heard(party, signed(body, at=party.clock.now()))
    assert answer.status == 400 and listener.taken == []


async def test_requests_are_refused_while_the_channel_does_not_receive(party: Party) -> None:
    channel = party.open()
    hook = signed(said(), at=party.clock.now())
    assert (await channel.hear(hook)).status == 503
    async with listening(channel, refuse=1) as listener:
        party.platform.say("room", "ada", "first")
        await listener.heard(1)
        assert (await channel.hear(hook)).status == 200
        assert channel.trouble == ""
    assert 503 in party.platform.pushes
    assert (await channel.hear(hook)).status == 503


async def test_a_message_that_cannot_be_stored_is_answered_with_503(party: Party) -> None:
    channel = party.open()
    hook = signed(said(), at=party.clock.now())
    async with listening(channel) as listener:
        party.platform.say("room", "ada", "first")
        await listener.heard(1)
        listener.refuse = 1
        assert (await channel.hear(hook)).status == 503
        assert "journal is full" in channel.trouble
        assert (await channel.hear(hook)).status == 200
        assert channel.trouble == ""


async def test_an_outgoing_request_has_every_field(party: Party) -> None:
    channel = party.open()
    message = replace(
        out(party, "**Shall** I?", "t"), reply_to="in-1", buttons=BUTTONS, repeated=True
    )
    accepted(await channel.deliver(message))
    assert party.platform.accepted[0].body == {
        "type": "message",
        "delivery_id": message.delivery_id,
        "chat": "room",
        "thread": "t",
        "user": "ada",
        "text": "**Shall** I?",
        "reply_to": "in-1",
        "edit": "",
        "buttons": [[{"text": "Yes", "data": "yes"}, {"text": "No", "data": "no"}]],
        "repeated": True,
    }
    [headers] = party.platform.requests
    assert headers["webhook-id"] == message.delivery_id
    assert headers["content-type"] == "application/json"


async def test_a_lone_surrogate_is_replaced(party: Party) -> None:
    accepted(await party.open().deliver(out(party, "a\ud800b")))
    assert party.platform.accepted[0].text == "a?b"


@pytest.mark.promise("LATE-09")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Say(204), Accepted),
        (Say(202, body="thank you"), Accepted),
        (Say(301), Later),
        (Say(307), Later),
        (Say(400), SendRefused),
        (Say(401), Later),
        (Say(403), Later),
        (Say(404), SendRefused),
        (Say(408), Later),
        (Say(410), SendRefused),
        (Say(413), SendRefused),
        (Say(429), Later),
        (Say(500), Later),
        (Say(503), Later),
        (Reset(), Doubtful),
    ],
)
async def test_an_answer_says_what_to_do_next(party: Party, fault: fake.Fault, kind: type) -> None:
    party.platform.then(fault)
    sent = await party.open().deliver(out(party))
    assert isinstance(sent, kind)
    assert len(party.platform.requests) == 1, "no redirect is followed"


@pytest.mark.parametrize(("status", "retry_after"), [(429, 7), (503, 90)])
async def test_the_receivers_retry_after_is_obeyed(
    party: Party, status: int, retry_after: int
) -> None:
    party.platform.then(Say(status, retry_after=retry_after))
    sent = await party.open().deliver(out(party))
    assert isinstance(sent, Later) and sent.after_s == retry_after


async def test_the_receiver_need_not_return_a_message_id(party: Party) -> None:
    channel = party.open()
    party.platform.then(Say(200), Say(200, body='{"message_id": 42}'), Say(200, body="[]"))
    names = [accepted(await channel.deliver(message := out(party))) for _ in range(3)]
    assert names[1] == "42"
    assert names[2] == message.delivery_id and names[0].startswith("dlv_")


async def test_an_answer_that_does_not_come_is_not_waited_for(party: Party) -> None:
    hold = Hold()
    party.platform.then(hold)
    sent = await party.open(answer_s=0.05).deliver(out(party))
    assert isinstance(sent, Doubtful) and "did not answer" in sent.reason
    hold.gate.set()


def test_it_is_made_from_a_table_and_the_environment() -> None:
    settings = msgspec.convert({"url": "https://chat.example/in"}, CHANNEL.settings)
    [name] = CHANNEL.secrets
    channel = CHANNEL.create(settings, {name: SECRET}.__getitem__, ManualClock())
    assert isinstance(channel, Hears)
    assert (channel.name, channel.path) == (CHANNEL.name, "webhook")
    assert SECRET not in repr(channel)


@pytest.mark.parametrize(
    "table", [{}, {"url": "ftp://x"}, {"url": ""}, {"url": "http://x", "u": 1}]
)
def test_invalid_settings_are_refused(table: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(table, CHANNEL.settings)


@pytest.mark.parametrize("url", ["ftp://x/", "/in", "http://", "http://[x"])
def test_an_invalid_url_is_a_configuration_error(url: str) -> None:
    with pytest.raises(Misconfigured, match="url"):
        Webhook(WebhookSettings(url=url), SECRET, ManualClock())


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "whsec_no!", SECRET[6:]])
def test_an_invalid_secret_is_a_configuration_error(secret: str) -> None:
    with pytest.raises(Misconfigured, match="HOLDFAST_WEBHOOK_SECRET") as caught:
        Webhook(WebhookSettings(url="http://x/"), secret, ManualClock())
    assert "whsec_" in caught.value.hint and (len(secret) < 12 or secret not in caught.value.hint)
