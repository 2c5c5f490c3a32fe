"""What every channel must do, whichever platform it speaks to (holdfast.channels.channel).

A channel's test gives a `Driver`: its channel against a server that speaks the platform's real
protocol, and what people and the platform do there. Each check is a function over it;
`checks` are those that a channel with these capabilities must pass.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import Enum, auto
from inspect import iscoroutinefunction
from itertools import count
from typing import NamedTuple, Protocol

import anyio
from msgspec.structs import replace

from holdfast.channels.channel import (
    Accepted,
    Button,
    Channel,
    ChannelCapabilities,
    Doubtful,
    Incoming,
    Later,
    Outgoing,
    SendRefused,
    Sent,
)
from holdfast.core.address import Address
from holdfast.core.types import DeliveryId
from holdfast.errors import Transient

PATIENCE_S = 10.0  # a test that waits longer has failed: a hang would end nothing
BUTTONS = ((Button("Yes", "yes"), Button("No", "no")),)
_numbers = count(1)


class Trouble(Enum):
    """What the platform does to the next message that is sent, or to whoever listens."""

    BUSY = auto()  # says so, and when to come again: in 3 s
    LOST = auto()  # takes it, and the connection breaks before it has said so
    DOWN = auto()  # breaks the connection before it has done anything


class Shown(NamedTuple):
    """A message of ours, as people see it."""

    message_id: str
    text: str
    thread: str
    reply_to: str
    buttons: tuple[str, ...]
    preview: bool  # of what an address in it leads to


class Driver(Protocol):
    """A platform with one chat, and a second one that refuses whatever is sent to it."""

    chat: Address  # with the user who speaks there
    closed: Address
    secrets: tuple[str, ...]  # that no text may show

    def open(self) -> Channel:
        """A channel as after a start. The driver closes it."""
        ...

    def open_unreachable(self) -> Channel:
        """A channel for whose platform nobody listens."""
        ...

    def thread(self) -> str:
        """A new thread of the chat."""
        ...

    def say(self, text: str, *, thread: str = "", reply_to: str = "") -> str:
        """The user says it; the message's id."""
        ...

    def change(self, message_id: str, text: str) -> None:
        """The user changes what was said."""
        ...

    def press(self, message_id: str, data: str) -> None:
        """The user presses a button of ours."""
        ...

    def shown(self) -> list[Shown]:
        """What we have said in the chat, as it stands there now."""
        ...

    def meet(self, trouble: Trouble) -> None:
        """The next message sent meets that."""
        ...

    def disturb(self, trouble: Trouble) -> None:
        """The next attempt to listen, or to call who listens, meets that."""
        ...

    async def wait_out(self) -> None:
        """The pause is over after which whoever failed tries again."""
        ...

    async def crash(self) -> None:
        """What is under way between the platform and the channel breaks off."""
        ...

    def redeliver(self) -> None:
        """The platform has lost its place: what was taken last comes again."""
        ...


class Listener:
    """What a channel has handed on. `refuse` so many first, as a full disk would."""

    def __init__(self, refuse: int = 0) -> None:
        self.taken: list[Incoming] = []
        self.refuse = refuse
        self._changed = anyio.Event()

    async def take(self, incoming: Incoming) -> str:
        if self.refuse:
            self.refuse -= 1
            raise Transient("the journal is full")
        self.taken.append(incoming)
        self._changed.set()
        self._changed = anyio.Event()
        return ""

    async def heard(self, count: int) -> list[Incoming]:
        while len(self.taken) < count:
            await self._changed.wait()
        return self.taken


@asynccontextmanager
async def listening(channel: Channel, cursor: str = "", refuse: int = 0) -> AsyncIterator[Listener]:
    """`channel` receives for the length of a block."""
    listener = Listener(refuse)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(channel.receive, cursor, listener.take)
            yield listener
            tasks.cancel_scope.cancel()


def out(driver: Driver, text: str = "Hello", thread: str = "") -> Outgoing:
    name = DeliveryId(f"dlv_{next(_numbers)}")
    return Outgoing(name, replace(driver.chat, thread=thread), text)


def accepted(sent: Sent) -> str:
    assert isinstance(sent, Accepted), sent
    return sent.message_id


