"""Load the configuration: read once, check everything, freeze it.

A value comes from a flag, else the environment, else `config.toml` in the home, else its default;
its origin is kept beside it.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from holdfast.config import channels as config_channels
from holdfast.config import models as config_models
from holdfast.config import program, vendors
from holdfast.config.home import check_home, find_home, user_config, user_home
from holdfast.config.models import WITHOUT_TABLE, ModelTable, WrittenTable
from holdfast.config.secrets import Secret
from holdfast.config.settings import FILE, SECTIONS, SETTINGS, Config
from holdfast.config.toml import Given, document, from_file, read
from holdfast.config.vendors import BY_NAME, OPENAI
from holdfast.errors import Misconfigured
from holdfast.models import windows

# What the environment may set, and the key it sets.
ENVIRONMENT = MappingProxyType(
    {
        "HOLDFAST_MODEL": "model",
        "HOLDFAST_PROBE_LOCAL": "probe_local",
        "OPENAI_BASE_URL": "openai.base_url",
        "OPENAI_API_KEY": "openai.api_key",
        "HOLDFAST_API_KEY": "gateway.api_key",
        "HOLDFAST_PORT": "gateway.port",
    }
)

_FOR_TESTS = "scripted"  # a provider that is not offered to people


def load(environ: Mapping[str, str], overrides: Mapping[str, str]) -> Config:
    """Read and check everything. Raises `Misconfigured` at the first thing that is wrong."""
    home = find_home(environ)
    check_home(home)
    path = home / FILE
    written = document(path)
    channel_tables = written.pop(config_channels.SECTION, {})
    model_tables = _with_flags(written.pop(config_models.SECTION, {}), overrides)
    raw = config_models.read(path, model_tables)
    given = from_file(path, written)
    given |= _openai_table(path, raw.get(OPENAI.name, {}), given)
    given |= _from_environment(environ)
    for key, value in overrides.items():
        if key in SETTINGS:
            name = key.rpartition(".")[2].replace("_", "-")
            given[key] = Given(value, "flag", f"--{name}")
    keys = config_models.keys_in(environ)
    given |= _vendor_key(given, keys)
    values: dict[str, Any] = {
        k: read(k, given[k]) if k in given else s.default for k, s in SETTINGS.items()
    }
    origins = {k: given[k].origin if k in given else "default" for k in SETTINGS}
    tables = config_models.build(
        path, raw, keys, _openai(path, raw.get(OPENAI.name, {}), values, given)
    )
    model, reason = _choose_model(given, values, tables)
    known = windows.known(home)
    models = {table.name: replace(table, known=known) for table in tables}
    for name in _named(given, values, models):
        made = config_models.without_table(name, "default", keys)
        models.setdefault(name, replace(made, known=known))
    channels = config_channels.read(path, channel_tables, environ, plugins=bool(values["plugins"]))
    origins |= {key: origin for key, _, origin in config_models.shown(models)}
    origins |= {key: origin for key, _, origin in config_channels.shown(channels)}
    top = {key: value for key, value in values.items() if "." not in key}
    return Config(
        home=home,
        user_home=user_home(environ),
        user_config=user_config(environ),
        **{**top, "model": model},
        **{name: kind(**_section(name, values)) for name, kind in SECTIONS.items()},
        channels=channels,
        models=MappingProxyType(models),
        vendor_keys=MappingProxyType(keys),
        model_reason=reason,
        origins=MappingProxyType(origins),
    )


def _with_flags(tables: object, overrides: Mapping[str, str]) -> object:
    """Return the tables of models with what flags set in them."""
    for key, value in overrides.items():
        section, _, rest = key.partition(".")
        if section == config_models.SECTION and isinstance(tables, dict):
            name, _, inner = rest.rpartition(".")
            tables.setdefault(name, {})[inner] = value
    return tables


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    given: dict[str, Given] = {}
    for name, key in ENVIRONMENT.items():
        value = environ.get(name)
        if value or (value is not None and key == "gateway.api_key"):
            given[key] = Given(value, f"environment {name}", name)
    return given


def _openai_table(
    path: Path, raw: Mapping[str, Any], given: Mapping[str, Given]
) -> dict[str, Given]:
    """Return what `[models.openai]` sets, under the keys of `[openai]`, which mean the same."""
    found: dict[str, Given] = {}
    for name, value in raw.items():
        key = f"{OPENAI.name}.{name}"
        if key not in SETTINGS:
            continue
        if key in given and given[key].value != value:
            raise Misconfigured(
                f"{path}: {key} and {config_models.SECTION}.{key} differ",
                f"keep one of them: [{OPENAI.name}] means [{config_models.SECTION}.{OPENAI.name}]",
            )
        found[key] = Given(value, str(path), f"{path}: {config_models.SECTION}.{key}")
    return found


def _openai(
    path: Path, raw: Mapping[str, Any], values: Mapping[str, Any], given: Mapping[str, Given]
) -> ModelTable:
    """Return the table that `[openai]`, `[models.openai]` and the environment make."""
    url, key = (given.get(f"{OPENAI.name}.{name}") for name in ("base_url", "api_key"))
    section, in_file = _section(OPENAI.name, values), str(path) if raw else ""
    pool = config_models.own_keys(WrittenTable(api_keys=raw.get("api_keys", ())))
    first: Secret | None = section.pop("api_key")
    known = {one.reveal(): one for one in (first, *pool) if one is not None}
    vendor = BY_NAME[raw.get("provider", OPENAI.name)]
    base_url = section.pop("base_url")
    elsewhere = url is not None and base_url.strip().rstrip("/") != vendor.base_url
    by_default = "" if elsewhere and key is None else vendor.model
    return ModelTable(
        name=OPENAI.name,
        vendor=vendor,
        base_url=base_url,
        keys=tuple(known.values()),
        model=raw.get("model", by_default),
        origin=in_file or next((one.origin for one in (key, url) if one is not None), "default"),
        key_origin=key.origin if key is not None else in_file if pool else "",
        written=WrittenTable(
            provider=vendor.name,
            model=raw.get("model", ""),
            usd_per_m_cached=raw.get("usd_per_m_cached", 0.0),
            **section,
        ),
        in_file=frozenset(raw),
    )


def _vendor_key(given: Mapping[str, Given], keys: Mapping[str, Secret]) -> dict[str, Given]:
    """At a vendor's own address, the key that goes by the vendor's name; OpenAI's is not for it."""
    url = given.get("openai.base_url")
    vendor = vendors.at(str(url.value)) if url is not None else None
    variable = next((v for v in vendor.variables if v in keys), "") if vendor is not None else ""
    if not variable:
        return {}
    origin = f"environment {variable}"
    return {"openai.api_key": Given(keys[variable].reveal(), origin, variable)}


