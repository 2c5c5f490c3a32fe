"""`holdfast gateway run`: serve until a signal comes."""

import argparse

from holdfast import config as configuration
from holdfast.app import run_gateway
from holdfast.core.lifecycle import Start


def main(args: argparse.Namespace) -> int:
    """Serve."""
    flags = {"gateway.host": args.host, "gateway.port": args.port}
    config = configuration.from_process({k: v for k, v in flags.items() if v is not None})
    return run_gateway(config, Start.BOOT if args.boot else Start.ASKED)
