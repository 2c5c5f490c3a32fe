"""A model whose every answer waits for its cue, and a tool that does: where a run stands is known.

An answer has two gates: before its first token, and before its end. A turn that calls asks for
the tool `hold`, which works until its own gate opens. Whoever waits for something to happen on
this stage, or at the desk in front of it, waits for `News`.
"""

from collections.abc import Callable
from random import Random

import anyio
import msgspec

from holdfast.core.run.call import OnCrash
from holdfast.tools.tool import Context, Done, Effect, Outcome, Tool, free
from tests.fakes import model_server as says
from tests.fakes.model_server import Ask, Reply


class News:
    """Something has happened, whatever it was."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def tell(self, *_: object) -> None:
        self._event.set()
        self._event = anyio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        """Return when it is."""
        while not true():
            await self._event.wait()


class Turn:
    """One request, and the answer to it."""

    def __init__(self, number: int, calls: bool, tokens: int) -> None:
        self.name = f"turn{number}."
        self.calls = calls
        self.token = f"tok{number}."  # the first of an answer in words
        self.answer = f"{self.token} answer{number}."
        self.first = anyio.Event()
        self.last = anyio.Event()
        self.tool_started = False
        self.tool = anyio.Event()
        self._tokens = tokens

    def open(self) -> None:
        """Let it go to its end."""
        for gate in (self.first, self.tool, self.last):
            gate.set()

    def reply(self) -> Reply:
        if self.calls:
            call = says.call("hold", f'{{"turn": "{self.name}"}}', call_id=f"call_{self.name}")
            ending = (says.finish("tool_calls"), says.usage(7, 1), says.DONE)
            return says.stream(says.Wait(self.first), *call, *ending)
        first, rest = self.token, self.answer.removeprefix(self.token)
        more = [says.token(part) for part in says.split(rest, self._tokens)]
        ending = (says.finish(), says.usage(7, 1 + len(more)), says.DONE)
        held = says.Wait(self.first), says.token(first), says.Wait(self.last)
        return says.stream(*held, *more, *ending)


class Stage:
    """The model's side of one schedule."""

    def __init__(self, chance: Random, news: News, calls: float = 0.4) -> None:
        self.turns: list[Turn] = []
        self.free = False  # no answer waits any more
        self._chance = chance
        self._news = news
        self._calls = calls  # how often it asks for the tool first

    def answer(self, ask: Ask) -> Reply:
        after_tool = ask.messages[-1].role == "tool"
        calls = not self.free and not after_tool and self._chance.random() < self._calls
        turn = Turn(len(self.turns), calls, self._chance.randint(1, 4))
        self.turns.append(turn)
        if self.free:
            turn.open()
        HELD[turn.name] = turn, self._news
        self._news.tell()
        return turn.reply()

    def release(self) -> None:
        """Let everything go to its end, from now on."""
        self.free = True
        for turn in self.turns:
            turn.open()


# By name: a plugin's tool knows nothing else of whoever calls it.
HELD: dict[str, tuple[Turn, News]] = {}


class Hold(msgspec.Struct):
    turn: str


async def hold(context: Context, asked: Hold) -> Outcome:
    """Work until the turn's gate opens; it can be cancelled."""
    turn, news = HELD[asked.turn]
    turn.tool_started = True
    news.tell()
    await turn.tool.wait()
    return Done(f"held for {asked.turn}")


TOOLS = (
    Tool("hold", "Hold.", Hold, Effect.READ, OnCrash.REPEAT, 600, hold, lambda h: h.turn, free),
)
