"""`python -m bench`: one table, and JSON with `--json FILE`.

Floor and Holdfast run as real processes on loopback, in turn; the scripted model and the
driver are processes of their own and share the machine's cores with them.
"""

import argparse
import os
import platform
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench import sections
from bench.hands import hands
from bench.long import long
from bench.processes import Broken
from bench.sections import Bench, say, scripted_model
from bench.snapshots import snapshots
from bench.table import Figure, table
from bench.terminal import terminal

SECTIONS = {
    **sections.SECTIONS,
    "hands": hands,
    "snapshots": snapshots,
    "terminal": terminal,
    "long": long,
}
BUSY = 0.7  # load average above which somebody else was at work


class Report(msgspec.Struct, frozen=True):
    """What `--json` writes."""

    machine: str
    cores: int
    load_before: float
    quick: bool
    seconds: float
    broken: list[str]
    figures: list[Figure]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure Holdfast.")
    parser.add_argument("--quick", action="store_true", help="short rounds, for iterating")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="one section")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument("--floor-only", action="store_const", dest="names", const=["floor"])
    alone.add_argument("--holdfast-only", action="store_const", dest="names", const=["holdfast"])
    parser.set_defaults(names=["floor", "holdfast"])
    return parser.parse_args()


def measure(args: argparse.Namespace) -> tuple[list[Figure], list[str]]:
    """Every section asked for; one that breaks is told and does not hide the others."""
    figures: list[Figure] = []
    broke: list[str] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as home:
        with scripted_model(Path(home)) as model:
            bench = Bench(args.names, args.quick, Path(home), model)
            for name in args.only or SECTIONS:
                say(f"{name} …")
                try:
                    figures.extend(SECTIONS[name](bench))
                except Broken as broken:
                    say(f"BROKEN {name}: {broken}")
                    broke.append(name)
    return figures, broke


def prepare() -> None:
    """Files enough for 1,000 streams, for us and our children; SIGTERM ends them with us."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def main() -> int:
    args = arguments()
    prepare()
    load, started = os.getloadavg()[0], time.monotonic()
    figures, broke = measure(args)
    seconds = round(time.monotonic() - started, 1)
    print(table(figures))
    for name in broke:
        print(f"BROKEN: {name}, see above")
    print(f"\n{seconds} s on {os.cpu_count()} cores, load before {load:.2f}")
    if load > BUSY:
        print("The machine was busy: take no verdict from this run, ratios included.")
    if args.json:
        report = Report(
            platform.platform(), os.cpu_count() or 0, load, args.quick, seconds, broke, figures
        )
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 1 if broke else 0


if __name__ == "__main__":
    sys.exit(main())