async def what_is_said_is_handed_on_in_order(driver: Driver) -> None:
    ids = [driver.say(text) for text in ("one", "two", "three")]
    async with listening(driver.open()) as listener:
        taken = await listener.heard(3)
    assert [incoming.text for incoming in taken] == ["one", "two", "three"]
    assert [incoming.message_id for incoming in taken] == ids
    assert [incoming.address for incoming in taken] == [driver.chat] * 3
    assert all(incoming.name and not incoming.edited for incoming in taken)
    assert len({incoming.external_id for incoming in taken}) == 3


async def what_is_said_while_it_listens_is_heard(driver: Driver) -> None:
    async with listening(driver.open()) as listener:
        for count, text in enumerate(("one", "two"), start=1):
            driver.say(text)
            assert (await listener.heard(count))[-1].text == text


async def what_was_not_taken_comes_again_under_the_same_name(driver: Driver) -> None:
    driver.say("one")
    seen: list[Incoming] = []
    reached = anyio.Event()

    async def die(incoming: Incoming) -> str:
        seen.append(incoming)
        reached.set()
        await anyio.sleep_forever()
        return ""

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.open().receive, "", die)
        await reached.wait()
        tasks.cancel_scope.cancel()
    await driver.crash()
    async with listening(driver.open()) as listener:
        assert await listener.heard(1) == seen[:1]


async def nothing_is_lost_and_nothing_comes_twice_over_a_restart(driver: Driver) -> None:
    driver.say("one")
    driver.say("two")
    async with listening(driver.open()) as listener:
        cursor = (await listener.heard(2))[-1].cursor
    driver.say("three")
    async with listening(driver.open(), cursor) as listener:
        driver.say("four")
        taken = await listener.heard(2)
    assert [incoming.text for incoming in taken] == ["three", "four"]


async def what_could_not_be_taken_is_handed_on_again(driver: Driver) -> None:
    driver.say("one")
    driver.say("two")
    async with listening(driver.open(), refuse=2) as listener:
        for _ in range(2):
            await driver.wait_out()
        taken = await listener.heard(2)
    assert [incoming.text for incoming in taken] == ["one", "two"]


async def _listens_again_after(trouble: Trouble, driver: Driver) -> None:
    driver.disturb(trouble)
    driver.say("one")
    async with listening(driver.open()) as listener:
        await driver.wait_out()
        assert (await listener.heard(1))[0].text == "one"


async def it_listens_again_when_asked_to_wait(driver: Driver) -> None:
    await _listens_again_after(Trouble.BUSY, driver)


async def it_listens_again_after_a_broken_connection(driver: Driver) -> None:
    await _listens_again_after(Trouble.DOWN, driver)


async def what_is_handed_on_again_has_the_same_name(driver: Driver) -> None:
    driver.say("one")
    async with listening(driver.open()) as listener:
        await listener.heard(1)
        driver.say("two")
        await listener.heard(2)
        driver.redeliver()
        taken = await listener.heard(3)
        driver.say("three")
        while "three" not in [incoming.text for incoming in taken]:
            taken = await listener.heard(len(taken) + 1)
    names = {incoming.text: incoming.external_id for incoming in taken[:2]}
    again = [incoming for incoming in taken[2:] if incoming.text != "three"]
    assert again and all(incoming.external_id == names[incoming.text] for incoming in again)


async def a_reply_says_to_what_and_what_stood_there(driver: Driver) -> None:
    first = driver.say("one")
    driver.say("two", reply_to=first)
    async with listening(driver.open()) as listener:
        taken = await listener.heard(2)
    assert [incoming.reply_to for incoming in taken] == ["", first]
    assert [incoming.quoted for incoming in taken] == ["", "one"]
    assert taken[1].address == driver.chat


async def a_changed_message_is_the_same_message_said_again(driver: Driver) -> None:
    first = driver.say("one")
    driver.change(first, "two")
    async with listening(driver.open()) as listener:
        before, after = await listener.heard(2)
    assert (after.text, after.edited, after.message_id) == ("two", True, first)
    assert after.external_id != before.external_id


async def a_thread_is_part_of_the_address(driver: Driver) -> None:
    thread = driver.thread()
    driver.say("one", thread=thread)
    driver.say("two")
    channel = driver.open()
    async with listening(channel) as listener:
        inside, outside = await listener.heard(2)
    assert inside.address == replace(driver.chat, thread=thread)
    assert (inside.reply_to, outside.address.thread) == ("", "")
    accepted(await channel.deliver(out(driver, "inside", thread)))
    accepted(await channel.deliver(out(driver, "outside")))
    assert [shown.thread for shown in driver.shown()] == [thread, ""]


