"""Logging: one JSON object a line, a constant message plus fields.

Said once, where it is handled: `log.warning("run gave up", extra={"run_id": …})`.
No message bodies: those are in the journal. No secrets: whatever a library or an
exception puts into a line, what is known to be one is taken out of it.

Whoever reads stderr may stop reading, and must not stop us: a thread of its own writes,
and what it cannot write in time is dropped and counted.
"""

import json
import logging
import logging.handlers
import os
import queue
import sys
from contextlib import suppress
from pathlib import Path

from holdfast.core.redaction import Redactor

log = logging.getLogger("holdfast")

CLI_LOG = "log/cli.jsonl"  # below the home: a terminal is no place for a log
WAITING = 4_096  # lines that may wait to be written
LAST_WORDS_S = 1.0

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


class _Queued(logging.handlers.QueueHandler):
    """Formats a line where it is said; the thread it starts writes it to `fd`."""

    def __init__(self, fd: int) -> None:
        self._waiting: queue.Queue[logging.LogRecord] = queue.Queue(WAITING)
        super().__init__(self._waiting)
        self._dropped = 0
        _Writer(self._waiting, fd).start()

    def emit(self, record: logging.LogRecord) -> None:  # type: ignore[explicit-override]  # 3.12
        """Have it written, or drop it; the next line for which there is room says how many."""
        if self._waiting.full():
            self._dropped += 1
            return
        if self._dropped:
            record.__dict__["dropped"], self._dropped = self._dropped, 0
        super().emit(record)

    def flush(self) -> None:  # type: ignore[explicit-override]  # 3.12
        """What an ordinary end of the process calls."""
        self.drain(LAST_WORDS_S)

    def drain(self, timeout_s: float) -> None:
        """Return when everything is written, or after `timeout_s`."""
        written = self._waiting.all_tasks_done
        with written:
            written.wait_for(lambda: not self._waiting.unfinished_tasks, timeout_s)


class _Writer(logging.handlers.QueueListener):
    """Writes without any lock: whoever ends the process must not wait for one it holds."""

    def __init__(self, waiting: "queue.Queue[logging.LogRecord]", fd: int) -> None:
        super().__init__(waiting)
        self._fd = fd

    def handle(self, record: logging.LogRecord) -> None:  # type: ignore[explicit-override]  # 3.12
        """Write one line. Blocks as long as nobody reads."""
        line = f"{record.msg}\n".encode("utf-8", "backslashreplace")
        with suppress(OSError):  # whoever read us may have left
            while line:
                line = line[os.write(self._fd, line) :]


def setup(level: str, file: Path | None = None) -> None:
    """Send the log to stderr, or to `file`, which is kept small. Called once, at start."""
    handler: logging.Handler = logging.NullHandler()
    if file is None and sys.stderr is not None:  # it is None if the process began without one
        handler = _Queued(sys.stderr.fileno())
    elif file is not None:
        file.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(
            file,
            maxBytes=1_000_000,
            backupCount=1,
            encoding="utf-8",
            errors="backslashreplace",
            delay=True,
        )
    handler.setFormatter(_LINES)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # other people's libraries
    log.setLevel(level.upper())


def flush(timeout_s: float) -> None:
    """Return when all that was said is written, or after `timeout_s`. For the way out."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Queued):
            handler.drain(timeout_s)
