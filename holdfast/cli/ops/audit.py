"""`holdfast audit`: show who allowed what; `holdfast audit verify`: check that it is complete.

Both read the file itself, with or without a gateway.
"""

import argparse
from collections import deque
from pathlib import Path

from msgspec.structs import asdict

from holdfast.cli import output
from holdfast.cli.exits import Code
from holdfast.config import process as configuration
from holdfast.journal.audit import FILE, AuditLine, read, verify

NO_ENTRIES = "no entries"


def main(args: argparse.Namespace) -> int:
    """Show the latest entries, or verify all of them."""
    path = configuration.process_home() / FILE
    return _verify(path, args) if args.what == "verify" else _show(path, args)


def _show(path: Path, args: argparse.Namespace) -> int:
    lines = deque(read(path, args.run or ""), maxlen=max(args.last, 1))
    none = NO_ENTRIES + (f" about run {args.run}" if args.run else "")
    output.print_each(lines, _row, none, output.as_json if args.json else None)
    return Code.OK


def _row(line: AuditLine) -> str:
    at = output.local(line.at)
    who = f"{line.who}@{line.platform}" if line.platform else line.who
    named = {
        "run": line.run_id,
        "call": line.call_id,
        "request": line.request_id,
        "choice": line.choice,
        "rule": line.rule,
        "posture": line.posture,
        "execution": line.execution[:12],
    }
    words = [f"{name} {value}" for name, value in named.items() if value]
    row = f"{line.n:>6}  {at:%Y-%m-%d %H:%M:%S}  {line.kind:20} {who or '-':20} {', '.join(words)}"
    return _visible(f"{row}  {line.result}".rstrip())


def _visible(text: str) -> str:
    """Return one line without control characters."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _verify(path: Path, args: argparse.Namespace) -> int:
    found = verify(path)
    if args.json:
        print(output.as_json({"ok": not found.why, **asdict(found)}))
    elif found.why:
        print(f"broken at line {found.line} of {path}: {found.why}")
        print(f"{found.entries} entries before it are intact, up to {found.last}")
        print("do not edit the file; move it and its .head away to start a new one")
    else:
        torn = f", {found.torn} unfinished after a crash" if found.torn else ""
        print(f"complete: {found.entries} entries{torn}, up to {found.last}")
    return Code.FAILED if found.why else Code.OK
