"""Load the configuration: read once, check everything, freeze it.

A value comes from a flag, else the environment, else `config.toml` in the home, else its default;
its origin is kept beside it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from holdfast.config import channels as config_channels
from holdfast.config import program, vendors
from holdfast.config.home import check_home, find_home, user_config, user_home
from holdfast.config.settings import (
    DEFAULT_OPENAI_MODEL,
    FILE,
    PROVIDERS,
    SECTIONS,
    SETTINGS,
    Config,
)
from holdfast.config.toml import Given, document, from_file, read
from holdfast.config.vendors import VENDORS
from holdfast.errors import Misconfigured

# What the environment may set, and the key it sets.
ENVIRONMENT = MappingProxyType(
    {
        "HOLDFAST_MODEL": "model",
        "OPENAI_BASE_URL": "openai.base_url",
        "OPENAI_API_KEY": "openai.api_key",
        "HOLDFAST_API_KEY": "gateway.api_key",
        "HOLDFAST_PORT": "gateway.port",
    }
)

# With those that hold the key of a vendor, where that vendor's server is the chosen one.
GIVING = MappingProxyType({**ENVIRONMENT, **{v.variable: "openai.api_key" for v in VENDORS}})


def load(environ: Mapping[str, str], overrides: Mapping[str, str]) -> Config:
    """Read and check everything. Raises `Misconfigured` at the first thing that is wrong."""
    home = find_home(environ)
    check_home(home)
    written = document(home / FILE)
    tables = written.pop(config_channels.SECTION, {})
    given = from_file(home / FILE, written)
    for name, key in ENVIRONMENT.items():
        value = environ.get(name)
        if value or (value is not None and key == "gateway.api_key"):
            given[key] = Given(value, f"environment {name}", name)
    for key, value in overrides.items():
        name = key.rpartition(".")[2].replace("_", "-")
        given[key] = Given(value, "flag", f"--{name}")
    given |= _vendor_key(environ, given)
    values: dict[str, Any] = {
        k: read(k, given[k]) if k in given else s.default for k, s in SETTINGS.items()
    }
    origins = {k: given[k].origin if k in given else "default" for k in SETTINGS}
    model, reason = _choose_model(given, values)
    channels = config_channels.read(home / FILE, tables, environ, plugins=bool(values["plugins"]))
    origins |= {key: origin for key, _, origin in config_channels.shown(channels)}
    return Config(
        home=home,
        user_home=user_home(environ),
        user_config=user_config(environ),
        model=model,
        plugins=values["plugins"],
        **{name: kind(**_section(name, values)) for name, kind in SECTIONS.items()},
        channels=channels,
        model_reason=reason,
        origins=MappingProxyType(origins),
    )


def _vendor_key(environ: Mapping[str, str], given: Mapping[str, Given]) -> dict[str, Given]:
    """At a vendor's own address, the key that goes by the vendor's name; OpenAI's is not for it."""
    url = given.get("openai.base_url")
    vendor = vendors.at(str(url.value)) if url is not None else None
    if vendor is None or not (value := environ.get(vendor.variable)):
        return {}
    origin = f"environment {vendor.variable}"
    return {"openai.api_key": Given(value, origin, vendor.variable)}


def _section(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    prefix = name + "."
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _choose_model(given: Mapping[str, Given], values: Mapping[str, Any]) -> tuple[str, str]:
    """Which model, and the line that says why. The first hit wins."""
    if "model" in given:
        return _check_model(given["model"], values["model"]), f"set by {given['model'].origin}"
    if "openai.api_key" in given:
        model = f"openai/{DEFAULT_OPENAI_MODEL}"
        return model, f"there is a key in {given['openai.api_key'].origin} and no model is named"
    if "openai.base_url" in given:
        origin = given["openai.base_url"].origin
        return "openai/default", (
            f'there is a server in {origin} and no model is named, so it is asked for "default"'
        )
    return "offline", f"no model is configured: {program.typed()} setup finds what is there"


def _check_model(given: Given, model: str) -> str:
    provider, _, name = model.partition("/")
    known = ", ".join(PROVIDERS)
    if provider not in PROVIDERS:
        meant = f"openai/{model}" if "/" not in model else f"openai/{name}"
        raise Misconfigured(
            f'{given.written} is "{model}" and there is no provider "{provider}"',
            f"known are {known}; write provider/name, like {meant}",
        )
    if not name and provider != "offline":
        raise Misconfigured(
            f'{given.written} is "{model}" and names no model',
            f"write provider/name, like {provider}/{DEFAULT_OPENAI_MODEL}",
        )
    return model
