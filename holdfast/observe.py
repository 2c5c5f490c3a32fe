"""Logging: one JSON object a line, a constant message plus fields.

Said once, where it is handled: `log.warning("run gave up", extra={"run_id": …})`.
No message bodies: those are in the journal. No secrets: whatever a library or an
exception puts into a line, what is known to be one is taken out of it.
"""

import json
import logging
import logging.handlers
import sys
from pathlib import Path

from holdfast.core.redaction import Redactor

log = logging.getLogger("holdfast")

CLI_LOG = "log/cli.jsonl"  # below the home: a terminal is no place for a log

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON; whatever was passed as `extra` becomes fields."""

    def __init__(self) -> None:
        super().__init__()
        self.redactor = Redactor(())

    def format(self, record: logging.LogRecord) -> str:  # type: ignore[explicit-override]  # 3.12
        line: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in record.__dict__.items() if k not in _OWN}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        clean = self.redactor.clean
        line = {k: clean(v) if isinstance(v, str) else v for k, v in line.items()}
        # And the whole of it: nothing that comes into it, by whatever way, is forgotten.
        return clean(json.dumps(line, ensure_ascii=False, default=str))


_LINES = JsonLines()


def hide(redactor: Redactor) -> None:
    """From now on no line shows what `redactor` knows."""
    _LINES.redactor = redactor


def clean(text: str) -> str:
    """`text` as a line of the log would show it."""
    return _LINES.redactor.clean(text)


def setup(level: str, file: Path | None = None) -> None:
    """Send the log to stderr, or to `file`, which is kept small. Called once, at start."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            file, maxBytes=1_000_000, backupCount=1, encoding="utf-8", delay=True
        )
    handler.setFormatter(_LINES)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # other people's libraries
    log.setLevel(level.upper())
