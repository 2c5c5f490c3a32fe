"""`holdfast gateway run`: serve until a signal comes."""

import argparse

from holdfast.app.gateway import run_gateway
from holdfast.config import process as configuration
from holdfast.core.life.lifecycle import StartedBy


def main(args: argparse.Namespace) -> int:
    """Serve, and return the exit code."""
    flags = {"gateway.host": args.host, "gateway.port": args.port}
    config = configuration.from_process({k: v for k, v in flags.items() if v is not None})
    return run_gateway(config, StartedBy.BOOT if args.boot else StartedBy.ASKED)
