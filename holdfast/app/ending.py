"""The end of the process.

The way down has one deadline. A timer thread, armed by the first signal, ends the process
whatever hangs; a second signal ends it at once. Neither is needed for anything to be correct: a
shutdown is a crash with courtesy.
"""

import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable

import anyio

from holdfast.config.process import Supervision
from holdfast.config.settings import Config
from holdfast.core.life.lifecycle import Reason, StartedBy, Supervisor, exit_code
from holdfast.core.types import Value
from holdfast.host.control import GatewayControl
from holdfast.host.lock import Lock
from holdfast.host.machine import exit_now, say
from holdfast.host.notify import Notifier
from holdfast.journal.sqlite.journal import SqliteJournal

log = logging.getLogger(__name__)

EXIT_AFTER_DRAIN_S = 9.0  # the net below the promise of drain + 10 s


class GatewayProcess(Value):
    """A gateway's process: what it was started with."""

    config: Config
    lock: Lock
    start: StartedBy
    watched: Supervision
    notifier: Notifier

    def exit_code(self, reason: Reason) -> int:
        return exit_code(reason, self.watched.by)


class Ending:
    """The end of the process, from the moment it is asked for.

    By a signal, which may come while it still starts, or by the operator. From then on the
    deadline runs, and a further signal ends the process at once.
    """

    def __init__(self, process: GatewayProcess) -> None:
        self._process = process
        self._asked = anyio.Event()
        self.asked_by = ""
        self.control: GatewayControl | None = None  # there is none while the gateway starts

    @property
    def reason(self) -> Reason:
        return self.control.reason if self.control is not None else Reason.SIGNAL

    async def hear(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Obey the signals, until cancelled."""
        async for number in signals:
            if self.asked_by:
                say("Second signal: ending at once.")
                exit_now(self._process.exit_code(self.reason))
            self._ask(number.name)

    async def wait(self, control: GatewayControl) -> Reason:
        """Return when the process is to end, and say why."""
        self.control = control
        async with anyio.create_task_group() as either:
            either.start_soon(self._hear_operator, control)
            await self._asked.wait()
            either.cancel_scope.cancel()
        return self.reason

    async def _hear_operator(self, control: GatewayControl) -> None:
        self._ask(f"holdfast gateway {await control.ended()}")

    def _ask(self, by: str) -> None:
        if not self.asked_by:
            self.asked_by = by
            after_s = self._process.config.gateway.drain_s + EXIT_AFTER_DRAIN_S
            arm_exit(after_s, lambda: self._process.exit_code(self.reason))
            self._asked.set()


async def end_if_broken(journal: SqliteJournal) -> None:
    reason = await journal.broken()
    log.critical("the journal is broken", extra={"reason": reason})
    say(f"The journal cannot be trusted any more: {reason}. Ending, to recover at the next start.")
    exit_now(exit_code(Reason.BROKEN, Supervisor.NONE))


def arm_exit(after_s: float, code: Callable[[], int]) -> None:
    """Whatever hangs: the process is gone by then."""
    timer = threading.Timer(after_s, lambda: os._exit(code()))
    timer.daemon = True
    timer.start()
