"""`holdfast config`: every setting, its value and where that comes from."""

import argparse
import json

from holdfast import config as configuration
from holdfast import config_channels
from holdfast.config import Secret


def main(args: argparse.Namespace) -> int:
    """Show the settings, or where their file is."""
    if args.what == "path":  # must work where the file itself is wrong
        print(configuration.process_home() / configuration.FILE)
        return 0
    config = configuration.from_process({})
    rows = [(key, value, origin) for key, value, origin in configuration.shown(config)]
    if args.json:
        shown = {k: {"value": _plain(v), "origin": o} for k, v, o in rows}
        print(json.dumps({"home": str(config.home), "settings": shown}, ensure_ascii=False))
        return 0
    print(f"home  {config.home}")
    for key, value, origin in rows:
        why = config.model_reason if key == "model" and origin == "default" else origin
        text = config_channels.toml(_plain(value))
        print(f"{key:25} {text:34}  # {why}")
    return 0


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Secret) else value
