"""Which model is used, and why: what the configuration leaves open is found on this machine.

The first hit wins: a flag or the configuration, a key in the environment (both in config/load.py),
a model server on this machine, the built-in model if it is pulled, `offline`.
"""

from dataclasses import replace
from types import MappingProxyType

from holdfast.config.models import ModelTable
from holdfast.config.settings import Config


async def resolve(config: Config) -> Config:
    """Return the configuration with a model, and the line that says why it is this one."""
    if not config.is_open:
        return config
    found = await _local(config) if config.probe_local else None
    return found or _builtin(config) or config


def _builtin(config: Config) -> Config | None:
    """Return the configuration with the built-in model, if it is here."""
    from holdfast.models.builtin.parts import ID, ModelFolder  # noqa: PLC0415  only if nothing is configured

    if not ModelFolder(config.home).is_complete:
        return None
    reason = "no model is configured, and the small built-in model is here"
    return replace(config, model=ID, model_reason=reason)


async def _local(config: Config) -> Config | None:
    """Return the configuration with the first model that a server on this machine has."""
    from holdfast.host import local_models  # noqa: PLC0415  only if nothing is configured

    for server in await local_models.look(config.probe_ports):
        if server.models:
            vendor, model = server.vendor, server.models[0]
            table = ModelTable(vendor.name, vendor, server.base_url, (), model, "on this machine")
            return replace(
                config,
                model=f"{table.name}/{model}",
                model_reason=f"no model is configured, and {vendor.label} on this machine "
                f"({server.base_url}) has it",
                models=MappingProxyType({**config.models, table.name: table}),
            )
    return None
