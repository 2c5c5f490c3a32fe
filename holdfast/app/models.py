"""Build the models from the configuration.

A provider's module is imported when one of its models is first asked. What a model can read at once
is asked of its server then too, in the background, unless it is known.
"""

import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from importlib import import_module
from typing import cast

import anyio
from msgspec.structs import replace

from holdfast.app.resolve import resolve
from holdfast.config import program
from holdfast.config.models import NO_MODEL, ModelTable
from holdfast.config.settings import Config
from holdfast.errors import HoldfastError, Misconfigured, Rejected
from holdfast.models.model import (
    Candidate,
    ListedModel,
    Model,
    Models,
    Piece,
    Price,
    RemoteModel,
    Request,
)
from holdfast.models.peer import Settings
from holdfast.models.transport import Server

log = logging.getLogger(__name__)

_CLASSES = {
    "openai": "OpenAIModel",
    "responses": "ResponsesModel",
    "anthropic": "AnthropicModel",
    "gemini": "GeminiModel",
    "ollama": "OllamaModel",
}
_MODEL = re.compile(r"[^\s\x00-\x1f]{1,200}")
_KEPT = 1_000  # candidates in memory; their names come from requests


class ModelBuilder:
    """Builds the models of a configuration, and closes them."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._providers: dict[tuple[str, int], _Deferred] = {}
        self._own: dict[str, Model] = {}
        self._found: dict[str, Candidate] = {}
        self._windows: dict[str, int] = {}
        self._prices: dict[str, Price] = {}
        self._to_list: list[str] = []  # names of tables
        self._wake: anyio.Event | None = None  # set when there is one to list

    @classmethod
    async def create(cls, config: Config) -> "ModelBuilder":
        """Create a builder for the configured model, or for the one that is found."""
        return cls(await resolve(config))

    def build(self) -> Models:
        """Build the configured models. Raises `Misconfigured` if one cannot be used."""
        config = self._config
        main = self.candidate(config.model)
        if isinstance(main.model, _Deferred):
            main.model.build()  # what is wrong with it is said at the start
        named = (config.model, *config.fallbacks, config.small_model)
        in_use = {name.partition("/")[0] for name in named}
        others = (
            t
            for t in config.models.values()
            if t.model and not t.lacks_key and t.name not in in_use
        )
        return Models(
            main,
            tuple(map(self.candidate, config.fallbacks)),
            (*(self.candidate(f"{table.name}/{table.model}") for table in others), *self._pulled()),
            self.candidate(config.small_model) if config.small_model else None,
            config.model_reason,
            self.find,
        )

    def candidate(self, name: str) -> Candidate:
        """Return the model of that name, which the configuration has."""
        table = self._config.models.get(name.partition("/")[0])
        if table is None:
            return self._without_table(name)
        if table.lacks_key:
            raise Misconfigured(
                f"the model is {name} and there is no key for {table.base_url}", _where(table)
            )
        return self._of_table(name, table)

    def find(self, name: str) -> Candidate | None:
        """Return a model of a configured server; None: there is none."""
        if (known := self._found.get(name)) is not None:
            return known
        if name == NO_MODEL:  # runs the user's own commands
            return self._without_table(name)
        provider, _, model = name.partition("/")
        table = self._config.models.get(provider)
        if table is None or table.lacks_key or not _MODEL.fullmatch(model):
            return None
        if len(self._found) >= _KEPT:
            self._found.clear()
        found = self._found[name] = self._of_table(name, table)
        return found

    def _of_table(self, name: str, table: ModelTable) -> Candidate:
        model = name.partition("/")[2]
        window = self._windows.get(name) or table.window(model)
        price = table.price(model)
        price = price if price.known else self._prices.get(name, price)
        one, *spares = (
            Candidate(name, self._provider(table, at), window, price=price, key=at + 1)
            for at in range(max(1, len(table.keys)))
        )
        return replace(one, spares=tuple(spares))

    def _provider(self, table: ModelTable, at: int) -> "_Deferred":
        key = (table.name, at)
        if key not in self._providers:
            self._providers[key] = _Deferred(table, at, self._want_list)
        return self._providers[key]

    def _without_table(self, name: str) -> Candidate:
        provider = name.partition("/")[0]
        if provider == "builtin":
            return self._builtin()
        if provider not in self._own:
            self._own[provider] = _build_own(provider)
        return Candidate(name, self._own[provider], price=Price(free=True))

    def _pulled(self) -> Iterator[Candidate]:
        """Return the built-in model if it is here."""
        if (self._config.home / "models").is_dir():
            from holdfast.models.builtin.parts import ModelFolder  # noqa: PLC0415  start-up budget

            if ModelFolder(self._config.home).is_complete:
                yield self._builtin()

    def _builtin(self) -> Candidate:
        """Return the built-in model, with its own prompt and tools."""
        from holdfast.models.builtin import builtin, parts, protocol  # noqa: PLC0415  only if it is used

        if parts.NAME not in self._own:
            self._own[parts.NAME] = builtin.create(
                self._config.home, self._config.builtin.idle_s, self._config.builtin.threads
            )
        return Candidate(
            parts.ID,
            self._own[parts.NAME],
            protocol.WINDOW,
            profile=protocol.PROFILE,
            price=Price(free=True),
        )

    def _want_list(self, table: ModelTable, model: str) -> None:
        """Have the server asked for its models, unless it is known what this one can read."""
        fixed = table.is_vendors and table.vendor.variables and table.window(model)
        fixed = fixed and table.price(model).known
        if not (table.written.context_tokens or fixed):
            self._to_list.append(table.name)
            if self._wake is not None:
                self._wake.set()

    async def learn(self) -> None:
        """Ask servers that are used for the windows of their models, until cancelled."""
        while True:
            self._wake = anyio.Event()
            while self._to_list:
                await self._learn(self._to_list.pop())
            await self._wake.wait()

    async def _learn(self, name: str) -> None:
        try:
            listed = await self._providers[name, 0].list_models()
        except HoldfastError as error:
            log.info("no list of models", extra={"provider": name, "why": str(error)})
            return
        self._windows |= {f"{name}/{one.name}": one.window for one in listed if one.window}
        self._prices |= {f"{name}/{one.name}": one.price for one in listed if one.price.known}
        self._found.clear()

    async def aclose(self) -> None:
        """Close all connections."""
        for model in (*self._providers.values(), *self._own.values()):
            await model.aclose()


def build_model(config: Config) -> Model:
    """Build the configured model alone."""
    model = ModelBuilder(config).build().main.model
    return model.build() if isinstance(model, _Deferred) else model


class _Deferred:
    """A provider that is imported and built when it is first asked."""

    def __init__(
        self, table: ModelTable, at: int, asked: Callable[[ModelTable, str], None]
    ) -> None:
        self.name = table.name
        self._table = table
        self._at = at
        self._asked = asked
        self._model: RemoteModel | None = None
        self._is_asked = False

    def build(self) -> RemoteModel:
        """Return the provider."""
        if self._model is None:
            self._model = build_provider(self._table, self._at)
        return self._model

    def stream(self, request: Request) -> AsyncGenerator[Piece, None]:
        """Send the request. Yield pieces as they arrive, then the answer."""
        if not self._is_asked and self._at == 0:
            self._is_asked = True
            self._asked(self._table, request.model)
        try:
            return self.build().stream(request)
        except Misconfigured as error:
            raise Rejected(f"{error}: {error.hint}") from None

    async def list_models(self) -> list[ListedModel]:
        """Return the server's models, within a second."""
        return await self.build().list_models()

    async def check(self) -> str:
        """Ask for the list of models, within a second."""
        return await self.build().check()

    async def aclose(self) -> None:
        """Close the connections, if there are any."""
        if self._model is not None:
            await self._model.aclose()