async def a_button_comes_back(driver: Driver) -> None:
    channel = driver.open()
    sent = accepted(await channel.deliver(replace(out(driver), buttons=BUTTONS)))
    assert driver.shown()[0].buttons == ("yes", "no")
    driver.press(sent, "no")
    async with listening(channel) as listener:
        pressed = (await listener.heard(1))[0]
    assert (pressed.pressed, pressed.text, pressed.reply_to) == ("no", "", sent)
    assert pressed.message_id == ""
    assert pressed.address == driver.chat


async def what_is_sent_stands_in_the_chat(driver: Driver) -> None:
    question = driver.say("a question")
    channel = driver.open()
    first = accepted(await channel.deliver(out(driver, "**Hello** <you> & me")))
    second = accepted(await channel.deliver(replace(out(driver, "an answer"), reply_to=question)))
    shown = driver.shown()
    assert [message.message_id for message in shown] == [first, second]
    assert [message.reply_to for message in shown] == ["", question]
    texts = [message.text.replace("**", "") for message in shown]  # or markup, where that is read
    assert texts == ["Hello <you> & me", "an answer"]
    assert not any(message.preview for message in shown)


async def it_sends_while_it_listens(driver: Driver) -> None:
    channel = driver.open()
    async with listening(channel) as listener:
        driver.say("one")
        await listener.heard(1)
        accepted(await channel.deliver(out(driver)))
        driver.say("two")
        await listener.heard(2)


async def a_reply_to_what_is_gone_is_sent_all_the_same(driver: Driver) -> None:
    accepted(await driver.open().deliver(replace(out(driver), reply_to="987654")))
    assert [shown.text for shown in driver.shown()] == ["Hello"]


