"""Users who write to a gateway on two platforms at once, with faults, and what they receive.

Every message has a word of its own, so that it can be told from all others wherever it turns
up: in what the model reads, in the answer, in an effect. What is said is known by the name that
its platform gave it, and an answer names what it answers.
"""

import base64
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import anyio

from holdfast.engine.chats.book import NEW_SESSION
from tests.fakes import telegram as telegrams
from tests.fakes import webhook as webhooks
from tests.fakes.gateway import GatewayProcess, unstarted
from tests.fakes.model_server import Ask, ModelServer, Reply, react, serve
from tests.fakes.telegram import Call, Telegram
from tests.fakes.webhook import Platform

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
MARK = "(Possibly repeated: it is not known whether this arrived before.)"

QUEUE, INTERRUPT = "queue", "interrupt"
CHATS = 20  # on each platform
EFFECTS = "effects"  # in the gateway's working directory, which is its home
PAUSE_S = 1.0  # between what somebody hears and what they say next, at most
PATIENCE_S = 5.0  # then somebody goes on who was interrupted by themselves
USER = 2000
WORD = re.compile(r"\bw[0-9]+x[0-9]+\b")


@dataclass(slots=True, eq=False)
class Said:
    """One message, as whoever said it knows it."""

    word: str
    text: str
    number: int  # in its chat
    read: anyio.Event = field(default_factory=anyio.Event)  # by the model
    done: anyio.Event = field(default_factory=anyio.Event)  # answered, or all that is due to it

    @property
    def is_command(self) -> bool:
        return self.text.startswith("/")

    @property
    def effect(self) -> str:
        return self.word if self.text.startswith("tool:") else ""


@dataclass(frozen=True, slots=True)
class Heard:
    """One message of the bot's, in the order they came."""

    answers: str  # the message it replies to, as its platform calls that; empty: none
    text: str  # without the mark
    marked: bool


@dataclass(slots=True, eq=False)
class Chat:
    """One person at one place."""

    place: str
    mode: str
    speak: Callable[[str], str]  # what the platform calls the message then
    said: dict[str, Said] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)

    def hear(self, answers: str, text: str) -> None:
        """The bot says something."""
        marked = text.startswith(MARK)
        text = text.removeprefix(MARK).strip()
        known = self.said.get(answers)
        self.heard.append(Heard(answers if known else "", text, marked))
        if known is not None and not text.startswith(NEW_SESSION):
            known.done.set()


@dataclass(slots=True)
class Weather:
    """What goes wrong on the way to a platform, at most once for each message."""

    chance: Random
    calm: bool = False
    met: set[object] = field(default_factory=set)

    def strikes(self, message: object, often: float) -> bool:
        """Whether something goes wrong with it now."""
        if self.calm or message in self.met or self.chance.random() >= often:
            return False
        self.met.add(message)
        return True

    def over_telegram(self, call: Call) -> telegrams.Fault | None:
        """Before the effect or after it; polls too, but seldom: each costs a second."""
        method = call.method.lower()
        if method == "getupdates":
            after = self.chance.random() < 0.5
            strikes = not self.calm and self.chance.random() < 0.02
            return telegrams.Reset(after=after) if strikes else None
        if method not in ("sendmessage", "editmessagetext"):
            return None
        text = str(call.params["text"]).rpartition("\n\n")[2]
        if not self.strikes((call.params["chat_id"], text, method), 0.1):
            return None
        return self.chance.choice(
            (
                telegrams.Reset(after=True),
                telegrams.Reset(),
                telegrams.Fail(502, after=True),
                telegrams.Fail(502),
                telegrams.TooMany(1),
                telegrams.Hold(),
            )
        )

    def over_webhook(self, taken: webhooks.Taken) -> webhooks.Fault | None:
        """The same there."""
        if not self.strikes(taken.delivery_id, 0.1):
            return None
        return self.chance.choice(
            (
                webhooks.Reset(after=True),
                webhooks.Reset(),
                webhooks.Say(500, after=True),
                webhooks.Say(503),
                webhooks.Say(429, retry_after=1),
                webhooks.Hold(),
            )
        )


