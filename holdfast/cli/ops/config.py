"""`holdfast config`: list every setting, its value and its origin."""

import argparse
import json

import anyio

from holdfast.app.resolve import resolve
from holdfast.config import process as configuration
from holdfast.config import settings, tables
from holdfast.config.secrets import Secret


def main(args: argparse.Namespace) -> int:
    """Print the settings, or the path of their file."""
    if args.what == "path":  # must work even if the file is wrong
        print(configuration.process_home() / settings.FILE)
        return 0
    config = anyio.run(resolve, configuration.from_process({}))
    rows = [(key, value, origin) for key, value, origin in settings.shown(config)]
    if args.json:
        shown = {k: {"value": _plain(v), "origin": o} for k, v, o in rows}
        print(json.dumps({"home": str(config.home), "settings": shown}, ensure_ascii=False))
        return 0
    print(f"home  {config.home}")
    for key, value, origin in rows:
        why = config.model_reason if key == "model" and origin == "default" else origin
        text = tables.toml(_plain(value))
        print(f"{key:25} {text:34}  # {why}")
    return 0


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Secret) else value
