"""What `holdfast models list` shows: every model that can be used, and where it comes from."""

from collections.abc import Iterator

from holdfast.app.models import build_provider
from holdfast.cli.exits import Code, Exit
from holdfast.config.models import ModelTable, without_table
from holdfast.config.settings import Config
from holdfast.config.vendors import BY_NAME
from holdfast.core.types import Value
from holdfast.errors import HoldfastError
from holdfast.host import local_models
from holdfast.models.builtin.parts import ID, ModelFolder
from holdfast.models.builtin.protocol import WINDOW
from holdfast.models.model import Price

IN_USE = "in use"
_LIST_S = 5.0


class ListedRow(Value):
    """A model that can be used."""

    name: str
    provider: str
    window: int  # tokens that it reads at once; 0: not known
    usd_per_m_input: float  # 0: not known, or free
    usd_per_m_output: float
    free: bool
    origin: str
    role: str = ""  # in use, fallback or small

    @property
    def price(self) -> str:
        """The price for people: of a million tokens, read and written."""
        if self.free:
            return "free"
        if not (self.usd_per_m_input or self.usd_per_m_output):
            return "?"
        return f"${self.usd_per_m_input:g} / ${self.usd_per_m_output:g}"


async def rows(config: Config) -> list[ListedRow]:
    """List the configured models, those on this machine, and the built-in one if it is here."""
    found = {row.name: row for row in _configured(config)}
    if config.probe_local:
        for server in await local_models.look(config.probe_ports):
            vendor = server.vendor
            table = ModelTable(vendor.name, vendor, server.base_url, (), "", server.base_url)
            for model in server.models:
                row = _row(f"{table.name}/{model}", table)
                found.setdefault(row.name, row)
    return list(found.values())


def _configured(config: Config) -> Iterator[ListedRow]:
    roles = {config.model: IN_USE}
    roles |= {name: "fallback" for name in config.fallbacks if name not in roles}
    if config.small_model:
        roles.setdefault(config.small_model, "small")
    tables = config.models.values()
    known = dict.fromkeys(f"{t.name}/{t.model}" for t in tables if t.model and not t.lacks_key)
    for name in {**roles, **known}:
        table = config.models.get(name.partition("/")[0])
        yield _row(name, table, roles.get(name, "")) if table else _own(name, roles[name])
    if ID not in roles and ModelFolder(config.home).is_complete:
        yield _own(ID, "")


def _own(name: str, role: str) -> ListedRow:
    """A model that needs no server."""
    provider, window = name.partition("/")[0], WINDOW if name == ID else 0
    return ListedRow(name, provider, window, 0.0, 0.0, free=True, origin="this program", role=role)


def _row(name: str, table: ModelTable, role: str = "", window: int = 0) -> ListedRow:
    model = name.partition("/")[2]
    price: Price = table.price(model)
    return ListedRow(
        name,
        table.vendor.name,
        window or table.window(model),
        price.input,
        price.output,
        price.free,
        _origin(table),
        role,
    )


def _origin(table: ModelTable) -> str:
    if table.lacks_key:
        return f"no key: set {table.vendor.variable}"
    named = table.origin if table.origin not in ("default", table.base_url) else ""
    return f"{table.base_url} ({named})" if named else table.base_url


async def of_server(config: Config, name: str) -> list[ListedRow]:
    """List the models that the server of one table has."""
    table = config.models.get(name)
    if table is None and name in BY_NAME:
        table = without_table(name, "default", config.vendor_keys)
    if table is None:
        known = ", ".join(config.models) or "none"
        raise Exit(Code.USAGE, f"no server is configured as {name}; configured are {known}")
    if table.lacks_key:
        raise Exit(Code.CONFIG, f"there is no key for {name}: set {table.vendor.variable}")
    provider = build_provider(table, list_s=_LIST_S)
    try:
        listed = await provider.list_models()
    except HoldfastError as error:
        raise Exit(Code.TRY_AGAIN, f"{error}; see whether it runs, or try again later") from None
    finally:
        await provider.aclose()
    in_use = {config.model: IN_USE}
    names = {f"{name}/{one.name}": one.window for one in listed}
    return [_row(whole, table, in_use.get(whole, ""), size) for whole, size in names.items()]
