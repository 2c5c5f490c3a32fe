"""`holdfast setup` on a terminal, step by step: provider, key, model, one call.

A wrong answer is told with the reason and asked for again; `b` goes back a step. A key is read
without being shown. Nothing is written here: whoever leaves in the middle leaves nothing behind.
"""

import re
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

import anyio

from holdfast.app.models import build_provider
from holdfast.cli.exits import Code, Exit
from holdfast.cli.setup import discover, try_model
from holdfast.cli.setup.discover import FoundServer
from holdfast.config import process as configuration
from holdfast.config.models import ModelTable
from holdfast.config.settings import Config
from holdfast.config.vendors import VENDORS
from holdfast.core.text.escape import reveal
from holdfast.core.types import Value
from holdfast.errors import HoldfastError, Misconfigured, Rejected
from holdfast.host.local_models import talking

KEPT = "nothing was saved"
SHOWN = 20  # models in the list
ANOTHER = "another server"
NEEDS_KEY = "needs a key"
NOT_A_KEY = "That is no key: a key is one word of at least 8 visible characters. Copy it again."
NOT_LISTED = "{name} is not in the server's list. Use it all the same? [y/N] "
NO_SUCH_NUMBER = "There is no {answer}. Type a number from 1 to {last}, or a name."
NO_SUCH_MODEL = "No model there has {answer} in its name."
AFTER_FAILURE = "t try again · k another key · m another model · p another provider · q leave: "
_KEY = re.compile(r"[\x21-\x7e]{8,}")
_BACK = "b"
_LEAVE = "q"


class GuidedChoice(Value):
    """What was chosen, and how long the model took to answer."""

    config: Config
    server: FoundServer
    seconds: float
    save_key: bool


class GuideStep(Enum):
    """The steps, in order."""

    PROVIDER = auto()
    KEY = auto()
    MODEL = auto()
    TRIAL = auto()


class Guide:
    """One walk through the steps."""

    def __init__(self, config: Config, found: Sequence[FoundServer]) -> None:
        self._config = config
        self._found = found
        self._server: FoundServer | None = None
        self._key = ""  # that was pasted
        self._other_key = False  # the one that there is was refused
        self._model = ""
        self._seconds = 0.0

    def walk(self) -> GuidedChoice:
        """Ask until a model has answered. Raises `Exit` if the user leaves."""
        step = GuideStep.PROVIDER
        steps: dict[GuideStep, Callable[[], GuideStep | None]] = {
            GuideStep.PROVIDER: self._choose_provider,
            GuideStep.KEY: self._ask_key,
            GuideStep.MODEL: self._choose_model,
            GuideStep.TRIAL: self._try,
        }
        while (next_step := steps[step]()) is not None:
            step = next_step
        return GuidedChoice(self._chosen(), self._at, self._seconds, bool(self._key))

    @property
    def _at(self) -> FoundServer:
        assert self._server is not None  # chosen in the first step
        return self._server

    def _choose_provider(self) -> GuideStep:
        places = [*self._found, *_others(self._config, self._found)]
        width = max(len(one.name) for one in places)
        _say("Which provider?")
        for number, one in enumerate(places, 1):
            _say(f"  {number:2}  {one.name:{width}}  {one.base_url}  ({one.why})")
        _say(f"  {len(places) + 1:2}  {ANOTHER:{width}}  you type its address")
        usual = " [1]" if self._found else ""
        while True:
            answer = _ask(f"Number or name{usual}, q leaves: ")
            if not answer and self._found:
                answer = "1"
            named = [one for one in places if answer.lower() in (one.name.lower(), one.provider)]
            if answer.isascii() and answer.isdigit() and 0 < int(answer) <= len(places):
                named = [places[int(answer) - 1]]
            elif answer in (str(len(places) + 1), ANOTHER):
                named = [_by_address()]
            if named:
                self._server, self._key, self._model = named[0], "", ""
                self._other_key = False
                return GuideStep.KEY
            _say(NO_SUCH_NUMBER.format(answer=reveal(answer) or "empty line", last=len(places) + 1))

    def _ask_key(self) -> GuideStep:
        """Ask for a key, if the server needs one and there is none."""
        table = self._table()
        known = table.keys or self._at.keyless or (table.is_vendors and not table.vendor.variables)
        if known and not self._other_key:
            return GuideStep.MODEL
        optional = not table.lacks_key
        what = "Paste its key (not shown)" + (", or Enter for none" if optional else "")
        while True:
            key = _hidden(f"{what}; b goes back: ")
            if key == _BACK:
                return GuideStep.PROVIDER
            if (optional and not key) or _KEY.fullmatch(key):
                self._key, self._other_key = key, False
                return GuideStep.MODEL
            _say(NOT_A_KEY)

    def _choose_model(self) -> GuideStep:
        _say(f"Asking {self._at.name} for its models …")
        try:
            names = anyio.run(_listed, self._table())
        except Rejected as refused:
            _say(f"✗ {refused}")
            return self._back_to_key()
        except HoldfastError as error:
            _say(f"✗ {error}")
            names = ()
        usual = self._usual(names)
        _show(names, usual)
        hint = f" [{reveal(usual)}]" if usual else ""
        while True:
            answer = _ask(f"Number, name or a part of it{hint}, b goes back: ")
            if answer == _BACK:
                return GuideStep.PROVIDER
            if found := self._model_named(answer or usual, names):
                self._model = found
                return GuideStep.TRIAL

    def _usual(self, names: Sequence[str]) -> str:
        """Return the model that Enter takes; empty: none is better than the others."""
        wanted = self._at.model or self._table().vendor.model
        if wanted in names or (wanted and not names):
            return wanted
        return names[0] if len(names) == 1 else ""

    def _model_named(self, answer: str, names: Sequence[str]) -> str:
        """Return the model that an answer names; empty, and the reason is told: none."""
        if answer.isascii() and answer.isdigit():
            if 0 < int(answer) <= min(len(names), SHOWN):
                return names[int(answer) - 1]
            _say(NO_SUCH_NUMBER.format(answer=answer, last=min(len(names), SHOWN)))
            return ""
        bare = answer if answer in names else answer.removeprefix(f"{self._at.provider}/")
        if bare in names or (bare and not names):
            return bare
        fitting = [name for name in names if bare and bare.lower() in name.lower()]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            _say("Several fit:")
            for name in fitting[:SHOWN]:
                _say(f"      {reveal(name)}")
        elif bare and _ask(NOT_LISTED.format(name=reveal(bare))).lower() in ("y", "yes"):
            return bare
        else:
            _say(NO_SUCH_MODEL.format(answer=reveal(bare) or "nothing"))
        return ""

    def _try(self) -> GuideStep | None:
        chosen = self._chosen()
        _say(f"Trying {reveal(chosen.model)} …")
        try:
            self._seconds = try_model.call(chosen, _say).seconds
            return None
        except Exit as refused:
            _say(f"✗ {refused}")
        ways = {
            "t": GuideStep.TRIAL,
            "k": GuideStep.KEY,
            "m": GuideStep.MODEL,
            "p": GuideStep.PROVIDER,
        }
        while True:
            answer = _ask(AFTER_FAILURE).lower()
            if answer in ways:
                return self._back_to_key() if answer == "k" else ways[answer]
            _say(f"Type one of {', '.join(ways)} or {_LEAVE}.")

    def _back_to_key(self) -> GuideStep:
        self._key, self._other_key = "", True
        return GuideStep.KEY

    def _table(self) -> ModelTable:
        table = self._chosen("any").table
        assert table is not None  # only `offline` has none
        return table

    def _chosen(self, model: str = "") -> Config:
        """Return the configuration with what was chosen so far."""
        server = self._at
        at = server.settings(self._config)
        if self._key:
            at[f"{server.section}.api_key"] = self._key
        return configuration.peek({"model": f"{server.provider}/{model or self._model}", **at})


