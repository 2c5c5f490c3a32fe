"""Logging: one JSON object per line, a constant message plus fields.

An event is logged once, where it is handled: `log.warning("run gave up", extra={"run_id": …})`.
Message bodies are not logged; they are in the journal. Known secrets are removed from every line,
also if a library or an exception put them there.

A reader of stderr that stops reading must not block us: a separate thread writes, and lines that
it cannot write in time are dropped and counted.
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

CLI_LOG = "log/cli.jsonl"  # below the home: the log of terminal commands
WAITING = 4_096  # lines that may wait to be written
LAST_WORDS_S = 1.0
REPEATED_S = 10.0  # how seldom a library may repeat a message

_OWN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one line of JSON; the values of `extra` become fields."""

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
        # Again for the whole line, for secrets in nested values and keys.
        return clean(json.dumps(line, ensure_ascii=False, default=str))


_LINES = JsonFormatter()


def hide(redactor: Redactor) -> None:
    """Remove the secrets of `redactor` from all lines from now on."""
    _LINES.redactor = redactor


def clean(text: str) -> str:
    """Return `text` without known secrets."""
    return _LINES.redactor.clean(text)


class _Queued(logging.handlers.QueueHandler):
    """Formats a line in the calling thread; another thread, which it starts, writes it to `fd`."""

    def __init__(self, fd: int) -> None:
        self._waiting: queue.Queue[logging.LogRecord] = queue.Queue(WAITING)
        super().__init__(self._waiting)
        self._dropped = 0
        _Writer(self._waiting, fd).start()

    def emit(self, record: logging.LogRecord) -> None:  # type: ignore[explicit-override]  # 3.12
        """Queue a line, or drop it if the queue is full; the next line has the number dropped."""
        if self._waiting.full():
            self._dropped += 1
            return
        if self._dropped:
            record.__dict__["dropped"], self._dropped = self._dropped, 0
        super().emit(record)

    def flush(self) -> None:  # type: ignore[explicit-override]  # 3.12
        """Wait for the writer; called at an ordinary end of the process."""
        self.drain(LAST_WORDS_S)

    def drain(self, timeout_s: float) -> None:
        """Return when everything is written, or after `timeout_s`."""
        written = self._waiting.all_tasks_done
        with written:
            written.wait_for(lambda: not self._waiting.unfinished_tasks, timeout_s)


class _Writer(logging.handlers.QueueListener):
    """Writes without holding a lock, so that the exit of the process never waits for one."""

    def __init__(self, waiting: "queue.Queue[logging.LogRecord]", fd: int) -> None:
        super().__init__(waiting)
        self._fd = fd

    def handle(self, record: logging.LogRecord) -> None:  # type: ignore[explicit-override]  # 3.12
        """Write one line. Blocks until it is read."""
        line = f"{record.msg}\n".encode("utf-8", "backslashreplace")
        with suppress(OSError):  # the reader may have closed it
            while line:
                line = line[os.write(self._fd, line) :]


class _Repeats(logging.Filter):
    """Drops what a library has just said in the same words.

    Without descriptors, asyncio logs each of a hundred failed accepts every second, with a
    traceback; formatting them took a whole processor.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:  # type: ignore[explicit-override]  # 3.12
        text = record.getMessage()
        if 0 <= record.created - self._said.get(text, -REPEATED_S) < REPEATED_S:
            return False
        if len(self._said) >= WAITING:
            self._said.clear()
        self._said[text] = record.created
        return True


def setup(level: str, file: Path | None = None) -> None:
    """Send the log to stderr, or to `file`, which is rotated. Called once, at start."""
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
    root.setLevel(logging.WARNING)  # for libraries
    logging.getLogger("asyncio").filters[:] = [_Repeats()]
    log.setLevel(level.upper())


def flush(timeout_s: float) -> None:
    """Return when all lines are written, or after `timeout_s`. Called before the exit."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Queued):
            handler.drain(timeout_s)
