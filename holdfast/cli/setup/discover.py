"""Find what there is to talk to: servers with keys, and servers on this machine.

Servers that need a key are asked for their models only once they are chosen: a key is used for what
its owner has asked for.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

import anyio
import msgspec

from holdfast.app.models import build_provider
from holdfast.config import vendors
from holdfast.config.models import ModelTable
from holdfast.config.settings import Config
from holdfast.config.vendors import OPENAI, Vendor
from holdfast.core.types import Value
from holdfast.errors import HoldfastError
from holdfast.host.local_models import LocalServer, talking

LIST_S = 5.0  # for the models of the one that was chosen


class FoundServer(Value):
    """A server that may have a model for us."""

    name: str
    base_url: str
    why: str  # we think so
    models: tuple[str, ...] = ()  # that it is known to have
    model: str = ""  # the one that is set for it, or that it usually is
    keyless: bool = False  # it answers without a key
    provider: str = OPENAI.name

    @property
    def at(self) -> dict[str, str]:
        """The settings that lead to it, where its vendor's own address does not."""
        vendor = vendors.BY_NAME[self.provider]
        elsewhere = _address(self.base_url) != _address(vendor.base_url)
        return {f"{self.section}.base_url": self.base_url} if elsewhere else {}

    @property
    def section(self) -> str:
        """The section of its settings."""
        return OPENAI.name if self.provider == OPENAI.name else f"models.{self.provider}"

    def settings(self, config: Config) -> dict[str, str]:
        """Return the settings that lead to it, where they are not set already."""
        if self.provider != OPENAI.name:
            return self.at
        same = self.base_url == config.openai.base_url
        return {} if same else {"openai.base_url": self.base_url}


def configured(config: Config, found: Sequence[Vendor]) -> list[FoundServer]:
    """Return those that the settings, or a vendor's key in the environment, name."""
    base_url, of_key = config.origins["openai.base_url"], config.origins["openai.api_key"]
    places: list[FoundServer] = []
    if base_url != "default":
        why = f"set by {base_url.removeprefix('environment ')}"
        places.append(place(config.openai.base_url, why, _set_model(config)))
    elif of_key != "default":
        places.append(place(OPENAI.base_url, _key_in(of_key), _set_model(config) or OPENAI.model))
    for vendor in found:
        if vendor.base_url != OPENAI.base_url or base_url == str(config.file):
            places.append(_of_vendor(vendor, config))
    return distinct(places)


def _of_vendor(vendor: Vendor, config: Config) -> FoundServer:
    keys = config.vendor_keys
    variable = next((name for name in vendor.variables if name in keys), vendor.variable)
    why = _key_in(variable)
    return FoundServer(vendor.label, vendor.base_url, why, model=vendor.model, provider=vendor.name)


def _key_in(origin: str) -> str:
    return f"key in {origin.removeprefix('environment ')}"


def _set_model(config: Config) -> str:
    is_set = config.origins["model"] != "default" and config.provider == OPENAI.name
    return config.model_name if is_set else ""


def place(base_url: str, why: str, model: str = "") -> FoundServer:
    """Return the server at that address, by the name that people know."""
    vendor, parts = vendors.at(base_url), urlsplit(base_url)
    name = vendor.label if vendor is not None else parts.netloc
    return FoundServer(name, base_url, why, model=model)


def named(base_url: str, why: str) -> FoundServer:
    """Return the server at an address that the user gave: a vendor's, if it is a vendor's."""
    found, vendor = place(base_url, why), vendors.at(base_url)
    return msgspec.structs.replace(found, provider=vendor.name) if vendor is not None else found


def here(found: Sequence[LocalServer]) -> list[FoundServer]:
    """Return the servers on this machine."""
    why = "on this machine"
    return [
        FoundServer(
            one.vendor.label,
            one.base_url,
            why,
            one.models,
            keyless=True,
            provider=one.vendor.name,
        )
        for one in found
    ]


def distinct(places: Sequence[FoundServer]) -> list[FoundServer]:
    """Return each server once, as it was named first, with what is known of it by either name."""
    known: dict[str, FoundServer] = {}
    for one in places:
        first = known.setdefault(_address(one.base_url), one)
        if first.models != one.models and not first.models:
            known[_address(one.base_url)] = msgspec.structs.replace(
                first, name=one.name, models=one.models, keyless=one.keyless
            )
    return list(known.values())


def _address(base_url: str) -> str:
    return base_url.strip().rstrip("/").replace("://localhost", "://127.0.0.1")


async def list_models(table: ModelTable, say: Callable[[str], None]) -> tuple[str, ...]:
    """Return the models that the server lists; none if it does not."""
    provider = build_provider(table, list_s=LIST_S)
    names: list[str] = []
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_tell_slow, say, f"… asking {table.base_url} which models it has")
            with suppress(HoldfastError):
                names = [one.name for one in await provider.list_models()]
            tasks.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await provider.aclose()
    return talking(names)


async def _tell_slow(say: Callable[[str], None], line: str) -> None:
    await anyio.sleep(1.0)
    say(line)