class World:
    """Two platforms, a model, a gateway, and everybody who talks to it."""

    def __init__(self, all_ends: "Ends", chance: Random) -> None:
        self.ends = all_ends
        self.telegram = telegram = all_ends.telegram
        self.platform = platform = all_ends.platform
        self.it = all_ends.it
        self.chance = chance
        self.weather = Weather(chance)
        self.read_twice: list[str] = []  # words that stood twice in one request
        self.over = False
        telegram.weather = self.weather.over_telegram
        platform.weather = self.weather.over_webhook
        telegram.delay_s = platform.delay_s = 0.01
        telegram.newest_first = chance.random() < 0.5
        self.touched = 0  # messages that were edited, with no word changed
        self._words: dict[str, Said] = {}
        self._here: dict[tuple[int, int], Chat] = dict(self._on_telegram())
        self._there: dict[str, Chat] = dict(self._on_webhook())

    @property
    def chats(self) -> list[Chat]:
        return [*self._here.values(), *self._there.values()]

    def said(self) -> Iterator[tuple[Chat, Said]]:
        """Everything that anybody said."""
        return ((chat, said) for chat in self.chats for said in chat.said.values())

    def _on_telegram(self) -> Iterator[tuple[tuple[int, int], Chat]]:
        """People alone with the bot, and some in topics of a group."""
        forum = self.telegram.group("Forum")
        for number in range(CHATS):
            user, thread = USER + number, 0
            chat = self.telegram.private(user)
            if number % 5 == 4:
                chat, thread = forum, self.telegram.topic(forum, str(number))
            speak = partial(self._speak_here, chat, user, thread)
            place = f"telegram {chat.id} {thread}"
            yield (chat.id, thread), Chat(place, _mode(number), speak)

    def _speak_here(self, chat: telegrams.Chat, user: int, thread: int, text: str) -> str:
        message = self.telegram.say(chat, text, user, thread)
        if self.chance.random() < 0.2:  # a reaction
            self.telegram.edit(message, text)
            self.touched += 1
        return str(message["message_id"])

    def _on_webhook(self) -> Iterator[tuple[str, Chat]]:
        for number in range(CHATS):
            speak = partial(self.platform.say, room(number), speaker(number))
            yield room(number), Chat(f"webhook {room(number)}", _mode(number), speak)

    def answer(self, ask: Ask) -> Reply:
        """What the model says; it minds what it reads."""
        read = "\n".join(m.text for m in ask.messages if m.role == "user")
        words = WORD.findall(read)
        for word in words:
            said = self._words[word]
            said.read.set()
        if len(set(words)) < len(words):
            self.read_twice.append(read)
        return react(ask)

    async def listen(self) -> None:
        """Hear what the bot says on both platforms, for ever."""
        async with anyio.create_task_group() as both:
            both.start_soon(self._hear_here)
            both.start_soon(self._hear_there)

    async def _hear_here(self) -> None:
        accepted = self.telegram.accepted
        for number in count():
            await self.telegram.until(partial(_has, accepted, number))
            taken = accepted[number]
            if not taken.edit:
                message = self.telegram.messages[taken.chat, taken.message_id]
                name = str(message.get("reply_to_message", {}).get("message_id", ""))
                self._here[taken.chat, taken.thread].hear(name, taken.text)

    async def _hear_there(self) -> None:
        accepted = self.platform.accepted
        for number in count():
            await self.platform.until(partial(_has, accepted, number))
            taken = accepted[number]
            if not taken.edit:
                self._there[taken.chat].hear(taken.body["reply_to"], taken.text)

    async def talk(self, chat: Chat) -> None:
        """Say one thing or a few, hear the answers, and so on until it is over."""
        if chat.mode == INTERRUPT:
            await self._say(chat, "/busy interrupt").done.wait()
        while not self.over:
            await anyio.sleep(self.chance.uniform(0, PAUSE_S))  # sleep: people take their time
            few = [self._say(chat) for _ in range(self.chance.choice((1, 1, 2, 3)))]
            for said in few:
                await self._heard(chat, said)

    async def _heard(self, chat: Chat, said: Said) -> None:
        if chat.mode == QUEUE or said.is_command:
            await said.done.wait()
        else:  # whoever interrupts gets one answer for several, or joins a run that fails
            with anyio.move_on_after(PATIENCE_S):
                await said.read.wait()

    def _say(self, chat: Chat, text: str = "") -> Said:
        word = f"w{self.chats.index(chat)}x{len(chat.said)}"
        said = Said(word, text or self._wish(chat, word), len(chat.said))
        self._words[word] = said
        chat.said[chat.speak(said.text)] = said
        return said

    def _wish(self, chat: Chat, word: str) -> str:
        match self.chance.random():
            case luck if luck < 0.1:
                return "/status"
            case luck if luck < 0.15:
                return f"/busy {chat.mode}"
            case luck if luck < 0.2 and all(s.done.is_set() for s in chat.said.values()):
                return "/new"
            case luck if luck < 0.5:
                return f'tool:bump {{"path": "{EFFECTS}", "tag": "{word}"}}'
            case luck if luck < 0.6:
                return f"slow:0.1 {word}"
            case _:
                return f"say:{word}"

    def say_again(self) -> None:
        """The platforms have forgotten what was taken of them."""
        self.telegram.forget_offset(self.chance.randrange(1, 30))
        self.platform.send_again(self.chance.randrange(1, 30))