async def a_long_text_arrives_whole_and_in_order(driver: Driver) -> None:
    channel = driver.open()
    words = [f"word{number}" for number in range(channel.capabilities.max_length // 3)]
    parts = channel.split(" ".join(words))
    sent = [accepted(await channel.deliver(out(driver, part))) for part in parts]
    shown = driver.shown()
    assert len(parts) > 1
    assert [message.message_id for message in shown] == sent, "each part is one message"
    assert " ".join(message.text for message in shown).split() == words


async def every_part_fits_whatever_becomes_of_it(driver: Driver) -> None:
    """Nobody named its hosts, and it is marked as repeated."""
    channel = driver.open()
    size = channel.capabilities.max_length
    code = "```py\n" + "x = 'https://a.evil.example/b.c'\n" * (size // 20) + "```"
    text = "see a.b.evil.com/x.y, " * (size // 20) + "\n\n" + code + "\n\n" + "😀" * size
    parts = channel.split(text)
    assert channel.split(text) == parts
    for part in parts:
        accepted(await channel.deliver(replace(out(driver, part), repeated=True)))
        assert part.count("```") % 2 == 0, "code is closed where it was opened"
    assert len(driver.shown()) == len(parts) > 3


async def what_fits_is_one_part_and_what_shows_nothing_is_none(driver: Driver) -> None:
    channel = driver.open()
    assert channel.split("**Hello**\n\nyou") == ("**Hello**\n\nyou",)
    assert channel.split(" \n ") == ()


async def what_is_too_long_is_refused(driver: Driver) -> None:
    channel = driver.open()
    text = "word " * channel.capabilities.max_length
    sent = await channel.deliver(out(driver, text))
    assert isinstance(sent, SendRefused) and "longer" in sent.reason
    assert driver.shown() == []


async def a_message_is_changed_in_place_and_twice_is_once(driver: Driver) -> None:
    channel = driver.open()
    first = accepted(await channel.deliver(replace(out(driver, "half"), buttons=BUTTONS)))
    for _ in range(2):
        assert accepted(await channel.deliver(replace(out(driver, "all"), edit=first))) == first
    shown = driver.shown()
    assert [(message.text, message.buttons) for message in shown] == [("all", ())]
    assert not shown[0].preview


async def a_change_of_what_is_gone_is_refused(driver: Driver) -> None:
    sent = await driver.open().deliver(replace(out(driver), edit="987654"))
    assert isinstance(sent, SendRefused) and sent.reason


async def what_may_be_a_repetition_says_so(driver: Driver) -> None:
    channel = driver.open()
    accepted(await channel.deliver(out(driver)))
    accepted(await channel.deliver(replace(out(driver), repeated=True)))
    first, second = driver.shown()
    assert "Hello" in second.text and "repeated" in second.text
    assert first.text == "Hello"


async def an_address_nobody_named_leads_nowhere(driver: Driver) -> None:
    text = "see https://evil.example/?q=1 and https://good.example/a"
    message = replace(out(driver, text), named_hosts=frozenset({"good.example"}))
    accepted(await driver.open().deliver(message))
    shown = driver.shown()[0].text
    assert "https://evil.example" not in shown and "https://good.example/a" in shown


async def a_busy_platform_is_asked_later(driver: Driver) -> None:
    channel = driver.open()
    driver.meet(Trouble.BUSY)
    sent = await channel.deliver(out(driver))
    assert isinstance(sent, Later) and sent.after_s == 3 and sent.reason
    assert driver.shown() == []
    accepted(await channel.deliver(out(driver)))


async def what_found_no_connection_is_sent_later(driver: Driver) -> None:
    sent = await driver.open_unreachable().deliver(out(driver))
    assert isinstance(sent, Later) and sent.after_s == 0  # it says nothing of when
    _hides(driver, sent.reason)


async def a_lost_answer_is_a_doubt(driver: Driver) -> None:
    driver.meet(Trouble.LOST)
    sent = await driver.open().deliver(out(driver))
    assert isinstance(sent, Doubtful)
    assert len(driver.shown()) == 1, "and nothing was sent again behind our back"
    _hides(driver, sent.reason)


async def a_second_copy_is_dropped(driver: Driver) -> None:
    channel = driver.open()
    message = out(driver)
    driver.meet(Trouble.LOST)
    sent = await channel.deliver(message)
    assert isinstance(sent, Doubtful | Later)
    _hides(driver, sent.reason)
    again = accepted(await channel.deliver(replace(message, repeated=True)))
    assert [shown.message_id for shown in driver.shown()] == [again]


async def what_is_refused_is_refused_with_a_reason(driver: Driver) -> None:
    sent = await driver.open().deliver(replace(out(driver), address=driver.closed))
    assert isinstance(sent, SendRefused) and sent.reason
    _hides(driver, sent.reason)


async def what_shows_nothing_is_refused(driver: Driver) -> None:
    assert isinstance(await driver.open().deliver(out(driver, " \n ")), SendRefused)
    assert driver.shown() == []


async def typing_never_hurts(driver: Driver) -> None:
    await driver.open().show_typing(driver.chat)
    await driver.open().show_typing(driver.closed)
    await driver.open_unreachable().show_typing(driver.chat)


async def it_can_be_closed_unused_and_twice(driver: Driver) -> None:
    channel = driver.open()
    await channel.aclose()
    used = driver.open()
    accepted(await used.deliver(out(driver)))
    await used.aclose()
    await used.aclose()


def _hides(driver: Driver, text: str) -> None:
    assert not [secret for secret in driver.secrets if secret in text], text


Check = Callable[[Driver], Awaitable[None]]

_NEEDS: dict[Check, Callable[[ChannelCapabilities], bool]] = {
    a_changed_message_is_the_same_message_said_again: lambda can: can.edits,
    a_message_is_changed_in_place_and_twice_is_once: lambda can: can.edits,
    a_change_of_what_is_gone_is_refused: lambda can: can.edits,
    a_second_copy_is_dropped: lambda can: can.idempotent_send,
    a_thread_is_part_of_the_address: lambda can: can.threads,
    a_button_comes_back: lambda can: can.buttons,
    a_lost_answer_is_a_doubt: lambda can: not can.idempotent_send,
    what_may_be_a_repetition_says_so: lambda can: not can.idempotent_send,
}
_ALL: list[Check] = [
    each for name, each in globals().items() if iscoroutinefunction(each) and name[0] != "_"
]


def checks(capabilities: ChannelCapabilities) -> list[Check]:
    """What a channel that says this of itself must pass: all of this file that fits."""
    return [each for each in _ALL if each not in _NEEDS or _NEEDS[each](capabilities)]