def build_provider(table: ModelTable, at: int = 0, list_s: float = 1.0) -> RemoteModel:
    """Build the provider of a table with its key number `at`."""
    wire = table.vendor.wire
    module = import_module(f"holdfast.models.{wire}")  # only those that are used: start-up budget
    server = Server(
        table.name,
        table.base_url,
        table.keys[at].reveal() if table.keys else "",
        Settings(table.key_setting, table.url_setting),
        table.written.stall_s,
        list_s=list_s,
    )
    provider = getattr(module, _CLASSES[wire])
    if wire == "ollama":
        return cast(RemoteModel, provider(server, num_ctx=table.window("")))
    return cast(RemoteModel, provider(server))


def _build_own(provider: str) -> Model:
    """Build a provider that needs no server."""
    if provider == "scripted":
        from holdfast.models.scripted import Scripted  # noqa: PLC0415  only if used: start-up budget

        return Scripted()
    from holdfast.models.offline import Offline  # noqa: PLC0415  only if used: start-up budget

    return Offline(program.typed())


def _where(table: ModelTable) -> str:
    if table.name == "openai":
        return "set OPENAI_API_KEY, or OPENAI_BASE_URL to a server that needs none"
    return f"set {table.vendor.variable}, or write api_key under [{table.section}]"