def _has(some: Sequence[object], number: int) -> bool:
    return len(some) > number


def _mode(number: int) -> str:
    return INTERRUPT if number % 3 == 2 else QUEUE


def config(telegram: Telegram, platform: Platform, chats: int) -> str:
    """Both channels, and everybody who may speak."""
    roles = '["read", "run", "approve"]'
    here = ", ".join(f'"{USER + n}" = {roles}' for n in range(chats))
    there = ", ".join(f'"{speaker(n)}" = {roles}' for n in range(chats))
    return f"""
[channels.telegram]
base_url = "{telegram.address}"
poll_s = 5
answer_s = 3
busy = "queue"
users = {{ {here} }}
chats = ["dm", "group"]

[channels.webhook]
url = "{platform.url}"
answer_s = 3
busy = "queue"
users = {{ {there} }}
"""


def room(number: int) -> str:
    """A chat on the webhook's platform."""
    return f"room{number}"


def speaker(number: int) -> str:
    """Who speaks there."""
    return f"u-{room(number)}"


@dataclass(frozen=True, slots=True)
class Ends:
    """A gateway, and all that it speaks with."""

    telegram: Telegram
    platform: Platform
    model: ModelServer
    it: GatewayProcess

    async def up(self) -> None:
        """Wait until it serves, and tell the platform where."""
        await self.it.ready()
        self.platform.hook_url = f"{self.it.url}/hooks/webhook"

    async def kill(self) -> None:
        """kill -9."""
        self.platform.hook_url = ""
        await self.it.kill()


@asynccontextmanager
async def ends(
    directory: Path, chats: int, head: str = "", *, record: bool = True
) -> AsyncIterator[Ends]:
    """All of them; starting the gateway is left to the test."""
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(serve(record=record))
        telegram = await stack.enter_async_context(telegrams.serve())
        platform = await stack.enter_async_context(webhooks.serve(SECRET))
        secrets = {"TELEGRAM_BOT_TOKEN": telegram.token, "HOLDFAST_WEBHOOK_SECRET": SECRET}
        words = head + config(telegram, platform, chats)
        it = await stack.enter_async_context(unstarted(directory, model.base_url, words, **secrets))
        yield Ends(telegram, platform, model, it)


@asynccontextmanager
async def world(directory: Path, chance: Random) -> AsyncIterator[World]:
    """Everybody; starting the gateway is left to the test."""
    async with ends(directory, CHATS, record=False) as all_ends:
        everybody = World(all_ends, chance)
        all_ends.model.otherwise = everybody.answer
        yield everybody
