"""`holdfast audit`: who allowed what; `holdfast audit verify`: whether that is still all of it.

Both read the file itself, whether a gateway runs or not.
"""

import argparse
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from holdfast import config as configuration
from holdfast.cli.exits import Code
from holdfast.journal.audit import FILE, Line, read, verify


def main(args: argparse.Namespace) -> int:
    """Show the latest entries, or verify all of them."""
    path = configuration.process_home() / FILE
    return _verify(path, args) if args.what == "verify" else _show(path, args)


def _show(path: Path, args: argparse.Namespace) -> int:
    lines = deque(read(path, args.run or ""), maxlen=max(args.last, 1))
    for line in lines:
        print(msgspec.json.encode(line).decode() if args.json else _row(line))
    if not lines and not args.json:
        print("nothing has been recorded" + (f" of run {args.run}" if args.run else ""))
    return Code.OK


def _row(line: Line) -> str:
    at = datetime.fromtimestamp(line.at, UTC).astimezone()
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
    """One line that shows what is in it and steers no terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _verify(path: Path, args: argparse.Namespace) -> int:
    found = verify(path)
    if args.json:
        print(msgspec.json.encode({"ok": not found.why, **msgspec.structs.asdict(found)}).decode())
    elif found.why:
        print(f"broken at line {found.line} of {path}: {found.why}")
        print(f"{found.entries} entries before it are whole, up to {found.last}")
        print("keep the file as it is; move it and its .head away to begin a new one")
    else:
        torn = f", {found.torn} unfinished after a crash" if found.torn else ""
        print(f"whole: {found.entries} entries{torn}, up to {found.last}")
    return Code.FAILED if found.why else Code.OK