def _section(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    prefix = name + "."
    return {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)}


def _choose_model(
    given: Mapping[str, Given], values: Mapping[str, Any], tables: list[ModelTable]
) -> tuple[str, str]:
    """Which model, and the line that says why. The first hit wins."""
    if "model" in given:
        known = [table.name for table in tables]
        return _check_model(given["model"], values["model"], known), (
            f"set by {given['model'].origin}"
        )
    return config_models.choose(tables) or (
        "offline",
        f"no model is configured: {program.typed()} setup finds what is there",
    )


def _named(
    given: Mapping[str, Given], values: Mapping[str, Any], tables: Mapping[str, ModelTable]
) -> list[str]:
    """Check the models that are named, and return those of their vendors that have no table."""
    wanted = [("model", values["model"]), ("small_model", values["small_model"])]
    wanted += [("fallbacks", name) for name in values["fallbacks"]]
    named = [_check_model(given[key], model, tables) for key, model in wanted if model]
    providers = [model.partition("/")[0] for model in named]
    return [name for name in providers if name in BY_NAME and name not in tables]


def _check_model(given: Given, model: str, tables: Collection[str]) -> str:
    """Return the model, or refuse a name that is not NAME/model of a known provider."""
    provider, _, name = model.partition("/")
    known = tuple(dict.fromkeys((*tables, *BY_NAME, *WITHOUT_TABLE)))
    if provider not in (*known, _FOR_TESTS):
        meant = f"{OPENAI.name}/{name or model}"
        raise Misconfigured(
            f'{given.written} is "{model}" and there is no provider "{provider}"',
            f"known are {', '.join(known)}; write provider/name, like {meant}",
        )
    if not name and provider != "offline":
        vendor = BY_NAME.get(provider, OPENAI)
        raise Misconfigured(
            f'{given.written} is "{model}" and names no model',
            f"write provider/name, like {provider}/{vendor.model or OPENAI.model}",
        )
    return model