def _others(config: Config, found: Sequence[FoundServer]) -> Iterator[FoundServer]:
    """Yield the vendors that need a key and were not found."""
    known = {one.provider for one in found} | {"responses"}
    for vendor in VENDORS:
        if vendor.variables and vendor.name not in known:
            table = config.models.get(vendor.name)
            where = table.base_url if table is not None and table.in_file else vendor.base_url
            yield FoundServer(
                *(vendor.label, where, NEEDS_KEY), model=vendor.model, provider=vendor.name
            )


def _by_address() -> FoundServer:
    while True:
        address = _ask("Its address, like http://127.0.0.1:8000/v1: ")
        try:
            found = discover.named(address, "you named it")
            table = configuration.peek({"model": "openai/any", "openai.base_url": address}).table
            assert table is not None
            build_provider(table)
            return found
        except (Exit, Misconfigured, ValueError) as wrong:
            _say(f"That is no address: {wrong}")


async def _listed(table: ModelTable) -> tuple[str, ...]:
    provider = build_provider(table, list_s=discover.LIST_S)
    try:
        return talking([one.name for one in await provider.list_models()])
    finally:
        with anyio.CancelScope(shield=True):
            await provider.aclose()


def _show(names: Sequence[str], usual: str) -> None:
    for number, name in enumerate(names[:SHOWN], 1):
        _say(f"  {number:2} {'*' if name == usual else ' '} {reveal(name)}")
    if len(names) > SHOWN:
        _say(f"       and {len(names) - SHOWN} more: type a part of a name")
    if usual and usual not in names[:SHOWN]:
        _say(f"     * {reveal(usual)}")


def _ask(prompt: str) -> str:
    """Return the next line of the user; `q` leaves."""
    print(prompt, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        _say("")
    if not line or line.strip() == _LEAVE:
        raise Exit(Code.FAILED, KEPT)
    return line.strip()


def _hidden(prompt: str) -> str:
    """Return a line that is not shown while it is typed."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    try:
        termios.tcsetattr(fd, termios.TCSAFLUSH, silent)
        # Only now: it drops what was typed before, and a paste may follow the prompt at once.
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        _say("")
    if not line or line.strip() == _LEAVE:
        raise Exit(Code.FAILED, KEPT)
    return line.strip()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
