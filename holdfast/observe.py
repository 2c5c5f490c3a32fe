"""Logging: one JSON object a line, a constant message plus fields.

Said once, where it is handled: `log.warning("run gave up", extra={"run_id": …})`.
No secrets and no message bodies: those are in the journal, or nowhere.
"""

import json
import logging
import logging.handlers
import sys
from pathlib import Path

log = logging.getLogger("holdfast")

CLI_LOG = "log/cli.jsonl"  # below the home: a terminal is no place for a log

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """A record as one line of JSON; whatever was passed as `extra` becomes fields."""

    def format(self, record: logging.LogRecord) -> str:  # type: ignore[explicit-override]  # 3.12
        line: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        line |= {k: v for k, v in record.__dict__.items() if k not in _OWN}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def setup(level: str, file: Path | None = None) -> None:
    """Send the log to stderr, or to `file`, which is kept small. Called once, at start."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            file, maxBytes=1_000_000, backupCount=1, encoding="utf-8", delay=True
        )
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # other people's libraries
    log.setLevel(level.upper())
